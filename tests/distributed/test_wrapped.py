"""A model in DistributedDataParallel: whose group it is decides who exchanges its gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.worker.session_base import named_by_kind

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def wrapped() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield DistributedDataParallel(torch.nn.Linear(2, 1))
    finally:
        dist.destroy_process_group()


def test_a_group_of_the_script_goes_on_exchanging(wrapped: DistributedDataParallel) -> None:
    assert named_by_kind((wrapped,), {}) == {"model": wrapped.module}
    assert wrapped.require_backward_grad_sync, "nobody else would bring the gradients of its ranks together"


def test_ranks_of_ours_agree_first(wrapped: DistributedDataParallel) -> None:
    assert named_by_kind((), {"net": wrapped}, ranks=2) == {"net": wrapped.module}
    assert not wrapped.require_backward_grad_sync
