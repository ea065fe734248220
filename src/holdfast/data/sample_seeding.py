"""The three global CPU generators, set for each sample of a batch before it is read.

    seeding = Seeding()
    for _, index in zip(seeding.of(words, {"numpy"}), samples): dataset[index]     # words: those of `sample_seeds`

Seeding costs more than many samples do: numpy and Python fill 624 words of a Mersenne twister one after the other, and
the first draw makes 624 new ones out of them. Here the words of numpy's and of Python's twister are hashes of the
sample's word and of their place, made for many samples at once and written into the generator's memory, ready to be
drawn. Most samples draw a few of them, so only the first are made: how many is measured in the first batch. If a sample
draws more than were made, the samples since the last look are read again with more of them (`DrewMore`). They get the
same numbers in either case: a word depends on its place and on the sample alone.

torch does not let us write its memory; it is seeded.
"""

from __future__ import annotations

import random
import struct
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
_NO_HALF = struct.pack("i4xd", 0, 1.5e-67)
"""numpy's mark that it keeps no half of a normal pair, and where that would be a number that shows whether it was used.
"""


class DrewMore(Exception):
    """A sample drew more words than were made for it, which are more from now on: all since `of` are read again."""


class Twister:
    """numpy's or Python's global generator, while samples are read.

    What is written for a sample is one piece of the generator's memory, because each access from Python costs more than
    the writing itself: Python has its position before the words, so they begin with the first; numpy has it behind
    them, so they end with the last. A draw beyond the words that were made takes one that lies behind them, in Python,
    and makes new ones out of all, in both: what lies beside the words is then another number, which is looked at once
    for many samples.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = _TWISTER
        """So many words are made for a sample."""
        self.measured = False
        """Whether `count` follows from what samples drew."""
        self.halves = False
        """Whether a sample has used the half of a normal pair that numpy keeps. Only then is it looked after."""
        self._made_last = _TWISTER
        """So many were made in the batch at hand."""
        self._most = 0
        self._memory: Exposed | None = None
        self._buffers: tuple[Any, Any, Any, list[memoryview]] | None = None

    @property
    def _begin(self) -> int:
        """Where the piece begins that is written for a sample: with the position in Python, which numpy has behind."""
        return _TWISTER - self.count if self.name == "numpy" else 0

    def each(self, words: Words) -> Iterator[None]:
        """Set for one sample after the other, at each `next`; the last `next` looks whether all words sufficed."""
        self._made_last = self.count
        memory = self._memory = (numpy_global if self.name == "numpy" else python_global).exposed()
        if memory is None:
            return self._slowly(words)
        if memory.pair is not None:
            memory.pair.raw = _NO_HALF
        if not self.measured:
            return self._measuring(words, memory)
        if self.count < _TWISTER:
            begin = self._begin
            rest = memory.words[:begin] if begin else memory.words[memory.first + self.count : memory.first + _TWISTER]
            rest[_WHOLE] = _REST[: len(rest)]
        return self._each_of_python(words, memory) if memory.pair is None else self._each_of_numpy(words, memory)

    def drew_more(self) -> bool:
        """Whether a sample since `each` has drawn more than was made for it. Then more is made from now on."""
        memory, count = self._memory, self.count
        if memory is None or not self.measured:
            return False
        if memory.pair is not None and not self.halves and memory.pair.raw != _NO_HALF:
            self.halves = True
            return True
        if count == _TWISTER:
            return False
        begin = self._begin
        beside = begin - 1 if begin else memory.first + _TWISTER - 1
        unused = _REST[(begin or _TWISTER - count) - 1]
        drawn = 0 if begin else memory.words[memory.position]
        if drawn <= count and memory.words[beside] == unused:
            return False
        self.count = _enough(drawn if drawn > count and memory.words[beside] == unused else 2 * count)
        return True

    def make_all(self) -> bool:
        """A sample looked at the whole state. Returns whether that was less than there is of it from now on."""
        self.count, self.measured = _TWISTER, True
        return self._made_last < _TWISTER

    def _each_of_python(self, words: Words, memory: Exposed) -> Iterator[None]:
        state, owner, count, position = memory.words, memory.owner, self.count, memory.position
        made = state[: 1 + count]
        for rows in self._made(words):
            for row in rows:
                made[_WHOLE] = row
                owner.gauss_next = None
                yield
                if state[position] > count:  # not seen by what lies beside the words: nothing was changed there
                    self.drew_more()
                    raise DrewMore
        if self.drew_more():
            raise DrewMore

    def _each_of_numpy(self, words: Words, memory: Exposed) -> Iterator[None]:
        made, pair = memory.words[self._begin : _TWISTER + 1], memory.pair if self.halves else None
        for rows in self._made(words):
            for row in rows:
                made[_WHOLE] = row
                if pair is not None:
                    pair.raw = _NO_HALF
                yield
        if self.drew_more():
            raise DrewMore

    def _measuring(self, words: Words, memory: Exposed) -> Iterator[None]:
        """All words are made, and what is drawn of them is noted."""
        state, last, pair = memory.words, memory.first + _TWISTER - 1, memory.pair
        for rows in self._made(words):
            for row in rows:
                state[_WHOLE] = row
                if pair is None:
                    memory.owner.gauss_next = None
                else:
                    pair.raw = _NO_HALF
                yield
                drawn = state[memory.position] if state[last] == row[last] else _TWISTER
                self._most = max(self._most, drawn)
                self.halves = self.halves or (pair is not None and pair.raw != _NO_HALF)
        self.measured, self.count = True, _enough(self._most)

    def _slowly(self, words: Words) -> Iterator[None]:
        """Where the generator's memory is not found."""
        self.count = _TWISTER
        for rows in self._made(words):
            for row in rows:
                if self.name == "numpy":
                    np.random.set_state(("MT19937", np.array(row[:_TWISTER], dtype=np.uint32), 0, 0, 0.0))
                else:
                    random.setstate((random.Random.VERSION, (*row[1:], 0), None))
                yield

    def _made(self, words: Words) -> Iterator[list[memoryview]]:
        """The first words of each sample, with the position: two factors and a finaliser, all in 32 bits. The next of
        these lists is the same memory again."""
        made, first, second, rows = self._room()
        low = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1)
        high = (words >> np.uint64(32)).astype(np.uint32)
        factors = _FACTORS[: self.count]
        for begin in range(0, len(words), len(rows)):
            own = low[begin : begin + len(rows), None]
            number = len(own)
            z, shifted = first[:number], second[:number]
            np.multiply(own, factors, out=z)
            np.add(z, high[begin : begin + len(rows), None], out=z)
            np.right_shift(z, 16, out=shifted)
            np.bitwise_xor(z, shifted, out=z)
            np.multiply(z, np.uint32(0x7FEB352D), out=z)
            np.right_shift(z, 15, out=shifted)
            np.bitwise_xor(z, shifted, out=z)
            np.multiply(z, np.uint32(0x846CA68B), out=z)
            np.right_shift(z, 16, out=shifted)
            np.bitwise_xor(z, shifted, out=made[:number])
            yield rows[:number]

    def _room(self) -> tuple[Any, Any, Any, list[memoryview]]:
        """The rows without their positions, room for two steps on the way there, and the rows."""
        count = self.count
        if self._buffers is None or self._buffers[1].shape[1] != count:
            whole = np.empty((_TOGETHER // count, count + 1), dtype=np.uint32)
            flat = whole.data.cast("B").cast("I")
            rows = [flat[number * (count + 1) : (number + 1) * (count + 1)] for number in range(len(whole))]
            behind = self.name == "numpy"
            whole[:, -1 if behind else 0] = self._begin
            made = whole[:, :-1] if behind else whole[:, 1:]
            # Each step on the way is one long run of numbers: many short ones take numpy several times as long.
            steps = [np.empty((len(whole), count), dtype=np.uint32) for _ in range(2)]
            self._buffers = made, steps[0], steps[1], rows
        return self._buffers

    def __getstate__(self) -> dict[str, Any]:
        """For a loader process that is not forked: memory does not travel."""
        return {**vars(self), "_memory": None, "_buffers": None}


def _enough(drawn: int) -> int:
    """Words for samples of which one drew so many: a quarter more, for those that draw until a number suits them."""
    return min(max(_FEWEST, drawn + drawn // 4), _TWISTER)


class Seeding:
    """Sets the generators that a dataset uses, sample by sample."""

    def __init__(self) -> None:
        self.numpy = Twister("numpy")
        self.python = Twister("python")

    def of(self, words: Words, used: Collection[str]) -> Iterator[Any]:
        """Before each sample, those of the three that are in `used` are set. Raises DrewMore, at the latest behind the
        last one, where all of these samples have to be read again."""
        ways: list[Iterator[None]] = []
        if "torch" in used:
            ways.append(_torch(words[:, 0]))
        if "numpy" in used:
            ways.append(self.numpy.each(words[:, 1]))
        if "python" in used:
            ways.append(self.python.each(words[:, 2]))
        return ways[0] if len(ways) == 1 else zip(*ways, strict=True)

    def drew_more(self) -> bool:
        """Whether samples have to be read again: one raised, and it or one before it drew more than was made for it."""
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
