"""What the tests of loaders share: events, the batches of an undisturbed run, and a look at what is left."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from tests.data.loaders import Event, children, made, make, values
from tests.waiting import wait_until


@pytest.fixture
def events() -> list[Event]:
    return []


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
