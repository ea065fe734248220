"""Data in which some samples are bad: a dataset of small recordings, what a bad one does, and whole epochs of it.

    values = train(make(Recordings({9: segfault})))        # sample 9 ends every child that reads it
    assert same(values, train(known_from_the_start([9])))  # the others are as they always were

Real processes, real signals: `ctypes.string_at(0)` is a segmentation fault, `leave` an exit, `hang` waits for ever.
"""

from __future__ import annotations

import ctypes
import faulthandler
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from holdfast.data.loader import Loader
from holdfast.data.read_limit import Patience

LENGTH, SIZE = 24, 4


def segfault() -> None:
    faulthandler.disable()  # its words would stand in the middle of the test report
    ctypes.string_at(0)


def refuse() -> None:
    raise ValueError("no label")


class Recordings(Dataset[torch.Tensor]):
    """Each sample draws random numbers, has a file of its own, and does something else if it is a bad one."""

    def __init__(self, bad: dict[int, Callable[[], None]] | None = None, length: int = LENGTH) -> None:
        self.bad = bad or {}
        self.files = [f"sub-{index:02d}_eeg.set" for index in range(length)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            self.bad[index]()
        return torch.tensor([index, torch.rand(()).item(), np.random.rand()], dtype=torch.float64)


def make(dataset: Any, workers: int = 2, **more: Any) -> Loader:
    loader = Loader(dataset, **{"batch_size": SIZE, "seed": 5, "num_workers": workers, **more})
    loader._pool.patience = Patience(floor_s=60.0)
    return loader


def known_from_the_start(bad: list[int], *, epoch: int = 0, batch: int = 0, **more: Any) -> Loader:
    """A loader of good samples that leaves some out from that batch on."""
    loader = make(Recordings(), 0, **more)
    loader.leave_out(bad, "told to", epoch=epoch, batch=batch)
    return loader


def train(loader: Loader, epochs: int = 1) -> list[torch.Tensor]:
    """Whole epochs, as a session does it; the values of all batches."""
    values = []
    for _ in range(epochs):
        for batch in loader.batches(loader.epoch, loader.cursor):
            assert batch.value[:, 0].tolist() == batch.samples.tolist()
            values.append(batch.value)
            loader.advance(batch)
        loader.finish_epoch()
    assert (loader.skipped, loader.repeated) == (0, 0)
    loader.close()
    return values


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
