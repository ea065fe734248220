"""The supervisor's side of the keeper: one save at a time, wishes joined while it is busy.

keeping = Keeping(run_folder, settings, memory, portable=False)
keeping.wish("epoch", weights=["best"])
for report in keeping.hear(): ...          # Saved, NotSaved; raises KeeperDied
keeping.finish(weights=["final"])          # the last save of a run, waited for
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.runfolder import RunFolder
from holdfast.runtime import launch
from holdfast.runtime.board import Board
from holdfast.runtime.channel import Channel, Closed
from holdfast.runtime.memory import Memory
from holdfast.runtime.scratch import Scratch
from holdfast.settings import Settings

SLOWEST_SAVE, SLOWEST_DISK = 60.0, 5e6
"""Seconds, and bytes a second: a save that takes longer than both allow is stuck."""
PATIENCE = 600.0
"""Seconds the last save of a run may take."""
LEAVE = 2.0
"""Seconds a killed keeper has to be gone: on a dead network disk it never is."""


class KeeperDied(Exception):
    """The keeper ended; training did not."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the keeper ended with {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Report:
    """The keeper's answer to one wish."""

    saved: dict[str, Any] | None
    """What was written: step, path, digests; None if nothing was, and then `why` says it."""
    why: str | None
    seconds: float
    reason: str


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
        self.channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._busy: dict[str, Any] | None = None
        self._board: Board | None = None
        self._wishes: list[dict[str, Any]] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def idle(self) -> bool:
        """Everything wished for is done."""
        return self._busy is None and not self._wishes

    def start(self) -> None:
        self._process, self.channel = launch.start_keeper(
            self.run.path, self.settings.checkpoint.keep, self.run.lock_fd, portable=self.portable
        )
        with contextlib.suppress(Closed):
            self.channel.send({"scratch": str(self.scratch.path)})
        if self._busy is not None:
            self._wishes.insert(0, self._busy)
            self._busy = None
        if self.memory.arenas:
            self.tell_arenas()
        if self._board is not None and self._board.fd >= 0:
            self.tell_board(self._board)

    def tell_arenas(self) -> None:
        """Hand over the slots there are now."""
        if self.channel is None:
            return
        arenas = self.memory.arenas
        described = [
            {"paths": launch.slot_paths(arena)} if self.portable else {"slots": len(arena.slots)} for arena in arenas
        ]
        fds = [] if self.portable else [fd for arena in arenas for fd in arena.fds]
        with contextlib.suppress(Closed):
            self.channel.send({"arenas": described}, fds)

    def tell_board(self, board: Board) -> None:
        """A new worker, a new board: the keeper reads it should this process die."""
        self._board = board
        if self.channel is not None:
            path = str(board.path) if board.path else None
            with contextlib.suppress(Closed):
                self.channel.send({"board": path}, [] if path else [board.fd])

    def wish(
        self, reason: str, *, weights: list[str] | None = None, checkpoint: bool = True, sequence: int | None = None
    ) -> None:
        """Ask for a save: of the newest snapshot, or of the one with this sequence, which is held until then."""
        wish: dict[str, Any] = {
            "reason": reason,
            "weights": weights or [],
            "checkpoint": checkpoint,
            "sequence": sequence,
        }
        if self._wishes:
            last = self._wishes[-1]
            last["weights"] = sorted({*last["weights"], *wish["weights"]})
            last["checkpoint"] = last["checkpoint"] or checkpoint
            if sequence is not None:
                self.memory.let_go(last["sequence"])
                last["sequence"] = sequence
        else:
            self._wishes.append(wish)
        self.send()

    @property
    def awaited(self) -> set[int]:
        """Sequences of snapshots that must not be overwritten before they are saved."""
        wishes = [*self._wishes, *([self._busy] if self._busy else [])]
        return {wish["sequence"] for wish in wishes if wish["sequence"] is not None}

    def send(self) -> None:
        """Pass the next wish on, if the keeper is free and there is something to save."""
        if self.channel is None or self._busy is not None or not self._wishes or self.memory.newest() is None:
            return
        wish = self._wishes[0]
        with contextlib.suppress(Closed):  # then it stays for the next keeper
            self.channel.send({"save": wish})
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

    def hear(self) -> list[Report]:
        """What the keeper has answered; KeeperDied if it will not answer any more."""
        if self.channel is None:
            return []
        reports = []
        try:
            for message in self.channel.pending():
                report = self._heed(message)
                if report is not None:
                    reports.append(report)
        except Closed:
            assert self._process is not None
            self.channel.close()
            self.channel = None
            raise KeeperDied(self._process.wait()) from None
        self.send()
        return reports

    def _heed(self, message: dict[str, Any]) -> Report | None:
        if "adopted" in message:
            return None
        self._busy = None
        report: dict[str, Any] | None = message.get("saved")
        self.problem = None if report is not None else str(message.get("not_saved") or "it found no snapshot to save")
        if report is not None and "path" in report:
            self.saved = report
        if report is not None and "final" in message.get("weights", ()):
            self.final = report
        return Report(report, message.get("not_saved"), float(message.get("seconds", 0.0)), str(message.get("reason")))

    def finish(self, weights: list[str] | None = None, *, hurry: Callable[[], bool]) -> list[Report]:
        """The state as it is now, on disk and verified. Waits for what is under way first, until `hurry()`."""
        if self.memory.newest() is None:
            return []
        deadline = time.monotonic() + PATIENCE
        reports = self._drain(deadline, hurry)
        self._wishes.clear()
        self.wish("end", weights=weights)
        return reports + self._drain(deadline, hurry)

    def _drain(self, deadline: float, hurry: Callable[[], bool]) -> list[Report]:
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
            with contextlib.suppress(Closed):
                if not save:
                    self.channel.send({"quit": True})
            self.channel.close()
            self.channel = None
        if self._process is not None:
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # one that cannot be killed is left behind
                    self._process.wait(LEAVE)
