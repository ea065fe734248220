"""A model in DistributedDataParallel: what is protected is the model, and who exchanges its gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.distributed.wrapped import Wrapped
from holdfast.worker.session_context import named_by_kind

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def wrapped() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield DistributedDataParallel(torch.nn.Linear(2, 1))
    finally:
        dist.destroy_process_group()


def test_the_model_is_protected_without_its_wrapper(wrapped: DistributedDataParallel) -> None:
    assert named_by_kind((wrapped,), {}) == {"model": wrapped.module}
    assert wrapped.require_backward_grad_sync, "nobody else would bring the gradients of its ranks together"


def test_a_wrapper_is_known_when_it_is_made(wrapped: DistributedDataParallel) -> None:
    known = Wrapped(active=True)
    try:
        assert not known, "the wrapper of before belongs to another group"
        later = DistributedDataParallel(torch.nn.Linear(2, 1))
        assert known and known.parameters() == {id(each) for each in later.parameters()}
        known.exchange(False)
        assert not later.require_backward_grad_sync and wrapped.require_backward_grad_sync
    finally:
        known.close()
    DistributedDataParallel(torch.nn.Linear(2, 1))
    assert len(known._known) == 1


@pytest.mark.all
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_wrapper_that_keeps_its_buckets_keeps_no_notes(wrapped: DistributedDataParallel) -> None:
    """torch notes every gradient for buckets that never come: 40 bytes for each parameter and step."""
    known = Wrapped(active=True)
    try:
        many = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(400)])

        class Sum(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.many = many

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.cat(list(self.many)).sum()

        model = DistributedDataParallel(Sum())
        pages = []
        for step in range(700):
            known.exchange(True)
            model(torch.ones(1)).sum().backward()
            if step in (100, 699):
                pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
        assert (pages[1] - pages[0]) * os.sysconf("SC_PAGE_SIZE") < 4 << 20, "without the mend 10 MB"
    finally:
        known.close()


def test_below_torchrun_wrappers_leave_the_exchange_to_the_ranks(wrapped: DistributedDataParallel) -> None:
    """A rank that fails inside backward could not tell the others there: torchrun's group cannot be built anew."""
    known = Wrapped(active=False)
    try:
        later = DistributedDataParallel(torch.nn.Linear(2, 1))
        known.silence()
        assert not known and not known.parameters() and not later.require_backward_grad_sync
    finally:
        known.close()
