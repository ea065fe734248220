"""A batch that is copied to the device beside the step before it: the same numbers, and nothing where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.worker.ahead import Ahead, Mark

LARGE = 1 << 15
"""Numbers of a tensor that is worth a copy ahead of its step."""
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_on_the_cpu_nothing_is_copied() -> None:
    ahead, value = Ahead(), [torch.ones(4)]
    ahead.begin(value, torch.device("cpu"))
    assert ahead.take(value, torch.device("cpu")) is None


Change = Callable[[dict[str, Any]], Any]
CHANGES: dict[str, Change] = {
    "written to": lambda batch: batch["x"].add_(1),
    "a part was written to": lambda batch: batch["y"][0][1:].zero_(),
    "replaced in the dict": lambda batch: batch.update(x=batch["x"] / 255),
    "replaced in the list": lambda batch: batch["y"].__setitem__(0, torch.zeros(2)),
    "one more": lambda batch: batch.update(more=torch.zeros(2)),
    "one less": lambda batch: batch.pop("x"),
    "another number": lambda batch: batch.update(share=0.5),
    "moved to another list": lambda batch: batch.update(y=[[batch["y"][0]], batch["y"][1]]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_batch_that_the_loop_has_changed_is_not_what_it_was(change: Change) -> None:
    batch = {"x": torch.ones(4), "y": [torch.ones(2), "name"], "share": 0.25}
    mark = Mark(batch)
    assert mark.fits(batch)
    change(batch)
    assert not mark.fits(batch)


def test_what_moves_itself_is_left_to_the_step() -> None:
    class Graph:
        def to(self, device: torch.device) -> Graph:
            return self

    assert Mark([torch.ones(2), Graph()]).moves_itself
    assert not Mark([torch.ones(2), {"name": "a", "kind": torch.Tensor}]).moves_itself


@pytest.mark.hardware
@needs_cuda
def test_a_copy_is_that_batch_and_is_used_once() -> None:
    """While a long kernel runs on the stream of the step."""
    device = torch.device("cuda:0")
    ahead = Ahead()
    weights = torch.randn(4096, 4096, device=device)
    for number in range(50):
        value = {"x": torch.full((1 << 20,), float(number)).pin_memory(), "y": [torch.tensor([number]).pin_memory()]}
        weights = torch.tanh(weights @ weights)
        ahead.begin(value, device)
        moved = ahead.take(value, device)
        assert moved["x"].device == device and moved["y"][0].device == device
        assert bool((moved["x"] == number).all()) and int(moved["y"][0]) == number
        assert ahead.take(value, device) is None


@pytest.mark.hardware
@needs_cuda
def test_a_batch_that_was_changed_or_is_not_pinned_is_moved_by_the_step() -> None:
    device = torch.device("cuda:0")
    ahead = Ahead()
    changed = torch.zeros(LARGE).pin_memory()
    ahead.begin(changed, device)
    changed += 1
    assert ahead.take(changed, device) is None
    plain = torch.zeros(LARGE)
    ahead.begin(plain, device)
    assert ahead.take(plain, device) is None
    replaced = {"x": torch.zeros(LARGE).pin_memory()}
    ahead.begin(replaced, device)
    replaced["x"] = torch.ones(LARGE).pin_memory()
    assert ahead.take(replaced, device) is None
    other = torch.zeros(LARGE).pin_memory()
    ahead.begin(other, device)
    assert ahead.take(torch.zeros(LARGE).pin_memory(), device) is None
