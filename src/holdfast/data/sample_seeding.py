"""The three global CPU generators, set for each sample of a batch before it is read.

    seeding = Seeding()
    for _, index in zip(seeding.of(words, {"numpy"}), samples): dataset[index]     # words: those of `sample_seeds`

Seeding costs more than many samples do: numpy and Python fill 624 words of a Mersenne twister one after the other, and
the first draw makes 624 new ones out of them. Here the words of numpy's and of Python's twister are hashes of the
sample's word and of their place, made for many samples at once and written into the generator's memory, ready to be
drawn. Most samples draw a few of them, so only the first are made: how many is measured in the first batch. A sample
that draws more than were made is read again with more of them (`DrewMore`). It gets the same numbers in either case:
a word depends on its place and on the sample alone.

torch does not let us write its memory; it is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch

from holdfast.data.sample_order import Words, mix
from holdfast.state.rng import Exposed, numpy_global, python_global

_TWISTER = 624
"""Words of a Mersenne twister."""
_TOGETHER = 64 * _TWISTER
"""Words that are made together, of as many samples as that is: 160 kB, which stay in the processor's cache."""
_FEWEST = 32
"""Words that are always made: fewer would not be faster."""
_PLACES = mix(np.arange(_TWISTER, dtype=np.uint64))
_FACTORS = (_PLACES & np.uint64(0xFFFFFFFF)).astype(np.uint32)
_REST = (_PLACES >> np.uint64(32)).astype(np.uint32).data.cast("B").cast("I")
"""What lies behind the words that are made. A refill changes all of them: the last one shows whether there was one."""
_WHOLE = slice(None)


class DrewMore(Exception):
    """The sample that was read last drew more words than were made for it, which are more from now on."""


class Twister:
    """numpy's or Python's global generator, while samples are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = _TWISTER
        """So many words are made for a sample."""
        self.measured = False
        """Whether `count` follows from what samples drew."""
        self._made_last = _TWISTER
        """So many were made in the batch at hand."""
        self._most = 0
        self._memory: Exposed | None = None
        self._buffers: tuple[Any, Any, list[memoryview]] | None = None

    def each(self, words: Words) -> Iterator[None]:
        """Set for one sample after the other, at each `next`; the last `next` looks at the last sample."""
        self._made_last = self.count
        memory = self._memory = (numpy_global if self.name == "numpy" else python_global).exposed()
        if memory is None:
            return self._slowly(words)
        return self._each(words, memory) if self.measured else self._measuring(words, memory)

    def drew_more(self) -> bool:
        """Whether the sample at hand has drawn more than was made for it. Then more is made from now on."""
        memory, count = self._memory, self.count
        if memory is None or count == _TWISTER:
            return False
        drawn = memory.words[memory.position]
        refilled = memory.words[memory.first + _TWISTER - 1] != _REST[_TWISTER - 1]
        if drawn <= count and not refilled:
            return False
        self.count = _TWISTER if refilled else _enough(drawn)
        return True

    def make_all(self) -> bool:
        """A sample looked at the whole state. Returns whether that was less than there is of it from now on."""
        self.count, self.measured = _TWISTER, True
        return self._made_last < _TWISTER

    def _each(self, words: Words, memory: Exposed) -> Iterator[None]:
        state, position, owner, half = memory.words, memory.position, memory.owner, memory.half
        count = self.count
        made = state[memory.first : memory.first + count]
        last, rest = memory.first + _TWISTER - 1, _REST[_TWISTER - 1]
        partly = count < _TWISTER
        if partly:
            state[memory.first + count : memory.first + _TWISTER] = _REST[count:]
        for rows in self._made(words):
            for row in rows:
                made[_WHOLE] = row
                state[position] = 0
                if half is None:
                    owner.gauss_next = None
                else:
                    half[0] = 0
                yield
                if partly and (state[position] > count or state[last] != rest) and self.drew_more():
                    raise DrewMore

    def _measuring(self, words: Words, memory: Exposed) -> Iterator[None]:
        """All words are made, and what is drawn of them is noted."""
        state, last = memory.words, memory.first + _TWISTER - 1
        for rows in self._made(words):
            for row in rows:
                state[memory.first : memory.first + _TWISTER] = row
                state[memory.position] = 0
                if memory.half is None:
                    memory.owner.gauss_next = None
                else:
                    memory.half[0] = 0
                yield
                drawn = state[memory.position] if state[last] == row[_TWISTER - 1] else _TWISTER
                self._most = max(self._most, drawn)
        self.measured, self.count = True, _enough(self._most)

    def _slowly(self, words: Words) -> Iterator[None]:
        """Where the generator's memory is not found."""
        self.count = _TWISTER
        for rows in self._made(words):
            for row in rows:
                if self.name == "numpy":
                    np.random.set_state(("MT19937", np.array(row, dtype=np.uint32), 0, 0, 0.0))
                else:
                    random.setstate((random.Random.VERSION, (*row, 0), None))
                yield

    def _made(self, words: Words) -> Iterator[list[memoryview]]:
        """The first words of each sample: two factors and a finaliser, all in 32 bits. The next of these lists is the
        same memory again."""
        made, spare, rows = self._room()
        low = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1)
        high = (words >> np.uint64(32)).astype(np.uint32)
        factors = _FACTORS[: self.count]
        for begin in range(0, len(words), len(rows)):
            own = low[begin : begin + len(rows), None]
            number = len(own)
            z, shifted = made[:number], spare[:number]
            np.multiply(own, factors, out=z)
            np.add(z, high[begin : begin + len(rows), None], out=z)
            np.right_shift(z, 16, out=shifted)
            np.bitwise_xor(z, shifted, out=z)
            np.multiply(z, np.uint32(0x7FEB352D), out=z)
            np.right_shift(z, 15, out=shifted)
            np.bitwise_xor(z, shifted, out=z)
            np.multiply(z, np.uint32(0x846CA68B), out=z)
            np.right_shift(z, 16, out=shifted)
            np.bitwise_xor(z, shifted, out=z)
            yield rows[:number]

    def _room(self) -> tuple[Any, Any, list[memoryview]]:
        count = self.count
        if self._buffers is None or self._buffers[0].shape[1] != count:
            made = np.empty((_TOGETHER // count, count), dtype=np.uint32)
            flat = made.data.cast("B").cast("I")
            rows = [flat[number * count : (number + 1) * count] for number in range(len(made))]
            self._buffers = made, np.empty_like(made), rows
        return self._buffers

    def __getstate__(self) -> dict[str, Any]:
        """For a loader process that is not forked: memory does not travel."""
        return {**vars(self), "_memory": None, "_buffers": None}


def _enough(drawn: int) -> int:
    """Words for samples of which one drew so many: twice as many."""
    return min(max(_FEWEST, 2 * drawn), _TWISTER)


class Seeding:
    """Sets the generators that a dataset uses, sample by sample."""

    def __init__(self) -> None:
        self.numpy = Twister("numpy")
        self.python = Twister("python")

    def of(self, words: Words, used: Collection[str]) -> Iterator[Any]:
        """Before each sample, those of the three that are in `used` are set. Raises DrewMore after a sample that has
        to be read again."""
        ways: list[Iterator[None]] = []
        if "torch" in used:
            ways.append(_torch(words[:, 0]))
        if "numpy" in used:
            ways.append(self.numpy.each(words[:, 1]))
        if "python" in used:
            ways.append(self.python.each(words[:, 2]))
        return ways[0] if len(ways) == 1 else zip(*ways, strict=True)

    def drew_more(self) -> bool:
        """Whether the sample at hand has to be read again: it raised, and drew more than was made for it."""
        more = [each.drew_more() for each in (self.numpy, self.python)]
        return any(more)

    def make_all(self, looked: Collection[str]) -> bool:
        """These were looked at as a whole. Returns whether samples have to be read again because of that."""
        more = [getattr(self, name).make_all() for name in looked if name != "torch"]
        return any(more)


def _torch(words: Words) -> Iterator[None]:
    """Not `torch.manual_seed`: that one also reseeds every accelerator, which belongs to the model."""
    manual_seed = torch.default_generator.manual_seed
    for word in words.tolist():
        manual_seed(word)
        yield
