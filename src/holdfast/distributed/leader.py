"""The agent of the first machine, where there are several: it decides who is in the group. No torch.

    leader = LeaderAgent(job, wanted, words, env, log, token=token, own=hello, floor=5.0, patience=600.0, say=note)
    while not leader.over:
        leader.look(0.1)

It keeps the roster as the agent of one machine does (agent.py). The agents of the other machines (machine_agent.py)
connect to it. What their ranks write to the folder of their job is told to the leader, which writes the same to its own
folder, and the other way round. So ranks read and write files of their machine alone.

Every roster has a rank of the first machine, which keeps the run folder. No rank can take a step without the others of
its roster. So where the network falls apart, only the part with the first machine can go on, and never two parts do.

A connection that is lost means that the ranks of that machine are lost, at both ends of it: the leader counts them out,
and the agent over there ends them.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.human import duration
from holdfast.distributed import roster
from holdfast.distributed.agent import MOST_STRIKES, Member, RankAgent
from holdfast.distributed.far_ladders import FarLadders
from holdfast.distributed.job import GONE, Job
from holdfast.distributed.machine_link import (
    BEHIND_ALL,
    PULSE,
    AllHere,
    AnswerAgain,
    Challenge,
    DropSlots,
    EndRanks,
    Hello,
    LeaveGroup,
    LinkLost,
    MachineLink,
    NewGroupWanted,
    RankBegun,
    RankGone,
    RankHere,
    RankLeaves,
    RankReady,
    RosterTold,
    RunOver,
    StartRank,
    TrustTold,
    TurnedAway,
    VerdictTold,
    Welcome,
    difference,
    is_proof,
    proof,
    shortened,
)
from holdfast.distributed.part_copies import CopyHello, CopyReceiver, CopySender
from holdfast.distributed.rank_ladder import RankLadder
from holdfast.distributed.rank_watch import Boards, last_place
from holdfast.distributed.roster import Roster
from holdfast.distributed.torchrun import Wanted
from holdfast.run.folder import RunFolder
from holdfast.run.messages import Message

GREETING = 10.0
"""Seconds for somebody who connects to show the token."""
GOODBYE = 5.0
"""Seconds for the other machines to hear how the run ended."""
SECOND = 1
"""The machine that has a copy of everything, for the case that the first one is lost."""
_STRANGERS = 64
"""Connections without a token, at the same time."""
_SAY_STRANGERS = 60.0
"""Seconds between two lines in the record on somebody who has another token."""


OfRank = RankBegun | RankReady | RankLeaves | RankGone | AnswerAgain | TrustTold | VerdictTold
"""What a machine says of one of its ranks."""


@dataclass(slots=True)
class Stranger:
    """A connection whose other end has not shown the token."""

    link: MachineLink
    address: str
    nonce: str
    deadline: float


@dataclass(slots=True)
class Machine:
    """Another machine, whichever process is its agent at the moment."""

    number: int
    link: MachineLink | None = None
    agent: str = ""
    host: str = ""
    lost: str = ""
    """Why the last connection ended."""
    apart: float = field(default_factory=time.monotonic)
    """Since when it has no connection, while it has none."""
    rivals: dict[str, float] = field(default_factory=dict)
    """Agents that say they are this machine while another one is connected: when each first said so."""

    @property
    def name(self) -> str:
        return f"machine {self.number} ({self.host})" if self.host else f"machine {self.number}"


class LeaderAgent(RankAgent):
    """The ranks of all machines; those of the others through their agents."""

    def __init__(
        self,
        job: Job,
        wanted: Wanted,
        words: Sequence[str],
        env: dict[str, str],
        log: Path,
        *,
        server: socket.socket,
        own: Hello,
        token: str,
        run: RunFolder,
        floor: float,
        patience: float,
        say: Callable[[str], None],
        preload: Sequence[str] = (),
        ladder: RankLadder | None = None,
    ) -> None:
        """`ladder` is that of the ranks of this machine; the others have their own."""
        ranks = wanted.nproc * wanted.nodes
        super().__init__(
            job, ranks, words, env, log,
            preload=preload, least=wanted.least, spares=wanted.spares, ladder=ladder, may_shrink=wanted.may_shrink,
        )  # fmt: skip
        self._local_ranks = wanted.nproc
        self._members = seats_of(wanted)
        self._machines = {number: Machine(number) for number in range(1, wanted.nodes)}
        self._server = server
        self._own_hello = own
        self._token = token
        self._launch = secrets.token_hex(8)
        self._run = run.name
        self._far = FarLadders(job, run)
        self._floor = floor
        self._patience = patience
        self._say = say
        self._strangers: list[Stranger] = []
        self._said_strangers: float | None = None
        self._asked_for: set[int] = set()
        """Seats whose start was asked for, until their process has begun."""
        self._now: Roster | None = None
        self._all_here = 0
        """The last roster whose ranks have all heard that all are here."""
        self._told_over = False
        self._boards = Boards(job)
        self._place: tuple[int, int] | None = None
        self._looked = 0.0
        self._copies: CopySender | None = None
        self._to_second: list[socket.socket] = []

    # -- looking -------------------------------------------------------------------------------------------

    def _wake_on(self) -> list[int]:
        links = [machine.link for machine in self._machines.values() if machine.link is not None]
        strangers = [stranger.link for stranger in self._strangers]
        return [*super()._wake_on(), self._server.fileno(), *(each.fileno() for each in [*links, *strangers])]

    def _once(self) -> None:
        self._accept()
        self._greet()
        for machine in self._machines.values():
            self._hear_machine(machine)
        self._pulse()
        super()._once()
        self._far.tell()
        self._tell_all_here()
        if self.job.outcome is not None and not self._told_over:
            self._told_over = True
            self._broadcast(RunOver(self.job.outcome))
        self._check_who_never_came()

    def _accept(self) -> None:
        for _ in range(_STRANGERS):
            try:
                sock, address = self._server.accept()
            except OSError:
                return
            if len(self._strangers) >= _STRANGERS:
                self._drop_a_stranger()
            nonce = secrets.token_hex(16)
            link = MachineLink(sock, floor=GREETING)
            link.send(Challenge(nonce))
            self._strangers.append(Stranger(link, str(address[0]), nonce, time.monotonic() + GREETING))

    def _drop_a_stranger(self) -> None:
        """The oldest of the address that has most of them: no address can take the places of all others."""
        places = Counter(each.address for each in self._strangers)
        oldest = max(self._strangers, key=lambda each: places[each.address])  # the first of those with most
        self._strangers.remove(oldest)
        oldest.link.close()

    def _greet(self) -> None:
        for stranger in list(self._strangers):
            try:
                hello = self._hear_stranger(stranger)
            except Exception:  # nothing that somebody without the token sends may end the run
                self._strangers.remove(stranger)
                stranger.link.close()
                continue
            if hello is None:
                continue
            self._strangers.remove(stranger)
            if isinstance(hello, CopyHello):
                self._take_copies(stranger.link, stranger.nonce, hello)
            else:
                self._admit(stranger.link, stranger.nonce, hello)

    def _hear_stranger(self, stranger: Stranger) -> Hello | CopyHello | None:
        """What it says once it has shown the token; None before that. LinkLost if it has not, and never will."""
        link = stranger.link
        hello = next(link.pump(), None)
        if isinstance(hello, Hello):
            if is_proof(hello.proof, self._token, "machine", hello.nonce, stranger.nonce):
                return replace(hello, host=shortened(hello.host))
            link.send(TurnedAway("the tokens differ", "set the same HOLDFAST_TOKEN on every machine"))
            self._say_stranger(stranger)
        elif isinstance(hello, CopyHello):
            if is_proof(hello.proof, self._token, "copies", hello.nonce, stranger.nonce):
                return hello
        elif hello is None:
            link.check()
            if time.monotonic() <= stranger.deadline:
                return None
        raise LinkLost("it has not shown the token")

    def _say_stranger(self, stranger: Stranger) -> None:
        """Not what it says of itself, and not every time: anybody who reaches the port can do this."""
        now = time.monotonic()
        if self._said_strangers is None or now - self._said_strangers > _SAY_STRANGERS:
            self._said_strangers = now
            self._say(f"a machine at {stranger.address} cannot join: the tokens differ")

    def _admit(self, link: MachineLink, nonce: str, hello: Hello) -> None:
        """A machine that has shown the token."""
        why = difference(self._own_hello, hello)
        if why is not None:
            return self._turn_away(link, hello, why, "")
        if hello.launch and hello.launch != self._launch:
            text = "the run that this machine belonged to has ended, and another one has begun"
            return self._turn_away(link, hello, text, "", again=True)
        machine = self._machines[hello.machine]
        if machine.link is not None and machine.agent != hello.agent:
            return self._turn_rival_away(machine, machine.link, link, hello)
        if machine.link is not None:  # it has lost the connection before we have
            self._lose(machine, "it connected anew")
        link.trusted = True
        new = MachineLink(link.sock, floor=self._floor)
        new.trusted = True
        back = machine.agent != ""
        machine.link, machine.agent, machine.host, machine.lost = new, hello.agent, hello.host, ""
        machine.rivals.clear()
        new.send(Welcome(proof(self._token, "leader", nonce, hello.nonce), self._launch, self._run))
        if back:
            self._say(f"{machine.name} is connected again")
        if self.job.outcome is not None:
            new.send(RunOver(self.job.outcome))
        return None

    def _take_copies(self, link: MachineLink, nonce: str, hello: CopyHello) -> None:
        """A second connection of a machine that has joined, for parts of the state (part_copies.py)."""
        machine = self._machines.get(hello.machine)
        if hello.launch != self._launch or machine is None or machine.link is None:
            link.close()
            return
        link.send(Welcome(proof(self._token, "leader", nonce, hello.nonce), self._launch, self._run))
        link.sock.setblocking(True)
        CopyReceiver(self.job, link.sock)
        if hello.machine == SECOND:
            self._to_second.append(link.sock)
            if self._copies is None:
                self._copies = CopySender(self.job, self._way_to_second, skip=self._is_of_second)

    def _way_to_second(self) -> socket.socket | None:
        """The newest connection, once."""
        found = self._to_second[-1:]
        self._to_second.clear()
        return found[0] if found else None

    def _is_of_second(self, seat: int) -> bool:
        return self._members[seat].machine == SECOND

    def _turn_rival_away(self, machine: Machine, old: MachineLink, link: MachineLink, hello: Hello) -> None:
        """Two processes say they are this machine. The new one comes later, until it is certain that the old one lives.

        A machine that lost its power may be back before its silence was too long. The old one lives if it has sent
        something two pulses after the new one came.
        """
        now = time.monotonic()
        since = machine.rivals.setdefault(hello.agent, now)
        if now - old.silence <= since + 2 * PULSE:
            link.send(TurnedAway(f"the first machine still waits for the machine {machine.number} before", later=True))
            link.close(wait=1.0)
            return
        text = f"another process is machine {machine.number} already, on {machine.host}"
        self._turn_away(link, hello, text, "give every machine a --node-rank of its own", ends=False)

    def _turn_away(
        self, link: MachineLink, hello: Hello, why: str, hint: str, *, again: bool = False, ends: bool = True
    ) -> None:
        """`again`: it was part of another run. `ends`: before the run has begun, this machine was needed for it."""
        link.send(TurnedAway(why, hint, 4 if again else 2))
        link.close(wait=1.0)
        text = f"machine {hello.machine} ({hello.host}) cannot join: {why}"
        self._say(text)
        if not self._number and ends and not again:  # nothing has begun, and it will not without this machine
            error = {"error": "UserError", "message": text, "cause": None, "hints": [hint] if hint else []}
            self.job.end({"state": "FAILED", "error": {**error, "exit_code": 2}})

    # -- what machines say ---------------------------------------------------------------------------------

    def _hear_machine(self, machine: Machine) -> None:
        link = machine.link
        if link is None:
            return
        try:
            for message in link.pump():
                self._heed(machine, message)
            link.check()
        except LinkLost as lost:
            self._lose(machine, str(lost))

    def _heed(self, machine: Machine, message: Message) -> None:
        if isinstance(message, RunOver):
            self.job.end(_placed(message.outcome, f"machine {machine.number}, {machine.host}"))
        elif isinstance(message, NewGroupWanted):
            if message.number == self._number:
                roster.ask(self.job, message.number)
        elif isinstance(message, RankHere):
            if message.number == self._number:
                roster.say_here(self.job, message.number, message.rank, message.port)
        elif isinstance(message, OfRank):
            member = next((each for each in self._members if each.seat == message.seat), None)
            if member is not None and member.machine == machine.number:
                self._heed_rank(machine, member, message)

    def _heed_rank(self, machine: Machine, member: Member, message: OfRank) -> None:
        if isinstance(message, TrustTold):
            self._far.heard(member.seat, 0, message, host=machine.host)
            return
        if not roster.is_pid(message.pid):  # it would be read as the number of a process of another machine
            return
        pid = roster.far(machine.number, message.pid)
        if isinstance(message, VerdictTold):
            self._far.heard(member.seat, pid, message, host=machine.host)
        elif isinstance(message, RankLeaves):
            self._far.wants_to_leave(pid)
        elif isinstance(message, AnswerAgain):
            new = self._far.ended(
                member.seat, pid, message.answer, generation=self._number, host=machine.host, late=True
            )
            if new is not None:
                self._note_gone(machine, str(pid), member.seat, 0.0, {"pid": pid})
            if new is not None and new.undone is not None:  # where the group goes on without that machine, it stays
                self._break_group()  # until the ranks from there come: then all go back
        elif isinstance(message, RankBegun):
            self._asked_for.discard(member.seat)
            member.pid, member.ready = pid, False
            self._far.began(member.seat, pid, message.device)
        elif isinstance(message, RankReady):
            roster.say_ready(self.job, pid)
        elif member.pid == pid or not member.pid:
            self._asked_for.discard(member.seat)
            member.pid = pid
            if message.trained:
                roster.say_trained(self.job, pid)
            if message.left is not None:
                self.job.accuse(member.seat, pid, **{"why": "", **message.left})
            self._far.ended(member.seat, pid, message.answer, generation=self._number, host=machine.host)
            told = {"left": message.left, "step": message.step, "phase": message.phase, "code": message.code}
            told["pid"] = pid
            if message.code:
                self._note_gone(machine, str(pid), member.seat, message.silence, told)
            self._ended(member, message.code)

    def _note_gone(self, machine: Machine, name: str, seat: int | None, silence: float, told: dict[str, Any]) -> None:
        """For the rank that keeps the run folder, which cannot see the boards of other machines."""
        more = {"seat": seat, "machine": machine.name, "since": time.monotonic() - silence}
        self.job.note(f"{GONE}-{name}", {**told, **more})

    def _lose(self, machine: Machine, why: str) -> None:
        """Its ranks are lost. The others leave their group: a connection to a machine that is gone does not break."""
        link, machine.link = machine.link, None
        silence = 0.0
        if link is not None:
            silence = link.silence
            link.close()
        now = time.monotonic()
        machine.lost, machine.apart = why, now
        for member in [each for each in self._members if each.machine == machine.number]:
            self._asked_for.discard(member.seat)
            if member.pid:
                roster.forget(self.job, member.pid)
            if self._number:  # the others go on without it at once, also if it is back in a second
                member.lost = -math.inf
            self.job.note(f"away-{member.seat}", {"why": f"{machine.name}: {why}"})
            member.pid, member.ready, member.strikes = 0, False, 0
        for each in self._members:
            each.done = False
        if self.job.outcome is not None:
            return
        self._say(f"{machine.name} is lost: {why}")
        if self._number:
            self._note_gone(machine, f"{machine.number}-{self._number}", None, silence, {"why": why})
            self._break_group()

    def _break_group(self) -> None:
        """All ranks leave the group that is now, also those that are still connecting and see no connection end."""
        if self._now is not None and self._now.spans:
            roster.tell_to_leave(self.job, self._number)
            self._broadcast(LeaveGroup(self._number))

    def _ended(self, member: Member, code: int) -> None:
        trained = self._published.get(member.seat) == member.pid
        super()._ended(member, code)
        if code and trained:
            self._break_group()

    def _check_who_never_came(self) -> None:
        """A machine that was not connected in all the time it had is not waited for: are the others enough to begin?"""
        if self._number or self._ending or self.job.outcome is not None:
            return
        missing = [each for each in self._machines.values() if self._is_late(each)]
        without = {each.number for each in missing}
        left = [each for each in self._members if each.machine not in without]
        if missing and sum(each.ready or each.strikes < MOST_STRIKES for each in left) < self.least:
            names = ", ".join(str(each.number) for each in missing)
            text = f"machine {names} did not connect in {duration(self._patience)}"
            hint = "run `holdfast launch` there with the same --master, and look whether a firewall is in between"
            error = {"error": "GaveUp", "message": text, "cause": None, "hints": [hint], "exit_code": 4}
            self.job.end({"state": "GAVE_UP", "error": error})

    def _is_late(self, machine: Machine) -> bool:
        return machine.link is None and time.monotonic() - machine.apart >= self._patience

    # -- what machines are told ----------------------------------------------------------------------------

    def _broadcast(self, message: Message) -> None:
        for machine in self._machines.values():
            if machine.link is not None:
                machine.link.send(message)

    def _pulse(self) -> None:
        """Everybody hears how far the last of the ranks that it cannot see has come."""
        now = time.monotonic()
        if now - self._looked > 0.25:
            self._looked = now
            self._place = last_place(self._boards.look())
        links = {number: each.link for number, each in self._machines.items() if each.link is not None}
        places = {number: BEHIND_ALL if link.troubled else link.place for number, link in links.items()}
        self.elsewhere = min((place for place in places.values() if place is not None), default=None)
        for number, link in links.items():
            others = [self._place, *(place for other, place in places.items() if other != number)]
            link.pulse(min((each for each in others if each is not None), default=None))

    def _tell_all_here(self) -> None:
        now = self._now
        if now is None or self._all_here == now.number or not now.spans:
            return
        ports = [roster.port_of(self.job, now.number, rank) for rank in range(now.ranks)]
        if all(port is not None for port in ports):
            self._all_here = now.number
            self._broadcast(AllHere(now.number, now.ranks, ports[0] or 0))

    def _announce(self, now: Roster) -> None:
        """Others first: their ranks have a longer way."""
        rtt = max((each.link.rtt for each in self._machines.values() if each.link is not None), default=0.0)
        # Each rank asks the store for the address of each other one, a few times, one after the other.
        connect = roster.CONNECT + 20.0 * now.ranks * rtt
        self._now = now = Roster(now.number, now.pids, now.seats, now.wanted, now.machines, connect)
        for number, machine in self._machines.items():
            if machine.link is not None:
                pids = {str(rank): roster.as_seen_on(number, pid) for rank, pid in now.pids.items()}
                devices = self._devices_of(now.seats)
                machine.link.send(RosterTold(now.number, pids, now.seats, now.wanted, now.machines, connect, devices))
        super()._announce(now)

    def _leaves(self, seat: int) -> bool:
        return super()._leaves(seat) or self._far.leaves(self._published[seat])

    def _devices_of(self, seats: Sequence[int]) -> tuple[str, ...]:
        """A machine whose ranks are all on the CPU keeps no ladder."""
        own = super()._devices_of(seats) or [""] * len(seats)
        found = tuple(mine or self._far.device_of(seat) for mine, seat in zip(own, seats, strict=True))
        return tuple(each or "cpu" for each in found) if any(found) else ()

    def _drop_slots(self, seat: int) -> None:
        machine = self._machines.get(self._members[seat].machine)
        if machine is None:
            super()._drop_slots(seat)
        elif machine.link is not None:
            machine.link.send(DropSlots(seat))

    def _lives(self, pid: int) -> bool:
        return pid not in self.pids or super()._lives(pid)

    # -- who is started, and who is waited for -------------------------------------------------------------

    def _start_missing(self) -> None:
        super()._start_missing()
        if self._ending or self.job.outcome is not None or self._hopeless:
            return
        now = time.monotonic()
        for member in self._members:
            machine = self._machines.get(member.machine)
            if machine is None or machine.link is None or member.seat in self._asked_for:
                continue
            if not member.pid and not member.done and member.pause_until <= now:
                self._asked_for.add(member.seat)
                member.begun = now
                machine.link.send(StartRank(member.seat, member.local, self._local_ranks, self._ranks))

    def _chosen(self) -> list[Member]:
        """Without a rank of this machine nobody would keep the run folder."""
        chosen = super()._chosen()
        if any(member.machine == self.machine for member in chosen):
            return chosen
        own = [member for member in self._own if member.ready][:1]
        if not own:
            return []
        return sorted([*chosen[: self._ranks - 1], *own], key=lambda member: member.seat)

    @property
    def _hopeless(self) -> bool:
        return super()._hopeless or not any(each.ready or each.strikes < MOST_STRIKES for each in self._own)

    def _is_worth_waiting_for(self, member: Member) -> bool:
        machine = self._machines.get(member.machine)
        if machine is not None and machine.link is None:
            return not self._number and not self._is_late(machine)
        return super()._is_worth_waiting_for(member)

    # -- the end -------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        """Nobody has trained yet, and some machines may never come."""
        if not self._number and not self._ending:
            self.end()

    def end(self, number: int = signal.SIGTERM) -> None:
        self._broadcast(EndRanks(kill=number == processes.KILL))
        super().end(number)

    def close(self) -> None:
        outcome = self.job.outcome or {"state": "STOPPED"}
        if not self._told_over:
            self._broadcast(RunOver(outcome))
        super().close()
        if self._copies is not None:
            self._copies.end()
        self._server.close()
        deadline = time.monotonic() + GOODBYE
        links = [machine.link for machine in self._machines.values() if machine.link is not None]
        while links and time.monotonic() < deadline:
            for link in list(links):
                with contextlib.suppress(LinkLost):
                    self._hear_last_words(link)
                    link.check()
                    link.pulse(None)
                    continue
                links.remove(link)  # it has heard, and closed the connection
            time.sleep(0.02)
        self._far.tell(last=True)
        for machine in self._machines.values():
            if machine.link is not None:
                machine.link.close()
        for stranger in self._strangers:
            stranger.link.close()
        self._boards.close()

    def _hear_last_words(self, link: MachineLink) -> None:
        """Verdicts that a machine has reached when its ladders were closed."""
        machine = next(each for each in self._machines.values() if each.link is link)
        for message in link.pump():
            if isinstance(message, TrustTold | VerdictTold):
                self._heed(machine, message)


def _placed(outcome: dict[str, Any], where: str) -> dict[str, Any]:
    """The outcome with the name of the machine that an error comes from."""
    error = outcome.get("error")
    if not isinstance(error, dict):
        return outcome
    return {**outcome, "error": {**error, "cause": f"{error.get('cause') or 'it happened'} ({where})"}}


def seats_of(wanted: Wanted) -> list[Member]:
    """Seats in the order of the machines; those of spares after them, on the machines in turn."""
    members = [
        Member(seat, machine=seat // wanted.nproc, local=seat % wanted.nproc)
        for seat in range(wanted.nodes * wanted.nproc)
    ]
    for index in range(wanted.spares):
        local = wanted.nproc + index // wanted.nodes
        members.append(Member(len(members), machine=index % wanted.nodes, local=local))
    return members
