"""The agent of a machine that is not the first: it starts and ends ranks as the leader says. No torch.

    agent = MachineAgent(job, address, hello, words, env, log, token=token, floor=5.0, patience=600.0, ...)
    while not agent.over:
        agent.look(0.1)

What the ranks of this machine write to the folder of their job is told to the leader (leader.py), and what the leader
says is written there. This machine judges its own ranks: their ladders and the ledger of their devices are here
(rank_ladder.py), and the leader hears what is decided.

When the connection is lost, the ranks of this machine end at once: the others go on without them or wait, and no step
is possible without the first machine. Their snapshots stay. The agent tries to connect again for `patience` seconds. It
gives up sooner if the first machine answers and nobody listens there: then the launch over there has ended. What it has
in memory is written to disk before it gives up.
"""

from __future__ import annotations

import errno
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base import dataclass_json, processes
from holdfast.base.board import Board
from holdfast.base.human import duration
from holdfast.distributed import rank_devices, rank_ladder, roster
from holdfast.distributed.agent import Member, RankAgent
from holdfast.distributed.job import Job
from holdfast.distributed.machine_link import (
    BEHIND_ALL,
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
    TurnedAway,
    Welcome,
    is_proof,
    proof,
    shortened,
)
from holdfast.distributed.part_copies import CopySender, open_copies
from holdfast.distributed.rank_ladder import RankLadder
from holdfast.distributed.rank_watch import Boards, last_place
from holdfast.distributed.roster import Roster
from holdfast.run.messages import Message

_TRY = 0.5
"""Seconds between two tries to connect."""
_CONNECT = 2.0
"""Seconds for one try."""
_MOST_ANSWERS = 16
"""Decisions of ladders that are told again after a new connection: those of more processes than end in a moment."""
_WELCOME = 10.0
"""Seconds from a connection to the welcome; the leader waits as long for the token."""


class MachineAgent(RankAgent):
    """The ranks of this machine."""

    def __init__(
        self,
        job: Job,
        address: tuple[str, int],
        hello: Hello,
        words: Sequence[str],
        env: dict[str, str],
        log: Path,
        *,
        token: str,
        floor: float,
        patience: float,
        say: Callable[[str], None],
        rescue: Callable[[], tuple[str, str] | None],
        preload: Sequence[str] = (),
        ladder: RankLadder | None = None,
        may_shrink: bool = False,
    ) -> None:
        """`rescue` writes the newest state to disk; it returns a sentence and the command to go on with."""
        super().__init__(
            job, hello.nproc, words, env, log, preload=preload, least=0, ladder=ladder, may_shrink=may_shrink
        )
        self.machine = hello.machine
        self._members: list[Member] = []
        self._address = address
        self._hello = hello
        self._token = token
        self._floor = floor
        self._patience = patience
        self._say = say
        self._rescue = rescue
        self._link: MachineLink | None = None
        self._greeted = False
        self._nonce = ""
        self._now: Roster | None = None
        self._told: set[tuple[str, int, int]] = set()
        """What the leader has heard of: kind, and two numbers."""
        self._boards = Boards(job)
        self._tried = self._connected = 0.0
        self._apart = time.monotonic()
        """Since when there is no connection."""
        self._refused: float | None = None
        """Since when the first machine answers, and nobody listens there."""
        self._error = ""
        self._gave_up = False
        self._looked = 0.0
        self._place: tuple[int, int] | None = None
        self._seats: set[int] = set()
        """Those that have been on this machine."""
        self._copies: CopySender | None = None
        self._told_to_end = False
        """The leader has ended the ranks: what becomes of them is no fault of a device."""
        self._answers: deque[AnswerAgain] = deque(maxlen=_MOST_ANSWERS)
        """What ladders have decided. A connection may be lost before the leader has heard of it."""

    @property
    def over(self) -> bool:
        if any(member.pid for member in self._members) or self._forking is not None:
            return False
        return self._ending or self._gave_up or self.job.outcome is not None

    @property
    def _hopeless(self) -> bool:
        return False  # that is for the leader to say

    def _wake_on(self) -> list[int]:
        return [*super()._wake_on(), *([] if self._link is None else [self._link.fileno()])]

    # -- looking -------------------------------------------------------------------------------------------

    def _once(self) -> None:
        self._hear_ranks()
        if self._link is None:
            self._connect_again()
        else:
            self._talk(self._link)
        if self._ladder is not None:
            self._ladder.tick()
        self._start_missing()
        if self._link is not None:
            self._report(self._link)
        if self.over and self.returncode is None:
            self.returncode = 0

    def _talk(self, link: MachineLink) -> None:
        try:
            for message in link.pump():
                self._heed(link, message)
                if self._link is not link:
                    return
            link.check()
        except LinkLost as lost:
            self._lose(str(lost))
            return
        now = time.monotonic()
        if not self._greeted and now - self._connected > _WELCOME:
            self._lose(f"no welcome in {duration(_WELCOME)}")
            return
        if now - self._looked > 0.25:
            self._looked = now
            self._place = last_place(self._boards.look())
        if self._greeted:
            link.pulse(self._place)
        self.elsewhere = BEHIND_ALL if link.troubled else link.place

    def _heed(self, link: MachineLink, message: Message) -> None:
        if isinstance(message, Challenge) and not self._nonce:
            self._nonce = secrets.token_hex(16)
            shown = proof(self._token, "machine", self._nonce, message.nonce)
            self._challenge = message.nonce
            link.send(replace(self._hello, nonce=self._nonce, proof=shown))
        elif isinstance(message, TurnedAway):
            self._turned_away(message)
        elif isinstance(message, Welcome) and self._nonce:
            if not is_proof(message.proof, self._token, "leader", self._challenge, self._nonce):
                self._turned_away(TurnedAway("the tokens differ", "set the same HOLDFAST_TOKEN on every machine"))
                return
            if self._hello.launch:
                self._say(f"connected again to the first machine after {duration(time.monotonic() - self._apart)}")
            self._greeted = link.trusted = True
            self._members = [each for each in self._members if each.pid]  # the leader asks for ranks anew
            self._hello = replace(self._hello, launch=message.launch)
            if self._ladder is not None:
                self._ladder.name_run(shortened(message.run))
            for answer in self._answers:
                link.send(answer)
            self._refused = None
        elif self._greeted:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        if isinstance(message, StartRank):
            self._ranks, self._local_ranks = message.ranks, message.local_ranks
            self._seats.add(message.seat)
            if self._forking is None or self._forking.seat != message.seat:
                self._members = [each for each in self._members if each.seat != message.seat or each.pid]
                self._members.append(Member(message.seat, machine=self.machine, local=message.local))
            if self._copies is None:
                self._copies = CopySender(self.job, self._open_copies, skip=self._is_elsewhere, receive=True)
        elif isinstance(message, RosterTold):
            pids = {int(rank): pid for rank, pid in message.pids.items()}
            self._number = message.number
            self._now = Roster(
                message.number, pids, message.seats, message.wanted, message.machines, connect=message.connect
            )
            if message.devices:
                rank_devices.tell_group(self.job, message.number, message.devices, message.machines)
            roster.publish(self.job, self._now)
        elif isinstance(message, AllHere):
            for rank in range(message.ranks):
                roster.say_here(self.job, message.number, rank, 0 if rank else message.port)
        elif isinstance(message, LeaveGroup):
            roster.tell_to_leave(self.job, message.number)
        elif isinstance(message, DropSlots):
            self.job.drop_slots(message.seat)
        elif isinstance(message, RunOver):
            self.job.end(message.outcome)
        elif isinstance(message, EndRanks):
            self._told_to_end = True
            self._signal_ranks(processes.KILL if message.kill else signal.SIGTERM)

    # -- ranks ---------------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        if self._link is not None and self._greeted:
            super()._start_missing()

    def _begun(self, member: Member, pid: int) -> None:
        for answer in [each for each in self._answers if each.pid == pid]:  # of a process that had this number before
            self._answers.remove(answer)
        super()._begun(member, pid)
        if not any(each is member for each in self._members):  # nobody counts on it
            processes.send_group(pid, processes.KILL)
            processes.send(pid, processes.KILL)

    def _ended(self, member: Member, code: int) -> None:
        """The leader hears of it; the seat is empty until it asks for another process."""
        pid = member.pid
        self.job.note(f"exit-{pid}", {"code": code})
        trained = roster.forget(self.job, pid)
        left = self.job.left(member.seat, pid)
        ended_here = not self._greeted or self._told_to_end or self._ending  # with the connection, or with the run
        self._ask_ladder(member, code, left or {}, counts=not ended_here)
        path = self.job.boards().get((member.seat, pid))
        step, phase, silence = 0, "", 0.0
        if path is not None:
            board = Board.open_path(path)
            beat = board.read()
            step, phase, silence = beat.at or 0, beat.phase.label, beat.silence
            board.close(unlink=True)
        member.pid, member.ready, member.done = 0, False, True  # not started again by us
        answer = rank_ladder.answer(self.job, pid)
        said = None if answer is None else dataclass_json.write(answer)
        if said is not None:
            self._answers.append(AnswerAgain(member.seat, pid, said))
        if self._link is not None and self._greeted:
            if said is not None and left is not None:  # the fault is in the answer
                left = {name: value for name, value in left.items() if name != "fault"}
            self._link.send(RankGone(member.seat, pid, code, trained, left, step, phase, silence, said))
        self._members = [each for each in self._members if each is not member]

    def _others_suffice(self, member: Member) -> bool:
        """Spares of other machines are known to the leader alone."""
        return False

    def _report(self, link: MachineLink) -> None:
        """What the ranks have written since the last look, each thing once."""
        for member in self._members:
            if member.pid and self._is_news("begun", member.seat, member.pid):
                link.send(RankBegun(member.seat, member.pid, self._device_of(member.seat)))
            if member.pid and not member.ready and roster.is_ready(self.job, member.pid):
                member.ready = True
                link.send(RankReady(member.seat, member.pid))
            if member.pid and self._leaves(member.seat) and self._is_news("leaves", member.seat, member.pid):
                link.send(RankLeaves(member.seat, member.pid))
        self._tell_of_devices(link)
        now = self._now
        if now is not None:
            if roster.asked(self.job, now.number) and self._is_news("asked", now.number, 0):
                link.send(NewGroupWanted(now.number))
            for rank, machine in enumerate(now.machines):
                here = machine == self.machine and roster.port_of(self.job, now.number, rank) is not None
                if here and self._is_news("here", now.number, rank):
                    link.send(RankHere(now.number, rank))
        outcome = self.job.outcome
        if outcome is not None and self._is_news("over", 0, 0):
            link.send(RunOver(outcome))

    def _device_of(self, seat: int) -> str:
        return "" if self._ladder is None else self._ladder.device_of(seat)

    def _tell_of_devices(self, link: MachineLink) -> None:
        """What this machine thinks of the devices of its ranks. It is kept while there is no connection."""
        while self._ladder is not None and self._ladder.outbox and self._greeted:
            link.send(self._ladder.outbox.popleft())

    def _is_news(self, kind: str, first: int, second: int) -> bool:
        key = (kind, first, second)
        new = key not in self._told
        self._told.add(key)
        return new

    def _signal_ranks(self, number: int) -> None:
        for pid in self.pids:
            if number == processes.KILL:
                processes.send_group(pid, number)
            else:
                processes.send(pid, number)

    def _open_copies(self) -> socket.socket | None:
        """For a thread; the leader takes copies only while this machine is connected."""
        return open_copies(self._address, self._token, self.machine, self._hello.launch, seconds=_CONNECT)

    def _is_elsewhere(self, seat: int) -> bool:
        return seat not in self._seats

    # -- without a connection ------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        """The ranks here are lost to the others: they end now, so that nothing goes on that nobody counts on."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        joined, self._greeted, self._nonce = self._greeted, False, ""
        self._told, self._now, self.elsewhere = set(), None, None
        self._error = why
        if not joined:
            self._check_patience(time.monotonic())
            return
        self._apart = time.monotonic()
        self._members = [each for each in self._members if each.pid or each is self._forking]
        if self.job.outcome is None:
            self._say(
                f"the first machine is lost: {why}. The processes here have ended, their state is kept in memory; "
                f"this machine tries to connect again for {duration(self._patience)}"
            )

    def _connect_again(self) -> None:
        now = time.monotonic()
        self._signal_ranks(processes.KILL)  # each time: one may have been forked just now
        if now - self._tried < _TRY or self._ending or self.job.outcome is not None or self._gave_up:
            return
        if self.pids or self._forking is not None:  # what they become, nobody over there would know of
            return
        self._tried = now
        try:
            sock = socket.create_connection(self._address, timeout=_CONNECT)
        except OSError as error:
            self._cannot_connect(error, now)
            return
        self._link = MachineLink(sock, floor=self._floor)
        self._connected = time.monotonic()
        self._nonce = ""

    def _cannot_connect(self, error: OSError, now: float) -> None:
        self._error = str(error.strerror or error).lower()
        refused = error.errno in (errno.ECONNREFUSED, errno.ECONNRESET)
        self._refused = (self._refused or now) if refused else None
        if self._hello.launch and self._refused is not None and now - self._refused > self._floor:
            self._give_up_waiting("`holdfast launch` on the first machine has ended")
        else:
            self._check_patience(now)

    def _check_patience(self, now: float) -> None:
        """After a try that led to nothing, whether or not there was a connection."""
        if now - self._apart > self._patience and not self._gave_up and self.job.outcome is None:
            self._give_up_waiting(f"no connection to the first machine for {duration(now - self._apart)}")

    def _turned_away(self, message: TurnedAway) -> None:
        if message.later:
            self._lose(message.text)
            self._tried = time.monotonic()
            return
        if message.exit_code != 2:
            self._give_up_waiting(message.text)
            return
        hints = [message.hint] if message.hint else []
        error = {"error": "UserError", "message": f"this machine cannot join: {message.text}", "cause": None}
        self.job.end({"state": "FAILED", "error": {**error, "hints": hints, "exit_code": 2}})

    def _give_up_waiting(self, why: str) -> None:
        self._gave_up = True
        host, port = self._address
        error: dict[str, Any] = {"error": "GaveUp", "message": why, "cause": f"{host}:{port}: {self._error}"}
        saved = self._rescue()
        hints = ["run it again on all machines"] if saved is None else [saved[1]]
        error |= {"saved": None if saved is None else saved[0], "hints": hints, "exit_code": 4}
        self.job.end({"state": "GAVE_UP", "error": error})

    # -- the end -------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        if not self._greeted and not self.pids and not self._gave_up and self.job.outcome is None:
            self._give_up_waiting("stopped while the first machine could not be reached")

    def close(self) -> None:
        super().close()
        if self._copies is not None:
            self._copies.end()
        if self._link is not None:
            self._tell_of_devices(self._link)
            self._link.close(wait=1.0)
        self._boards.close()
