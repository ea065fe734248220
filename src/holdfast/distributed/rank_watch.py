"""Which rank hangs? Judged from the boards of one machine. No torch.

    seen = look(job)                                   # every rank that lives, as its board shows it
    hung(seen, known, settings.watchdog)               # [(seen, "stopped by a signal for 6 s")]

A rank that waits for the others is silent because one of them is: it is never the one that hangs, unless it was
stopped itself, or still waits in a group that all others have left (`LeftBehind`). Ranks may also wait inside of
forward and backward, where a wrapper exchanges numbers; so a rank is not judged while another one is behind it. All
others are judged as the worker of an ordinary run is (supervisor/watchdog.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.base import processes
from holdfast.base.board import Beat, Board, Phase
from holdfast.base.human import duration
from holdfast.distributed import roster
from holdfast.distributed.job import Job
from holdfast.run.setting_groups import WatchdogSettings
from holdfast.supervisor.watchdog import Known, allowed_silence

STOPPED = 1.0
"""Seconds from which on a stopped process counts as one that nobody will let go on. If all processes of a job were
stopped and are let go on, as some batch systems do, that takes a moment."""
LEFT_BEHIND = "left behind"
"""Why such a rank was ended. It says nothing about its device."""
_NEXT = 1.0
"""Seconds for a rank to find that the one it waited for is gone."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One reading of one rank."""

    rank: int
    pid: int
    beat: Beat
    stopped: bool = False
    """By SIGSTOP or the like: the kernel does not run it."""
    stopped_s: float = 0.0
    """For how long it was seen so, at every look."""


class Boards:
    """The boards of a job, opened once each."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._open: dict[tuple[int, int], Board] = {}
        self._stopped: dict[int, float] = {}
        """Since when each process was seen stopped."""
        self._looked = 0.0

    def look(self) -> list[Seen]:
        """Every rank whose process lives."""
        found = self.job.boards()
        for key in [key for key in self._open if key not in found]:
            self._open.pop(key).close(unlink=False)
        seen, now = [], time.monotonic()
        before = self._stopped if now - self._looked < STOPPED / 2 else {}  # this process may have been stopped itself
        self._stopped, self._looked = {}, now
        for (rank, pid), path in sorted(found.items()):
            info = processes.inspect(pid)
            if not processes.exists(pid) or (info is not None and info.state == "Z"):
                continue
            board = self._board(rank, pid, path)
            stopped = info is not None and info.state == "T"
            if stopped:
                self._stopped[pid] = before.get(pid, now)
            if board is not None:
                seen.append(Seen(rank, pid, board.read(), stopped, now - self._stopped.get(pid, now)))
        return seen

    def _board(self, rank: int, pid: int, path: object) -> Board | None:
        if (rank, pid) not in self._open:
            try:
                self._open[rank, pid] = Board.open_path(self.job.boards()[rank, pid])
            except (OSError, ValueError, KeyError):  # it is being made, or has just been taken away
                return None
        return self._open[rank, pid]

    def request_stop(self) -> None:
        for board in self._open.values():
            board.request_stop()

    def close(self) -> None:
        for board in self._open.values():
            board.close(unlink=False)
        self._open.clear()


def last_place(seen: Iterable[Seen]) -> tuple[int, int] | None:
    """How far the last of those that others may wait for has come."""
    return min(map(_place, _in_step(seen)), default=None)


def hung(
    seen: Iterable[Seen],
    known: Mapping[int, Known],
    settings: WatchdogSettings,
    elsewhere: tuple[int, int] | None = None,
) -> list[tuple[Seen, str]]:
    """Those that will not go on by themselves, and why. `elsewhere` is the `last_place` of other machines."""
    found = []
    seen = list(seen)
    in_step = _in_step(seen)
    last = min([*map(_place, in_step), *([] if elsewhere is None else [elsewhere])], default=(0, 0))
    for each in seen:
        beat = each.beat
        if each.stopped_s > STOPPED and beat.silence > STOPPED:  # one that is stopped in turns goes on, slowly
            found.append((each, f"stopped by a signal for {duration(beat.silence)}"))
        elif not each.stopped and beat.phase is not Phase.PEERS and (each not in in_step or _place(each) <= last):
            limit = allowed_silence(beat, known.get(each.rank, {}), settings)
            if beat.silence > limit:
                found.append((each, f"silent for {duration(beat.silence)} in {beat.phase.label}"))
    return found


class LeftBehind:
    """Ranks that the newest roster counts on, and that are still inside of an exchange of a group before.

    Their connections were ended when that group broke. gloo may wait on all the same (seen once, torch 2.12); then only
    another process can take such a rank's place.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._newest = 0
        self._due = 0.0

    def look(self, seen: Iterable[Seen], floor: float) -> list[tuple[Seen, str]]:
        """One that has not come in the time in which a silence is never called a hang.

        One at a time: another one may wait for it, and comes by itself when it is gone.
        """
        now = roster.read(self.job)
        if now is None:
            return []
        clock = time.monotonic()
        if now.number != self._newest:
            self._newest, self._due = now.number, clock + floor
        if clock <= self._due:
            return []
        ranks = [(each, rank) for each in seen if (rank := now.rank_of(each.pid)) is not None]
        late = [each for each, rank in ranks if roster.port_of(self.job, now.number, rank) is None]
        if not now.spans and any(each.beat.phase is not Phase.PEERS for each in late):
            return []  # others may wait for one that computes: on one machine only its own end ends their exchange
        for each in late:
            if each.beat.phase is Phase.PEERS and each.beat.silence > floor:
                self._due = clock + _NEXT
                return [(each, f"waits for {duration(each.beat.silence)} in a group that the others have left")]
        return []


def _in_step(seen: Iterable[Seen]) -> list[Seen]:
    """Ranks that others may wait for: not those that begin, nor a process whose place another one has taken."""
    newest: dict[int, Seen] = {}
    for each in sorted(seen, key=lambda each: -each.beat.silence):
        newest[each.rank] = each
    return [each for each in newest.values() if each.stopped or each.beat.phase not in (Phase.PEERS, Phase.SETUP)]


_INSIDE = (Phase.TO_DEVICE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
"""The phases of a step, in their order. What comes after them belongs to the time between two steps."""


def _place(seen: Seen) -> tuple[int, int]:
    """How far a rank has come. One that is stopped is behind all: whoever waits, waits for it."""
    if seen.stopped:
        return (-1, 0)
    phase = seen.beat.phase
    return seen.beat.attempt, _INSIDE.index(phase) if phase in _INSIDE else len(_INSIDE)
