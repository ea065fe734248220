"""A DataLoader whose DistributedSampler gives each rank samples of its own, as a Loader that all ranks share.

    shared_loader(dataloader, rank=0, ranks=2)      # a Loader, or None for a loader that cannot be shared
    AllReplicas(sampler, batch_size=32, drop_last=False)    # the batches of all ranks, one after the other in each

A script for torchrun has such a loader in each rank: a batch there is a part of the batch of all. A Loader has the
batches of all ranks, and each rank reads its part of them, which is what its sampler would have given it. So samples,
order and batches are those of the script, and the position in the data is still one number for all ranks. With fewer
ranks for a while the batches stay as they are, and each rank reads more of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, default_collate

from holdfast.base.errors import UserError
from holdfast.data.given_order import is_per_rank
from holdfast.data.loader import Loader


def shared_loader(loader: Any, *, rank: int, ranks: int) -> Loader | None:
    """What the ranks of a group share in place of this loader; None if there is no DistributedSampler in it."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return None
    batches = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or type(batches) is not BatchSampler:
        return None
    sampler: Any = batches.sampler
    if not is_per_rank(sampler):
        return None
    if (sampler.rank, sampler.num_replicas) != (rank, ranks):
        raise UserError(
            f"a {type(sampler).__name__} is for rank {sampler.rank} of {sampler.num_replicas},"
            f" and this is rank {rank} of {ranks}",
            cause="samples would be left out, or used by two ranks",
            hints=["leave num_replicas and rank out: torch asks the process group for them"],
        )
    workers = loader.num_workers
    shared = Loader(
        loader.dataset,
        batch_sampler=AllReplicas(sampler, batches.batch_size, batches.drop_last),
        num_workers=workers,
        collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
        pin_memory=loader.pin_memory or None,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        worker_init_fn=loader.worker_init_fn,
        timeout=loader.timeout,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
    )
    shared.stands_for = loader
    return shared


class AllReplicas:
    """A batch sampler: each batch has that of rank 0, then that of rank 1, and so on."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self._theirs = sampler  # the script's own: it calls set_epoch
        self._size = batch_size
        self._drop_last = drop_last
        self.replicas: int = sampler.num_replicas
        """As many as the run began with: batches stay the same while ranks are away."""

    def __len__(self) -> int:
        samples = len(self._for(0))
        return samples // self._size if self._drop_last else -(-samples // self._size)

    def __iter__(self) -> Iterator[list[Any]]:
        parts = self._parts()
        for begin in range(0, len(self) * self._size, self._size):
            yield [index for part in parts for index in part[begin : begin + self._size]]

    def _parts(self) -> list[list[Any]]:
        if type(self._theirs).__iter__ is not DistributedSampler.__iter__:
            parts = [list(self._for(rank)) for rank in range(self.replicas)]
            if list(self._for(0)) != parts[0]:
                raise UserError(
                    f"a {type(self._theirs).__name__} gives another order each time it is asked",
                    cause="the parts of the ranks would be of different orders: samples left out, and used twice",
                    hints=["seed its generator with the epoch in `__iter__`, as torch's DistributedSampler does"],
                )
            return parts
        # torch would put all samples in order once for each rank: all at once are those of a single one.
        every = self._for(0)
        every.num_replicas, every.num_samples = 1, every.total_size
        order = list(every)
        return [order[rank :: self.replicas] for rank in range(self.replicas)]

    def _for(self, rank: int) -> Any:
        """The sampler of that rank."""
        made = copy.copy(self._theirs)
        if made.num_replicas != self.replicas:
            if type(made).__iter__ is not DistributedSampler.__iter__:
                raise UserError(
                    f"a {type(made).__name__} cannot be used with another number of ranks than the run began with",
                    cause=f"the run began with {self.replicas}, and there are {made.num_replicas} now",
                    hints=[f"go on with {self.replicas} ranks, or use torch's DistributedSampler"],
                )
            like: DistributedSampler[Any] = DistributedSampler(made.dataset, self.replicas, 0, drop_last=made.drop_last)
            made.num_replicas, made.num_samples, made.total_size = self.replicas, like.num_samples, like.total_size
        made.rank = rank
        return made

    def state_dict(self) -> dict[str, Any]:
        return {"replicas": self.replicas}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.replicas = int(state["replicas"])
