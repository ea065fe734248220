"""What the tests of replays share: a step to be computed again, and a way to make the device compute it wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor

from tests.worker.replay_jobs import Job


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
