"""How the tests run scripts: alone, and under `holdfast run` as a process of its own.

alone = by_itself(folder, SCRIPTS / "plain_script.py", "--steps", "30")
watched = under_run(folder, [...], settings=["watchdog.loop=2s"], fault="kill@12")
watched.code, watched.out, watched.err, watched.receipt, watched.faults
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.run.folder import RunFolder, list_runs, read_events

HERE = Path(__file__).parent
SCRIPTS, FAULTS = HERE / "scripts", HERE / "faults"
SOURCE = HERE.parents[2] / "src"
PATIENCE = 100.0


@dataclass(slots=True)
class Ran:
    """What became of a command."""

    code: int
    out: bytes
    err: bytes
    seconds: float
    folder: Path
    run: RunFolder | None = None
    receipt: dict[str, Any] = field(default_factory=dict)

    @property
    def events(self) -> list[Any]:
        return list(read_events(self.run.path / "journal.jsonl")) if self.run is not None else []

    @property
    def faults(self) -> list[str]:
        return [event.data["kind"] for event in self.events if event.kind == "fault"]

    @property
    def restarts(self) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == "restart"]

    @property
    def notes(self) -> list[str]:
        return [str(event.data.get("text")) for event in self.events if event.kind == "note"]

    @property
    def said(self) -> str:
        """Lines of ours."""
        return "\n".join(line for line in self.err.decode().splitlines() if line.startswith("holdfast  "))

    def story(self) -> str:
        """All that is needed to find out what happened, where nobody can look at the run folder afterwards."""
        tail = self.err.decode(errors="replace")[-3000:]
        told = [f"{event.time} {event.kind} {event.data}"[:400] for event in self.events if event.kind != "epoch"]
        parts = {
            "stdout": self.out.decode(errors="replace")[-1500:],
            "stderr": tail,
            "journal": "\n".join(told[-40:]),
            "receipt": json.dumps(self.receipt),
            "saves": json.dumps(self.info.get("saves")),
            "checkpoints": "\n".join(f"{path.stat().st_mtime_ns} {path}" for path in self.folder.rglob("*.pt")),
        }
        head = f"exit code {self.code} after {self.seconds:.1f} s"
        return "\n".join([head, *(f"--- {name}\n{text}" for name, text in parts.items())])

    @property
    def info(self) -> dict[str, Any]:
        return self.run.info if self.run is not None else {}


def environment(folder: Path, fault: str = "", **more: str) -> dict[str, str]:
    path = [str(FAULTS), str(SOURCE)] if fault else [str(SOURCE)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    if fault:
        env |= {"FAULT": fault, "FAULT_DONE": str(folder / "fault.done")}
    return {**env, **more}


def by_itself(
    folder: Path,
    *words: object,
    fault: str = "",
    stdin: bytes | None = None,
    patience: float = PATIENCE,
    **more: str,
) -> Ran:
    folder.mkdir(exist_ok=True, parents=True)
    return _run(folder, [sys.executable, *map(str, words)], environment(folder, fault, **more), stdin, patience)


_EACH_IN_A_FORK = """
import json, os, runpy, sys, traceback
import torch, torch._dynamo, torch.utils.data

for folder, words in json.load(sys.stdin):
    if not (pid := os.fork()):
        code = 1
        try:
            os.chdir(folder)
            for fd, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
            sys.argv, sys.path[0] = words, os.path.dirname(words[0])
            runpy.run_path(words[0], run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def all_by_themselves(*jobs: tuple[Path, list[object]]) -> list[Ran]:
    """Undisturbed runs to compare with: (folder, [script, word, …]). They share one import of torch."""
    for folder, _ in jobs:
        folder.mkdir(exist_ok=True, parents=True)
    given = json.dumps([[str(folder), list(map(str, words))] for folder, words in jobs]).encode()
    where = jobs[0][0]
    done = _run(where, [sys.executable, "-c", _EACH_IN_A_FORK], environment(where), given, PATIENCE * len(jobs))
    assert done.code == 0, done.err.decode()
    return [
        Ran(int(code), (folder / ".out").read_bytes(), (folder / ".err").read_bytes(), done.seconds, folder)
        for (folder, _), code in zip(jobs, done.out.split(), strict=True)
    ]


def holdfast(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.main", *words]


def under_run(
    folder: Path,
    *words: object,
    settings: tuple[str, ...] = (),
    fault: str = "",
    stdin: bytes | None = None,
    command: list[str] | None = None,
    patience: float = PATIENCE,
    **more: str,
) -> Ran:
    """`holdfast run SETTINGS -- python WORDS`, or another command, in a folder of its own."""
    folder.mkdir(exist_ok=True, parents=True)
    whole = command or [sys.executable, *map(str, words)]
    ran = _run(folder, holdfast("run", *settings, "--", *whole), environment(folder, fault, **more), stdin, patience)
    runs = list_runs(folder / "runs")
    if runs:
        ran.run = runs[-1]
        ran.receipt = ran.run.receipt() or {}
    return ran


def _run(folder: Path, command: list[str], env: dict[str, str], stdin: bytes | None, patience: float = PATIENCE) -> Ran:
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, timeout=patience, check=False,
        **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - began, folder)


def weights(folder: Path) -> dict[str, Any]:
    import torch

    return dict(torch.load(folder / "final.pt", map_location="cpu", weights_only=True))


def same_weights(first: Path, second: Path) -> bool:
    import torch

    one, other = weights(first), weights(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def beat_of(folder: Path) -> dict[str, Any]:
    runs = list_runs(folder / "runs")
    if not runs:
        return {}
    try:
        return dict(json.loads((runs[-1].path / "beat.json").read_text()))
    except (OSError, ValueError):
        return {}
