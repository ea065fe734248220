"""The board: one small page the worker writes without locks and everybody else reads.

    board = Board.create()                      # supervisor: a new board for each worker, so an old one cannot lie
    board = Board.open(fd)                      # worker
    board.enter(Phase.FORWARD)                  # a beat: one phase ends, the next begins
    board.read().silence                        # seconds since the last beat

Beats come from progress alone, never from a thread: a thread beats on through a hang. Every value is one
aligned 8-byte store in native order, so a reader never sees half of it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from holdfast.base.files import remove
from holdfast.base.folders import Folder, open_growing

SIZE = 4096
_MAGIC = 0x484F4C4446415354  # "HOLDFAST"
_LABEL = slice(3072, 3072 + 128)


class Phase(IntEnum):
    """What a worker is doing. The order is part of the board's format."""

    SETUP = 0
    DATA = 1
    TO_DEVICE = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    SNAPSHOT = 6
    EVALUATE = 7
    SAVE = 8
    COMPILE = 9
    LOOP = 10
    """The user's own code between two steps."""
    REPLAY = 11
    """A failed step is computed again on the CPU."""
    SENTINEL = 12
    """A few samples are computed on the device and on the CPU."""
    REST = 13
    """A limit holds the run back (limits.py)."""
    PEERS = 14
    """Waiting for the other ranks of a run that has several."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class _Word(IntEnum):
    """Where each value lives, in 8-byte words."""

    MAGIC = 0
    GENERATION = 1
    PID = 2
    BEATS = 3
    PHASE = 4
    SINCE = 5
    STEP = 6
    ATTEMPT = 7
    ATTEMPTS = 8
    EPOCH = 9
    BATCH = 10
    BATCHES = 11
    EPOCHS = 12
    DONE = 13
    TOTAL = 14
    PIECES = 15
    STOP = 16
    SAMPLES = 17
    LOSS = 18
    REST = 19
    LOADERS = 20
    HEARD = 21
    COUNTS = 64
    SLOWEST = 96
    FIRST = 128
    SPENT = 160


_PHASE, _SINCE, _BEATS = int(_Word.PHASE), int(_Word.SINCE), int(_Word.BEATS)
_COUNTS, _SLOWEST, _FIRST, _SPENT = int(_Word.COUNTS), int(_Word.SLOWEST), int(_Word.FIRST), int(_Word.SPENT)
_ATTEMPT, _ATTEMPTS, _STOP, _REST = int(_Word.ATTEMPT), int(_Word.ATTEMPTS), int(_Word.STOP), int(_Word.REST)
_EPOCH, _EPOCHS, _BATCH, _BATCHES = int(_Word.EPOCH), int(_Word.EPOCHS), int(_Word.BATCH), int(_Word.BATCHES)
"""Plain numbers for what is written or read in every step: with members of the enum that took more than twice as
long."""


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """What has been learned about one phase."""

    count: int = 0
    slowest_s: float = 0.0
    """The slowest recent one: forgets slowly, about half in 180."""
    first_s: float = 0.0
    """The slowest of the first three, which hold warm-up and compilation."""
    spent_s: float = 0.0
    """All of them together."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One reading of the board."""

    generation: int
    pid: int
    beats: int
    phase: Phase
    silence: float
    """Seconds since the last beat."""
    step: int
    """Steps committed."""
    attempt: int
    """The step in flight."""
    attempts: int
    """Steps begun by this worker, the repeated ones included."""
    epoch: int
    epochs: int
    batch: int
    batches: int
    done: int
    total: int
    label: str
    pieces: int
    samples: int
    loss: float | None
    loaders: int = 0
    """Processes that read data for this worker."""
    times: dict[Phase, PhaseTimes] = field(default_factory=dict)

    @property
    def at(self) -> int | None:
        """The step at hand: the one in flight, or else the next to come. None during set-up.

        Two workers that fail at the same place give the same number, whether they had begun the step or not.
        """
        return None if self.phase is Phase.SETUP else max(self.attempt, self.step + 1)


class Board:
    """The page itself. The worker enters phases, the supervisor asks it to stop, anybody reads."""

    def __init__(self, page: mmap.mmap, fd: int = -1, path: Path | None = None) -> None:
        self.fd = fd
        self.path = path
        self._page = page
        self._words = memoryview(page).cast("q")
        self._floats = memoryview(page).cast("d")
        self._clock: Callable[[], int] = time.monotonic_ns

    @classmethod
    def create(cls, *, generation: int = 0, path: Path | None = None) -> Board:
        """A fresh board, in memory that goes away with its last holder, or in a file where `path` is given."""
        if path is not None:
            with Folder.at(path.parent, inner=1) as folder:
                folder.discard(path.name)
                with folder.create(path.name) as file:
                    fd = os.dup(file.fileno())
        elif hasattr(os, "memfd_create"):
            fd = os.memfd_create("holdfast-board")
        else:
            fd, name = tempfile.mkstemp(prefix="holdfast-board-")
            os.unlink(name)
        os.write(fd, bytes(SIZE))
        board = cls(mmap.mmap(fd, SIZE), fd, path)
        board._words[_Word.GENERATION] = generation
        board._words[_Word.SINCE] = board._clock()
        board._words[_Word.MAGIC] = _MAGIC
        board._floats[_Word.LOSS] = float("nan")
        return board

    @classmethod
    def open(cls, fd: int) -> Board:
        return cls._checked(cls(mmap.mmap(fd, SIZE), fd))

    @classmethod
    def open_path(cls, path: Path) -> Board:
        fd = open_growing(path, make=False, inner=1)
        return cls._checked(cls(mmap.mmap(fd, SIZE), fd, path))

    @staticmethod
    def _checked(board: Board) -> Board:
        if board._words[_Word.MAGIC] != _MAGIC:
            raise ValueError("this is not a holdfast board")
        return board

    # -- the worker writes ---------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """End the phase that was, begin `phase`, and learn how long the old one took."""
        words = self._words
        now = self._clock()
        old = words[_PHASE]
        took = now - words[_SINCE]
        count = words[_COUNTS + old] = words[_COUNTS + old] + 1
        slowest = words[_SLOWEST + old]
        words[_SLOWEST + old] = took if took > slowest else slowest - (slowest >> 8)
        if count <= 3 and took > words[_FIRST + old]:
            words[_FIRST + old] = took
        words[_SPENT + old] += took
        words[_SINCE] = now
        words[_PHASE] = phase
        words[_BEATS] += 1

    def beat(self) -> None:
        """Progress inside a phase that takes long by nature: set-up, evaluation, a slow loader."""
        words, now = self._words, self._clock()
        words[_SPENT + words[_PHASE]] += now - words[_SINCE]
        words[_SINCE] = now
        words[_BEATS] += 1

    def identify(self, pid: int) -> None:
        self._words[_Word.PID] = pid

    def begin_attempt(self, step: int) -> None:
        words = self._words
        words[_ATTEMPT] = step
        words[_ATTEMPTS] += 1

    def commit(self, step: int, samples: int) -> None:
        self._words[_Word.STEP] = step
        self._words[_Word.SAMPLES] = samples

    def loss(self, value: float) -> None:
        self._floats[_Word.LOSS] = value

    def position(self, *, epoch: int, epochs: int, batch: int, batches: int) -> None:
        words = self._words
        words[_EPOCH], words[_EPOCHS] = epoch, epochs
        words[_BATCH], words[_BATCHES] = batch, batches

    def pieces(self, count: int) -> None:
        self._words[_Word.PIECES] = count

    def loaders(self, count: int) -> None:
        self._words[_Word.LOADERS] = count

    def progress(self, done: int, total: int, label: str) -> None:
        """Long set-up work, declared: each call is a beat."""
        self._words[_Word.DONE], self._words[_Word.TOTAL] = done, total
        encoded = label.encode()[:127]
        self._page[_LABEL] = encoded + bytes(128 - len(encoded))
        self.beat()

    @property
    def stop_requested(self) -> bool:
        return bool(self._words[_STOP])

    @property
    def rest(self) -> int:
        """The share of the time to do nothing, in thousandths: 0 at full speed, 1000 in a pause."""
        return self._words[_REST]

    @property
    def heard(self) -> int:
        """How many of the numbers this worker logged and of the epochs it ended are written down."""
        return self._words[_Word.HEARD]

    @property
    def phase(self) -> Phase:
        return Phase(self._words[_PHASE])

    # -- the supervisor writes -----------------------------------------------------------------------------

    def request_stop(self) -> None:
        self._words[_Word.STOP] = 1

    def request_rest(self, thousandths: int) -> None:
        """Slow the worker down between its steps, or hold it there (1000), or let it go (0)."""
        self._words[_Word.REST] = max(0, min(1000, thousandths))

    def hear(self) -> None:
        """One more of what the worker logged or ended is written down."""
        self._words[_Word.HEARD] += 1

    # -- everybody reads -----------------------------------------------------------------------------------

    def read(self) -> Beat:
        words = self._words
        since = words[_Word.SINCE]
        loss = self._floats[_Word.LOSS]
        return Beat(
            generation=words[_Word.GENERATION],
            pid=words[_Word.PID],
            beats=words[_Word.BEATS],
            phase=Phase(words[_Word.PHASE]),
            silence=max(0.0, (self._clock() - since) / 1e9),
            step=words[_Word.STEP],
            attempt=words[_Word.ATTEMPT],
            attempts=words[_Word.ATTEMPTS],
            epoch=words[_Word.EPOCH],
            epochs=words[_Word.EPOCHS],
            batch=words[_Word.BATCH],
            batches=words[_Word.BATCHES],
            done=words[_Word.DONE],
            total=words[_Word.TOTAL],
            label=self._page[_LABEL].rstrip(b"\0").decode(errors="replace"),
            pieces=words[_Word.PIECES],
            samples=words[_Word.SAMPLES],
            loss=None if math.isnan(loss) else loss,
            loaders=words[_Word.LOADERS],
            times={phase: self._times(phase) for phase in Phase},
        )

    def _times(self, phase: Phase) -> PhaseTimes:
        words = self._words
        return PhaseTimes(
            count=words[_Word.COUNTS + phase],
            slowest_s=words[_Word.SLOWEST + phase] / 1e9,
            first_s=words[_Word.FIRST + phase] / 1e9,
            spent_s=words[_Word.SPENT + phase] / 1e9,
        )

    @property
    def closed(self) -> bool:
        return self._page.closed

    def close(self, *, unlink: bool = True) -> None:
        self._words.release()
        self._floats.release()
        self._page.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if unlink and self.path is not None:
            remove(self.path, inner=1)
