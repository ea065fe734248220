"""The supervisor's side of the keeper: one save at a time, wishes joined while it is busy.

keeping = Keeping(run_folder, settings, memory, scratch, portable=False)
keeping.wish(SaveReason.EPOCH, weights=["best"], best={"name": "valid_loss", "value": 0.61, "step": 88, "epoch": 10})
for report in keeping.hear(): ...          # what was saved, or why not; raises KeeperDied
keeping.finish(weights=["final"])          # the last save of a run, waited for

What the disk refuses is asked for again, after a growing while: it may have room then.
"""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base.board import Board
from holdfast.base.channel import Channel, Closed
from holdfast.base.child_process import wait_or_kill
from holdfast.base.scratch import Scratch
from holdfast.run.commit_points import SaveReason, Wish
from holdfast.run.folder import RunFolder
from holdfast.run.messages import (
    ArenasKept,
    BoardKept,
    KeeperBegins,
    Message,
    Owed,
    Quit,
    RunEnds,
    Save,
    SaveReport,
    received,
)
from holdfast.run.settings import Settings
from holdfast.state.slot_memory import Memory
from holdfast.supervisor import process_start

SLOWEST_SAVE, SLOWEST_DISK = 60.0, 5e6
"""Seconds, and bytes a second: a save that takes longer than both allow is stuck."""
PATIENCE = 600.0
"""Seconds the last save of a run may take."""
FIRST_RETRY, SLOWEST_RETRY = 5.0, 60.0
"""Seconds until a save that the disk refused is tried again; they double each time."""

_END = Wish(SaveReason.END, last=True)


class KeeperDied(Exception):
    """The keeper ended; training did not."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the keeper ended with {code}")
        self.code = code


class Keeping:
    """The keeper process and what is asked of it."""

    def __init__(self, run: RunFolder, settings: Settings, memory: Memory, scratch: Scratch, *, portable: bool) -> None:
        self.run = run
        self.scratch = scratch
        self.settings = settings
        self.memory = memory
        self.portable = portable
        self.last_wish = time.monotonic()
        self.saved: dict[str, Any] = {}
        """The newest checkpoint written, as the keeper reported it."""
        self.final: dict[str, Any] = {}
        """The report of the save that wrote the final weights, with their digest."""
        self.problem: str | None = None
        """Why the last save did not happen; None if it did."""
        self.by_disk = False
        """Whether that was the disk's doing."""
        self.channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._busy: Wish | None = None
        self._board: Board | None = None
        self._wishes: list[Wish] = []
        """At most one for a snapshot that is held, and one for the newest."""
        self._refused: list[Wish] = []
        """Wishes of the last save that the disk did not take."""
        self._delay = 0.0
        self._retry_at = 0.0
        self._ending = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def idle(self) -> bool:
        """Everything wished for is done."""
        return self._busy is None and not self._wishes

    def start(self) -> None:
        self._process, self.channel = process_start.start_keeper(
            self.run.path, self.settings.checkpoint.keep, self.run.lock_fd, portable=self.portable
        )
        self.run.hold_with(self._process.pid)
        self._say(KeeperBegins(str(self.scratch.path), self.run.info))
        if self._busy is not None:
            self._wishes.insert(0, self._busy)
            self._busy = None
        if self.memory.arenas:
            self.tell_arenas()
        if self._board is not None and self._board.fd >= 0:
            self.tell_board(self._board)

    def tell_arenas(self) -> None:
        """Hand over the slots there are now."""
        arenas = self.memory.arenas
        fds = [] if self.portable else [fd for arena in arenas for fd in arena.fds]
        self._say(ArenasKept(tuple(arena.at(by_path=self.portable) for arena in arenas)), fds)

    def _say(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """To the keeper, if there is one; False if it has not been sent."""
        if self.channel is None:
            return False
        try:
            self.channel.send(message.to_json(), fds)
        except Closed:  # `hear` will find that out
            return False
        return True

    def tell_board(self, board: Board) -> None:
        """A new worker, a new board: the keeper reads it should this process die."""
        self._board = board
        path = str(board.path) if board.path else None
        self._say(BoardKept(path), [] if path else [board.fd])

    def wish(
        self,
        reason: SaveReason,
        *,
        weights: list[str] | None = None,
        best: dict[str, Any] | None = None,
        checkpoint: bool = True,
        sequence: int | None = None,
    ) -> None:
        """Ask for a save: of the newest snapshot, or of the one with this sequence, which is held until then."""
        self._add(Wish(reason, tuple(weights or ()), checkpoint, sequence, best))
        self.send()
        self._tell_owed()

    def _add(self, wish: Wish) -> None:
        """Join it with what is waiting already; the older one of two snapshots that are held is let go."""
        for number, other in enumerate(self._wishes):
            if (other.sequence is None) == (wish.sequence is None):
                self._wishes[number] = other.joined(wish)
                for each in {other.sequence, wish.sequence} - {self._wishes[number].sequence}:
                    self.memory.let_go(each)
                return
        self._wishes.append(wish)

    def _tell_owed(self) -> None:
        """The weights of a snapshot that is held, while the keeper is busy: should this process die, it saves them."""
        owed = tuple(wish for wish in self._wishes if wish.weights and wish.sequence is not None)
        if owed:
            self._say(Owed(owed))

    @property
    def awaited(self) -> set[int]:
        """Sequences of snapshots that must not be overwritten before they are saved."""
        wishes = [*self._wishes, *([self._busy] if self._busy else [])]
        return {wish.sequence for wish in wishes if wish.sequence is not None}

    def send(self) -> None:
        """Pass the next wish on, if the keeper is free and there is something to save."""
        if self.channel is None or self._busy is not None or not self._wishes or self.memory.newest() is None:
            return
        if time.monotonic() < self._retry_at and not self._ending:
            return
        if self._say(Save(self._wishes[0])):  # otherwise it stays for the next keeper
            self._busy = self._wishes.pop(0)
            self.last_wish = time.monotonic()

    def stuck(self) -> bool:
        """Under way for longer than the slowest disk would take: somebody stopped it, or its file system hangs."""
        if self._busy is None:
            return False
        newest = self.memory.newest()
        size = newest.size if newest is not None else 0
        return time.monotonic() - self.last_wish > SLOWEST_SAVE + size / SLOWEST_DISK

    def kill(self) -> None:
        """End a keeper that does not answer; `hear` will find it dead."""
        if self._process is not None:
            self._process.kill()

    def hear(self) -> list[SaveReport]:
        """What the keeper has answered; KeeperDied if it will not answer any more."""
        if self.channel is None:
            return []
        reports = []
        try:
            for message in map(received, self.channel.pending()):
                if isinstance(message, SaveReport):
                    self._heed(message)
                    reports.append(message)
        except Closed:
            assert self._process is not None
            self.channel.close()
            self.channel = None
            raise KeeperDied(self._process.wait()) from None
        self.send()
        return reports

    def _heed(self, report: SaveReport) -> None:
        wish, self._busy = self._busy, None
        saved = report.saved
        if not self._ending or report.reason == SaveReason.END:
            self.problem = report.why or (None if saved is not None else "it found no snapshot to save")
            self.by_disk = report.errno is not None
        if saved is not None and "path" in saved:
            self.saved = saved
        if saved is not None and "final" in report.weights and "weights_sha256" in saved:
            self.final = saved
        if report.why is None or report.errno is None:
            self._delay = self._retry_at = 0.0
        elif wish is not None:
            self._postpone(wish, saved or {})

    def _postpone(self, wish: Wish, done: dict[str, Any]) -> None:
        """What the disk refused is owed: the weights of the snapshot that is held, and a checkpoint of the newest."""
        owed = []
        if wish.checkpoint and "path" not in done:
            owed.append(replace(wish, weights=(), best=None, sequence=None))
        if wish.weights and "weights_sha256" not in done:
            owed.append(replace(wish, checkpoint=False))
        else:
            self.memory.let_go(wish.sequence)
        if self._ending:
            self._refused += owed
            return
        first = min(FIRST_RETRY, self.settings.checkpoint.every)
        self._delay = min(SLOWEST_RETRY, max(first, 2 * self._delay))
        self._retry_at = time.monotonic() + self._delay
        for each in owed:
            self._add(each)
        self._tell_owed()

    def finish(
        self, weights: list[str] | None = None, *, hurry: Callable[[], bool], folder: Path | None = None
    ) -> list[SaveReport]:
        """The state as it is now, on disk and verified. Waits for what is under way first, until `hurry()`.

        With `folder` it goes there: the run's own folder has refused it.
        """
        if self.memory.newest() is None:
            return []
        deadline = time.monotonic() + PATIENCE
        self._ending = True
        try:
            self._tell_ending()
            reports = self._drain(deadline, hurry)
            held = [wish for wish in self._refused if wish.weights and wish.sequence is not None]
            self._refused = []
            wishes = [replace(_END, weights=tuple(weights or ())), *held]
            self._wishes = wishes if folder is None else [replace(wish, folder=str(folder)) for wish in wishes]
            self.send()
            return reports + self._drain(deadline, hurry)
        finally:
            self._ending = False

    def _tell_ending(self) -> None:
        """A checkpoint that is being written now is of an older step, as a rule: then it is not waited for."""
        newest = self.memory.newest()
        if self._busy is not None and newest is not None:
            self._say(RunEnds(newest.step))

    def _drain(self, deadline: float, hurry: Callable[[], bool]) -> list[SaveReport]:
        reports = []
        while (self._busy is not None or self._wishes) and self.channel is not None:
            if time.monotonic() > deadline or hurry():
                break
            if self.stuck():
                self.kill()
            select.select([self.channel], [], [], 0.2)
            reports += self.hear()
        return reports

    def close(self, *, patience: float = 60.0, save: bool = False) -> None:
        """End the keeper; with `save` it does what it does for a supervisor that was killed."""
        if self.channel is not None:
            if not save:
                self._say(Quit())
            self.channel.close()
            self.channel = None
        if self._process is not None:
            wait_or_kill(self._process, patience)
