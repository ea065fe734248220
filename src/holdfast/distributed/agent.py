"""The agent of `holdfast launch` on one machine: it starts the ranks, and replaces the one that is lost. No torch.

    agent = RankAgent(job, ranks=4, words=["train", "my_script.py"], env=env, preload=["torchvision"])
    while not agent.over:
        agent.look(0.1)                  # returns at once when a rank has ended
    agent.end(signal.SIGTERM)

torchrun ends all ranks when one is lost, and starts all of them again. Here the others stay: they leave their process
group, wait for the next roster (roster.py) and build a new group in their own processes, together with the new one.

With `least` below `ranks` they do not wait for a seat that cannot be filled: one whose new process ended before it had
committed a step, or is not ready in twice the time that starts took so far. The next roster is without it. The agent
goes on trying, less and less often. When a process for that seat is ready, the others are invited to meet it.

With `spares` there are more seats than ranks. A process that is ready and in no roster waits; it takes the place of one
that is lost at once. The new process for the lost seat is the next spare.

With a `ladder` (rank_ladder.py) a new process may be on another device than the one before. A rank whose device has
recovered is replaced at the next commit: the others are invited as for a new rank, and only its process ends.

Seats on the CPU beside accelerators (`beside`) have a process that waits until the ranks want it (share_keeper.py).
"""

from __future__ import annotations

import contextlib
import math
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
from holdfast.distributed import rank_devices, rank_ladder, roster
from holdfast.distributed.job import Job
from holdfast.distributed.place import SEAT
from holdfast.distributed.rank_devices import MOVED
from holdfast.distributed.rank_ladder import RankLadder
from holdfast.distributed.rank_nursery import Forker
from holdfast.distributed.roster import Roster
from holdfast.distributed.share_keeper import left_out
from holdfast.run.messages import Exited, Forked, Message, RankWanted, Unsafe

LOG = "ranks.log"
PATIENCE = 40.0
"""Seconds the ranks get to end when they are told to."""
MOST_STRIKES = 5
"""Processes of a seat in a row that ended before they were a rank: the next would, too."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before the next start for a seat that the others go on without; doubled each time."""
MOST_STILLBORN = 3
"""Nurseries in a row that ended before torch was there."""
_MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Scripts for torchrun may read these. The ranks of a run do not meet there, and nobody listens."""
_DEATH_COMES = 0.05
"""Seconds from a broken connection to the news of the death that broke it: a new roster is without the dead."""
_LEAVES_SOON = 2.0
"""Seconds for a process that makes room for another to end, once the ranks have left their group. If it has not by then
it builds the group anew inside of a step: it is in the next roster once more, and leaves at the next commit."""


class Agent(Protocol):
    """What `Launch` needs of whoever starts the ranks: torchrun, or the agent here."""

    name: str
    log: Path
    elsewhere: tuple[int, int] | None
    """How far the last of the ranks on other machines has come (rank_watch.py); None if nobody waits for those."""

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

    def wind_down(self) -> None:
        """The ranks were asked to stop: do not wait for others before that. Called again and again."""
        ...

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ask the ranks to stop with their state saved, or kill them; returns when they are gone."""
        ...

    def close(self) -> None: ...

    def last_words(self) -> str | None: ...


@dataclass(slots=True)
class Member:
    """One seat, whichever process has it at the moment."""

    seat: int
    machine: int = 0
    local: int = -1
    """Its number among those of its machine, where that is not its seat."""
    pid: int = 0
    process: subprocess.Popen[bytes] | None = None
    """Only where it could not be forked."""
    done: bool = False
    """Its process has ended with 0, and nobody has asked for it again."""
    ready: bool = False
    """Its process can be a rank."""
    strikes: int = 0
    """Processes in a row that ended before they were a rank; where others go on, before they had committed a step."""
    begun: float = 0.0
    """When its process was asked for."""
    lost: float | None = None
    """When it lost a process that was in the roster, -inf if nobody waits for another one; None once that is ready."""
    pause_until: float = 0.0


class RankAgent:
    """The ranks of one machine, each replaced by itself."""

    name = "the agent"
    machine = 0
    elsewhere: tuple[int, int] | None = None
    """How far the last of the ranks on other machines has come (rank_watch.py)."""

    def __init__(
        self,
        job: Job,
        ranks: int,
        words: Sequence[str],
        env: dict[str, str],
        log: Path,
        *,
        preload: Sequence[str] = (),
        least: int | None = None,
        spares: int = 0,
        ladder: RankLadder | None = None,
        beside: bool = False,
        may_shrink: bool = False,
    ) -> None:
        """`may_shrink`: the user wants the others to go on without a rank whose device cannot be opened."""
        self.job = job
        self._may_shrink = may_shrink
        self._beside = beside
        self.least = ranks if least is None else least
        """With so many ranks the others go on where a seat cannot be filled."""
        self.log = log
        self.returncode: int | None = None
        self._words = list(words)
        self._env = env
        self._ranks = ranks
        self._local_ranks = ranks
        self._members = [Member(seat) for seat in range(ranks + spares)]
        self._forking: Member | None = None
        self._number = 0
        self._published: dict[int, int] = {}
        self._asked_at: float | None = None
        self._ending = False
        self._code = 0
        self._slowest = 0.0
        """Seconds from asking for a process to its being ready, the longest so far."""
        self._ladder = ladder
        self._forker = Forker(preload)

    @property
    def over(self) -> bool:
        if any(member.pid for member in self._members) or self._forking is not None:
            return False
        ended = self._ending or self._hopeless or self.job.outcome is not None
        return ended or all(member.done for member in self._members)

    @property
    def _hopeless(self) -> bool:
        waiting = self._left_out()
        ways = [each for each in self._members if each.seat not in waiting]
        promising = sum(member.ready or member.strikes < MOST_STRIKES for member in ways)
        return promising < self.least or self._forker.stillborn >= MOST_STILLBORN

    @property
    def _flexible(self) -> bool:
        """Whether the run can go on while a seat is empty."""
        return self.least < len(self._members)

    @property
    def _own(self) -> list[Member]:
        """Those whose processes are on this machine."""
        return [member for member in self._members if member.machine == self.machine]

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._own if member.pid]

    # -- looking -------------------------------------------------------------------------------------------

    def look(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self._once()
            left = deadline - time.monotonic()
            if left <= 0 or self.over:
                return
            # A rank that asks for a new roster says so with a file: ten times a second would be late for it.
            select.select(self._wake_on(), [], [], min(left, 0.02))

    def _wake_on(self) -> list[int]:
        return [self._forker.fileno()]

    def _once(self) -> None:
        self._hear_ranks()
        if not all(member.pid for member in self._members) and roster.asked(self.job, self._number):
            for member in self._members:  # one that was through is needed again: a step is one of all ranks
                member.done = False
        for member in self._members:
            self._look_whether_ready(member)
        if self._ladder is not None:
            self._ladder.tick()
        self._start_missing()
        self._publish()
        if self._hopeless and self.pids and len(self._chosen()) < self.least and not self._ending:
            self._give_up()
        if self.over and self.returncode is None:
            self.returncode = 0 if all(member.done for member in self._members) else self._code or 1

    def _hear_ranks(self) -> None:
        """Which have begun and which have ended."""
        for message in self._forker.news():
            self._hear(message)
        for member in self._members:
            if member.process is not None and (code := member.process.poll()) is not None:
                member.process = None
                self._ended(member, code)

    def _hear(self, message: Message | None) -> None:
        if isinstance(message, Forked):
            assert self._forking is not None
            self._begun(self._forking, message.pid)
            self._forking = None
        elif isinstance(message, Unsafe):
            member, self._forking = self._forking, None
            if member is not None:
                self._start_fresh(member)
        elif isinstance(message, Exited):
            for member in self._members:
                if member.pid == message.pid:
                    self._ended(member, message.known_code)
        elif message is None:  # the nursery: its ranks end with it, but not one that ignores SIGTERM
            self._forking = None
            for member in self._own:
                if member.pid and member.process is None:
                    processes.send_group(member.pid, processes.KILL)
                    self._ended(member, -int(processes.KILL))

    def _ended(self, member: Member, code: int) -> None:
        self.job.note(f"exit-{member.pid}", {"code": code})
        left = self.job.left(member.seat, member.pid) or {}
        if not self._ending and member.machine == self.machine:
            self._ask_ladder(member, code, left)
        trained = roster.forget(self.job, member.pid) or left.get("why") == MOVED
        was_rank = trained if self._flexible else member.ready
        now = time.monotonic()
        self._code = code
        member.strikes = 0 if was_rank or not code else member.strikes + 1
        if member.strikes:
            self._put_off(member, now, code)
        if self._is_given_up(member):
            member.strikes, member.pause_until = MOST_STRIKES, math.inf
        if member.ready:
            member.lost = now
        member.pid, member.ready = 0, False
        member.done = code == 0
        if code:  # those that were through are needed again
            for each in self._members:
                each.done = False

    def _ask_ladder(self, member: Member, code: int, left: dict[str, Any], *, counts: bool = True) -> None:
        """Where the next process of this seat is, if this one ended with a fault. `counts`: it was not ended by us."""
        if self._ladder is not None:
            # Where the others go on without it, a rank whose device cannot be opened tries again later.
            counts = counts and not (left.get("why") == "device" and self._may_shrink)
            stuck = self._ladder.ended(member.seat, member.pid, code, generation=self._number, counts=counts)
            if stuck is not None and not self._may_shrink and not self._others_suffice(member):
                self.job.end({"state": "GAVE_UP", "error": stuck.to_json()})

    def _is_given_up(self, member: Member) -> bool:
        """Its device computes wrong numbers, and there is no other for it."""
        answer = rank_ladder.answer(self.job, member.pid)
        if answer is None or not answer.final:
            return False
        self.job.note(f"away-{member.seat}", {"why": f"{answer.before} computes wrong numbers"})
        return True

    def _others_suffice(self, member: Member) -> bool:
        """A spare can take the place of a seat that is given up."""
        others = [each for each in self._members if each is not member and each.seat not in self._left_out()]
        enough = sum(each.ready or each.strikes < MOST_STRIKES for each in others) >= self.least
        return enough and self._is_given_up(member)

    def _put_off(self, member: Member, now: float, code: int) -> None:
        """Its process was of no use. Where others go on meanwhile, the next one comes later."""
        if self._flexible:
            pause = FIRST_PAUSE * 2.0 ** min(member.strikes - 1, 30)
            member.pause_until = now + min(pause, LONGEST_PAUSE)
        left = self.job.left(member.seat, member.pid) or {}
        why = left.get("text") or (f"killed by signal {-code}" if code < 0 else f"its process ended with code {code}")
        self.job.note(f"away-{member.seat}", {"why": str(why)[:200]})

    def _look_whether_ready(self, member: Member) -> None:
        if member.pid and not member.ready and roster.is_ready(self.job, member.pid):
            member.ready, member.lost = True, None
            self._slowest = max(self._slowest, time.monotonic() - member.begun)

    def _start_missing(self) -> None:
        """One at a time: the nursery reads one message each time it looks."""
        if self._ending or self._forking is not None or not self._forker.ready or self.job.outcome is not None:
            return
        if self._hopeless:
            return
        now = time.monotonic()
        wanted = (each for each in self._own if not each.pid and not each.done)
        missing = next((each for each in wanted if each.pause_until <= now), None)
        if missing is not None:
            self._forking, missing.begun = missing, now
            if self._ladder is not None:
                self._ladder.starting(missing.seat)
            self._forker.fork(RankWanted(tuple(self._words), self._env_of(missing), os.getcwd()))

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
        self._begun(member, member.process.pid)

    def _begun(self, member: Member, pid: int) -> None:
        member.pid, member.ready = pid, False
        if self._ladder is not None:
            self._ladder.started(member.seat, pid)

    def _env_of(self, member: Member) -> dict[str, str]:
        local = member.seat if member.local < 0 else member.local
        places = {"RANK": member.seat, "LOCAL_RANK": local, SEAT: member.seat}
        places |= {"WORLD_SIZE": self._ranks, "LOCAL_WORLD_SIZE": self._local_ranks}
        places |= {"GROUP_RANK": self.machine, "ROLE_RANK": member.seat, "ROLE_WORLD_SIZE": self._ranks}
        places["TORCHELASTIC_RESTART_COUNT"] = self._number
        return {**_MEETING, **self._env, **{name: str(value) for name, value in places.items()}}

    def _publish(self) -> None:
        """A new roster when every seat is filled or given up for now: after a loss, or because a rank asks for one.

        Ranks that train are asked to leave their group first, and only for a new one: so they lose nothing by it.
        """
        here, waiting = self._chosen(), self._left_out()
        if self._ending or any(member.done for member in self._members) or len(here) < self.least:
            return
        if len(here) < self._ranks and any(
            self._is_worth_waiting_for(each) for each in self._members if not each.ready and each.seat not in waiting
        ):
            return
        now = {member.seat: member.pid for member in here}
        if self._published.keys() - now.keys() & waiting and not roster.asked(self.job, self._number):
            return  # the ranks have found that it is better left out, and will commit before they leave their group
        if self._published.items() <= now.items() and self._published:
            if now != self._published and not any(map(self._is_coming, self._members)):
                roster.invite(self.job, self._number)  # one meeting for all that come at about the same time
            # One that is in no group sees by itself that it has to leave.
            moving = any(map(self._leaves, self._published))
            if moving:
                roster.invite(self.job, self._number)
            if not roster.asked(self.job, self._number):
                self._asked_at = None
                return
            self._asked_at = self._asked_at or time.monotonic()
            patience = _LEAVES_SOON if moving else _DEATH_COMES
            if time.monotonic() - self._asked_at < patience or not all(map(self._lives, now.values())):
                return
        before, self._published = self._published, now
        self._number += 1
        self._asked_at = None
        if before and not before.keys() & now.keys():  # nobody is left of those that have trained: their heirs are here
            for lost, heir in zip(before, here, strict=False):
                self.job.hand_slots(lost, heir.seat)
        elif before:
            for seat in now.keys() - before.keys():
                if self.job.newest_generation(before) > self.job.newest_generation([seat]):
                    self._drop_slots(seat)  # the others have committed without it
        pids = {rank: member.pid for rank, member in enumerate(here)}
        seats = tuple(member.seat for member in here)
        machines = tuple(member.machine for member in here)
        devices = self._devices_of(seats)
        if devices:
            rank_devices.tell_group(self.job, self._number, devices, machines)
        self._announce(Roster(self._number, pids, seats, self._ranks - len(waiting), machines=machines))

    def _leaves(self, seat: int) -> bool:
        """Whether the process of this seat has to make room for one on another device."""
        return self._ladder is not None and self._ladder.leaves(seat)

    def _devices_of(self, seats: Sequence[int]) -> tuple[str, ...]:
        """What the processes of these seats are on; empty where no ladder is kept, because all are on the CPU."""
        ladder = self._ladder
        return () if ladder is None else tuple(ladder.device_of(seat) for seat in seats)

    def _announce(self, now: Roster) -> None:
        roster.publish(self.job, now)

    def _drop_slots(self, seat: int) -> None:
        self.job.drop_slots(seat)

    def _lives(self, pid: int) -> bool:
        info = processes.inspect(pid)
        return processes.exists(pid) and (info is None or info.state not in "ZX")

    def _chosen(self) -> list[Member]:
        """The members of the next roster: those that train, those that take the seat of one that did, then others."""
        waiting = self._left_out()
        ready = [member for member in self._members if member.ready and member.seat not in waiting]
        known = self._published
        ready.sort(key=lambda each: (known.get(each.seat) != each.pid, each.seat not in known, each.seat))
        return sorted(ready[: self._ranks], key=lambda member: member.seat)

    def _left_out(self) -> frozenset[int]:
        """Seats on the CPU whose processes wait, because the accelerators are faster without them, or may be."""
        return left_out(self.job) if self._beside else frozenset()

    def _is_worth_waiting_for(self, member: Member) -> bool:
        """Whether the others wait for this seat, which has no process that is ready."""
        if member.strikes or (self._published and member.seat not in self._published):
            return False
        if member.lost is None:
            return True
        return time.monotonic() - member.lost < 2.0 * self._slowest

    def _is_coming(self, member: Member) -> bool:
        """Its process is being started, and not for longer than others took."""
        return bool(member.pid) and not member.ready and time.monotonic() - member.begun < 2.0 * self._slowest

    def _give_up(self) -> None:
        """No more processes will come, and the ranks that are left would wait for ever: they save and end.

        Of an outcome that is known already nothing changes: the first word counts.
        """
        left = sum(bool(member.pid) for member in self._members)
        error: dict[str, Any] = {
            "error": "GaveUp",
            "message": f"{left} of {self._ranks} ranks are left, too few to go on",
            "cause": self.last_words(),
            "hints": [],
            "exit_code": 4,
        }
        self.job.end({"state": "GAVE_UP", "error": error})

    # -- the end -------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        return None

    def end(self, number: int = signal.SIGTERM) -> None:
        self._ending = True
        for pid in self.pids:
            if number == processes.KILL:
                processes.send_group(pid, processes.KILL)
            else:
                processes.send(pid, number)
        deadline = time.monotonic() + PATIENCE
        while not self.over and time.monotonic() < deadline:
            self.look(0.02)
        for pid in self.pids:
            processes.send_group(pid, processes.KILL)

    def close(self) -> None:
        self._ending = True
        for pid in self.pids:  # all had their time to save: one that is left waits in an exchange for ever
            processes.send_group(pid, processes.KILL)
        self._forker.close()
        if self._ladder is not None:
            self._ladder.close("finished" if self.returncode == 0 else "stopped")
        for member in self._members:
            if member.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.process.wait(2.0)

    def last_words(self) -> str | None:
        """Why nobody was a rank for long enough to say so itself."""
        if self._forker.stillborn >= MOST_STILLBORN:
            return self._forker.why or f"{self._forker.stillborn} processes in a row ended while they imported torch"
        worst = max(self._members, key=lambda member: member.strikes)
        if worst.strikes < MOST_STRIKES:
            return None
        text = f"{worst.strikes} processes of rank {worst.seat} in a row ended before they had joined the others"
        why = self.job.noted(f"away-{worst.seat}").get("why")
        return f"{text}: {why}" if why else f"{text}, with code {self._code}"
