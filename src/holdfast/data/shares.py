"""Which part of each batch each rank computes, and from which batch on. All ranks hold the same table. No torch.

    shares = Shares((0, 1), {0: 1, 1: 1})          # the seats of the group, and what counts before the first change
    shares.add(Change(0, 120, {0: 29, 1: 3}))      # from batch 120 of epoch 0 on
    shares.parts(0, 200, 32)                       # Parts(counts=(29, 3), change=1)

A part is a function of the place in the data, never of the moment: a run that goes back to an older state cuts every
batch as it did the first time. So a change begins at a batch that no rank has read yet, and stays in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """From this batch on every rank has a part in proportion to its weight."""

    epoch: int
    batch: int
    weights: Mapping[int, int]
    """By seat: a rank that is away for a while keeps its number there."""

    def to_json(self) -> list[Any]:
        return [self.epoch, self.batch, [[seat, weight] for seat, weight in sorted(self.weights.items())]]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Change:
        return cls(int(row[0]), int(row[1]), {int(seat): int(weight) for seat, weight in row[2]})


@dataclass(frozen=True, slots=True)
class Parts:
    """One batch, cut."""

    counts: tuple[int, ...]
    """Samples of each rank."""
    change: int = 0
    """How many changes had come by then: another number means another way to cut."""

    @property
    def fewest(self) -> int:
        """Samples that the rank with the smallest part computes: at least one, which may not count."""
        return max(1, min(self.counts))


class Shares:
    """The table for one loader, as the ranks of one group use it."""

    def __init__(self, seats: Sequence[int], base: Mapping[int, int] | None = None, *, fixed: bool = False) -> None:
        """`base` holds before the first change, equal parts where it says nothing. `fixed`: changes do not count."""
        self.seats = tuple(seats)
        self._base = _weights(base or {}, self.seats) or (1,) * len(self.seats)
        self._fixed = fixed
        self._changes: dict[tuple[int, int], Change] = {}

    @property
    def changes(self) -> int:
        """How many are known, those of batches to come too."""
        return len(self._changes)

    def add(self, change: Change) -> None:
        # A new dictionary: the thread that reads from loader children asks for parts meanwhile.
        self._changes = dict(sorted({**self._changes, (change.epoch, change.batch): change}.items()))

    def merge(self, rows: object) -> None:
        """What `to_json` gave, of a saved state, beside what is known here. What is known stays: an older state may
        have another change at the same place. The text may be of a damaged file: the rest is left out."""
        for row in rows if isinstance(rows, list) else []:
            if _is_change(row) and (row[0], row[1]) not in self._changes:
                self.add(Change.from_json(row))

    def to_json(self) -> list[list[Any]]:
        return [change.to_json() for change in self._changes.values()]

    def parts(self, epoch: int, batch: int, samples: int) -> Parts:
        """How a batch of so many samples is cut. The parts follow each other in the order of the ranks."""
        weights, number = self._base, 0
        if self._changes and not self._fixed:
            for index, (place, change) in enumerate(self._changes.items(), 1):
                if place > (epoch, batch):
                    break
                weights, number = _weights(change.weights, self.seats) or self._base, index
        return Parts(cut(samples, weights), number)


def in_place_of(seats: Sequence[int], wanted: int | None = None) -> tuple[int, ...]:
    """The seats whose parts these ranks have, where seats from `wanted` on are of spares: (0, 1) of (1, 2), with 2.

    Spares make up for the first seats that are missing. Ranks stay in the order of seats: in a full group each rank
    has the part that this number had before, so that steps computed again have the same bits.
    """
    if wanted is None or all(seat < wanted for seat in seats):
        return tuple(seats)
    own = {seat for seat in seats if seat < wanted}
    missing = [seat for seat in range(wanted) if seat not in own]
    return tuple(sorted([*own, *missing[: len(seats) - len(own)]]))


def _is_change(row: object) -> bool:
    """Whether this is a row of `to_json`: whole numbers from 0 on, and somebody has a part."""
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], list):
        return False
    pairs = row[2]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return False
    numbers = [row[0], row[1], *(number for pair in pairs for number in pair)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return False
    return len({seat for seat, _ in pairs}) == len(pairs) and any(weight for _, weight in pairs)


def cut(samples: int, weights: Sequence[int]) -> tuple[int, ...]:
    """So many samples in proportion to the weights, by whole samples; every sample once."""
    total, passed, counts, before = sum(weights), 0, [], 0
    for weight in weights:
        passed += weight
        end = -(-passed * samples // total)
        counts.append(end - before)
        before = end
    return tuple(counts)


def _weights(known: Mapping[int, int], seats: Sequence[int]) -> tuple[int, ...] | None:
    """Those of these seats; None where a seat is not known, or nobody would have anything."""
    if not all(seat in known for seat in seats):
        return None
    found = tuple(known[seat] for seat in seats)
    return found if any(found) else None
