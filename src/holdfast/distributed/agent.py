"""The agent of `holdfast launch` on one machine: it starts the ranks, and replaces the one that is lost. No torch.

    agent = RankAgent(job, ranks=4, words=["train", "my_script.py"], env=env, preload=["torchvision"])
    while not agent.over:
        agent.look(0.1)                  # returns at once when a rank has ended
    agent.end(signal.SIGTERM)

torchrun ends all ranks when one is lost, and starts all of them again. Here the others stay: they leave their process
group, wait for the next roster (roster.py) and build a new group in their own processes, together with the new one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.base import interpreter, processes
from holdfast.base.folders import open_growing
from holdfast.distributed import roster
from holdfast.distributed.job import Job
from holdfast.distributed.rank_nursery import Forker
from holdfast.distributed.roster import Roster

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
LOG = "ranks.log"
PATIENCE = 40.0
"""Seconds the ranks get to end when they are told to."""
MOST_STRIKES = 5
"""Processes in a row that ended before they were a rank: the next would, too."""
MOST_STILLBORN = 3
"""Nurseries in a row that ended before torch was there."""
_DEATH_COMES = 0.05
"""Seconds from a broken connection to the news of the death that broke it: a new roster is without the dead."""


class Agent(Protocol):
    """What `Launch` needs of whoever starts the ranks: torchrun, or the agent here."""

    name: str
    log: Path

    @property
    def returncode(self) -> int | None: ...

    @property
    def over(self) -> bool:
        """All ranks have ended, and no new one will come."""
        ...

    @property
    def pids(self) -> list[int]:
        """Processes that are ranks, or will be."""
        ...

    def look(self, seconds: float) -> None:
        """Do what is to do, and wait so long for news."""
        ...

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ask the ranks to stop with their state saved, or kill them; returns when they are gone."""
        ...

    def close(self) -> None: ...

    def last_words(self) -> str | None: ...


@dataclass(slots=True)
class Member:
    """One rank, whichever process it is at the moment."""

    rank: int
    pid: int = 0
    process: subprocess.Popen[bytes] | None = None
    """Only where it could not be forked."""
    done: bool = False
    """Its process has ended with 0, and nobody has asked for it again."""


class RankAgent:
    """The ranks of one machine, each replaced by itself."""

    name = "the agent"

    def __init__(
        self, job: Job, ranks: int, words: Sequence[str], env: dict[str, str], log: Path, *, preload: Sequence[str] = ()
    ) -> None:
        self.job = job
        self.log = log
        self.returncode: int | None = None
        self._words = list(words)
        self._env = env
        self._members = [Member(rank) for rank in range(ranks)]
        self._forking: Member | None = None
        self._number = 0
        self._published: dict[int, int] = {}
        self._asked_at: float | None = None
        self._ending = False
        self._strikes = 0
        self._code = 0
        self._forker = Forker(preload)

    @property
    def over(self) -> bool:
        if any(member.pid for member in self._members) or self._forking is not None:
            return False
        ended = self._ending or self._hopeless or self.job.outcome is not None
        return ended or all(member.done for member in self._members)

    @property
    def _hopeless(self) -> bool:
        return self._strikes >= MOST_STRIKES or self._forker.stillborn >= MOST_STILLBORN

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members if member.pid]

    # -- looking -------------------------------------------------------------------------------------------

    def look(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self._once()
            left = deadline - time.monotonic()
            if left <= 0 or self.over:
                return
            # A rank that asks for a new roster says so with a file: ten times a second would be late for it.
            select.select([self._forker.fileno()], [], [], min(left, 0.02))

    def _once(self) -> None:
        for message in self._forker.news():
            self._hear(message)
        for member in self._members:
            if member.process is not None and (code := member.process.poll()) is not None:
                member.process = None
                self._ended(member, code)
        if not all(member.pid for member in self._members) and roster.asked(self.job, self._number):
            for member in self._members:  # one that was through is needed again: a step is one of all ranks
                member.done = False
        self._start_missing()
        self._publish()
        if self.over and self.returncode is None:
            self.returncode = 0 if all(member.done for member in self._members) else self._code or 1

    def _hear(self, message: dict[str, Any]) -> None:
        if "forked" in message:
            assert self._forking is not None
            self._forking.pid, self._forking = int(message["forked"]), None
        elif "unsafe" in message:
            member, self._forking = self._forking, None
            if member is not None:
                self._start_fresh(member)
        elif "exited" in message:
            for member in self._members:
                if member.pid == message["exited"]:
                    self._ended(member, -int(KILL) if message["code"] is None else int(message["code"]))
        elif "died" in message:  # the nursery: its ranks have ended with it
            self._forking = None
            for member in self._members:
                if member.pid and member.process is None:
                    self._ended(member, -int(KILL))

    def _ended(self, member: Member, code: int) -> None:
        self.job.note(f"exit-{member.pid}", {"code": code})
        was_rank = (member.rank, member.pid) in self.job.boards()
        self._code = code
        self._strikes = 0 if was_rank or not code else self._strikes + 1
        member.pid = 0
        member.done = code == 0
        if code:  # those that were through are needed again
            for each in self._members:
                each.done = False

    def _start_missing(self) -> None:
        """One at a time: the nursery reads one message each time it looks."""
        if self._ending or self._forking is not None or not self._forker.ready or self.job.outcome is not None:
            return
        if self._hopeless:
            return
        missing = next((each for each in self._members if not each.pid and not each.done), None)
        if missing is not None:
            self._forking = missing
            self._forker.fork({"words": self._words, "env": self._env_of(missing), "cwd": os.getcwd()})

    def _start_fresh(self, member: Member) -> None:
        """A process that imports torch itself, where forking is not safe."""
        with open(open_growing(self.log), "ab") as file:
            member.process = subprocess.Popen(
                interpreter.module("holdfast", *self._words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._env_of(member),
                start_new_session=True,
            )
        member.pid = member.process.pid

    def _env_of(self, member: Member) -> dict[str, str]:
        rank, ranks = str(member.rank), str(len(self._members))
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        return {**self._env, **places, "TORCHELASTIC_RESTART_COUNT": str(self._number)}

    def _publish(self) -> None:
        """A new roster once every rank is a process again: after a loss, or because a rank has asked for one."""
        now = {member.rank: member.pid for member in self._members}
        if self._ending or not all(now.values()):
            return
        if now == self._published:
            if not roster.asked(self.job, self._number):
                self._asked_at = None
                return
            self._asked_at = self._asked_at or time.monotonic()
            if time.monotonic() - self._asked_at < _DEATH_COMES or not all(map(_lives, now.values())):
                return
        self._number += 1
        self._published = now
        self._asked_at = None
        roster.publish(self.job, Roster(self._number, now))

    # -- the end -------------------------------------------------------------------------------------------

    def end(self, number: int = signal.SIGTERM) -> None:
        self._ending = True
        for pid in self.pids:
            if number == KILL:
                processes.send_group(pid, KILL)
            else:
                processes.send(pid, number)
        deadline = time.monotonic() + PATIENCE
        while not self.over and time.monotonic() < deadline:
            self.look(0.02)
        for pid in self.pids:
            processes.send_group(pid, KILL)

    def close(self) -> None:
        self._ending = True
        for pid in self.pids:  # all had their time to save: one that is left waits in an exchange for ever
            processes.send_group(pid, KILL)
        self._forker.close()
        for member in self._members:
            if member.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.process.wait(2.0)

    def last_words(self) -> str | None:
        """Why nobody was a rank for long enough to say so itself."""
        if self._forker.stillborn >= MOST_STILLBORN:
            return self._forker.why or f"{self._forker.stillborn} processes in a row ended while they imported torch"
        if self._strikes < MOST_STRIKES:
            return None
        return f"{self._strikes} processes in a row ended before they had joined the others, with code {self._code}"


def _lives(pid: int) -> bool:
    info = processes.inspect(pid)
    return processes.exists(pid) and (info is None or info.state not in "ZX")
