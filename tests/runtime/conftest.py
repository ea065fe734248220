"""What several files of tests share.

Loaders      a list of events, the batches of an undisturbed run, and a look at what is left
Checkpoints  a folder with three of them
Replays      a step to be computed again, and a way to make the device compute it wrong
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdfast.state import checkpoint
from tests.runtime.checkpoints import payload
from tests.runtime.loaders import Event, children, made, make, values
from tests.runtime.replay_jobs import Job
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints, steps 10, 20 and 30."""
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, payload(step), step=step)
    return tmp_path


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def wrong(job: Job) -> Iterator[Callable[[str, Callable[[Tensor], Tensor]], None]]:
    """Corrupt a gradient on the pretended device only: there the parameter is where it lives, not a copy."""
    handles = []

    def corrupt(name: str, how: Callable[[Tensor], Tensor]) -> None:
        parameter = dict(job.model.named_parameters())[name]
        home = parameter.data_ptr()
        handles.append(parameter.register_hook(lambda grad: how(grad) if parameter.data_ptr() == home else grad))

    yield corrupt
    for handle in handles:
        handle.remove()
