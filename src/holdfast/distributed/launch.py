"""`holdfast launch` on this machine: whoever starts the ranks, watched to the end. No torch here.

    launch = Launch(job, run_folder, agent, settings, face)
    outcome = launch.to_the_end()          # {"state": "FINISHED"}, {"state": "FAILED", "error": {…}}, …

The agent (agent.py, or torchrun.py) starts ranks and replaces those that end badly. It cannot see a rank that hangs:
that one is ended here. What the ranks write to the run folder is shown as it comes.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Phase, PhaseTimes
from holdfast.base.files import open_regular
from holdfast.base.processes import KILL
from holdfast.distributed import roster
from holdfast.distributed.agent import PATIENCE, Agent
from holdfast.distributed.job import Job
from holdfast.distributed.rank_watch import LEFT_BEHIND, STOPPED, Boards, LeftBehind, Seen, hung
from holdfast.distributed.share_keeper import SLOW, Policy
from holdfast.distributed.stragglers import Stragglers
from holdfast.record.receipt import Accounts
from holdfast.record.reporter import Face, Teller
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.run.states import RunState
from holdfast.supervisor.watchdog import merge_known

_LOOK = 0.1
_BEAT = 1.0
_STACKS = getattr(signal, "SIGUSR2", None)


class Launch:
    """One agent and its ranks, from start to end."""

    def __init__(self, job: Job, run: RunFolder | None, agent: Agent, settings: Settings, face: Face) -> None:
        self.job = job
        self.agent = agent
        self.run = run
        self.settings = settings
        self.face = face
        self.stop_signal: int | None = None
        self._boards = Boards(job)
        self._left_behind = LeftBehind(job)
        self._known: dict[int, dict[Phase, PhaseTimes]] = {}
        self._last: dict[int, Seen] = {}
        self._strangers: dict[int, float] = {}
        self._teller = None if run is None else Teller(run, face, settings.checkpoint.best)
        self._journal = 0 if run is None else _size(run.path / "journal.jsonl")
        self._stragglers = Stragglers()
        self._times = dict.fromkeys(("beat", "strangers", "stopped", "asked"), 0.0)
        self._now = False

    def to_the_end(self) -> dict[str, Any]:
        before = {number: signal.signal(number, self._asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not self.agent.over:
                self._once()
                self.agent.look(_LOOK)
            self._let_ranks_save()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.agent.end()
            self._show()
            self._boards.close()
            self.agent.close()
        return self.job.outcome or self._without_a_word()

    def _without_a_word(self) -> dict[str, Any]:
        if self.stop_signal is not None:
            return {"state": RunState.STOPPED}
        if self.run is None and self.agent.returncode == 0:
            return {"state": "ENDED"}  # the rank that knows more is on the first machine
        error = {
            "error": "GaveUp",
            "message": f"{self.agent.name} ended with code {self.agent.returncode}, and no rank reported an error",
            "cause": self.agent.last_words(),
            "hints": [f"its output is in {self.agent.log.name}"] if self.agent.log.exists() else [],
            "exit_code": 4,
        }
        return {"state": RunState.GAVE_UP, "error": error}

    # -- every tenth of a second ----------------------------------------------------------------------------

    def _once(self) -> None:
        seen = self._boards.look()
        self._learn(seen)
        if self.stop_signal is not None:
            self._boards.request_stop()
            self.agent.wind_down()
        watchdog = self.settings.watchdog
        behind = self._left_behind.look(seen, watchdog.floor)
        for each, why in hung(seen, self._known, watchdog, self.agent.elsewhere):
            self._end(each, why)
        for each, why in behind:
            if self.run is not None:
                self.run.append(Event.now("note", text=f"rank {each.rank} is replaced: it {why}"))
            self._end(each, why, LEFT_BEHIND)
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

    def _end(self, each: Seen, why: str, reason: str = "hung") -> None:
        """Its stacks if it can still tell them, then the end of it and of its loaders."""
        self.job.accuse(each.rank, each.pid, reason, text=why, step=each.beat.at, phase=each.beat.phase.label)
        if _STACKS is not None and not each.stopped:
            processes.send(each.pid, _STACKS)
            time.sleep(0.2)
        processes.send_group(each.pid, KILL)

    def _look_for_strangers(self, known: set[int]) -> None:
        """Ranks that were stopped before they had a board."""
        now = time.monotonic()
        before = self._strangers if now - self._times["stopped"] < 3 * _BEAT else {}  # we may have been stopped too
        self._times["stopped"] = now
        stopped = set()
        for pid in self.agent.pids:
            info = processes.inspect(pid)
            if pid not in known and info is not None and info.state == "T":
                stopped.add(pid)
        self._strangers = {pid: before.get(pid, now) for pid in stopped}
        for pid, since in self._strangers.items():
            if now - since > STOPPED:
                processes.send_group(pid, KILL)

    def _beat(self, seen: list[Seen]) -> None:
        if self._teller is None or self.run is None or not seen:
            return
        first = max(seen, key=lambda each: (each.beat.step, -each.rank))  # a spare has no steps
        accounts = Accounts.from_json(self.run.info.get("accounts"))
        accounts.steps = first.beat.step or accounts.steps
        self._teller.rate.note(accounts.steps)
        self._teller.beat(first.beat, str(self.run.info.get("device") or ""), accounts)
        self._look_for_stragglers(self.run, seen)

    def _look_for_stragglers(self, run: RunFolder, seen: list[Seen]) -> None:
        """One line in the record when a rank holds the others up for some time."""
        if Policy.of(self.settings).mixed:
            return  # ranks on devices of different kinds are not alike, and their parts are measured anyway
        now = roster.read(self.job)
        members = set() if now is None else set(now.pids.values())
        slow = self._stragglers.look(each for each in seen if each.pid in members)
        if slow is not None:
            times = {"own_s": round(slow.own_s, 4), "others_s": round(slow.others_s, 4)}
            run.append(Event.now("note", text=slow.sentence, slow_rank=slow.rank, part=slow.part, **times))
            self.job.note(SLOW, {"rank": slow.rank, "part": slow.part})  # rank 0 reads it: parts may be others

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
            self.agent.end(KILL)
            return
        if not self._times["asked"]:
            self._times["asked"] = time.monotonic()
        elif time.monotonic() - self._times["asked"] > 5.0:
            self.agent.end()

    def _let_ranks_save(self) -> None:
        """The agent is gone. If somebody has killed it, its ranks are still there: they stop with their state saved."""
        deadline = time.monotonic() + PATIENCE
        while self.job.outcome is None and self._boards.look() and time.monotonic() < deadline:
            self._boards.request_stop()
            self.agent.look(_LOOK)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
