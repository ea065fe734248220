"""Loader: children that die, by real signals, cost no batch and no bit, and the sample that kills them is named."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.data.loader import BadSamples, Batch, LoaderFailed
from tests.data.loaders import LENGTH, POSIX, TIDY, At, Event, hang, leave, make, record, values
from tests.waiting import wait_until

pytestmark = [POSIX, TIDY]


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_children_cost_no_batch(workers: int, undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(workers=workers), events)

    def kill(batch: Batch) -> None:
        if pids := loader._pool.pids:  # a batch that was ready comes even after its child is dead
            os.kill(pids[batch.index % len(pids)], signal.SIGKILL)

    assert torch.equal(values(loader, each=kill), undisturbed)
    assert len(events) >= 3
    assert {name for name, _ in events} == {"loader_died"}
    assert {details["signal"] for _, details in events} == {"SIGKILL"}
    loader.close()


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_any_signal_is_survived(number: signal.Signals, undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(), events)

    def kill(batch: Batch) -> None:
        if batch.index == 3:
            # By another process: a child of torch leaves with status 0 when its parent asks.
            subprocess.run(["kill", f"-{int(number)}", str(loader._pool.pids[0])], check=True)

    assert torch.equal(values(loader, each=kill), undisturbed)
    assert events[0][1]["signal"] == number.name
    loader.close()


def test_a_death_raises_nothing_in_the_middle_of_a_step() -> None:
    """torch's own DataLoader raises from a signal handler here."""
    loader = make()
    stream = loader.batches(0, 0)
    next(stream)
    for pid in loader._pool.pids:
        os.kill(pid, signal.SIGKILL)
        for _ in range(20):
            time.sleep(0.005)  # the step
    assert next(stream).index == 1
    loader.close()


def test_a_death_is_noticed_soon(undisturbed: torch.Tensor) -> None:
    loader = make(At(int(undisturbed[0, 0]), hang))
    times: list[float] = []

    def kill() -> None:
        wait_until(lambda: bool(loader._pool.pids), 100.0)
        times.append(time.monotonic())
        os.kill(loader._pool.pids[0], signal.SIGKILL)

    def leave(name: str, details: dict[str, Any]) -> None:
        times.append(time.monotonic())
        raise KeyboardInterrupt

    threading.Timer(0.3, kill).start()
    loader.on_event = leave
    with pytest.raises(KeyboardInterrupt):
        next(loader.batches(0, 0))
    assert times[1] - times[0] < 10.0
    loader.close()


def test_a_death_between_epochs_is_told_and_mended(undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(), events)
    assert torch.equal(torch.cat([batch.value for batch in loader.batches(0, 0)]), undisturbed[:LENGTH])
    os.kill(loader._pool.pids[1], signal.SIGKILL)
    assert torch.equal(torch.cat([batch.value for batch in loader.batches(1, 0)]), undisturbed[LENGTH:])
    assert [name for name, _ in events] == ["loader_died"]
    loader.close()


def test_the_event_names_the_sample_at_which_a_child_died(tmp_path: Path, events: list[Event]) -> None:
    loader = record(make(At(11, os.abort, tmp_path / "done")), events)
    assert len(values(loader, epochs=1)) == LENGTH
    assert [(name, details["samples"]) for name, details in events] == [("loader_died", [11])]
    assert events[0][1]["signal"] == "SIGABRT"
    loader.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize(("act", "end"), [(os.abort, "SIGABRT"), (leave, "status 3")])
def test_a_sample_that_always_kills_is_named(act: Callable[[], None], end: str, undisturbed: torch.Tensor) -> None:
    index = int(undisturbed[22, 0])  # in batch 5
    loader = make(At(index, act))
    loader.policy.quarantine = False
    got = []
    with pytest.raises(BadSamples) as caught:
        for batch in loader.batches(0, 0):
            got.append(batch.value)
    assert torch.equal(torch.cat(got), undisturbed[:20])  # everything before it was delivered
    assert [sample["index"] for sample in caught.value.charge.samples] == [index]
    assert end in caught.value.message
    assert f"dataset[{index}]" in caught.value.hints[-1]
    assert loader._pool.pids == []


def lethal(items: list[torch.Tensor]) -> torch.Tensor:
    os._exit(4)


def test_a_collate_function_that_kills_is_no_samples_fault() -> None:
    loader = make(collate_fn=lethal)
    with pytest.raises(LoaderFailed) as caught:
        next(loader.batches(0, 0))
    assert sorted(caught.value.samples) == sorted(loader._epoch(0).samples(0).tolist())
    assert (caught.value.epoch, caught.value.batch) == (0, 0)
    assert "status 4" in str(caught.value.cause)
    assert loader.quarantined == []
    loader.close()


@pytest.mark.all
def test_a_later_batch_that_kills_is_not_blamed_on_a_slow_earlier_one(undisturbed: torch.Tensor) -> None:
    class Slow(At):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == int(undisturbed[0, 0]):
                time.sleep(0.4)
            return super().__getitem__(index)

    index = int(undisturbed[5, 0])  # in batch 1, which its child reaches at once
    loader = make(Slow(index, os.abort))
    missing = {batch.index: batch.missing.tolist() for batch in loader.batches(0, 0)}
    assert missing == {number: [index] if number == 1 else [] for number in range(10)}
    loader.close()


@pytest.mark.all
def test_many_respawns_leak_no_descriptors() -> None:
    loader = make(workers=2)

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for _ in range(8):
        for batch in loader.batches(0, 0):
            if batch.index == 1:
                os.kill(loader._pool.pids[0], signal.SIGKILL)
        del batch
        gc.collect()
        counts.append(open_files())
    assert max(counts[2:]) <= counts[1] + 4, counts
    loader.close()
