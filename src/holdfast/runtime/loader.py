"""The data of a run: every sample of an epoch exactly once, in an order that survives any restart.

    data = Loader(dataset, batch_size=64, shuffle=True, num_workers=4)
    for batch in data.batches(epoch=data.epoch, start=data.cursor):    # what session.batches does
        train(batch.value)
        data.advance(batch)                                            # this batch counts from here on
    data.finish_epoch()
    for value in data: ...                                             # plain iteration, for evaluation

The order, and every random number drawn in the dataset, is a function of (seed, epoch, index): the bits are
the same for any number of loader children, after any kill, and from any batch on. Loader children that die or
hang are replaced (pool.py), and the loop sees nothing but a short wait.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.errors import UserError
from holdfast.runtime.feeding import pinned
from holdfast.runtime.fetching import Fetcher, Ticket, fetch_here
from holdfast.runtime.pool import LoaderFailed, Pool
from holdfast.runtime.sampling import Coverage, Epoch, Indices

__all__ = ["Batch", "Loader", "LoaderFailed"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: its place in the epoch, what the collate function made, and which samples are in it."""

    index: int
    value: Any
    samples: Indices
    epoch: int = 0


class Loader:
    """Batches of a map-style dataset, resumable anywhere. Protect it with the session like a model."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        prefetch_factor: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.length = _length(dataset)
        self.batch_size = _whole("batch_size", batch_size, least=1)
        self.num_workers = _whole("num_workers", num_workers, least=0)
        prefetch = _whole("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor, least=1)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.pin_memory = pin_memory
        self.device: torch.device | None = None
        """Where the batches go. Memory is pinned if this is an accelerator; as long as it is not known, only
        where one is in use already: a loader must not wake up a device that may hang."""
        # Without a seed of its own, that of the script: torch.initial_seed() reads it and draws nothing.
        self.seed = torch.initial_seed() if seed is None else _whole("seed", seed, least=None)
        self.epoch = 0
        self.cursor = 0
        self.skipped = 0
        self.repeated = 0
        self._coverage = Coverage()
        self._plan: Epoch | None = None
        self._fetcher = Fetcher(dataset, collate_fn)
        self._pool = Pool(self._fetcher, workers=self.num_workers, prefetch=prefetch, persistent=persistent_workers)
        if len(self) == 0:
            raise UserError(
                f"drop_last leaves no batch: {self.length} samples, and batch_size is {self.batch_size}",
                hints=(f"use drop_last=False, or batch_size={self.length} or less",),
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(Epoch(0, 0, self.length, self.batch_size, False, self.drop_last))

    @property
    def on_event(self) -> Callable[[str, dict[str, Any]], None] | None:
        """Called with ("loader_died" or "loader_stuck", details) between the old children and the new."""
        return self._pool.on_event

    @on_event.setter
    def on_event(self, call: Callable[[str, dict[str, Any]], None] | None) -> None:
        self._pool.on_event = call

    @property
    def on_wait(self) -> Callable[[], None] | None:
        """Called about twice a second while a loader child's batch is waited for."""
        return self._pool.on_wait

    @on_wait.setter
    def on_wait(self, call: Callable[[], None] | None) -> None:
        self._pool.on_wait = call

    def be_patient(self, *, floor_s: float, first_wait_s: float) -> None:
        """How long a batch may take before its child is called stuck; see `Patience`."""
        self._pool.patience.floor_s = floor_s
        self._pool.patience.first_wait_s = first_wait_s

    # Reading.

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Batch `start` and the following ones of an epoch. What has been trained on is told by `advance`."""
        plan = self._epoch(epoch)
        values = self._values(plan, start)
        for index, value in enumerate(values, start):
            yield Batch(index, value, plan.samples(index), epoch)

    def __iter__(self) -> Iterator[Any]:
        """The values of a whole epoch, for evaluation: the cursor stays where it is."""
        return self._values(self._epoch(self.epoch), 0)

    def _values(self, plan: Epoch, start: int) -> Iterator[Any]:
        if self.num_workers > 0:
            self._pool.pin = self._pin_device()
            return self._pool.stream(plan, start)
        return self._values_here(plan, start)

    def _values_here(self, plan: Epoch, start: int) -> Iterator[Any]:
        pin = self._pin_device() is not None
        for batch in range(start, len(plan)):
            value = fetch_here(self._fetcher, Ticket(plan.seed, plan.number, batch, plan.samples(batch)))
            yield pinned(value) if pin else value

    def _epoch(self, number: int) -> Epoch:
        plan = self._plan
        if plan is None or (plan.number, plan.seed) != (number, self.seed):
            plan = Epoch(self.seed, number, self.length, self.batch_size, self.shuffle, self.drop_last)
            self._plan = plan  # kept: the order of a large dataset takes a second to sort
        return plan

    def _pin_device(self) -> torch.device | None:
        device = self.device
        if device is None and torch.cuda.is_initialized():
            device = torch.device("cuda")
        if not self.pin_memory or device is None or device.type not in ("cuda", "xpu"):
            return None
        if device.type == "cuda" and device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return device

    def close(self) -> None:
        """End the loader children and wait until they are gone. The next iteration starts new ones."""
        self._pool.close()

    # What has been trained on.

    def advance(self, batch: Batch) -> None:
        """The step of `batch` is complete: it will not come again."""
        self.cursor += 1
        self._coverage.add(batch.samples)

    def finish_epoch(self, *, left: bool = False) -> None:
        """On to the next epoch, after comparing what was seen with what there was.

        `left`: the script went on before the last batch, so what came after the cursor was not skipped.
        """
        skipped, repeated = self._coverage.compare(self._epoch(self.epoch).expected(self.cursor if left else None))
        self.skipped += skipped
        self.repeated += repeated
        self._coverage = Coverage()
        self.epoch += 1
        self.cursor = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "seed": self.seed,
            "coverage": {"count": self._coverage.count, "total": self._coverage.total},
            "skipped": self.skipped,
            "repeated": self.repeated,
            "shape": self._shape(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. In the middle of an epoch it must be the same data in the same batches."""
        if state["cursor"] > 0:
            for name, now in self._shape().items():
                before = state["shape"][name]
                if before != now:
                    raise UserError(
                        f"the saved run is at batch {state['cursor']} of an epoch with {name}={before}, "
                        f"but the loader has {name}={now}",
                        hints=(f"go on with {name}={before}, or start a new run",),
                    )
        self.epoch = int(state["epoch"])
        self.cursor = int(state["cursor"])
        self.seed = int(state["seed"])
        self._coverage = Coverage(int(state["coverage"]["count"]), int(state["coverage"]["total"]))
        self.skipped = int(state["skipped"])
        self.repeated = int(state["repeated"])

    def _shape(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }


def _length(dataset: Any) -> int:
    """The number of samples, or a UserError that says what kind of dataset is needed."""
    kind = type(dataset).__name__
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, DataLoader):
        hint = "pass the dataset itself: Loader(loader.dataset, ...)"
    else:
        hint = "give it __len__ and __getitem__(index): a stream cannot be resumed at a sample"
    if not indexed or isinstance(dataset, IterableDataset):
        raise UserError(f"a dataset needs a length and an index, and `{kind}` has not both", hints=(hint,))
    length = len(dataset)
    if length == 0:
        raise UserError(
            f"the dataset (`{kind}`) is empty", cause="its length is 0", hints=("check the path it reads from",)
        )
    return length


def _whole(name: str, value: Any, least: int | None) -> int:
    """`value` as an int, or a UserError naming the setting, the value and what is allowed."""
    wanted = "a whole number" if least is None else f"a whole number of {least} or more"
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}, but it has to be {wanted}") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise UserError(f"{name} is {value!r}, but it has to be {wanted}")
    return number
