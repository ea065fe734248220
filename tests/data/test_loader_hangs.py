"""Loader: children that stop, hang or break off in the middle of a message are replaced; slow ones are waited for."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data.loader import Batch, Loader
from holdfast.data.loader_pool import RESPAWNS, Patience
from holdfast.data.loader_processes import is_stopped
from tests.data.loaders import LENGTH, POSIX, TIDY, At, Augmented, Event, hang, make, record, values

pytestmark = [POSIX, TIDY]


Hurry = Callable[[Loader, Callable[[], object]], None]


def stopped(loader: Loader) -> Callable[[], bool]:
    return lambda: any(is_stopped(pid) for pid in loader._pool.pids)


def test_a_stopped_child_is_replaced(undisturbed: torch.Tensor, events: list[Event], hurry: Hurry) -> None:
    """At every moment: while it is idle, while it works, with batches of its memory not yet taken over."""
    loader = record(make(Augmented(seconds=0.001)), events)
    hurry(loader, stopped(loader))

    def stop(batch: Batch) -> None:
        if batch.index in (0, 1, 4):
            time.sleep(0.02 * batch.index)
            os.kill(loader._pool.pids[batch.index % 2], signal.SIGSTOP)

    assert torch.equal(values(loader, epochs=1, each=stop), undisturbed[:LENGTH])
    assert {name for name, _ in events} == {"loader_stuck"}
    assert all(details["stopped"] for _, details in events)
    loader.close()


class Wide(Augmented):
    """Samples far larger than a pipe: a child is nearly always in the middle of a message."""

    def __getitem__(self, index: int) -> Any:
        return np.full(500_000, float(index))


def stacked(items: list[Any]) -> Any:
    return np.stack(items)


def test_a_child_stopped_in_the_middle_of_a_message_is_replaced(events: list[Event], hurry: Hurry) -> None:
    loader = record(make(Wide(80), collate_fn=stacked), events)
    hurry(loader, stopped(loader))
    got = []
    for batch in loader.batches(0, 0):
        got.append(batch.index)
        assert batch.value[:, 0].tolist() == batch.samples.tolist()
        if batch.index in (0, 8):
            time.sleep(0.3)  # the pipe is full now, and both children are writing
            for pid in loader._pool.pids:
                os.kill(pid, signal.SIGSTOP)
    assert got == list(range(20))
    assert [name for name, _ in events] == ["loader_stuck", "loader_stuck"]
    loader.close()


@pytest.mark.all
def test_a_child_killed_in_the_middle_of_a_message_is_replaced(events: list[Event]) -> None:
    loader = record(make(Wide(), collate_fn=stacked), events)
    got = []
    for batch in loader.batches(0, 0):
        got.append(batch.index)
        if batch.index in (0, 3):
            time.sleep(0.3)
            os.kill(loader._pool.pids[0], signal.SIGKILL)
    assert got == list(range(10))
    assert {name for name, _ in events} == {"loader_died"}
    loader.close()


def test_a_hang_is_ended_and_its_sample_named(
    tmp_path: Path, undisturbed: torch.Tensor, events: list[Event], hurry: Hurry
) -> None:
    loader = record(make(At(17, hang, tmp_path / "done")), events)
    hurry(loader, lambda: (tmp_path / "done").exists() and not events)
    assert torch.equal(values(loader, epochs=1), undisturbed[:LENGTH])
    assert [(name, details["samples"]) for name, details in events] == [("loader_stuck", [17])]
    assert not events[0][1]["stopped"]
    loader.close()


def doze() -> None:
    time.sleep(1.0)


@pytest.mark.all
def test_a_batch_that_is_only_slow_gets_through(undisturbed: torch.Tensor, events: list[Event]) -> None:
    index = int(undisturbed[22, 0])
    loader = record(make(At(index, doze)), events)
    loader._pool.patience = Patience(floor_s=0.5)
    assert torch.equal(values(loader, epochs=1), undisturbed[:LENGTH])
    assert len(events) <= RESPAWNS  # 0.5 s at first, four times that after each respawn; one on a quiet machine
    assert loader.quarantined == []
    loader.close()


def test_patience_grows_with_what_batches_take() -> None:
    patience = Patience()
    assert patience.limit(fresh=True, attempt=0) == 120
    assert patience.limit(fresh=False, attempt=0) == 5
    patience.note_first(9.0)
    patience.note(2.0)
    assert patience.limit(fresh=True, attempt=0) == 36
    assert patience.limit(fresh=False, attempt=0) == 8
    assert patience.limit(fresh=False, attempt=2) == 128
    for _ in range(64):
        patience.note(0.1)
    assert patience.limit(fresh=False, attempt=0) == 5


def test_waiting_is_told_twice_a_second() -> None:
    loader = make(At(0, doze))
    calls: list[float] = []
    loader.on_wait = lambda: calls.append(time.monotonic())
    list(loader.batches(0, 0))
    assert len(calls) >= 1
    assert all(later - earlier >= 0.4 for earlier, later in itertools.pairwise(calls))
    loader.close()


@pytest.mark.all
def test_a_wait_can_be_left_by_raising(undisturbed: torch.Tensor) -> None:
    loader = make(At(int(undisturbed[0, 0]), doze))

    def stop() -> None:
        raise KeyboardInterrupt

    loader.on_wait = stop
    with pytest.raises(KeyboardInterrupt):
        next(loader.batches(0, 0))
    loader.on_wait = None
    assert torch.equal(values(loader), undisturbed)
    loader.close()
