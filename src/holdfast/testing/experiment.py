"""An experiment: the same run undisturbed, twice, and then with faults; are the weights the same?

    result = run(script, words=["epochs=3"], plan=FaultPlan.parse("sigkill@17,hang@30"))
    result.receipt["weights_equal"]      # True, False, or None where the job is not deterministic by itself

Every run is a `holdfast train` of its own, in its own process, so even the supervisor may be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.base.errors import HoldfastError, InternalError
from holdfast.base.errors import from_json as error_from_json
from holdfast.base.state_folder import VARIABLE as STATE
from holdfast.devices.ledger import LEDGER, state_folder
from holdfast.injection.chaos import VARIABLE, FaultPlan
from holdfast.run import seal
from holdfast.run.folder import read_events
from holdfast.run.states import RunState
from holdfast.state import layout
from holdfast.testing import bounded, logged

MAX_RESUMES = 20
POLL_S = 0.05
"""Between two looks for the folder of a run that was started."""
TUNING = "tuning.json"
"""What the tuner remembers for this machine; the name is that of holdfast.planning.records, which needs torch."""


@dataclass(slots=True)
class Result:
    """What the experiment showed."""

    summary: dict[str, Any]
    """The chaos run as `train --json` prints it, its receipt extended by the comparison."""
    references: list[dict[str, Any]] = field(default_factory=list)

    @property
    def receipt(self) -> dict[str, Any]:
        receipt: dict[str, Any] = self.summary["receipt"]
        return receipt


def run(
    script: Path,
    words: list[str],
    make_plan: Callable[[int], FaultPlan],
    *,
    runs: Path,
    references: int = 2,
    flags: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
    left_s: Callable[[], float] | None = None,
    at_once: bool = False,
) -> Result:
    """Reference runs, then the run with faults; `make_plan` is given the number of steps a run has.

    `left_s` tells how many seconds are left for all of it; bounded.OutOfTime where they are over. `at_once` trains one
    reference beside the run with faults; the number of steps is not known then, and `make_plan` is given 0.
    """
    words = [*words, *flags]
    if at_once:
        plan = make_plan(0)
        with _Beside(script, words, runs, left_s) as beside:
            say(f"a reference run, and beside it a run with {len(plan.faults)} faults: {_in_words(plan)}")
            summary, injected = _with_faults(script, words, runs, plan, left_s)
            if beside.running:
                say("waiting for the reference run")
            done = [_complete(beside.summary())]
    else:
        done = []
        for number in range(references):
            say(f"reference run {number + 1} of {references}")
            done.append(_complete(_train(script, words, runs, None, left_s)))
        plan = make_plan(int(done[0]["receipt"]["steps"]) if done else 1000)
        say(f"run with {len(plan.faults)} faults: {_in_words(plan)}")
        summary, injected = _with_faults(script, words, runs, plan, left_s)
    _compare(summary, done, injected=injected, planned=len(plan.faults))
    return Result(summary, done)


def _with_faults(
    script: Path, words: list[str], runs: Path, plan: FaultPlan, left_s: Callable[[], float] | None
) -> tuple[dict[str, Any], int]:
    """The run with faults, and how many of them came."""
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as scratch:
        path = Path(scratch) / "plan.json"
        plan.write(path)
        summary = _train(script, words, runs, path, left_s)
        return summary, len(list(path.with_suffix(".fired").glob("*")))


class _Beside:
    """A reference run in a thread of ours, without a word on the screen.

    `with` waits until its folder is there: the run with faults, and its resumes, must not be taken for it.
    """

    def __init__(self, script: Path, words: list[str], runs: Path, left_s: Callable[[], float] | None) -> None:
        self._runs = runs
        self._process: subprocess.Popen[str] | None = None
        self._failed: BaseException | None = None
        self._summary: dict[str, Any] | None = None
        self._work: Callable[[], dict[str, Any]] = lambda: _train(
            script, [*words, "-q"], runs, None, left_s, started=self._started
        )
        self._thread = threading.Thread(target=self._run, name="reference run", daemon=True)

    def __enter__(self) -> _Beside:
        before = set(_folders(self._runs))
        self._thread.start()
        while self.running and set(_folders(self._runs)) <= before:
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self.running and self._process is not None:
            bounded.end(self._process)
        self._thread.join(bounded.GRACE_S)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def summary(self) -> dict[str, Any]:
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        assert self._summary is not None
        return self._summary

    def _started(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _run(self) -> None:
        try:
            self._summary = self._work()
        except BaseException as error:  # the edge of a thread: `summary` raises it in the other
            self._failed = error


def _train(
    script: Path,
    words: list[str],
    runs: Path,
    plan: Path | None,
    left_s: Callable[[], float] | None,
    started: Callable[[subprocess.Popen[str]], None] | None = None,
) -> dict[str, Any]:
    """One run to its end; a supervisor that was killed is followed by `resume`.

    With `started` it says nothing on the screen.
    """
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if plan is not None:
        env[VARIABLE] = str(plan)
    before = set(_folders(runs))
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-state-") as state:
        env[STATE] = str(own_ledger(Path(state)))
        summary, code = _command(["train", str(script), *words, f"run.folder={runs}", "--json"], env, left_s, started)
        resumes = 0
        while summary is None and code < 0 and resumes < MAX_RESUMES:
            made = [folder for folder in _folders(runs) if folder not in before]
            if not made:
                break
            resumes += 1
            summary, code = _command(["resume", str(made[-1]), "--json"], env, left_s)
        if plan is None:
            _keep_tuning(Path(state))
    if summary is None:
        raise InternalError(f"`holdfast train` ended with {code} and said nothing")
    return summary


def own_ledger(folder: Path) -> Path:
    """A copy of the user's ledger: each run knows what is known, and no injected fault is held against a device."""
    seal.key()  # what is made here can be resumed by the user, who has the same one
    for name in (LEDGER, TUNING, seal.KEY):
        with contextlib.suppress(OSError):
            shutil.copy(state_folder() / name, folder / name)
    return folder


def _keep_tuning(state: Path) -> None:
    """What an undisturbed run measured: the others must compute in the same way, or their bits cannot be compared."""
    with contextlib.suppress(OSError):
        state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(state / TUNING, state_folder() / TUNING)


def _folders(runs: Path) -> list[Path]:
    found = [entry for entry in runs.iterdir() if (entry / "run.json").exists()] if runs.is_dir() else []
    return sorted(found, key=lambda entry: entry.stat().st_mtime)


def _command(
    words: list[str],
    env: dict[str, str],
    left_s: Callable[[], float] | None,
    started: Callable[[subprocess.Popen[str]], None] | None = None,
) -> tuple[dict[str, Any] | None, int]:
    command = interpreter.module("holdfast", *words)
    limit = left_s() if left_s is not None else None
    if started is None:
        done = bounded.run(command, limit_s=limit, env=env, keep_errors=False)
    else:
        done = bounded.run(command, limit_s=limit, env=env, started=started)
    try:
        data = json.loads(done.out)
    except ValueError:
        return None, done.code
    return data if isinstance(data, dict) else None, done.code


def _complete(summary: dict[str, Any]) -> dict[str, Any]:
    """A reference run must finish: an experiment without one shows nothing."""
    if summary.get("state") == RunState.FINISHED:
        return summary
    error = summary.get("error")
    if isinstance(error, dict):
        raise error_from_json(error)
    raise HoldfastError(f"the reference run ended as {summary.get('state')}")


def _compare(summary: dict[str, Any], references: list[dict[str, Any]], *, injected: int, planned: int) -> None:
    receipt = summary.setdefault("receipt", {})
    digests = {reference["receipt"]["weights_sha256"] for reference in references}
    sha256 = receipt.get("weights_sha256")
    receipt["faults_planned"], receipt["faults_injected"] = planned, injected
    receipt["reference_sha256"] = references[0]["receipt"]["weights_sha256"] if references else None
    receipt["weights_equal"], receipt["why"] = weights_verdict(digests, len(references), sha256)
    folders = [Path(reference["folder"]) for reference in references]
    numbers = logged.read(Path(summary["folder"])) if sha256 is not None else {}
    receipt["logged_equal"], receipt["logged_why"] = logged.compare([logged.read(each) for each in folders], numbers)
    inexact = _inexact(Path(summary["folder"])) if sha256 is not None else None
    receipt["exact"] = inexact is None
    if inexact is not None and receipt["weights_equal"] is False:
        receipt["weights_equal"], receipt["why"] = None, inexact
        receipt["logged_equal"], receipt["logged_why"] = None, inexact
    receipt["max_rel_diff"] = None
    if references and sha256 is not None:
        receipt["max_rel_diff"] = max_relative_difference(
            Path(references[0]["folder"]) / "final.safetensors", Path(summary["folder"]) / "final.safetensors"
        )


def weights_verdict(digests: set[str | None], references: int, sha256: str | None) -> tuple[bool | None, str]:
    if sha256 is None:
        return False, "the run with faults did not finish"
    if references == 0:
        return None, "there is no training without faults to compare with"
    if references == 1 and sha256 not in digests:
        return None, "the weights differ from those of one undisturbed run; two tell whether the job repeats itself"
    if references == 1:
        return True, "the weights are those of the undisturbed run, bit for bit"
    if len(digests) > 1:
        return None, "two undisturbed runs differ from each other: the job is not deterministic by itself"
    if sha256 in digests:
        return True, "the weights are those of the undisturbed runs, bit for bit"
    return False, "the weights differ from those of two equal undisturbed runs"


def _inexact(folder: Path) -> str | None:
    """Why equal bits cannot be asked for: a step was computed in another way than in the undisturbed run."""
    words = {
        "split": "a batch was computed in pieces after out of memory, which adds up in another order",
        "cpu_batch": "a batch was computed on the CPU, which rounds in another way",
        "next_rung": "the run moved to another device, which rounds in another way",
    }
    actions = {event.data.get("action") for event in read_events(folder / "journal.jsonl") if event.kind == "fault"}
    return next((why for action, why in words.items() if action in actions), None)


def max_relative_difference(reference: Path, other: Path) -> float | None:
    """The largest difference of any weight, relative to the largest weight of its tensor."""
    import numpy

    worst = 0.0
    ours, theirs = _weights(other), _weights(reference)
    if ours.keys() != theirs.keys():
        return None
    for name, wanted in theirs.items():
        if wanted.size == 0:
            continue
        difference = float(numpy.abs(ours[name] - wanted).max())
        scale = float(numpy.abs(wanted).max()) or 1.0
        worst = max(worst, difference / scale)
    return worst


def _weights(path: Path) -> dict[str, Any]:
    """The floating-point tensors of a safetensors file as float64."""
    import numpy

    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    data = path.read_bytes()
    entries, start = layout.parse_header(data)
    found = {}
    for entry in entries:
        raw = data[start + entry.start : start + entry.stop]
        if entry.dtype in kinds:
            found[entry.name] = numpy.frombuffer(raw, kinds[entry.dtype]).astype("f8")
        elif entry.dtype == "BF16":
            widened = numpy.frombuffer(raw, "<u2").astype("<u4") << 16
            found[entry.name] = widened.view("<f4").astype("f8")
    return found


def _in_words(plan: FaultPlan) -> str:
    kinds: dict[str, int] = {}
    for fault in plan.faults:
        kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
