"""`holdfast launch` on this machine: torch's elastic agent as a child, watched. No torch here.

    launch = Launch(job, run_folder, command_for(wanted, ["train", "my_script.py"]), settings, face)
    outcome = launch.to_the_end()          # {"state": "FINISHED"}, {"state": "FAILED", "error": {…}}, …

The agent starts the ranks and, when one of them ends badly, starts all of them again. It cannot see a rank that hangs:
that one is ended here. What the ranks write to the run folder is shown as it comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import compile_cache, interpreter, processes
from holdfast.base.board import Phase, PhaseTimes
from holdfast.base.files import open_regular
from holdfast.base.folders import open_growing
from holdfast.distributed.job import Job
from holdfast.distributed.place import JOB, LAUNCHER, RUN
from holdfast.distributed.rank_nursery import Nest
from holdfast.distributed.rank_watch import Boards, Seen, hung
from holdfast.record.receipt import Accounts
from holdfast.record.reporter import Face, Teller
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.supervisor.watchdog import merge_known

AGENT_LOG = "torchrun.log"
PORT = 29400
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_LOOK = 0.1
_BEAT = 1.0
_PATIENCE = 40.0
"""Seconds the agent gets to end its ranks when it is told to; it takes 30 itself before it kills."""
_STACKS = getattr(signal, "SIGUSR2", None)


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


class Launch:
    """One agent and its ranks, from start to end."""

    def __init__(
        self,
        job: Job,
        run: RunFolder | None,
        command: list[str],
        env: dict[str, str],
        settings: Settings,
        face: Face,
        *,
        preload: Sequence[str] = (),
    ) -> None:
        self.job = job
        self.nest = Nest(job, preload) if Nest.possible() else None
        self.run = run
        self.settings = settings
        self.face = face
        self.stop_signal: int | None = None
        self._boards = Boards(job)
        self._known: dict[int, dict[Phase, PhaseTimes]] = {}
        self._last: dict[int, Seen] = {}
        self._strangers: dict[int, float] = {}
        self._teller = None if run is None else Teller(run, face, settings.checkpoint.best)
        self._journal = 0 if run is None else _size(run.path / "journal.jsonl")
        self._times = dict.fromkeys(("beat", "strangers", "asked"), 0.0)
        self._now = False
        self.log = (job.path if run is None else run.path) / AGENT_LOG
        with open(open_growing(self.log), "ab") as file:
            self.agent = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=env,
                start_new_session=sys.platform != "win32",
                preexec_fn=_end_with_us if sys.platform == "linux" else None,
            )

    def to_the_end(self) -> dict[str, Any]:
        before = {number: signal.signal(number, self._asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self.agent.poll() is None:
                self._once()
                time.sleep(_LOOK)
            self._let_ranks_save()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end_agent()
            self._show()
            self._boards.close()
            if self.nest is not None:
                self.nest.close()
        return self.job.outcome or self._without_a_word()

    def _without_a_word(self) -> dict[str, Any]:
        if self.stop_signal is not None:
            return {"state": "STOPPED"}
        if self.run is None and self.agent.returncode == 0:
            return {"state": "ENDED"}  # the rank that knows more is on the first machine
        error = {
            "error": "GaveUp",
            "message": f"torchrun ended with code {self.agent.returncode}, and no rank reported an error",
            "cause": _last_line(self.log) if self.run is None else None,
            "hints": [f"its output is in {AGENT_LOG}"] if self.run is not None else [],
            "exit_code": 4,
        }
        return {"state": "GAVE_UP", "error": error}

    # -- every tenth of a second ----------------------------------------------------------------------------

    def _once(self) -> None:
        if self.nest is not None:
            self.nest.serve()
        seen = self._boards.look()
        self._learn(seen)
        if self.stop_signal is not None:
            self._boards.request_stop()
        for each, why in hung(seen, self._known, self.settings.watchdog):
            self._end(each, why)
        if self._due("strangers", _BEAT):
            self._look_for_strangers({each.pid for each in seen})
        if self._due("beat", _BEAT):
            self._beat(seen)
        self._show()
        if self._now or self.job.outcome is not None:
            self._finish_agent()

    def _due(self, what: str, every: float) -> bool:
        if time.monotonic() - self._times[what] < every:
            return False
        self._times[what] = time.monotonic()
        return True

    def _learn(self, seen: list[Seen]) -> None:
        """A new process of a rank inherits what its predecessor taught."""
        for each in seen:
            last = self._last.get(each.rank)
            if last is not None and last.pid != each.pid:
                self._known[each.rank] = merge_known(self._known.get(each.rank, {}), last.beat)
            self._last[each.rank] = each

    def _end(self, each: Seen, why: str) -> None:
        """Its stacks if it can still tell them, then the end of it and of its loaders."""
        self.job.accuse(each.rank, each.pid, "hung", text=why, step=each.beat.at, phase=each.beat.phase.label)
        if _STACKS is not None and not each.stopped:
            processes.send(each.pid, _STACKS)
            time.sleep(0.2)
        processes.send_group(each.pid, _KILL)

    def _look_for_strangers(self, known: set[int]) -> None:
        """Ranks that were stopped before they had a board."""
        now, floor = time.monotonic(), self.settings.watchdog.floor
        stopped = set()
        for pid in [*processes.children(self.agent.pid), *(self.nest.pids if self.nest is not None else ())]:
            info = processes.inspect(pid)
            if pid not in known and info is not None and info.state == "T":
                stopped.add(pid)
        self._strangers = {pid: self._strangers.get(pid, now) for pid in stopped}
        for pid, since in self._strangers.items():
            if now - since > floor:
                processes.send_group(pid, _KILL)

    def _beat(self, seen: list[Seen]) -> None:
        if self._teller is None or self.run is None or not seen:
            return
        first = min(seen, key=lambda each: each.rank)
        accounts = Accounts.from_json(self.run.info.get("accounts"))
        accounts.steps = first.beat.step or accounts.steps
        self._teller.rate.note(accounts.steps)
        self._teller.beat(first.beat, str(self.run.info.get("device") or ""), accounts)

    def _show(self) -> None:
        """What the ranks have written since the last look."""
        if self.run is None or self._teller is None:
            return
        path = self.run.path / "journal.jsonl"
        with contextlib.suppress(OSError), open_regular(path) as file:
            file.seek(self._journal)
            lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._journal += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                event = Event.from_line(line)
                if event is not None:
                    self.face.event(event)
        self._teller.pump_output()

    # -- the end -------------------------------------------------------------------------------------------

    def _asked(self, number: int, _frame: object) -> None:
        """The first time: all ranks stop at the same boundary, with the state saved. The second time: now."""
        self._now = self.stop_signal is not None
        self.stop_signal = number

    def _finish_agent(self) -> None:
        """The run is over, or must be: the ranks get a moment to end by themselves."""
        if self._now:
            self._end_agent(_KILL)
            return
        if not self._times["asked"]:
            self._times["asked"] = time.monotonic()
        elif time.monotonic() - self._times["asked"] > 5.0:
            self._end_agent()

    def _let_ranks_save(self) -> None:
        """The agent is gone. If somebody has killed it, its ranks are still there: they stop with their state saved."""
        deadline = time.monotonic() + _PATIENCE
        while self.job.outcome is None and self._boards.look() and time.monotonic() < deadline:
            self._boards.request_stop()
            if self.nest is not None:
                self.nest.serve()
            time.sleep(_LOOK)

    def _end_agent(self, number: int = signal.SIGTERM) -> None:
        if self.agent.poll() is not None:
            return
        ranks = list(processes.children(self.agent.pid))
        processes.send(self.agent.pid, number)
        if number == _KILL:
            for pid in ranks:
                processes.send_group(pid, _KILL)
        deadline = time.monotonic() + _PATIENCE
        while self.agent.poll() is None and time.monotonic() < deadline:
            if self.nest is not None:
                self.nest.serve()  # what stands in for a rank waits for our word
            time.sleep(_LOOK)
        if self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()


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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
