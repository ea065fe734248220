"""Which sample comes when, and with which random numbers: a function of (seed, epoch, index) alone.

    epoch = Epoch(seed=7, number=3, length=50_000, batch_size=64, shuffle=True, drop_last=False)
    epoch.samples(12)                       # the int64 indices of batch 12, the same everywhere, for ever
    sample_seeds(7, 3, epoch.samples(12))   # for sample_seeding.py: torch, numpy and random, before dataset[index]

The order depends on no library's generator: it is a sort by a 64-bit hash of our own. `torch.randperm` and
numpy's `permutation` may change between versions, and a run resumed under another version in the middle of an
epoch would then repeat some samples and skip others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Streams keep the order, the samples and the collate function from ever sharing a seed.
_ORDER, _SAMPLE, _COLLATE = 1, 2, 3
MOST_NEW = 64
"""Batches that are kept until they are hashed together."""


def mix(values: Words) -> Words:
    """The splitmix64 finaliser: a bijection of words in which every input bit moves every output bit."""
    z = values + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def mix_word(value: int) -> int:
    """`mix` of a single word, for which numpy is ten times slower than plain arithmetic."""
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def key_of(*parts: int) -> int:
    """One word out of several, each mixed in turn, so that (1, 2) and (2, 1) differ."""
    word = 0
    for part in parts:
        word = mix_word(word ^ (part & _MASK))
    return word


def permutation(seed: int, epoch: int, length: int) -> Indices:
    """The shuffled order of `length` samples: sorted by a hash of (seed, epoch, index), ties by index."""
    words = mix(np.arange(length, dtype=np.uint64) ^ np.uint64(key_of(seed, _ORDER, epoch)))
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def fingerprint(indices: Indices) -> int:
    """The sum of a hash of each index, mod 2^64: the same for any order, other for other samples."""
    words = mix(indices.astype(np.uint64))
    return int(np.add.reduce(words, dtype=np.uint64))


@dataclass(frozen=True)
class Epoch:
    """The batches of one epoch, by position."""

    seed: int
    number: int
    length: int
    batch_size: int
    shuffle: bool
    drop_last: bool

    def __len__(self) -> int:
        return self.count

    @cached_property
    def count(self) -> int:
        """Batches."""
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @cached_property
    def _order(self) -> Indices:
        if self.shuffle:
            return permutation(self.seed, self.number, self.length)
        return np.arange(self.length, dtype=np.int64)

    def samples(self, batch: int) -> Indices:
        """The sample indices of batch number `batch`."""
        begin = batch * self.batch_size
        # A copy: a batch that outlives its epoch must not keep the whole order alive.
        return self._order[begin : begin + self.batch_size].copy()

    def expected(self, batches: int | None = None) -> Coverage:
        """What is covered when every batch, or so many from the first on, was trained on exactly once."""
        seen = self._order[: (len(self) if batches is None else batches) * self.batch_size]
        return Coverage(len(seen), fingerprint(seen))


class Coverage:
    """Which samples have been trained on, in sixteen bytes: how many, and the sum of their hashes."""

    def __init__(self, count: int = 0, total: int = 0) -> None:
        self.count = count
        self._total = total
        self._new: list[Indices] = []
        """Not in the sum yet: a hash of many costs hardly more than one of a few, and nobody asks at each step."""

    @property
    def total(self) -> int:
        if self._new:
            self._total = (self._total + fingerprint(np.concatenate(self._new))) & _MASK
            self._new.clear()
        return self._total

    def add(self, indices: Indices) -> None:
        self.count += len(indices)
        self._new.append(indices)
        if len(self._new) >= MOST_NEW:
            _ = self.total

    def compare(self, expected: Coverage) -> tuple[int, int]:
        """(skipped, repeated) at the least: equal counts with unequal hashes mean one of each, or more."""
        skipped = max(0, expected.count - self.count)
        repeated = max(0, self.count - expected.count)
        if self.count == expected.count and self.total != expected.total:
            skipped = repeated = 1
        return skipped, repeated


def sample_seeds(seed: int, epoch: int, indices: Indices) -> Words:
    """Three words a sample, a row each, for torch, numpy and random."""
    base = mix(indices.astype(np.uint64) ^ np.uint64(key_of(seed, _SAMPLE, epoch)))
    return mix(np.add.outer(base, np.arange(3, dtype=np.uint64)))


def collate_seeds(seed: int, epoch: int, batch: int) -> list[int]:
    """Three words for the collate function of a batch (mixup and the like draw there)."""
    base = key_of(seed, _COLLATE, epoch, batch)
    return [mix_word((base + k) & _MASK) for k in range(3)]
