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

A sample that ends or hangs the process that reads it, again and again, is quarantined: training goes on without it
(quarantine.py). A score must not miss any: plain iteration raises BadSamples, unless `allow_missing` says otherwise,
and then `data.missing` tells what is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from holdfast.base.errors import InternalError, UserError
from holdfast.data.dataset_look import look
from holdfast.data.inline_reader import Reader
from holdfast.data.loader_arguments import (
    check_in_order,
    given_order,
    length_of,
    not_grown,
    seconds,
    start_method_of,
    whole,
)
from holdfast.data.loader_child import Fetcher
from holdfast.data.loader_pool import LoaderFailed, Pool
from holdfast.data.loader_processes import pinned, pinned_where_large
from holdfast.data.plain_pass import Passes
from holdfast.data.quarantine import MOST_LISTED, Course, Held, LeaveOut, Quarantine
from holdfast.data.sample_marks import Policy, current
from holdfast.data.sample_order import Coverage, Epoch, Indices
from holdfast.data.sample_sources import described
from holdfast.data.shares import Parts, Shares
from holdfast.faults.bad_samples import BadSamples, Charge, attach, named
from holdfast.faults.blame import Blame
from holdfast.run.messages import Missing, Quarantined

EVALUATE_WITHOUT = "evaluate without such samples: Loader(…, allow_missing=True), and tell `loader.missing` too"

__all__ = ["BadSamples", "Batch", "Loader", "LoaderFailed"]


@dataclass(slots=True, eq=False)
class Batch:
    """One batch: its place in the epoch, what the collate function made, and which samples are in it.

    Nobody changes one. It is not `frozen`: such a dataclass takes several times as long to make, once in each step.
    """

    index: int
    value: Any
    samples: Indices
    epoch: int = 0
    missing: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Samples that belong here and are quarantined."""
    part: Indices | None = None
    """Those of its samples that this process has, if others have the rest."""
    counted: bool = True
    """False if the part is another process's too."""
    parts: Parts | None = None
    """How many samples each process has, if there are several."""

    @property
    def own(self) -> Indices:
        """The samples that `value` was made of."""
        return self.samples if self.part is None else self.part

    def has_mean_part(self, processes: int) -> bool:
        """Whether this process has as much of it as each of so many would have on average."""
        return self.part is None or (self.counted and len(self.part) * processes == len(self.samples))

    @property
    def share(self) -> float:
        """What this process's part weighs. 0 for a process that got a sample of others, having none of its own."""
        if self.part is None:
            return 1.0
        return len(self.part) / len(self.samples) if self.counted else 0.0


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
        pin_memory: bool | None = None,
        persistent_workers: bool = True,
        prefetch_factor: int | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        generator: torch.Generator | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        multiprocessing_context: Any = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        allow_missing: bool = False,
    ) -> None:
        check_in_order(in_order)
        self._order = given_order(batch_size, shuffle, drop_last, sampler, batch_sampler, generator)
        self._dataset = dataset
        self._collate_fn = collate_fn
        self.length = length_of(dataset)
        self.batch_size = whole("batch_size", batch_size, least=1)
        self.num_workers = whole("num_workers", num_workers, least=0)
        prefetch = whole("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor, least=1)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.pin_memory = pin_memory
        """None: where the device is an accelerator, as far as that helps."""
        self.device: torch.device | None = torch.device(pin_memory_device) if pin_memory_device else None
        """Where the batches go. Memory is pinned if this is an accelerator; as long as it is not known, only
        where one is in use already: a loader must not wake up a device that may hang."""
        # Without a seed of its own, that of the script: torch.initial_seed() reads it and draws nothing.
        self.seed = torch.initial_seed() if seed is None else whole("seed", seed, least=None)
        self.epoch = 0
        self.cursor = 0
        self.skipped = 0
        self.repeated = 0
        marks = current()
        self.policy = Policy() if marks is None else replace(marks.policy)
        """What may be left out in training: in a run, what its settings say (`data.*`)."""
        self.allow_missing = allow_missing
        """Whether plain iteration may go on without samples that cannot be read."""
        self.missing: tuple[int, ...] = ()
        """The samples that the last plain iteration went without. Tell it with the score."""
        self._streams = 0
        """Training passes under way."""
        self._seen: Any = None
        """The dataset, as the last pass began with it."""
        self._grown = False
        """Its length has changed from one epoch to another."""
        self._restored: Mapping[str, Any] | None = None
        """The shape of the saved epoch, if this is the middle of it."""
        self._missed: tuple[Any, int, int] | None = None
        """The dataset, its length and the saved one, of a run whose dataset had grown."""
        self.passes = Passes(self._plain_values)
        self._known = Quarantine(self.length)
        self._plain = Quarantine(self.length)
        """Of one of several processes that train: what plain iteration goes without here."""
        self._listed: list[dict[str, Any]] = []
        self._leave_out_together: LeaveOut | None = None
        self.stands_for: Any = None
        """The DataLoader of the script that the ranks share by this (distributed_sampler.py)."""
        self._rank = 0
        self._shares: Shares | None = None
        """Of several processes that train together: which of them reads what."""
        self._saved_shares: object = None
        self._reading: Course | None = None
        self._coverage = Coverage()
        self._plan: Epoch | None = None
        self._ways = (worker_init_fn, start_method_of(multiprocessing_context, self.num_workers))
        self._fetcher = Fetcher(dataset, collate_fn, *self._ways)
        self._pool = Pool(self._fetcher, workers=self.num_workers, prefetch=prefetch, persistent=persistent_workers)
        self._pool.patience.fixed_s = seconds("timeout", timeout)
        self._here = Reader(self._fetcher, self._pool)
        if (self._order is None or self.drop_last) and len(self) == 0:
            raise UserError(
                f"drop_last leaves no batch: {self.length} samples, and batch_size is {self.batch_size}",
                hints=(f"use drop_last=False, or batch_size={self.length} or less",),
            )

    def __len__(self) -> int:
        """Batches in an epoch: in this one, if it has begun, else as the dataset is now."""
        if self._streams or (self.cursor and self._restored is None):
            plan = self._plan
            if plan is not None and self._streams and plan.number == self.epoch and plan.seed == self.seed:
                return plan.count  # what `_epoch` would give, asked twice in each step
            return len(self._epoch(self.epoch))
        if self._order is not None:
            return self._order.length(self.batch_size, self.drop_last, length_of(self._dataset))
        return len(Epoch(0, 0, length_of(self._dataset), self.batch_size, False, self.drop_last))

    @property
    def dataset(self) -> Any:
        """May be replaced, and may grow, between two epochs."""
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        if self._streams:
            raise UserError(
                "the dataset of a Loader was replaced in the middle of an epoch",
                hints=["replace it between two epochs: `data.dataset = …` before `session.batches(data)`"],
            )
        length_of(dataset)
        self._dataset = dataset

    @property
    def on_event(self) -> Callable[[str, dict[str, Any]], None] | None:
        """Called with a name and details: "loader_died" and "loader_stuck" between the old children and the new.

        Outside of a run also "quarantined" when samples are left out from now on, and "missing" when a plain
        iteration goes without some; in a run these go straight to its journal.
        """
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

    def share_with(
        self, rank: int, ranks: int, shares: Shares | None = None, leave_out: LeaveOut | None = None
    ) -> None:
        """Of every batch of a training epoch, this process reads its own part: `batch_size` is that of all together.

        Order, batches and position are those of one process, so a run can go on with another number of them. Plain
        iteration stays whole. Samples that cannot be read are left out by all processes: `leave_out` tells the others
        and does not return. Where there is no such way, none is left out.
        """
        if ranks > 1 and self._order is not None:
            self._order.check_shared()
        if shares is None and ranks > 1:
            shares = Shares(range(ranks))
        self._rank, self._shares = rank, shares
        if self._shares is not None:
            self._shares.merge(self._saved_shares)
        self._leave_out_together = leave_out if ranks > 1 else None
        if ranks > 1 and leave_out is None:
            self.policy = replace(self.policy, quarantine=False, skip_bad=False)

    def unread(self) -> tuple[int, int]:
        """Epoch and batch from which on no process of several has read ahead: from there on parts may be others.

        All processes are at the same place and have the same number of children, so all find the same.
        """
        ahead = 1 + (self.num_workers * self._pool.prefetch + 1 if self.num_workers else 0)
        first, reading = self.cursor + ahead, self._reading
        if reading is not None and reading.number == self.epoch and reading.read >= first:
            raise InternalError(f"batch {reading.read} was read ahead, {first} is the first that may be cut anew")
        return (self.epoch, first) if first < len(self) else (self.epoch + 1, 0)

    # Reading.

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Batch `start` and the following ones of an epoch. What has been trained on is told by `advance`.

        A batch without any sample that can be read does not come at all.
        """
        self._look(start)
        course = self._reading = self._course(epoch, training=True)
        self._streams += 1
        try:
            for index, value in enumerate(self._values(course, start), start):
                samples, missing = course.divided(index)
                if len(samples):
                    part, counted, parts = course.part(samples, index)
                    yield Batch(index, value, samples, epoch, missing, part, counted, parts)
        finally:
            self._streams -= 1

    def _look(self, start: int) -> None:
        """A pass begins. The dataset may be another one, or have grown, since the last epoch."""
        dataset, restored = self._dataset, self._restored
        self._restored, missed, self._missed = None, self._missed, None
        length = length_of(dataset)
        if start and restored is not None:
            self.length, self._plan = length, None
            self._check_shape(start, restored)
        elif not start and not self._streams:
            if missed is not None and missed[0] is dataset and length == missed[1]:
                raise not_grown(length, missed[2])
            self._grown = self._grown or (self._fetcher.dataset is dataset and length != self.length)
            self.length = length
            self._plan = None
        seen = look(dataset) if self.num_workers else None
        if self._fetcher.dataset is not dataset or (self._pool.pids and seen != self._seen):
            self._pool.close()  # its processes have a copy of what was
            if self._fetcher.dataset is not dataset:
                self._fetcher = Fetcher(dataset, self._collate_fn, *self._ways)
                self._pool.fetcher = self._fetcher
                self._here = Reader(self._fetcher, self._pool)
        self._known.length = self._plain.length = self.length
        self._seen = seen

    def __iter__(self) -> Iterator[Any]:
        """The values of a whole epoch, for evaluation: the cursor stays where it is."""
        known = self._known_to_plain().held
        if known and not self.allow_missing:
            raise self._incomplete(known)
        self.missing = tuple(held.index for held in known)
        return self.passes.begin(self.epoch)

    def _plain_values(self, number: int, start: int) -> Iterator[Any]:
        if not self.cursor:
            self._look(0)
        course = self._course(number, training=False)
        for index, value in enumerate(self._values(course, start), start):
            if len(course.samples(index)):
                yield value
        if self.missing:
            count, listed = len(self.missing), list(self.missing[:MOST_LISTED])
            text = f"an evaluation went without {named(described(self.dataset, listed))}"
            self._tell(Missing(count, tuple(listed), text))

    def _values(self, course: Course, start: int) -> Iterator[Any]:
        pin = self._pin_device()
        if self.num_workers > 0:
            self._pool.pin = pin
            self._pool.must_pin = self.pin_memory is True
            return self._pool.stream(course, start, self._settle)
        place = None if pin is None else pinned if self.pin_memory else pinned_where_large
        return self._here.stream(course, start, self._settle, pin=place)

    def _course(self, number: int, *, training: bool) -> Course:
        epoch = self._epoch(number, training=training)
        if training:
            return Course(epoch, self._known, rank=self._rank, shares=self._shares)
        return Course(epoch, self._known_to_plain(), training=False)

    def _known_to_plain(self) -> Quarantine:
        """What plain iteration goes without. It is each process's own, so where several processes train, a sample that
        it cannot read is not left out in training: all of them must cut the same batches."""
        if self._shares is None:
            return self._known
        self._plain.merge(self._known.to_json())
        return self._plain

    def _epoch(self, number: int, *, training: bool = True) -> Epoch:
        if self._order is not None:
            return self._order.epoch(
                "training" if training else "plain", number, seed=self.seed, dataset=self._fetcher.dataset,
                batch_size=self.batch_size, drop_last=self.drop_last,
            )  # fmt: skip
        plan = self._plan
        now = (number, self.seed, self.batch_size) if not self._streams else (number, self.seed)
        if plan is None or (plan.number, plan.seed, plan.batch_size)[: len(now)] != now:
            plan = Epoch(self.seed, number, self.length, self.batch_size, self.shuffle, self.drop_last)
            self._plan = plan  # kept: the order of a large dataset takes a second to sort
        return plan

    def _pin_device(self) -> torch.device | None:
        device = self.device
        if device is None and torch.cuda.is_initialized():
            device = torch.device("cuda")
        if self.pin_memory is False or device is None or device.type not in ("cuda", "xpu"):
            return None
        if device.type == "cuda" and device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return device

    def close(self) -> None:
        """End the loader children and wait until they are gone. The next iteration starts new ones."""
        self._pool.close()

    # What cannot be read.

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        """The samples that are left out in training: index, source and why."""
        if len(self._known) != len(self._listed):  # asked at every step, and there are rarely any
            held = self._known.held
            self._listed = [{**about, "why": each.why} for about, each in zip(self._about(held), held, strict=True)]
        return self._listed

    def _about(self, held: list[Held]) -> list[dict[str, Any]]:
        return described(self.dataset, [each.index for each in held])

    def leave_out(self, samples: Sequence[int], why: str, *, epoch: int, batch: int, fatal: bool = False) -> None:
        """Quarantine these samples, from that batch on. `fatal`: they end the process that reads them."""
        for about in described(self.dataset, samples):
            if self._known.add(about["index"], why, epoch=epoch, batch=batch):
                text = f"{named([about])} is left out from now on: it {why}"
                self._tell(Quarantined(**about, why=why, epoch=epoch, batch=batch, fatal=fatal, text=text))

    def may_leave_out(self, samples: Sequence[int]) -> bool:
        """Whether the training may go on without these, which make a step fail wherever it is computed."""
        return self.policy.skip_bad and len(self._known) + len(samples) <= self.policy.limit(self.length)

    def _settle(self, course: Course, batch: int, charge: Charge, error: Exception | None) -> None:
        """Samples of a batch cannot be read: leave them out if that is allowed, else raise."""
        indices = [int(sample["index"]) for sample in charge.samples]
        most = self.policy.limit(self.length)
        if self._may_go_without(course, charge, error) and len(course.quarantine) + len(indices) <= most:
            if course.training and self._leave_out_together is not None:
                self._leave_out_together(indices, charge.did, course.number, batch)
            elif course.training:
                self.leave_out(indices, charge.did, epoch=course.number, batch=batch, fatal=error is None)
            else:  # the training may have used one of them in the batch at hand: that batch stays as it was
                if course.quarantine is self._known:
                    self.leave_out(indices, charge.did, epoch=self.epoch, batch=self.cursor + 1, fatal=error is None)
                for index in indices:
                    course.quarantine.add(index, charge.did, epoch=self.epoch, batch=self.cursor + 1)
                self.missing = tuple(sorted({*self.missing, *indices}))
            return
        charge = replace(charge, how_to_skip=self._how_to_go_without(course, error, most))
        if error is None:
            raise BadSamples(charge)
        attach(error, charge)
        raise error

    def _may_go_without(self, course: Course, charge: Charge, error: Exception | None) -> bool:
        if not charge.samples or charge.blame is Blame.CODE:
            return False
        if charge.blame is Blame.UNKNOWN and not charge.others_ok:
            return False
        if not course.training:
            return self.allow_missing
        return self.policy.quarantine if error is None else self.policy.skip_bad

    def _how_to_go_without(self, course: Course, error: Exception | None, most: int) -> str:
        if len(course.quarantine) >= most:
            return f"{len(course.quarantine)} samples are left out already: `data.most_bad` allows more"
        if not course.training:
            return EVALUATE_WITHOUT
        return f"train without such samples: `data.{'quarantine' if error is None else 'skip_bad'}=true`"

    def _incomplete(self, known: list[Held]) -> BadSamples:
        charge = Charge(
            Blame.DATA,
            tuple(self._about(known)),
            "cannot be read, and no score may miss a sample without saying so",
            how_to_skip=EVALUATE_WITHOUT,
            because=f"in training it {known[0].why}",
        )
        return BadSamples(charge)

    def _tell(self, message: Missing | Quarantined) -> None:
        marks = current()
        if marks is not None and marks.tell is not None:  # protected or not: whoever keeps the journal hears of it
            marks.tell(message)
        elif self.on_event is not None:
            self.on_event(message.kind, message.told)

    # What has been trained on.

    def advance(self, batch: Batch) -> None:
        """The step of `batch` is complete: it will not come again. Samples in quarantine are accounted for with it."""
        known = self._known.changes
        if known:
            self._pass_empty(batch.index)
            self._coverage.add(batch.missing)
        self.cursor += 1
        self._coverage.add(batch.samples)
        if known:
            self._pass_empty(len(self._epoch(self.epoch)))

    def _pass_empty(self, stop: int) -> None:
        """Move on over batches of which every sample is quarantined: they never come."""
        course = self._course(self.epoch, training=True)
        while self.cursor < stop:
            samples, missing = course.divided(self.cursor)
            if len(samples):
                return
            self._coverage.add(missing)
            self.cursor += 1

    def finish_epoch(self, *, left: bool = False) -> None:
        """On to the next epoch, after comparing what was seen with what there was.

        `left`: the script went on before the last batch, so what came after the cursor was not skipped.
        """
        if not left:
            self._pass_empty(len(self._epoch(self.epoch)))
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
            "quarantined": self._known.to_json(),
            "shape": self.shape(),
            **({"shares": self._shares.to_json()} if self._shares is not None and self._shares.changes else {}),
            **({"grown": True} if self._grown else {}),
            **({"order": self._order.state_dict()} if self._order is not None else {}),
            **({"plain": plain} if (plain := self.passes.state_dict()) is not None else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. In the middle of an epoch it must be the same data in the same batches."""
        saved, length = state["shape"], length_of(self._dataset)
        self._restored = saved if state["cursor"] > 0 else None  # looked at when the epoch goes on
        self._saved_shares = state.get("shares")
        if self._shares is not None:
            self._shares.merge(self._saved_shares)
        self._grown = bool(state.get("grown"))
        grown = self._grown and length != saved["length"]
        self._missed = (self._dataset, length, int(saved["length"])) if grown else None
        self.passes.load_state_dict(state.get("plain"))
        if self._order is not None and "order" in state:
            self._order.load_state_dict(state["order"], under_way=self._streams > 0)
        if not self._streams:
            self._plan = None
        self.epoch = int(state["epoch"])
        self.cursor = int(state["cursor"])
        self.seed = int(state["seed"])
        self._coverage = Coverage(int(state["coverage"]["count"]), int(state["coverage"]["total"]))
        self.skipped = int(state["skipped"])
        self.repeated = int(state["repeated"])
        # Of another length an index does not mean the same sample; without quarantine what was repaired comes back.
        if state["shape"]["length"] == self.length and self.policy.leaves_out:
            self._known.merge(state.get("quarantined"))

    def _check_shape(self, cursor: int, saved: Mapping[str, Any]) -> None:
        """In the middle of an epoch it must be the same data in the same batches."""
        for name, now in self.shape().items():
            before = saved.get(name)
            if before != now:
                raise UserError(
                    f"the saved run is at batch {cursor} of an epoch with {name}={before}, "
                    f"but the loader has {name}={now}",
                    hints=(f"continue with {name}={before}, or start a new run",),
                )

    def shape(self) -> dict[str, Any]:
        """What must be the same in a run that goes on in the middle of an epoch, and in all ranks."""
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            **({"order": "of a sampler"} if self._order is not None else {}),
        }
