"""The other end of `holdfast.attach`: a script that hands its state out, into slots this process owns.

    attached = Attached(context, port)          # attach_port.py: where we listen, and the word of the script
    attached.hear(supervisor)                   # a script attaches, asks for slots, logs, ends an epoch
    attached.exact                              # the state is outside the process: a restart repeats a step at most

The script connects to 127.0.0.1 with a token it finds in its environment; slots are opened by path. From then on
memory, keeper and checkpoints are those of `holdfast train`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.base.board import Beat, Board
from holdfast.base.channel import Channel, Closed
from holdfast.run.messages import (
    Attach,
    AttachAnswer,
    Detach,
    EpochEnded,
    Log,
    Loggers,
    Message,
    Note,
    OfExact,
    ScriptEpoch,
    SlotsWanted,
    received,
)
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.saves import Saving
from holdfast.supervisor.scripts.attach_port import AttachPort

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_parts import ScriptRun

STOP_PATIENCE = 30.0
"""Seconds an attached script has to reach its next commit when it is asked to stop."""


class Attached:
    """What is known of a script that attached itself, if one did."""

    def __init__(self, context: RunContext, port: AttachPort) -> None:
        self.context = context
        self._port = port
        self.exact = False
        """A process of this run has attached itself: what it committed is in our slots."""
        self.alive = False
        """The process that runs now has."""
        self._channel: Channel | None = None
        self._board: Board | None = None
        self._generation = 0
        self._saving: Saving | None = None
        self._stop_at: float | None = None
        self._rows: dict[type[Message], Callable[[Any, ScriptRun], None]] = {
            Attach: self._attach,
            Detach: lambda *_: self.forget(),
            SlotsWanted: lambda said, _: context.give_slots(said.capacity, self._send, by_path=True),
            Log: lambda said, _: context.teller.log(said.step, said.epoch, said.values),
            ScriptEpoch: self._epoch,
            EpochEnded: self._epoch,  # an older holdfast in the script says this
            Loggers: self._told,
            Note: self._told,
            **dict.fromkeys(OfExact.__subclasses__(), self._of_exact),
        }

    @property
    def sources(self) -> list[Any]:
        keeper = self.context.keeping.channel
        return [each for each in (self._port.server, self._channel, keeper) if each is not None]

    def process_begins(self, generation: int, board: Board) -> None:
        """A new process, which may attach itself or not."""
        self._drop_channel()
        self.alive = False
        self._stop_at = None
        self._generation, self._board = generation, board
        if self._saving is not None:
            self.context.memory.release_leases(keep=self.context.keeping.awaited)
            self.context.keeping.tell_board(board)

    def read_board(self) -> Beat | None:
        return None if self._board is None or self._board.closed else self._board.read()

    # -- hearing -------------------------------------------------------------------------------------------

    def hear(self, supervisor: ScriptRun) -> None:
        if self._channel is None:
            self._channel = self._port.answer()
        if self._channel is not None:
            messages, closed = self._channel.mail()
            for data in messages:
                kind = str(data.get("kind", ""))
                try:
                    self._heed(received(data), supervisor)
                except (OSError, ValueError, KeyError, TypeError) as error:  # it is no reason to stop hearing the rest
                    self.context.teller.failed_over(kind, error)
            if closed:
                self._drop_channel()
        if self._saving is not None:
            self._saving.hear()
            self._count(supervisor)
        if self._stop_at is not None and time.monotonic() > self._stop_at and supervisor.script is not None:
            self._stop_at = None
            supervisor.script.send(supervisor.stopping or 15)

    def _heed(self, message: Message | None, supervisor: ScriptRun) -> None:
        row = None if message is None else self._rows.get(type(message))
        if row is not None:
            row(message, supervisor)

    def _told(self, said: Message, supervisor: ScriptRun) -> None:
        self.context.teller.emit(said.kind, **said.told)

    def _epoch(self, said: ScriptEpoch | EpochEnded, supervisor: ScriptRun) -> None:
        if self._saving is not None:
            self._saving.epoch(ScriptEpoch(said.epoch, said.step))

    def _of_exact(self, said: OfExact, supervisor: ScriptRun) -> None:
        answer = supervisor.exact.heed(said)
        if answer is not None:
            self._send(answer)

    def _attach(self, said: Attach, supervisor: ScriptRun) -> None:
        """It hands its state out from here on: a keeper is needed, and it is told what there is already."""
        if self._saving is None:
            self.context.keeping.start()
            self._saving = Saving(self.context, self.read_board)
            if self._board is not None:
                self.context.keeping.tell_board(self._board)
        self.exact = self.alive = True
        newest, resume = self.context.memory.newest(), self.context.plan.resume
        answer = AttachAnswer(
            self._generation,
            self.context.run_folder.name,
            self.context.settings.to_json(),
            tuple(arena.at(by_path=True) for arena in self.context.memory.arenas),
            str(resume.state) if resume is not None and newest is None else None,
            supervisor.exact.told(),
        )
        self._send(answer.to_json())

    def _send(self, message: dict[str, Any]) -> None:
        if self._channel is not None:
            with contextlib.suppress(Closed, OSError):
                self._channel.send(message)

    def _count(self, supervisor: ScriptRun) -> None:
        """Commits are what counts here, not what the optimizer did."""
        accounts, newest = self.context.accounts, self.context.newest_commit()
        if newest is not None and newest.step > accounts.steps:
            supervisor.answering.progressed(newest.step)
            self.context.teller.rate.note(newest.step)
            accounts.steps = newest.step

    # -- saving and ending ---------------------------------------------------------------------------------

    def tick(self) -> None:
        if self._saving is not None:
            self._saving.tick()

    def stop(self) -> bool:
        """Ask the script to stop at its next commit; False if it cannot be asked."""
        if not self.alive or self._board is None or self._stop_at is not None:
            return False
        self._board.request_stop()
        self._stop_at = time.monotonic() + STOP_PATIENCE
        return True

    def forget(self) -> None:
        """What was handed out is not used: the script cannot be led back to it."""
        self.exact = self.alive = False
        if self._saving is not None:
            self._saving = None
            self.context.keeping.close(save=False)

    def save_last(self, weights: list[str] | None = None) -> None:
        """What was committed last, on disk and verified."""
        if self._saving is not None:
            self._saving.last(weights, hurry=lambda: False)

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self, *, save: bool) -> None:
        self._drop_channel()
        if self._saving is not None:
            self.context.keeping.close(save=save)
