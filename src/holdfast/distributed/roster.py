"""Who belongs to the run now: the agent writes it, the ranks of its machine read it. No torch.

    publish(job, Roster(3, {0: 4711, 1: 4802}))     # the agent: from here on rank 1 is process 4802
    ask(job, 2)                                     # a rank: the group of roster 2 is of no use any more
    roster = await_next(job, after=2)               # a rank: wait for one that has this process in it

Each roster has a number, one more each time a process is replaced or a rank asks for a new group. The ranks of one
roster build one process group and find each other through a file whose name has that number, so no rank ever finds the
address of one that is gone.

A launch has as many seats as ranks were asked for. While a seat is empty the roster is shorter: ranks are counted
without it. A new process says that it is ready (`say_ready`). The agent invites the others to meet it (`invite`), rank
0 tells them so in a vote, all commit and leave their group, and the next roster has the new process.

On several machines each has a folder with files of its own, and the agents carry the news from one to the other
(leader.py). A process of another machine has a number there that no process of this machine can have (`far`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.files import read_json, write_json
from holdfast.distributed import shared_votes
from holdfast.distributed.job import Job

_NAME = "roster.json"
_NAP = 0.005
_LOOK = 0.1
"""Seconds between two looks whether the run is over."""
CONNECT = 10.0
"""Seconds to build a group of ranks of one machine that have just said that they are there."""
_PIDS = 1 << 32
"""More than there are numbers for processes of a machine."""


class RosterGone(BaseException):
    """No new roster will come: the run is over, or the agent is gone. Let it propagate: no error of the script."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The processes of one group."""

    number: int
    pids: dict[int, int]
    """By rank."""
    seats: tuple[int, ...] = ()
    """By rank: which of the launch's seats it has. All of them where this is not said."""
    wanted: int = 0
    """How many ranks the launch should have."""
    machines: tuple[int, ...] = ()
    """By rank: on which machine it is. Empty where all are on this one."""
    connect: float = CONNECT
    """Seconds to build the group in."""

    def __post_init__(self) -> None:
        if not self.seats:
            object.__setattr__(self, "seats", tuple(range(len(self.pids))))
        if not self.wanted:
            object.__setattr__(self, "wanted", len(self.pids))

    @property
    def empty(self) -> list[int]:
        """Seats without a process that a spare has not made up for."""
        missing = [seat for seat in range(self.wanted) if seat not in self.seats]
        return missing[len(missing) - (self.wanted - self.ranks) :]

    @property
    def ranks(self) -> int:
        return len(self.pids)

    @property
    def spans(self) -> bool:
        """Whether its ranks are on several machines."""
        return len(set(self.machines)) > 1

    def rank_of(self, pid: int) -> int | None:
        return next((rank for rank, each in self.pids.items() if each == pid), None)

    def beside(self, rank: int) -> int:
        """How many ranks are on the machine of this one."""
        return self.machines.count(self.machines[rank]) if self.machines else self.ranks

    @property
    def here(self) -> list[int]:
        """The processes of this machine, by rank."""
        return [pid for _, pid in sorted(self.pids.items()) if pid < _PIDS]


def is_pid(number: int) -> bool:
    """Whether a process can have this number on its own machine."""
    return 0 < number < _PIDS


def far(machine: int, pid: int) -> int:
    """The number of a process of another machine."""
    return (machine + 1) * _PIDS + pid


def as_seen_on(machine: int, pid: int) -> int:
    """The number that a process has there, from the one it has on the first machine."""
    owner, own = (pid // _PIDS - 1, pid % _PIDS) if pid >= _PIDS else (0, pid)
    return own if owner == machine else far(owner, own)


def publish(job: Job, roster: Roster) -> None:
    said: dict[str, Any] = {"number": roster.number, "pids": {str(rank): pid for rank, pid in roster.pids.items()}}
    said |= {"seats": roster.seats, "wanted": roster.wanted, "machines": roster.machines, "connect": roster.connect}
    write_json(job.path / _NAME, said, durable=False)
    before = roster.number - 2
    left = [_asked(job, before), _invited(job, before), _left(job, before), store_path(job, before)]
    left += [each(job, before, rank) for rank in range(roster.wanted) for each in (_here, shared_votes.path)]
    for old in left:
        old.unlink(missing_ok=True)


def read(job: Job) -> Roster | None:
    said = read_json(job.path / _NAME)
    if said is None:
        return None
    pids = {int(rank): int(pid) for rank, pid in said["pids"].items()}
    seats, machines = tuple(said["seats"]), tuple(said["machines"])
    return Roster(int(said["number"]), pids, seats, int(said["wanted"]), machines, float(said["connect"]))


def ask(job: Job, number: int) -> None:
    """This rank has left the group of that roster: all of them need a new one, also where nobody died."""
    _asked(job, number).touch()


def asked(job: Job, number: int) -> bool:
    return _asked(job, number).exists()


def tell_to_leave(job: Job, number: int) -> None:
    """A machine is gone, and with it ranks of this roster. No connection to them breaks: the others have to leave."""
    _left(job, number).touch()


def is_left(job: Job, number: int) -> bool:
    """Whether the group of this roster is of no use any more."""
    if _left(job, number).exists():
        return True
    now = read(job)
    return now is not None and now.number > number


def invite(job: Job, number: int) -> None:
    """A new process waits: the ranks of that roster are to leave their group where they commit next."""
    _invited(job, number).touch()


def invited(job: Job, number: int) -> bool:
    return _invited(job, number).exists()


def say_ready(job: Job, pid: int | None = None) -> None:
    """This process can be a rank: torch and its device are there."""
    _ready(job, os.getpid() if pid is None else pid).touch()


def is_ready(job: Job, pid: int) -> bool:
    return _ready(job, pid).exists()


def say_trained(job: Job, pid: int | None = None) -> None:
    """This process has committed a step together with others."""
    _trained(job, os.getpid() if pid is None else pid).touch()


def forget(job: Job, pid: int) -> bool:
    """That process has ended; whether it had ever committed a step."""
    trained = _trained(job, pid).exists()
    for each in (_ready(job, pid), _trained(job, pid)):
        each.unlink(missing_ok=True)
    return trained


def await_next(job: Job, *, after: int, launcher: int, stop: Callable[[], bool] = lambda: False) -> Roster:
    """The next roster that this process is in. A spare may wait for days: each look is one call of the system.

    `stop` says that no new one is wanted: the rank that keeps the run folder was asked to stop while it waits.
    """
    pid, known, looked = os.getpid(), None, 0.0
    while True:
        found = _version(job.path / _NAME)
        if found != known:
            known, roster = found, read(job)
            if roster is not None and roster.number > after and roster.rank_of(pid) is not None:
                return roster
        if time.monotonic() - looked >= _LOOK:
            looked = time.monotonic()
            if job.outcome is not None or not runs(launcher) or stop():
                raise RosterGone
        time.sleep(_NAP)


def _version(path: Path) -> tuple[int, int] | None:
    """Another one for each roster: a roster is a new file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def gather(job: Job, rank: int, ranks: int, number: int, *, launcher: int, port: int = 0) -> int:
    """Wait until all ranks of this roster are here; ConnectionError if they will not come, or in another roster.

    Building a process group waits for its members, whether they live or not: so only ranks that are here begin it.
    `port` is that of the store that rank 0 serves, and what all get.
    """
    say_here(job, number, rank, port)
    missing, known, looked = list(range(ranks)), None, 0.0
    while missing := [each for each in missing if not _here(job, number, each).exists()]:
        found = _version(job.path / _NAME)
        if found != known:
            known, now = found, read(job)
            if now is None or now.number != number:
                raise ConnectionError("another rank was lost while the ranks met")
        if _left(job, number).exists():
            raise ConnectionError("a machine was lost while the ranks met")
        if time.monotonic() - looked >= _LOOK:
            looked = time.monotonic()
            if job.outcome is not None or not runs(launcher):
                raise ConnectionError("the run is over, or the agent is gone: nobody replaces a rank that is lost")
        time.sleep(_NAP)
    return port_of(job, number, 0) or 0


def say_here(job: Job, number: int, rank: int, port: int = 0) -> None:
    if port:
        write_json(_here(job, number, rank), {"port": port}, durable=False)
    else:
        _here(job, number, rank).touch()


def port_of(job: Job, number: int, rank: int) -> int | None:
    """The port of the store that this rank serves, 0 if it serves none; None if the rank is not here."""
    path = _here(job, number, rank)
    if not path.exists():
        return None
    return int((read_json(path) or {}).get("port", 0)) if path.stat().st_size else 0


def runs(pid: int) -> bool:
    """Whether this process is there and not dead: one that was killed stays until its parent has asked for it."""
    info = processes.inspect(pid)
    return processes.exists(pid) and (info is None or info.state not in "ZX")


def _here(job: Job, number: int, rank: int) -> Path:
    return job.path / f"here-{number}-{rank}"


def store_path(job: Job, number: int) -> Path:
    """The file through which the ranks of that roster find each other."""
    return job.path / f"store-{number}"


def _asked(job: Job, number: int) -> Path:
    return job.path / f"asked-{number}"


def _invited(job: Job, number: int) -> Path:
    return job.path / f"invited-{number}"


def _left(job: Job, number: int) -> Path:
    return job.path / f"leave-{number}"


def _ready(job: Job, pid: int) -> Path:
    return job.path / f"ready-{pid}"


def _trained(job: Job, pid: int) -> Path:
    return job.path / f"trained-{pid}"
