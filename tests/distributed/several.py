"""`holdfast launch` of the test job on several machines (machines.py), which a test lets go on from event to event.

with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, wait="8 16") as launch:
    launch.until(lambda: launch.waits_for(8, 2))        # all ranks have come to step 8
    machines.cut(1); launch.go(8)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from holdfast.distributed import roster
from holdfast.distributed.job import Job
from holdfast.distributed.rank_watch import Boards, Seen
from holdfast.run.folder import RunFolder, list_runs
from tests.distributed import job as script
from tests.distributed.launched import JOB, PATIENCE, ROOT, used_samples
from tests.distributed.machines import Machines


class Several:
    """One launch on several machines, and what its ranks show."""

    def __init__(
        self,
        machines: Machines,
        folder: Path,
        nodes: int,
        *words: str,
        nproc: int = 1,
        wait: str = "",
        snapshot: str = "auto",
        clocks: dict[int, float] | None = None,
        env: dict[str, str] | None = None,
        start: bool = True,
        path: Path | str = script.__file__,
        **job: Any,
    ) -> None:
        self.machines = machines
        self.folder = folder
        self.nodes = nodes
        self.nproc = nproc
        self.seen = folder / "seen"
        self.seen.mkdir(exist_ok=True)
        given = {**(JOB if path == script.__file__ else {}), **job, "seen": self.seen}
        given |= {"run.threads": 1, "snapshot.every": snapshot}
        self._given = {**given, **({"wait": wait} if wait else {})}
        self._words = words
        self._clocks = clocks or {}
        self._env = env or {}
        self.path = path
        self.processes: dict[int, subprocess.Popen[Any]] = {}
        self._boards: dict[int, Boards] = {}
        for number in range(nodes if start else 0):
            self.start(number)

    def start(
        self,
        number: int,
        *words: str,
        path: Path | str | None = None,
        changes: dict[str, Any] | None = None,
        resume: str | None = None,
        **env: str,
    ) -> None:
        """`holdfast launch` on this machine, with a run folder of its own.

        `changes`: arguments and settings that are others here. `resume`: the run to go on with, instead of the script.
        """
        home = self.home(number)
        home.mkdir(exist_ok=True)
        given = {**self._given, "run.folder": home, **(changes or {})}
        command = [sys.executable, "-m", "holdfast", "launch", "--nproc", str(self.nproc), "--nodes", str(self.nodes)]
        command += ["--node-rank", str(number), "--master", self.machines.address(0), *self._words, *words]
        asked = [str(path or self.path), *(f"{key}={value}" for key, value in given.items())]
        asked = asked if resume is None else ["--resume", resume, "--folder", str(home)]
        where = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(home / "stderr.txt", "ab") as errors, open(home / "stdout.txt", "wb") as prints:
            self.processes[number] = self.machines.popen(
                number,
                [*command, *asked, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=errors,
                clock=self._clocks.get(number, 0.0),
                env={**os.environ, "PYTHONPATH": where, "HOLDFAST_STATE": str(home / "state"), **self._env, **env},
                cwd=home,
            )
        self._boards.pop(number, None)

    def home(self, number: int) -> Path:
        return self.folder / f"machine-{number}"

    def __enter__(self) -> Several:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for number in self.processes:
                print(f"== machine {number}\n{self.said(number)}\n{self.printed(number)}")
                with contextlib.suppress(Exception):
                    print([(each.rank, each.pid, each.beat) for each in self.ranks(number)], self.roster())
        for number in self.processes:
            self.machines.kill(number)
        for each in self.processes.values():
            each.wait()

    # -- looking -------------------------------------------------------------------------------------------

    def until(self, holds: Callable[[], Any], patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not holds():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.01)

    def job(self, number: int) -> Job | None:
        """The folder of the ranks of this machine, which lies in its own /dev/shm."""
        if number not in self._boards:
            process = self.processes[number]
            for path in Path("/proc", str(process.pid), "root", "dev", "shm").glob("holdfast-job-*/owner.json"):
                with contextlib.suppress(OSError, ValueError):
                    if json.loads(path.read_text())["pid"] == process.pid:
                        self._boards[number] = Boards(Job(path.parent))
        return self._boards[number].job if number in self._boards else None

    def ranks(self, number: int) -> list[Seen]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return self._boards[number].look() if self.job(number) is not None else []
        return []

    def pids(self) -> dict[int, int]:
        """By seat, on all machines."""
        return {each.rank: each.pid for number in self.processes for each in self.ranks(number)}

    def roster(self) -> roster.Roster | None:
        job = self.job(0)
        return None if job is None else roster.read(job)

    def waits_for(self, step: int, ranks: int) -> bool:
        """Whether so many ranks, those of the roster, stand before this step."""
        now = self.roster()
        if now is None or now.ranks != ranks:
            return False
        at = []
        for number in set(now.machines):
            job = self.job(number)
            own = None if job is None else roster.read(job)
            if own is None or own.number != now.number:
                return False
            at += [each for each in self.ranks(number) if each.pid in own.here and each.beat.attempt == step - 1]
        return len(at) == ranks and all(each.beat.phase.label == "loop" for each in at)

    def is_invited(self) -> bool:
        """New ranks wait, and those that train are asked to meet them."""
        now, job = self.roster(), self.job(0)
        return now is not None and job is not None and roster.invited(job, now.number)

    def step(self) -> int:
        """Steps that the ranks of the first machine have committed."""
        return max((each.beat.step for each in self.ranks(0)), default=0)

    def said(self, number: int) -> str:
        return (self.home(number) / "stderr.txt").read_text()

    def printed(self, number: int) -> str:
        return (self.home(number) / "stdout.txt").read_text()

    def let_go(self, number: int) -> None:
        """Close what is open of this machine's memory, so that it can be taken away."""
        if number in self._boards:
            self._boards.pop(number).close()

    # -- doing ---------------------------------------------------------------------------------------------

    def go(self, step: int) -> None:
        (self.seen / f"go-{step}").touch()

    def kill(self, seat: int) -> None:
        os.kill(self.pids()[seat], signal.SIGKILL)

    # -- the end -------------------------------------------------------------------------------------------

    def end(self, number: int, patience: float = PATIENCE) -> dict[str, Any]:
        """What the launch of this machine prints at its end."""
        self.processes[number].wait(patience)
        text = self.printed(number)
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def finish(self) -> dict[str, Any]:
        """All machines end well; what the first one prints."""
        ended = {number: self.end(number) for number in self.processes}
        assert {number: each.returncode for number, each in self.processes.items()} == dict.fromkeys(ended, 0), ended
        return ended[0]

    @property
    def run(self) -> RunFolder:
        (found,) = list_runs(self.home(0))
        return found

    def notes(self) -> list[str]:
        return [str(event.data.get("text")) for event in self.run.events() if event.kind == "note"]

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.run.path / "final.safetensors")

    def samples(self) -> dict[int, Counter[int]]:
        return used_samples(self.seen)
