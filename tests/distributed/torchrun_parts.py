"""What torchrun_job.py trains, for those that compute the same by themselves: the script is of use only in a rank."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler

import holdfast

LENGTH, SIZE = 61, 4
"""Samples of the dataset, and of a batch of one rank."""
SEED = 5
"""Of rank 0; the others have the next ones."""


class Points(Dataset[Any]):
    """Each sample says which one it is."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
        return x, x.sum(dim=0, keepdim=True), index


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def samples_below_torchrun(epoch: int, ranks: int) -> list[list[list[int]]]:
    """By step and rank: what the sampler of each rank gives it."""
    parts = []
    for rank in range(ranks):
        sampler: DistributedSampler[Any] = DistributedSampler(Points(LENGTH), ranks, rank)
        sampler.set_epoch(epoch)
        order = list(sampler)
        parts.append([order[begin : begin + SIZE] for begin in range(0, len(order), SIZE)])
    return [list(step) for step in zip(*parts, strict=True)]


def weights_below_torchrun(epochs: int, ranks: int) -> list[torch.Tensor]:
    """In this process: the mean of the gradients of all ranks, step by step, as DistributedDataParallel takes it."""
    points, model = Points(LENGTH), _begun()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        for step in samples_below_torchrun(epoch, ranks):
            optimizer.zero_grad()
            for part in step:
                x, y = (torch.stack([points[index][which] for index in part]) for which in (0, 1))
                (torch.nn.functional.mse_loss(model(x), y) / ranks).backward()
            optimizer.step()
    return [each.detach() for each in model.parameters()]


def weights_of_one_process(epochs: int, ranks: int) -> list[torch.Tensor]:
    """The same with whole batches, in the order of a Loader."""
    model = _begun()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = holdfast.Loader(Points(LENGTH), batch_size=SIZE * ranks, shuffle=True, seed=SEED)
    for epoch in range(epochs):
        for batch in loader.batches(epoch, 0):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch.value[0]), batch.value[1]).backward()
            optimizer.step()
    return [each.detach() for each in model.parameters()]


def _begun() -> torch.nn.Module:
    """Rank 0 has drawn it: all ranks begin with its parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return network()
