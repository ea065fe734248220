"""Loader: batches lie in pinned memory for the device that is in use, and wake up no other."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from holdfast.data.loader import Batch
from holdfast.data.loader_processes import STAGED, pinned, pinned_where_large
from tests.data.loaders import POSIX, TIDY, make, values

pytestmark = [POSIX, TIDY]


def test_a_device_that_is_not_in_use_is_not_woken_up_to_pin_memory() -> None:
    loader = make(pin_memory=True, workers=0)
    loader.device = torch.device("cpu")  # a run that has left its accelerator
    assert loader._pin_device() is None
    loader.device = None
    assert loader._pin_device() is None or torch.cuda.is_initialized()


@pytest.mark.hardware
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_pinned_through_a_kill(workers: int, undisturbed: torch.Tensor) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    loader = make(pin_memory=True, workers=workers)
    loader.device = torch.device("cuda")

    def check(batch: Batch) -> None:
        assert batch.value.is_pinned()
        assert torch.equal(batch.value.to("cuda", non_blocking=True).cpu(), batch.value)
        if batch.index == 3 and workers:
            os.kill(loader._pool.pids[0], signal.SIGKILL)

    assert torch.equal(values(loader, each=check), undisturbed)
    loader.close()


def test_a_batch_keeps_its_shape_in_pinned_memory() -> None:
    """With `pin_memory=None` the same script is pinned on one machine and not on another; torch 2.6 made lists."""
    batch = ("a", {"pair": (1, 2)}, [(3,), "b"])
    assert pinned(batch) == batch


@pytest.mark.parametrize("size", [3, STAGED])
def test_a_sparse_tensor_comes_through(size: int) -> None:
    """It has no `nbytes`, and not every torch can pin it."""
    _, sparse = pinned_where_large([torch.ones(2), torch.ones(size).to_sparse()])
    assert torch.equal(sparse.to_dense(), torch.ones(size))
