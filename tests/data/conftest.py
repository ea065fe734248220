"""What the tests of loaders share: events, the batches of an undisturbed run, and a look at what is left."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from holdfast.data import loader_pool, sample_check
from holdfast.data.loader import Loader
from holdfast.data.read_limit import Patience
from tests.data.loaders import Clock, Event, children, made, make, values
from tests.waiting import wait_until


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Callable[[Loader, Callable[[], object]], None]:
    """Time goes on for a loader, whose limit is a second, while something is true: a child hangs, or is stopped."""

    def give(loader: Loader, true: Callable[[], object]) -> None:
        loader._pool.patience = Patience(floor_s=1.0, first_wait_s=1.0)
        clock = Clock(true)
        monkeypatch.setattr(loader_pool, "time", clock)
        monkeypatch.setattr(sample_check, "time", clock)

    return give


@pytest.fixture(scope="module")
def undisturbed() -> torch.Tensor:
    """Two epochs without children and without faults."""
    return values(make(workers=0))


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """After every test: no child, no zombie, no thread of ours."""
    before = children()
    yield
    for loader in [*made]:  # those of a test that failed
        loader.close()
    gc.collect()
    assert wait_until(lambda: children() <= before), children() - before
    assert wait_until(lambda: not [t for t in threading.enumerate() if t.name == "holdfast-feed"])
