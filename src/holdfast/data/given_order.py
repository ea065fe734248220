"""The order of a Loader that a sampler gives: `sampler=`, `batch_sampler=`, or torch's own shuffling by `generator=`.

    order = GivenOrder(sampler=WeightedRandomSampler(weights, 1000))
    epoch = order.epoch("training", 3, seed=7, length=50_000, batch_size=64, drop_last=False)     # like an `Epoch`
    order.state_dict()               # what the sampler began with: an order is drawn again from it, and not saved

A sampler is asked for a whole epoch when that begins. Generators of its own (`generator=`) go on as in torch; the
global ones are seeded from (seed, epoch) while it is asked, and are afterwards as before. Another process asks it
again, with everything as it was, and compares: a sampler that gives another order then is an error.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler

from holdfast.base.errors import UserError
from holdfast.data import generators
from holdfast.data.batch_print import print_of
from holdfast.data.own_generators import OwnGenerators
from holdfast.data.plain_counters import Counters
from holdfast.data.sample_order import Coverage, Epoch, Indices, collate_seeds, fingerprint

MOST = 1 << 24
"""Samples of an epoch, times the dataset's length if that is more: a sampler that gives more has no end."""


def is_per_rank(sampler: Any) -> bool:
    """Whether it gives each rank samples of its own, as torch's DistributedSampler does."""
    return all(isinstance(getattr(sampler, name, None), int) for name in ("num_replicas", "rank"))


@dataclass(frozen=True)
class GivenEpoch(Epoch):
    """The batches of an epoch as they were given."""

    order: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64), repr=False)
    ends: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64), repr=False)
    """Where each batch ends in it."""

    @cached_property
    def count(self) -> int:
        return len(self.ends)

    def samples(self, batch: int) -> Indices:
        begin = int(self.ends[batch - 1]) if batch else 0
        return self.order[begin : int(self.ends[batch])].copy()

    def expected(self, batches: int | None = None) -> Coverage:
        last = len(self.ends) if batches is None else batches
        seen = self.order[: int(self.ends[last - 1]) if last else 0]
        return Coverage(len(seen), fingerprint(seen))

    @property
    def digest(self) -> int:
        return zlib.crc32(self.ends.tobytes(), zlib.crc32(self.order.tobytes()))


class GivenOrder:
    """The sampler of one Loader, and what it began its last orders with."""

    def __init__(
        self, sampler: Any = None, batch_sampler: Any = None, generator: torch.Generator | None = None
    ) -> None:
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generator = generator
        holder = types.SimpleNamespace(sampler=sampler, batch_sampler=batch_sampler, generator=generator)
        self._own = OwnGenerators(holder)
        self._counters = Counters(holder)
        self._drawn: dict[str, dict[str, Any]] = {}
        """The last order of each kind of pass: its number, what it began with, its digest."""
        self._known: dict[str, GivenEpoch] = {}
        self._first_look = self._look()
        self._restored_look: int | None = None
        """What could be seen of the sampler when the state was saved that this process goes on from."""

    def length(self, batch_size: int, drop_last: bool, samples: int) -> int:
        """Batches in an epoch, without asking for one."""
        if self.batch_sampler is not None:
            return _length(self.batch_sampler, "batch_sampler")
        given = samples if self.sampler is None else _length(self.sampler, "sampler")
        return given // batch_size if drop_last else -(-given // batch_size)

    def check_shared(self) -> None:
        """Several ranks cut the batches of one order. UserError if this sampler gives each of them another one."""
        inner = getattr(self.batch_sampler, "sampler", None)
        for each in (self.sampler, self.batch_sampler, inner):
            if is_per_rank(each):
                raise UserError(
                    f"a holdfast.Loader with a {type(each).__name__} would leave samples out",
                    cause="each rank reads its part of every batch, and that sampler gives it a part already",
                    hints=[
                        "leave the sampler out: holdfast.Loader(dataset, batch_size=…, shuffle=True),"
                        " with the batch size of all ranks",
                        "or give the sampler to a torch DataLoader: session.protect and session.batches take that",
                    ],
                )

    def epoch(self, kind: str, number: int, *, seed: int, dataset: Any, batch_size: int, drop_last: bool) -> GivenEpoch:
        """The order of this epoch: the one that was drawn for it, or a new one."""
        known, drawn = self._known.get(kind), self._drawn.get(kind)
        if known is not None and known.number == number:
            return known
        shape = {"seed": seed, "dataset": dataset, "batch_size": batch_size, "drop_last": drop_last}
        if drawn is not None and drawn["number"] == number:
            now = self._now()
            self._set(drawn["begun"])
            made = self._ask(number, **shape)
            self._set(now)
            if made.digest != drawn["digest"]:
                raise _another_order(self.batch_sampler if self.batch_sampler is not None else self.sampler)
        else:
            self._check_look()
            begun = self._now()
            made = self._ask(number, **shape)
            self._drawn[kind] = {"number": number, "begun": begun, "digest": made.digest}
        self._known[kind] = made
        return made

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn, "now": self._now(), "look": self._look()}

    def load_state_dict(self, state: Mapping[str, Any], *, under_way: bool = False) -> None:
        """`under_way`: a training pass goes on. If it began after what is restored, its order stays."""
        mine, saved = self._drawn.get("training", {}), state["drawn"].get("training", {})
        if under_way and (mine.get("number"), mine.get("digest")) != (saved.get("number"), saved.get("digest")):
            return
        self._drawn = {str(kind): dict(each) for kind, each in state["drawn"].items()}
        for kind, known in list(self._known.items()):
            if known.digest != self._drawn.get(kind, {}).get("digest"):
                del self._known[kind]
        self._set(state["now"])
        self._restored_look = state.get("look")

    def _check_look(self) -> None:
        """The script had changed lists or weights of its sampler, and has not done so again in this process."""
        before, self._restored_look = self._restored_look, None
        if before is not None and before != self._first_look == self._look():
            raise _another_order(self.batch_sampler if self.batch_sampler is not None else self.sampler)

    def _look(self) -> int:
        """A fingerprint of what a sampler holds besides plain numbers, which are restored."""
        inner = getattr(self.batch_sampler, "sampler", None)
        held = [getattr(each, "__dict__", {}) for each in (self.sampler, self.batch_sampler, inner)]
        seen = (list, tuple, dict, set, torch.Tensor, np.ndarray)
        return print_of([value for each in held for value in each.values() if isinstance(value, seen)])

    def _now(self) -> dict[str, Any]:
        stateful = {str(place): each.state_dict() for place, each in enumerate(self._stateful())}
        return {"own": self._own.state_dict(), "counted": self._counters.changed(), "stateful": stateful}

    def _set(self, now: Mapping[str, Any]) -> None:
        self._counters.set_to(now["counted"])
        for place, each in enumerate(self._stateful()):
            if str(place) in now["stateful"]:
                each.load_state_dict(now["stateful"][str(place)])
        self._own.load_state_dict(now["own"])

    def _stateful(self) -> list[Any]:
        inner = getattr(self.batch_sampler, "sampler", None)
        found = [each for each in (self.sampler, self.batch_sampler, inner) if hasattr(each, "load_state_dict")]
        return [each for each in found if hasattr(each, "state_dict")]

    def _ask(self, number: int, *, seed: int, dataset: Any, batch_size: int, drop_last: bool) -> GivenEpoch:
        length = len(dataset)
        before = {name: generators.capture(name) for name in generators.NAMES}
        generators.seed(collate_seeds(seed, number, -1), generators.NAMES)
        try:
            if self.generator is not None:
                torch.empty((), dtype=torch.int64).random_(generator=self.generator)  # as torch's DataLoader does
            if self.batch_sampler is not None:
                order, ends = _listed(self.batch_sampler, length)
            else:
                sampler = RandomSampler(dataset, generator=self.generator) if self.sampler is None else self.sampler
                order = _whole_numbers(sampler, "sampler", length)
                ends = np.arange(batch_size, len(order) + batch_size, batch_size, dtype=np.int64).clip(max=len(order))
                ends = ends[: len(order) // batch_size] if drop_last else ends
        finally:
            for name, state in before.items():
                generators.restore(name, state)
        if not len(ends):
            raise UserError("the sampler of a Loader gives no batch at all", cause=f"it gave {len(order)} samples")
        if order.min() < 0 or order.max() >= length:
            wrong = int(order.min()) if order.min() < 0 else int(order.max())
            raise UserError(
                f"the sampler of a Loader gives sample {wrong}, but the dataset has samples 0 to {length - 1}"
            )
        return GivenEpoch(seed, number, length, batch_size, False, drop_last, order, ends)


def _listed(batch_sampler: Iterable[Any], length: int) -> tuple[Indices, Indices]:
    parts: list[Indices] = []
    count = 0
    for batch in batch_sampler:
        parts.append(_whole_numbers(batch, "batch_sampler", length))
        count += len(parts[-1])
        _check_end(count, length, "batch_sampler")
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64), ends


def _whole_numbers(values: Iterable[Any], name: str, length: int) -> Indices:
    found: list[int] = []
    for value in values:
        try:
            found.append(value.__index__())
        except (AttributeError, TypeError, ValueError):
            raise UserError(
                f"the {name} of a Loader has to give whole numbers, and gives a {type(value).__name__}: {value!r:.60}",
                hints=["give it to a torch DataLoader instead: session.protect and session.batches take that as it is"],
            ) from None
        if not len(found) % 65536:
            _check_end(len(found), length, name)
    return np.array(found, dtype=np.int64)


def _check_end(count: int, length: int, name: str) -> None:
    if count > max(MOST, 16 * length):
        raise UserError(
            f"the {name} of a Loader has to come to an end: it gave {count} samples of a dataset of {length}",
            hints=["give it to a torch DataLoader instead: session.protect and session.batches take that as it is"],
        )


def _length(sampler: Any, name: str) -> int:
    try:
        return len(sampler)
    except TypeError:
        raise UserError(
            f"the length of a Loader is not known: its {name} ({type(sampler).__name__}) has no __len__",
            hints=[f"give it one, or ask for the length when the epoch has begun: the {name} was asked then"],
        ) from None


def _another_order(sampler: Any) -> UserError:
    kind = "RandomSampler" if sampler is None else type(sampler).__name__
    return UserError(
        f"the {kind} gives another order than before the run was interrupted",
        cause="it depends on something that is not restored: weights that the script changes, the time, a list",
        hints=[
            "give it state_dict and load_state_dict: they are used by themselves",
            "or set what it depends on by the epoch, at the beginning of the epoch's body",
        ],
    )
