"""The samples that are left out, since when, and why; and a way through an epoch that goes around them.

    quarantine = Quarantine(length)
    quarantine.add(4711, "ended the process that reads it (SIGSEGV)", epoch=3, batch=17)
    course = Course(epoch, quarantine)
    course.divided(17)           # the batch without 4711, and [4711]; the others and their random numbers stay the same

A sample is left out from the batch on in which it was found, and never before: a run that goes back to an older state
leaves it out at the same place again, so the bits are those of a run that knew it from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.data.loader_child import Ticket
from holdfast.data.sample_order import Epoch, Indices
from holdfast.data.shares import Parts, Shares
from holdfast.faults.bad_samples import Charge

MOST_LISTED = 100
"""Samples that are named one by one where people read."""
_ELSEWHERE = 8
"""Samples from the rest of an epoch that a batch is compared with."""


@dataclass(frozen=True)
class Held:
    """One sample in quarantine, and the batch from which on it is left out."""

    index: int
    epoch: int
    batch: int
    why: str

    def applies(self, epoch: int, batch: int) -> bool:
        return (self.epoch, self.batch) <= (epoch, batch)

    def to_json(self) -> list[Any]:
        return [self.index, self.epoch, self.batch, self.why]


class Quarantine:
    """The samples of one dataset that are left out."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.changes = 0
        """How often it was added to."""
        self._held: dict[int, Held] = {}
        self._indices = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, index: object) -> bool:
        return index in self._held

    @property
    def held(self) -> list[Held]:
        return sorted(self._held.values(), key=lambda held: held.index)

    def add(self, index: int, why: str, *, epoch: int, batch: int) -> bool:
        """False if it is there already, from an earlier batch on: that stays."""
        new = Held(int(index), int(epoch), int(batch), why)
        known = self._held.get(new.index)
        if known is not None and known.applies(new.epoch, new.batch):
            return False
        self.changes += 1
        self._held[new.index] = new
        self._indices = np.array(sorted(self._held), dtype=np.int64)
        return True

    def among(self, samples: Indices, epoch: int | None, batch: int) -> Any:
        """Which of these are left out there, as a mask. Without an epoch: all that are known."""
        mask = np.isin(samples, self._indices)
        if epoch is not None:
            for place in np.flatnonzero(mask):
                mask[place] = self._held[int(samples[place])].applies(epoch, batch)
        return mask

    def to_json(self) -> list[list[Any]]:
        return [held.to_json() for held in self.held]

    def merge(self, rows: object) -> None:
        """What `to_json` gave, beside what is known here. The text may be of a damaged file: the rest is left out."""
        for row in rows if isinstance(rows, list) else []:
            if not isinstance(row, list) or len(row) != 4 or not all(type(value) is int for value in row[:3]):
                continue
            index, epoch, batch, why = row
            if 0 <= index < self.length:
                self.add(index, str(why), epoch=epoch, batch=batch)


LeaveOut = Callable[[list[int], str, int, int], None]
"""Has all ranks leave out these samples, and why, from that epoch and batch on. It raises: all go back and do so."""
Settle = Callable[["Course", int, Charge, Exception | None], None]
"""What to do about samples of a batch that cannot be read. Returns if they are left out from now on, else raises."""


class Course:
    """One way through an epoch: its batches without the samples in quarantine."""

    def __init__(
        self,
        epoch: Epoch,
        quarantine: Quarantine,
        *,
        training: bool = True,
        rank: int = 0,
        shares: Shares | None = None,
    ) -> None:
        """With `shares` this process is one of several, and reads its part of every batch."""
        self.rank = rank
        self.shares = shares
        self.read = -1
        """The last batch that was asked for, here or for a loader child."""
        self.epoch = epoch
        self.training = training
        self.quarantine = quarantine
        self._divided: tuple[int, int, tuple[Indices, Indices]] | None = None
        """The batch that was asked for last, and how often the quarantine had changed by then: each is asked twice."""

    @property
    def number(self) -> int:
        return self.epoch.number

    def __len__(self) -> int:
        return len(self.epoch)

    def ticket(self, batch: int) -> Ticket:
        self.read = max(self.read, batch)
        return Ticket(self.epoch.seed, self.epoch.number, batch, self.samples(batch))

    def samples(self, batch: int) -> Indices:
        """What is fetched here."""
        samples = self.divided(batch)[0]
        if self.shares is None:
            return samples
        part, _, _ = self.part(samples, batch)
        return samples if part is None else part

    def part(self, samples: Indices, batch: int) -> tuple[Indices | None, bool, Parts | None]:
        """Of a batch, what this process of several reads, None for all of it; whether it counts; the parts of all.

        A process whose part is empty reads the first sample, which does not count for it.
        """
        if self.shares is None or not len(samples):
            return None, True, None
        parts = self.shares.parts(self.number, batch, len(samples))
        begin = sum(parts.counts[: self.rank])
        end = begin + parts.counts[self.rank]
        return (samples[begin:end], True, parts) if end > begin else (samples[:1], False, parts)

    def divided(self, batch: int) -> tuple[Indices, Indices]:
        """What there is of a batch, in all processes, and what is left out."""
        known, changes = self._divided, self.quarantine.changes
        if known is not None and known[0] == batch and known[1] == changes:
            return known[2]
        samples = self.epoch.samples(batch)
        if not changes:
            found = samples, samples[:0]
        else:
            out = self.quarantine.among(samples, self.number if self.training else None, batch)
            found = samples[~out], samples[out]
        self._divided = batch, changes, found
        return found

    def elsewhere(self, batch: int) -> list[int]:
        """A few samples of other batches, spread over the epoch."""
        own = set(self.epoch.samples(batch).tolist())
        length = self.epoch.length
        spread = [(2 * number + 1) * length // (2 * _ELSEWHERE) for number in range(_ELSEWHERE)]
        return [index for index in dict.fromkeys(spread) if index not in own and index not in self.quarantine]
