"""Which sample a process is reading, left where its successor finds it should it die of that. No torch here.

    marks = begin(run_folder)                         # worker: take over what the one before left
    place = marks.place(kind, epoch=3, batch=17)
    place[0] = 4711                                   # before dataset[4711]: one store into a mapped file
    place[0] = IDLE                                   # done
    marks.suspects(kind)                              # [Suspect(4711, strikes=1)] in the next worker

Without loader children the process that reads is the worker itself. What it was at when it died or was killed as
hung is a suspect, not yet a culprit: somebody may have killed it from outside. See sample_check.py for the trial.
A file in the run folder, so that the next supervisor finds it too. It is one page, mapped; nothing is ever flushed.

All loaders of a process, protected or not, find here what they need to know of the run they are in.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.files import read_bounded, remove
from holdfast.base.folders import Folder
from holdfast.run.messages import Message
from holdfast.run.setting_groups import DataSettings

IDLE = -1
Place = memoryview
"""One word of 64 bits in which a process notes the sample it is at. One aligned store, never seen half-written: the
cheapest that Python has."""
NOWHERE: Place = memoryview(bytearray(8)).cast("q")
"""Where nobody looks."""
FEWEST = 10
"""So many samples may always be quarantined, however small the dataset is."""
_PREFIX = "reading-"
_SIZE = 1024
_MAGIC = 0x48464D41524B5331  # "HFMARKS1"
_KIND, _EPOCH, _BATCH, _INDEX = 1, 2, 3, 4
_FIRST, _WIDTH, _SLOTS = 8, 4, 24
"""Where the suspects are: kind, index, strikes, acquitted; so many of them."""


@dataclass(slots=True)
class Policy:
    """What may be left out in training. Settings `data.*`."""

    quarantine: bool = True
    """Samples that end or hang the process that reads them."""
    skip_bad: bool = False
    """Samples that raise, too."""
    most_bad: float = 1.0
    """Percent of the dataset, above which something else is wrong."""

    @classmethod
    def of(cls, settings: DataSettings) -> Policy:
        return cls(settings.quarantine, settings.skip_bad, settings.most_bad)

    @property
    def leaves_out(self) -> bool:
        """Otherwise a resumed run reads again what was quarantined: somebody has repaired it, perhaps."""
        return self.quarantine or self.skip_bad

    def limit(self, length: int) -> int:
        return max(FEWEST, int(length * self.most_bad / 100))


@dataclass(slots=True)
class Suspect:
    """A sample that somebody was reading when the process ended."""

    kind: int
    index: int
    strikes: int = 1
    acquitted: bool = False
    """A process of its own has read it since."""


class Marks:
    """What this process is reading, and what its predecessors died of, perhaps."""

    def __init__(self, words: memoryview, path: Path | None, suspects: list[Suspect]) -> None:
        self.path = path
        self.beat: Callable[[], None] | None = None
        """A sign of life for the watchdog, while something takes long."""
        self.tell: Callable[[Message], None] | None = None
        """Sends a message to whoever keeps the journal."""
        self.policy = Policy()
        """For every loader that is made from now on."""
        self._words = words
        self._place: Place = words[_INDEX : _INDEX + 1]
        self._suspects = suspects[-_SLOTS:]
        words[_INDEX] = IDLE
        words[0] = _MAGIC
        self._write_suspects()

    def place(self, kind: int, *, epoch: int, batch: int) -> Place:
        """Where the sample at hand is noted."""
        words = self._words
        words[_INDEX] = IDLE
        words[_KIND], words[_EPOCH], words[_BATCH] = kind, epoch, batch
        return self._place

    def suspects(self, kind: int) -> list[Suspect]:
        return [suspect for suspect in self._suspects if suspect.kind == kind]

    def acquit(self, suspect: Suspect) -> None:
        suspect.acquitted = True
        self._write_suspects()

    def close(self) -> None:
        """The run is over: nobody needs this any more."""
        if self.path is not None:
            remove(self.path)

    def _write_suspects(self) -> None:
        for number, suspect in enumerate(self._suspects):
            start = _FIRST + number * _WIDTH
            values = (suspect.kind, suspect.index, suspect.strikes, int(suspect.acquitted))
            for offset, value in enumerate(values):
                self._words[start + offset] = value


_current: list[Marks] = []
"""None or one: a process has one place where it can be."""


def begin(
    folder: Path,
    *,
    policy: Policy | None = None,
    beat: Callable[[], None] | None = None,
    tell: Callable[[Message], None] | None = None,
) -> Marks:
    """Leave marks in `folder` from now on, after taking over those of whoever was here before."""
    end()
    suspects = _take_over(folder)
    path: Path | None = folder / f"{_PREFIX}{os.getpid()}"
    try:
        words = _map(folder / f"{_PREFIX}{os.getpid()}")
    except OSError:  # a folder that is full or read-only: marks that nobody will find are better than no run
        words, path = memoryview(bytearray(_SIZE)).cast("q"), None
    marks = Marks(words, path, suspects)
    marks.beat, marks.tell, marks.policy = beat, tell, policy or marks.policy
    _current.append(marks)
    return marks


def current() -> Marks | None:
    return _current[0] if _current else None


def end() -> None:
    while _current:
        _current.pop().close()


def kind_of(*parts: Any) -> int:
    """A word that stands for one dataset in the next process too: 63 bits out of what is known about it."""
    digest = hashlib.sha256(repr(parts).encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _map(path: Path) -> memoryview:
    with Folder.at(path.parent) as folder:
        folder.discard(path.name)
        with folder.create(path.name) as file:
            file.write(bytes(_SIZE))
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("q")


def _take_over(folder: Path) -> list[Suspect]:
    """What others left, and the one each of them was at when it ended. The files are theirs no longer."""
    found: dict[tuple[int, int], Suspect] = {}
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        for suspect in _read(path):
            known = found.setdefault((suspect.kind, suspect.index), suspect)
            if known is not suspect:
                known.strikes += suspect.strikes
        remove(path)  # Windows keeps a file that somebody holds open
    return list(found.values())


def _read(path: Path) -> list[Suspect]:
    """The suspects in one file; a file that is not one of these has none."""
    try:
        data = read_bounded(path, _SIZE)
    except OSError:
        return []
    if len(data) != _SIZE:
        return []
    words = memoryview(data).cast("q")
    if words[0] != _MAGIC:
        return []
    suspects = []
    for number in range(_SLOTS):
        start = _FIRST + number * _WIDTH
        kind, index, strikes, acquitted = words[start : start + _WIDTH]
        if strikes > 0 and index >= 0:
            suspects.append(Suspect(kind, index, min(strikes, 1000), bool(acquitted)))
    if words[_INDEX] >= 0:
        suspects.append(Suspect(words[_KIND], words[_INDEX]))
    return suspects
