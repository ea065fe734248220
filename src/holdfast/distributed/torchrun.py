"""torch's elastic agent as a child of `holdfast launch`: where forking is not possible. No torch.

    agent = TorchrunAgent(job, command_for(wanted, ["train", "my_script.py"], run_id), env, log)

It starts the ranks and, when one of them ends badly, starts all of them again: its group cannot take a new member.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import compile_cache, interpreter, processes
from holdfast.base.folders import open_growing
from holdfast.base.processes import KILL
from holdfast.distributed.agent import PATIENCE
from holdfast.distributed.job import Job
from holdfast.distributed.place import JOB, LAUNCHER, RUN
from holdfast.distributed.rank_nursery import Forker, Nest
from holdfast.run.folder import RunFolder

AGENT_LOG = "torchrun.log"
PORT = 29400
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many ranks, and where."""

    nproc: int
    nodes: int = 1
    node_rank: int = 0
    master: str = ""
    """host:port of the first machine."""
    max_restarts: int = 1000
    """The agent's own limit; ours is `retry.without_progress`."""
    least: int | None = None
    """With so many ranks the others go on where a lost one cannot be replaced; only below an agent of ours."""
    spares: int = 0
    """Processes that wait for the place of one that is lost; only below an agent of ours."""
    patience: float = 600.0
    """Seconds that machines try to reach each other."""

    @property
    def may_shrink(self) -> bool:
        """The user wants the others to go on without a rank whose device cannot be opened."""
        return self.least is not None and self.least < self.nproc * self.nodes


def command_for(wanted: Wanted, words: Sequence[str], run_id: str) -> list[str]:
    """The command line of torchrun; `words` are holdfast's."""
    meeting = ["--standalone", "--local-addr", "127.0.0.1"]
    if wanted.nodes > 1:
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", wanted.master, "--rdzv-id", run_id]
        meeting += ["--node-rank", str(wanted.node_rank)]
        meeting += ["--rdzv-conf", f"is_host={str(wanted.node_rank == 0).lower()}"]  # torchrun would guess by addresses
    python, *rest = interpreter.module("holdfast", *words)
    return interpreter.module(
        "torch.distributed.run",
        *("--nnodes", str(wanted.nodes)),
        *("--nproc-per-node", str(wanted.nproc)),
        *("--max-restarts", str(wanted.max_restarts)),
        *("--monitor-interval", "0.1"),
        *meeting,
        *("--no-python", python, "-u", *rest),  # by itself it would start `python -m`
    )


def environment_for(wanted: Wanted, job: Job, run: RunFolder | None, threads: int) -> dict[str, str]:
    """What the ranks inherit. On one machine they talk over loopback alone."""
    mine = {JOB: str(job.path), LAUNCHER: str(os.getpid()), "OMP_NUM_THREADS": str(threads)}
    if run is not None:
        mine[RUN] = str(run.path.absolute())
    if wanted.nodes == 1:
        mine["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return {**os.environ, **compile_cache.variables(), **mine}


class TorchrunAgent:
    """torchrun as a child: after a loss all ranks start again."""

    name = "torchrun"
    elsewhere: tuple[int, int] | None = None

    def __init__(
        self, job: Job, command: list[str], env: dict[str, str], log: Path, *, preload: Sequence[str] = ()
    ) -> None:
        self._nest = Nest(job, preload) if Forker.possible() else None
        self.log = log
        with open(open_growing(log), "ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=env,
                start_new_session=sys.platform != "win32",
                preexec_fn=_end_with_us if sys.platform == "linux" else None,
            )

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    @property
    def pids(self) -> list[int]:
        return [*processes.children(self._process.pid), *(self._nest.pids if self._nest is not None else ())]

    def look(self, seconds: float) -> None:
        if self._nest is not None:
            self._nest.serve()
        time.sleep(seconds)

    def wind_down(self) -> None:
        return None

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.over:
            return
        ranks = list(processes.children(self._process.pid))
        processes.send(self._process.pid, number)
        if number == KILL:
            for pid in ranks:
                processes.send_group(pid, KILL)
        deadline = time.monotonic() + PATIENCE
        while not self.over and time.monotonic() < deadline:
            self.look(_LOOK)  # what stands in for a rank waits for our word
        if not self.over:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        if self._nest is not None:
            self._nest.close()

    def last_words(self) -> str | None:
        return _last_line(self.log)


def _end_with_us() -> None:
    """In the child, before it becomes the agent: should this process die, the agent is asked to stop its ranks."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)


def _last_line(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    return next((f"torchrun: {line.strip()[:300]}" for line in reversed(lines) if line.strip()), None)
