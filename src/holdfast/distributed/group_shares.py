"""The parts of a batch, as one rank of a group sees them: its own times, the table, and what is agreed in the votes.

    sharing = GroupShares(policy, job, seats, rank, wrapped, device)
    sharing.begin_step(batch)                    # parts of this batch
    with sharing.waiting(): ...                  # for others: no time of this rank's own
    sharing.wishes() / sharing.agreed(flags, own)    # rank 0 says in the vote what is to be done, all do it
    sharing.said_at(context) / sharing.hear(said)     # the change itself, at the boundary after that vote

Each rank says in every vote how long it has not waited for others. Rank 0 decides (share_keeper.py). Inside of
DistributedDataParallel a rank waits within backward: on the CPU the time from its last gradient to the end of backward
is taken for that. On an accelerator that moment is not known to the host, so wrappers do not exchange there while times
are measured, and the device is waited for before the vote.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from holdfast.data.any_loader import AnyLoader
from holdfast.data.loader import Loader
from holdfast.data.shares import Change, Parts, Shares, in_place_of
from holdfast.distributed.job import Job
from holdfast.distributed.share_keeper import Policy, ShareKeeper
from holdfast.distributed.wrapped import Wrapped
from holdfast.run.messages import Note

if TYPE_CHECKING:
    from holdfast.data.loader import Batch
    from holdfast.worker.peers import Trained

CHANGE, MEASURE = 4, 8
"""What rank 0 wishes for, beside a commit (group.py): other parts after this body, and times of the ranks."""
_TABLES = "shares"
"""A note in the job's folder: every change so far, for ranks that go back behind it."""


class GroupShares:
    """Of one rank, in one group."""

    def __init__(
        self,
        policy: Policy,
        job: Job,
        seats: Sequence[int],
        rank: int,
        wrapped: Wrapped,
        device: torch.device,
        *,
        mixed: bool = False,
        wanted: int | None = None,
    ) -> None:
        """`mixed`: the ranks are on devices of different kinds, perhaps because one had to leave its card. `wanted`: so
        many ranks the launch should have, where seats after those are of spares."""
        self.policy = policy
        self._names = tuple(seats)
        """By rank: what users know it by."""
        seats = self.seats = in_place_of(self._names, wanted)
        self._job = job
        self._wrapped = wrapped
        self._device = device
        self.accelerated = mixed or device.type != "cpu" or not policy.kinds(seats) <= {"cpu", "pretend"}
        """Whether a rank of this group is on an accelerator: all ranks find the same."""
        self._keeper = ShareKeeper(policy, job, seats, mixed=mixed) if rank == 0 and policy.may_change else None
        self._tables: dict[str, Shares] = {}
        self._parts: Parts | None = None
        self._has_batch = self._stepped = False
        """The step comes from a loader of ours; and it is not counted yet."""
        self._began = time.perf_counter()
        self._waited = 0.0
        self._measures = False
        """All ranks are asked for their times."""
        self._hooks: list[Any] = []
        self._gradient = 0.0
        """When the last gradient of this rank was there."""
        self.changes = False
        """The ranks have agreed that parts are others after this body."""

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # -- times ---------------------------------------------------------------------------------------------

    @property
    def own_s(self) -> float:
        """Seconds since the group began in which this rank did not wait for others."""
        return time.perf_counter() - self._began - self._waited

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - began

    @property
    def unequal(self) -> bool:
        """Whether the parts of this batch are not equal."""
        return self._parts is not None and len(set(self._parts.counts)) > 1

    def begin_step(self, batch: Batch | None) -> None:
        self._has_batch, self._stepped = batch is not None, True
        self._parts = None if batch is None else batch.parts

    def begin_attempt(self) -> None:
        self.changes = False
        self._gradient = 0.0
        if not self._measures or len(self.seats) == 1:
            return
        if self.accelerated:
            self._wrapped.stop_exchanging()
        elif self._wrapped and not self._hooks:
            self._hooks = [each.register_post_accumulate_grad_hook(self._computed_one) for each in self._wrapped.all()]

    def _computed_one(self, _: torch.Tensor) -> None:
        self._gradient = time.perf_counter()

    def computed(self) -> None:
        """Backward is over here."""
        if not self._measures or len(self.seats) == 1:
            return
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        elif self._gradient:
            self._waited += time.perf_counter() - self._gradient

    # -- agreeing ------------------------------------------------------------------------------------------

    def wishes(self) -> int:
        """Of rank 0."""
        keeper = self._keeper
        if keeper is None or self._wrapped.parts:
            return 0
        if not (self.accelerated and self._wrapped):
            keeper.look(self._newest)
        return (CHANGE if keeper.weights is not None else 0) | (MEASURE if keeper.measures else 0)

    @property
    def _newest(self) -> int:
        return max((table.changes for table in self._tables.values()), default=0)

    @property
    def leaves(self) -> bool:
        """Rank 0 wishes that all leave the group, and the next one is without the CPU."""
        return self._keeper is not None and self._keeper.leaves

    def agreed(self, flags: int, own: Sequence[float]) -> None:
        """All ranks have the step, and rank 0 said this."""
        self.changes, self._measures = bool(flags & CHANGE), bool(flags & MEASURE)
        stepped, self._stepped = self._stepped, False  # a body without a step ends with a vote too
        if stepped and self._keeper is not None and not self.changes and not self._wrapped.parts:
            self._keeper.hear(own, self._parts, self._newest, from_loader=self._has_batch)

    def news(self) -> list[Note]:
        """Of rank 0, each once: for the record."""
        if self._keeper is None or not self._keeper.news:
            return []
        news, self._keeper.news = self._keeper.news, []
        return news

    # -- the table -----------------------------------------------------------------------------------------

    def check(self, context: Trained) -> None:
        """The CPU comes later: a loader that cannot be shared is refused before that, not in the middle of the run."""
        if self.policy.beside:
            for loader in context.named_loaders().values():
                if isinstance(loader, AnyLoader):
                    loader.share_with(0, len(self.policy.devices))

    def of(self, name: str) -> Shares | None:
        return self._tables.setdefault(name, self.policy.table(self.seats)) if len(self.seats) > 1 else None

    def known(self) -> bytes:
        """Of rank 0: all changes of this launch."""
        found = self._job.noted(_TABLES).get("tables", {})
        return json.dumps(found).encode() if found else b""

    def learn(self, said: bytes) -> None:
        for name, rows in json.loads(said).items() if said else ():
            table = self.of(name)
            if table is not None:
                for row in rows:  # in their order: of two at one place the last one holds
                    table.add(Change.from_json(row))

    def said_at(self, context: Trained) -> bytes:
        """Of rank 0: the change that all ranks make now, kept for ranks that go back behind it."""
        keeper = self._keeper
        assert keeper is not None and keeper.weights is not None
        weights, keeper.weights = keeper.weights, None
        change: dict[str, list[Any]] = {}
        for name, loader in context.named_loaders().items():
            if isinstance(loader, Loader):
                change[name] = Change(*loader.unread(), weights).to_json()
        tables = self._job.noted(_TABLES).get("tables", {})
        for name, row in change.items():
            tables.setdefault(name, []).append(row)
        self._job.note(_TABLES, {"tables": tables})
        self._tell(context, weights)
        return json.dumps(change).encode()

    def hear(self, said: bytes) -> None:
        self.changes = False
        for name, row in json.loads(said).items():
            table = self.of(name)
            if table is not None:
                table.add(Change.from_json(row))

    def _tell(self, context: Trained, weights: dict[int, int]) -> None:
        """`from step 120: rank 0 computes 29 of 32 samples, rank 1 3`"""
        loaders = [each for each in context.named_loaders().values() if isinstance(each, Loader)]
        loader = max(loaders, key=lambda each: each.cursor, default=None)
        first = context.position.step + 1
        if loader is not None:
            epoch, batch = loader.unread()
            first += (batch if epoch == loader.epoch else len(loader)) - loader.cursor
        counts = tuple(weights[seat] for seat in self.seats)
        (name, count), *others = zip(self._names, counts, strict=True)
        text = f"from step {first}: rank {name} computes {count} of {sum(counts)} samples"
        text += "".join(f", rank {name} {count}" for name, count in others)
        context.tell(Note(text, shares=counts))
