"""`holdfast launch` of the test job as a real process, which a test lets go on from event to event.

with Launched(tmp_path, 4, "--min-ranks", "2", wait="8 16") as launch:
    launch.until(lambda: launch.waits_for(8))       # all ranks have come to step 8
    launch.kill(2); launch.go(8)
"""

from __future__ import annotations

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
from holdfast.injection import away
from holdfast.run.folder import RunFolder, list_runs
from holdfast.run.settings import Settings
from holdfast.worker.local_run import run_local
from tests.distributed import job as script

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
JOB = {"plain": True, "double": True, "length": 60, "batch": 12, "epochs": 6}
"""30 steps, five in each epoch."""


class Launched:
    """One launch, and what its ranks show."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        *words: str,
        wait: str = "",
        snapshot: str = "auto",
        env: dict[str, str] | None = None,
        path: Path | str = script.__file__,
        **job: Any,
    ) -> None:
        self.folder = folder
        self.seen = folder / "seen"
        self.seen.mkdir(exist_ok=True)
        self.away = {seat: folder / f"away-{seat}" for seat in range(ranks)}
        given = {**(JOB if path == script.__file__ else {}), **job, "seen": self.seen}
        given |= {
            "run.folder": folder,
            "run.threads": 1,
            "snapshot.every": snapshot,
            **({"wait": wait} if wait else {}),
        }
        where = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        gone = ",".join(f"{seat}={path}" for seat, path in self.away.items())
        many = () if "--devices" in words else ("--nproc", str(ranks))
        command = [sys.executable, "-m", "holdfast", "launch", *many, *words, str(path)]
        self.process = subprocess.Popen(
            [*command, *(f"{key}={value}" for key, value in given.items()), "--json", "-q"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": where, away.VARIABLE: gone, **(env or {})},
            cwd=folder,
        )
        self._boards: Boards | None = None

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            time.sleep(0.5)
            self.process.terminate()  # twice: now, not at the next step, which a rank that waits never comes to
        self.process.communicate()

    # -- looking -------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert self.process.poll() is None, "the launch has ended"
            assert time.monotonic() < deadline, [each.beat for each in self.ranks()]
            time.sleep(0.01)

    @property
    def job(self) -> Job | None:
        if self._boards is None:
            for path in Path("/dev/shm").glob("holdfast-job-*/owner.json"):
                try:
                    if json.loads(path.read_text())["pid"] == self.process.pid:
                        self._boards = Boards(Job(path.parent))
                except (OSError, ValueError):
                    continue
        return None if self._boards is None else self._boards.job

    def ranks(self) -> list[Seen]:
        return self._boards.look() if self.job is not None and self._boards is not None else []

    def roster(self) -> roster.Roster | None:
        return None if self.job is None else roster.read(self.job)

    def waits_for(self, step: int, ranks: int) -> bool:
        """Whether so many ranks stand before this step."""
        now = self.roster()
        members = set(now.pids.values()) if now is not None else set()
        at = [each for each in self.ranks() if each.pid in members and each.beat.attempt == step - 1]
        return len(at) == ranks == len(members) and all(each.beat.phase.label == "loop" for each in at)

    def is_invited(self, ranks: int) -> bool:
        """So many ranks are ready, and those that train are asked to meet the new ones."""
        now, job = self.roster(), self.job
        return self.are_ready(ranks) and now is not None and job is not None and roster.invited(job, now.number)

    def are_ready(self, processes: int) -> bool:
        """So many processes are ranks, or could be."""
        job = self.job
        return job is not None and sum(roster.is_ready(job, each.pid) for each in self.ranks()) == processes

    # -- doing ---------------------------------------------------------------------------------------------

    def go(self, step: int) -> None:
        (self.seen / f"go-{step}").touch()

    def kill(self, seat: int) -> None:
        os.kill({each.rank: each.pid for each in self.ranks()}[seat], signal.SIGKILL)

    def take_away(self, *seats: int) -> None:
        """Their processes are killed, and new ones find no device."""
        for seat in seats:
            self.away[seat].touch()
        for seat in seats:
            self.kill(seat)

    def give_back(self, *seats: int) -> None:
        for seat in seats:
            self.away[seat].unlink()

    # -- the end -------------------------------------------------------------------------------------------

    def end(self) -> dict[str, Any]:
        """What it prints at its end."""
        found: dict[str, Any] = json.loads(self.process.communicate(timeout=PATIENCE)[0])
        return found

    def finish(self) -> dict[str, Any]:
        printed = self.end()
        assert self.process.returncode == 0, printed
        return printed

    @property
    def run(self) -> RunFolder:
        (found,) = list_runs(self.folder)
        return found

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.run.path / "final.safetensors")

    def notes(self) -> list[str]:
        """What the record says beside faults."""
        events = list(self.run.events()) if list_runs(self.folder) else []
        return [str(event.data.get("text")) for event in events if event.kind == "note"]

    def samples(self) -> dict[int, Counter[int]]:
        return used_samples(self.seen)


def check_result(launch: Any, **job: Any) -> None:
    """Of a launch on one machine or on several: every sample once, no step lost, and the weights of one process."""
    ended = launch.finish()
    receipt = ended["receipt"]
    assert ended["state"] == "FINISHED" and receipt["steps"] == 30, ended
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}
    for name, values in alone(launch.folder / "alone", **job).items():
        assert (launch.weights()[name.removeprefix("module.")] - values).abs().max() < 1e-6, name


def used_samples(seen: Path) -> dict[int, Counter[int]]:
    """How often each sample was used, by epoch. Of a step that was done again the last time counts."""
    last: dict[str, int] = {}
    parts: dict[tuple[str, int], list[list[str]]] = {}
    for path in seen.glob("part-*.txt"):
        number = int(path.stem.split("-")[1])
        for line in path.read_text().splitlines():
            epoch, step, *samples = line.split()
            last[step] = max(last.get(step, 0), number)
            parts.setdefault((step, number), []).append([epoch, *samples])
    used: dict[int, Counter[int]] = {}
    for step, number in last.items():
        for epoch, *samples in parts[step, number]:
            used.setdefault(int(epoch), Counter()).update(map(int, samples))
    return used


def alone(folder: Path, settings: dict[str, Any] | None = None, **job: Any) -> dict[str, torch.Tensor]:
    """The weights after the same job in one process, this one."""
    run = RunFolder.create(folder, "alone", {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_local(script.train, run, Settings.load(settings or {}), arguments={**JOB, **job})
    finally:
        torch.set_num_threads(threads)
    return load_file(run.path / "final.safetensors")
