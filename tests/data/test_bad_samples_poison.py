"""Samples that kill or hang a loader child: found by trying them one by one, quarantined if they do it each time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.faults.bad_samples import BadSamples, charge_of
from holdfast.faults.blame import Blame
from tests.data.loaders import POSIX, Event, Hanging, leave, record
from tests.data.recordings import LENGTH, Recordings, known_from_the_start, make, same, segfault, train

pytestmark = POSIX


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("act", "why"),
    [
        (segfault, "ended the process that reads it (SIGSEGV)"),
        (leave, "ended the process that reads it (exit status 3)"),
        (Hanging, "hung the process that reads it"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_poison_sample_is_quarantined_by_index(
    act: Any, why: str, workers: int, events: list[Event], tmp_path: Path, hurry: Any
) -> None:
    act = act(tmp_path / "hanging") if act is Hanging else act
    loader = record(make(Recordings({9: act}), workers, shuffle=True), events)
    if isinstance(act, Hanging):
        hurry(loader, act.now)
    values = train(loader, epochs=2)
    assert same(values, train(known_from_the_start([9], shuffle=True), epochs=2))
    deaths = [name for name, _ in events if name != "quarantined"]
    told = [details for name, details in events if name == "quarantined"]
    assert len(told) == 1
    assert (told[0]["index"], told[0]["source"], told[0]["epoch"]) == (9, "sub-09_eeg.set", 0)
    assert told[0]["why"].startswith(why)
    assert 2 <= len(deaths) <= 4  # a neighbour may have been waited for the first times; and none in the second epoch
    assert [sample["index"] for sample in loader.quarantined] == [9]


@pytest.mark.all
def test_two_kinds_of_poison_in_one_batch_are_both_found(events: list[Event]) -> None:
    loader = record(make(Recordings({8: segfault, 10: leave})), events)
    assert same(train(loader), train(known_from_the_start([8, 10])))
    assert sorted(details["index"] for name, details in events if name == "quarantined") == [8, 10]


def test_a_sample_that_only_once_kills_is_not_quarantined(tmp_path: Path, events: list[Event]) -> None:
    def once() -> None:
        if not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            segfault()

    loader = record(make(Recordings({9: once})), events)
    assert same(train(loader), train(make(Recordings(), 0)))
    assert [name for name, _ in events] == ["loader_died"]


def test_a_batch_that_is_killed_from_outside_twice_loses_no_sample(tmp_path: Path, events: list[Event]) -> None:
    """As the kernel does when memory is short: SIGKILL while any sample is being read. Tried alone, each is fine."""

    class Slow(Recordings):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 9 and len(list(tmp_path.iterdir())) < 2:
                (tmp_path / str(time.monotonic_ns())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    loader = record(make(Slow()), events)
    assert same(train(loader), train(make(Recordings(), 0)))
    assert [details["signal"] for _, details in events] == ["SIGKILL", "SIGKILL"]
    assert loader.quarantined == []


@pytest.mark.all
def test_one_that_is_too_large_for_memory_each_time_is_quarantined(events: list[Event]) -> None:
    loader = record(make(Recordings({9: lambda: os.kill(os.getpid(), signal.SIGKILL)})), events)
    assert same(train(loader), train(known_from_the_start([9])))


class InOneGo(Recordings):
    """Reads whole batches, and dies of the same sample either way."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            self.bad[index]()
        return torch.tensor([index, 0.0, 0.0], dtype=torch.float64)

    def batch_of(self, indices: list[int]) -> torch.Tensor:
        return torch.stack([self[index] for index in indices])


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("act", [segfault, leave])
def test_one_that_ends_whole_batches_is_found_among_them(act: Callable[[], None]) -> None:
    loader = make(InOneGo({9: act}))
    values = train(loader)
    assert [index for index, *_ in torch.cat(values).tolist()] == [index for index in range(LENGTH) if index != 9]
    assert [each["index"] for each in loader.quarantined] == [9]


@pytest.mark.all
def test_code_that_kills_with_every_sample_is_not_quarantined_away() -> None:
    loader = make(Recordings(dict.fromkeys(range(LENGTH), leave)), 1)
    with pytest.raises(BadSamples) as caught:
        list(loader.batches(0, 0))
    assert caught.value.charge.blame is Blame.CODE
    assert "the script is at fault: each sample that was tried ended the process" in caught.value.message
    assert loader.quarantined == []
    loader.close()


def test_without_quarantine_the_sample_is_named_and_the_run_ends() -> None:
    loader = make(Recordings({9: segfault}), 1)
    loader.policy.quarantine = False
    with pytest.raises(BadSamples) as caught:
        list(loader.batches(0, 0))
    assert caught.value.message == (
        "the data are at fault: sample 9 (sub-09_eeg.set) ended the process that reads it (SIGSEGV)"
    )
    assert caught.value.cause == "3 of 3 other samples can be read"
    assert caught.value.hints[0] == "train without such samples: `data.quarantine=true`"
    assert (charge_of(caught.value) or {})["blame"] == "data"
    loader.close()


@pytest.mark.long
def test_spawned_children_are_tried_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = make(Recordings({9: leave}), 1)
    assert same(train(loader), train(known_from_the_start([9])))
