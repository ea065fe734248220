"""An experiment with a script that nobody changed: undisturbed, then under `--exact` with kills; is it the same?

    plan = lambda steps: draw(10, steps=steps, seed=0)
    result = run(["python", "train.py"], plan, folder=Path.cwd(), runs=Path("runs"))
    result.receipt["weights_equal"], result.receipt["lines_equal"], result.receipt["files_equal"]

An undisturbed run is one of `holdfast run` without --exact, which passes everything through: the script by itself. Each
run begins in a copy of the folder. Compared are a checksum of all that its optimizers train, as the script ends; what
it printed to stdout; and the files that it wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.base.errors import HoldfastError, InternalError, UserError
from holdfast.base.files import read_json
from holdfast.base.state_folder import VARIABLE as STATE
from holdfast.console.output import counted
from holdfast.run.folder import RunFolder, name_of
from holdfast.testing import bounded, printed, written
from holdfast.testing.experiment import Result, own_ledger, weights_verdict
from holdfast.testing.script_copy import Copies, Written
from holdfast.testing.script_signals import Planned, send_at

WEIGHTS = "HOLDFAST_WEIGHTS"
MANY = "retry.without_progress=1000"
"""A script that is killed again before its next commit is no reason to give up: we kill it."""


class NotRepeated(HoldfastError):
    """The script does not even finish undisturbed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run to its end."""

    code: int
    folder: Path
    receipt: dict[str, Any]
    lines: list[str]
    files: dict[str, Written]
    sha256: str | None
    seconds: float
    sent: list[Planned]


def run(
    command: list[str],
    make_plan: Callable[[int], list[Planned]],
    *,
    folder: Path,
    runs: Path,
    words: Sequence[str] = (),
    references: int = 2,
    seed: int = 0,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Reference runs, then the run with kills; `make_plan` is given the number of steps that a run has."""
    copies = Copies(folder, leave=runs)
    stage = _Stage(command, list(words), copies, runs.absolute(), quiet)
    done = []
    for number in range(references):
        say(f"undisturbed run {number + 1} of {references}")
        done.append(_finished(stage.run([])))
    steps = int(done[0].receipt.get("steps") or 0)
    if not steps:
        raise UserError(
            "no step of an optimizer was seen",
            cause="the script is killed at steps, which are counted where Python code uses an optimizer of torch",
        )
    plan = make_plan(steps)
    places = ", ".join(f"{each.kind}@{each.step}" for each in plan)
    say(f"run with --exact and {counted(len(plan), 'fault')}: {places}")
    killed = stage.run(plan, seed=seed)
    return Result(_summary(killed, done, planned=len(plan)), [_facts(each) for each in done])


def _finished(ran: Ran) -> Ran:
    if ran.code or ran.receipt.get("faults"):
        raise NotRepeated(
            "the script did not finish an undisturbed run",
            cause=f"exit code {ran.code}",
            hints=[f"`holdfast show {ran.folder}` has what it printed"],
        )
    return ran


class _Stage:
    """What all runs of the experiment have in common."""

    def __init__(self, command: list[str], words: list[str], copies: Copies, runs: Path, quiet: bool) -> None:
        self._command, self._words, self._copies, self._runs, self._quiet = command, words, copies, runs, quiet

    def run(self, plan: list[Planned], *, seed: int = 0) -> Ran:
        exact = ["--exact", MANY] if plan else []
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as scratch,
            self._copies.one() as folder,
            open(Path(scratch) / "stdout", "wb") as out,
        ):
            weights = Path(scratch) / "weights.json"
            words = [
                "run",
                *exact,
                *self._words,
                f"run.folder={self._runs}",
                "--",
                *self._copies.command(self._command),
            ]
            env = {"PYTHONHASHSEED": "0", **os.environ, WEIGHTS: str(weights)}
            env[STATE] = str(own_ledger(Path(scratch)))
            before = set(_folders(self._runs))
            began = time.monotonic()
            process = subprocess.Popen(
                interpreter.module("holdfast", *words),
                cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.DEVNULL if self._quiet else None,
            )  # fmt: skip
            found = _Found(self._runs, before, process.pid)
            try:
                sent = send_at(process, found.board, plan, seed=seed)
            finally:
                if process.poll() is None:
                    _end(process)
            place = found.folder()
            if place is None:
                raise InternalError(f"`holdfast run` ended with {process.returncode} and made no run")
            text = (Path(scratch) / "stdout").read_bytes().decode(errors="replace")
            return Ran(
                process.returncode,
                place,
                RunFolder.open(place).receipt() or {},
                text.splitlines(),
                self._copies.written(folder),
                (read_json(weights) or {}).get("sha256"),
                time.monotonic() - began,
                sent,
            )


class _Found:
    """The folder of the run that a process makes."""

    def __init__(self, runs: Path, before: set[Path], pid: int) -> None:
        self._runs, self._before, self._pid = runs, before, pid
        self._folder: Path | None = None

    def folder(self) -> Path | None:
        if self._folder is None:
            new = [each for each in _folders(self._runs) if each not in self._before]
            self._folder = next((each for each in new if _pid(each) == self._pid), None)
        return self._folder

    def board(self) -> Path | None:
        folder = self.folder()
        return folder / "script" / "board" if folder is not None else None


def _folders(runs: Path) -> list[Path]:
    return [entry for entry in runs.iterdir() if (entry / "run.json").exists()] if runs.is_dir() else []


def _pid(folder: Path) -> int | None:
    return (read_json(folder / "run.json") or {}).get("pid")


def _end(process: subprocess.Popen[bytes]) -> None:
    for way in (process.terminate, process.kill):
        way()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(bounded.GRACE_S)
            return


# -- comparing -------------------------------------------------------------------------------------------------------


def _summary(killed: Ran, references: list[Ran], *, planned: int) -> dict[str, Any]:
    receipt = dict(killed.receipt)
    receipt["survived"] = bool(receipt.get("survived")) and killed.code == 0
    receipt["faults_planned"], receipt["faults_injected"] = planned, len(killed.sent)
    receipt["killed_at"] = [each.step for each in killed.sent]
    receipt["reference_sha256"], receipt["weights_sha256"] = references[0].sha256, killed.sha256
    finished = killed.code == 0
    if not finished:
        receipt["weights_equal"], receipt["why"] = False, f"the run with faults ended with exit code {killed.code}"
    elif any(each.sha256 is None for each in references):
        receipt["weights_equal"], receipt["why"] = None, "the script's end was not seen, so its weights are not known"
    else:
        digests = {each.sha256 for each in references}
        receipt["weights_equal"], receipt["why"] = weights_verdict(digests, len(references), killed.sha256)
    lines, why = printed.compare([each.lines for each in references], killed.lines)
    receipt["lines_equal"], receipt["lines_why"] = (lines, why) if finished else (False, "the run did not finish")
    files, why = written.compare([each.files for each in references], killed.files)
    receipt["files_equal"], receipt["files_why"] = (files, why) if finished else (False, "the run did not finish")
    return {**_facts(killed), "receipt": receipt}


def _facts(ran: Ran) -> dict[str, Any]:
    return {
        "run": name_of(ran.folder),
        "folder": str(ran.folder),
        "exit_code": ran.code,
        "seconds": round(ran.seconds, 3),
        "receipt": json.loads(json.dumps(ran.receipt)),
    }
