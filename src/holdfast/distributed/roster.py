"""Who belongs to the run now: the agent writes it, the ranks of this machine read it. No torch.

    publish(job, Roster(3, {0: 4711, 1: 4802}))     # the agent: from here on rank 1 is process 4802
    ask(job, 2)                                     # a rank: the group of roster 2 is of no use any more
    roster = await_next(job, after=2)               # a rank: wait for one that has this process in it

Each roster has a number, one more each time a process is replaced or a rank asks for a new group. The ranks of one
roster build one process group and find each other through a file whose name has that number, so no rank ever finds the
address of one that is gone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import processes
from holdfast.base.files import read_json, write_json
from holdfast.distributed import shared_votes
from holdfast.distributed.job import Job

_NAME = "roster.json"
_NAP = 0.005


class RosterGone(BaseException):
    """No new roster will come: the run is over, or the agent is gone. Let it propagate: no error of the script."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The processes of one group."""

    number: int
    pids: dict[int, int]
    """By rank."""

    @property
    def ranks(self) -> int:
        return len(self.pids)

    def rank_of(self, pid: int) -> int | None:
        return next((rank for rank, each in self.pids.items() if each == pid), None)


def publish(job: Job, roster: Roster) -> None:
    said = {"number": roster.number, "pids": {str(rank): pid for rank, pid in roster.pids.items()}}
    write_json(job.path / _NAME, said, durable=False)
    before = roster.number - 2
    left = [_asked(job, before), store_path(job, before)]
    left += [each(job, before, rank) for rank in roster.pids for each in (_here, shared_votes.path)]
    for old in left:
        old.unlink(missing_ok=True)


def read(job: Job) -> Roster | None:
    said = read_json(job.path / _NAME)
    if said is None:
        return None
    return Roster(int(said["number"]), {int(rank): int(pid) for rank, pid in said["pids"].items()})


def ask(job: Job, number: int) -> None:
    """This rank has left the group of that roster: all of them need a new one, also where nobody died."""
    _asked(job, number).touch()


def asked(job: Job, number: int) -> bool:
    return _asked(job, number).exists()


def await_next(job: Job, *, after: int, launcher: int) -> Roster:
    """The next roster that this process is in."""
    pid = os.getpid()
    while True:
        roster = read(job)
        if roster is not None and roster.number > after and roster.rank_of(pid) is not None:
            return roster
        if job.outcome is not None or not _runs(launcher):
            raise RosterGone
        time.sleep(_NAP)


def gather(job: Job, rank: int, ranks: int, number: int, *, launcher: int) -> None:
    """Wait until all ranks of this roster are here; ConnectionError if they will not come, or in another roster.

    Building a process group waits for its members, whether they live or not: so only ranks that are here begin it.
    """
    _here(job, number, rank).touch()
    while not all(_here(job, number, each).exists() for each in range(ranks)):
        now = read(job)
        if now is None or now.number != number:
            raise ConnectionError("another rank was lost while the ranks met")
        if job.outcome is not None or not _runs(launcher):
            raise ConnectionError("the run is over, or the agent is gone: nobody replaces a rank that is lost")
        time.sleep(_NAP)


def _runs(pid: int) -> bool:
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
