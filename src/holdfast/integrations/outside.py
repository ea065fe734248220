"""The script's way to the supervisor of `holdfast run`: slots for its state, the board, and a word now and then.

outside = connect()                      # None: nobody supervises this process
keep = Keep(outside, {"model": model, "optimizer": optimizer}, device)
meta = keep.restore()                    # None for a new run, else what was committed last
if keep.passed(step=12, samples=48):     # a step is over: is it time for a commit, by `snapshot.lose` and `cost`?
    keep.commit()                        # everything, out of this process
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast.base.board import Board, Phase
from holdfast.base.channel import Channel, Closed, connect_back
from holdfast.base.dataclass_json import read_strictly
from holdfast.base.errors import InternalError, UserError
from holdfast.run.messages import Attach, AttachAnswer, Detach, Message, Note, SlotsWanted
from holdfast.run.settings import Settings
from holdfast.state import snapshot
from holdfast.state.protected import Protected
from holdfast.state.rng import restore_rng
from holdfast.state.slots import Arena
from holdfast.worker.cadence import Cadence
from holdfast.worker.worker import map_file

ANSWERS = 180.0
"""Seconds that the supervisor has to answer a script that attaches itself. It starts a process for it first, which
takes most of a minute on a machine with ten times more work than cores. The connection of a dead one closes at once."""
ENDED_TO_STOP = 75
"""The exit code of a script that was asked to stop and has handed its state out."""


class Outside:
    """One attached process, seen from inside. It is what `Snapshots` calls a link."""

    def __init__(self, channel: Channel, board: Board, told: AttachAnswer) -> None:
        self.board = board
        self.generation = told.generation
        self.settings = Settings.from_json(told.settings)
        self.run = told.run
        self.told = told
        self._channel = channel
        self._arenas = [Arena.open_at(each, []) for each in told.arenas]
        self._checkpoint = told.checkpoint

    def arena(self, capacity: int) -> Arena:
        """Slots of at least this size."""
        if self._arenas and self._arenas[-1].capacity >= capacity:
            return self._arenas[-1]
        self._channel.send(SlotsWanted(capacity).to_json())
        self._arenas.append(Arena.open_answer(*self._channel.receive()))
        return self._arenas[-1]

    def newest(self) -> memoryview | None:
        """What was committed last, by this process or one before it; else the checkpoint the run goes on from."""
        found = [(arena, commit) for arena in self._arenas if (commit := arena.newest()) is not None]
        if found:
            arena, commit = max(found, key=lambda pair: pair[1].sequence)
            return arena.slots[commit.slot].payload(commit.size)
        return map_file(Path(self._checkpoint)) if self._checkpoint else None

    def commits(self) -> list[memoryview]:
        """What the slots still hold, the newest first."""
        read = [(commit, slot) for arena in self._arenas for slot in arena.slots if (commit := slot.read()) is not None]
        read.sort(key=lambda pair: pair[0].sequence, reverse=True)
        return [slot.payload(commit.size) for commit, slot in read]

    def committed(self, step: int) -> None:
        return None

    @property
    def gone(self) -> bool:
        """The supervisor was killed: what this process prints is read by nobody, and it will be ended soon."""
        return self._channel.gone()

    def ask(self, message: Message, patience: float) -> dict[str, Any]:
        """Say something and wait for the answer. Closed or OSError if none comes."""
        self._channel.send(message.to_json())
        answer, _ = self._channel.receive(patience)
        return answer

    def send(self, message: Message) -> None:
        with contextlib.suppress(Closed, OSError):
            self._channel.send(message.to_json())

    def detach(self, why: str) -> None:
        """Nothing of this process is handed out: it is watched, and restarted, as one without an integration."""
        self.send(Note(why))
        self.send(Detach())
        hook = sys.modules.get("_holdfast_hook")
        if hook is not None:
            hook._attached = False  # type: ignore[attr-defined]


def connect() -> Outside | None:
    """The supervisor of this process; None where there is none, or where another process of the run has it."""
    where = os.environ.get("HOLDFAST_ATTACH", "")
    folder = os.environ.get("HOLDFAST_HOOK", "")
    if not where or not folder or os.environ.get("RANK", "0") not in ("", "0"):
        return None
    port, _, token = where.partition(":")
    try:
        board = Board.open_path(Path(folder) / "board")
        channel = connect_back(int(port), token)
        channel.send(Attach().to_json())
        told = read_strictly(AttachAnswer, channel.receive(ANSWERS)[0])
    except (OSError, ValueError, Closed) as error:
        raise InternalError("the supervisor of `holdfast run` does not answer", cause=str(error)) from None
    board.identify(os.getpid())
    hook = sys.modules.get("_holdfast_hook")
    if hook is not None:
        hook._attached = True  # type: ignore[attr-defined]
    return Outside(channel, board, told)


def several_processes() -> bool:
    """Whether this is one of several processes that train a model together, as torchrun says it or torch knows it.

    The state of one of them is of no use after a restart: the others would begin with another.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size() > 1
    said = os.environ.get("WORLD_SIZE", "")
    return said.isdecimal() and int(said) > 1


def begin_at(path: str) -> bool:
    """Let the next call of a framework's Trainer begin at this checkpoint; False where the hook is not there."""
    hook = sys.modules.get("_holdfast_hook")
    if hook is None:
        return False
    hook._resume = path  # type: ignore[attr-defined]
    hook._exact = True  # type: ignore[attr-defined]
    return True


class Keep:
    """Objects whose state is outside of this process at every commit, and how often that is."""

    def __init__(self, outside: Outside, named: Mapping[str, Any], device: torch.device) -> None:
        self.outside = outside
        self.device = device
        self._named = dict(named)
        self.step = 0
        self.samples = 0
        self._protected = Protected(dict(named), device)
        optimizers = [each for each in named.values() if isinstance(each, torch.optim.Optimizer)]
        self._snapshots = snapshot.Snapshots(self._protected, outside, device, optimizers)
        self._payload: memoryview | None = None
        self._meta: dict[str, Any] = {}
        self._cadence = Cadence(outside.settings)
        self._since = 0

    def on(self, device: torch.device) -> Keep:
        """The same, now that it is known where the training computes: that device's generator belongs to it."""
        other = Keep(self.outside, self._named, device)
        other.step, other.samples, other._payload, other._meta = self.step, self.samples, self._payload, self._meta
        other._snapshots.start_after(self._snapshots.next_sequence - 1)
        other._cadence, other._since = self._cadence, self._since
        return other

    def restore(self, payload: memoryview | None = None) -> dict[str, Any] | None:
        """Everything as it was committed last, or as `payload` has it; returns what was written beside it.

        None for a new run.
        """
        payload = self.outside.newest() if payload is None else payload
        if payload is None:
            self._snapshots.reserve()
            return None
        try:
            meta = snapshot.restore(self._protected, payload)
        except KeyError as error:
            raise UserError("the saved state is not that of this script", cause=f"{error} is missing") from None
        session = meta["session"]
        self.step, self.samples = int(session["step"]), int(session["samples"])
        self._payload, self._meta = payload, meta
        self._snapshots.start_after(int(session["sequence"]))
        self.outside.board.commit(self.step, self.samples)
        return dict(session)

    def restore_generators(self) -> None:
        """Random generators as they were at the last commit."""
        if self._payload is not None:
            read = snapshot.reader(self._payload)
            tensors = {str(name): read(str(name)).clone() for name in self._meta["rng_names"]}
            restore_rng(tensors, self._meta["rng"], self.device)

    def passed(self, *, step: int, samples: int) -> bool:
        """The run is at this step now. Whether it is time for a commit: by the cadence, or because it is to stop."""
        self.look()
        self._since += max(0, step - self.step)
        self.step, self.samples = step, samples
        due = self._cadence.due(self._since)
        if self._cadence.fixed is None:
            due = due and not self._snapshots.busy
        return due or self.stop_requested

    def commit(self, **more: Any) -> None:
        """Everything as it is now, out of this process.

        Without a supervisor there is no commit: the run goes on from the one before, and prints these lines again.
        """
        if self.outside.gone:
            return
        board = self.outside.board
        board.enter(Phase.SNAPSHOT)
        began = time.perf_counter()
        self._snapshots.poll()
        self._snapshots.laid_out()
        session = {"step": self.step, "samples": self.samples, "sequence": self._snapshots.next_sequence, **more}
        self._snapshots.take({"session": session}, step=self.step, samples=self.samples, loss=None)
        if self.stop_requested:
            self._snapshots.flush()
        took = time.perf_counter() - began - self._snapshots.laid_out()
        self._since = 0
        self._cadence.taken(took + self._snapshots.waited())
        board.enter(Phase.LOOP)

    def look(self) -> None:
        """A copy that has arrived by now becomes the newest commit: on a GPU it is on its way when `commit` returns."""
        self._snapshots.poll()

    def flush(self) -> None:
        self._snapshots.flush()

    @property
    def uncommitted(self) -> int:
        """Steps since the last commit."""
        return self._since

    @property
    def next_sequence(self) -> int:
        """The number of the next commit."""
        return self._snapshots.next_sequence

    def start_after(self, sequence: int) -> None:
        """Count on from this commit of another Keep."""
        self._snapshots.start_after(sequence)

    @property
    def stop_requested(self) -> bool:
        return self.outside.board.stop_requested

    def stop_if_asked(self) -> None:
        """The run is to stop, and everything is outside: the script ends here, else after the next step."""
        if self.stop_requested and self._since == 0:
            self.flush()
            raise SystemExit(ENDED_TO_STOP)
