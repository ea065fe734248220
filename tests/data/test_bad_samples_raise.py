"""Samples that raise: blamed by trying them and others, and skipped only where that is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from holdfast.data import sample_marks
from holdfast.faults.bad_samples import charge_of
from tests.data.loaders import POSIX, Event, record
from tests.data.recordings import LENGTH, Recordings, make, refuse, same, train

pytestmark = POSIX


class Windows(Dataset[torch.Tensor]):
    """Windows cut out of recordings by an event table, in which some onsets and durations are missing."""

    def __init__(self, missing: set[int]) -> None:
        self.onsets = [float("nan") if index in missing else float(index) for index in range(LENGTH)]

    def __len__(self) -> int:
        return LENGTH

    def source(self, index: int) -> str:
        return f"sub-NDAR{index // 4:03d}/eeg/sub-NDAR{index // 4:03d}_task-RestingState_eeg.set"

    def __getitem__(self, index: int) -> torch.Tensor:
        onset = self.onsets[index]
        return torch.from_numpy(np.arange(onset, onset + 1.0, 0.25))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_event_table_with_missing_numbers_is_the_datas_fault(workers: int) -> None:
    """The story this was written for: numpy's words say nothing about which recording it is."""
    loader = make(Windows({13}), workers)
    with pytest.raises(ValueError, match="arange: cannot compute length") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    source = "sub-NDAR003/eeg/sub-NDAR003_task-RestingState_eeg.set"
    assert (found["blame"], found["samples"]) == ("data", [{"index": 13, "source": source}])
    assert found["error"] == "ValueError: arange: cannot compute length"
    assert (found["others_tried"], found["others_ok"]) == (3, 3)
    assert found["sentence"] == (
        f"the data are at fault: sample 13 ({source}) raised ValueError: arange: cannot compute length"
    )
    assert found["cause"] == "3 of 3 other samples can be read"
    assert found["hints"][0] == "train without such samples: `data.skip_bad=true`"
    assert source in found["hints"][1]
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("bad", "size", "blame", "named", "tried", "ok"),
    [
        ([9, 10], 4, "data", [9, 10], 2, 2),
        ([8, 9, 10, 11], 4, "data", [8, 9, 10, 11], 8, 7),  # a whole batch of one bad recording: others are asked
        (range(LENGTH), 4, "code", [0, 1, 2, 3], 7, 0),
        ([9], 1, "data", [9], 7, 7),
        (range(LENGTH), 1, "code", [0], 8, 0),
    ],
)
def test_some_or_all_tells_data_from_code(
    workers: int, bad: Any, size: int, blame: str, named: list[int], tried: int, ok: int
) -> None:
    loader = make(Recordings(dict.fromkeys(bad, refuse)), workers, batch_size=size)
    with pytest.raises(ValueError, match="no label") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert (found["blame"], [sample["index"] for sample in found["samples"]]) == (blame, named)
    assert found["others_ok"] == ok or blame == "data"
    assert found["others_tried"] >= found["others_ok"] >= min(ok, 1)
    assert found["others_tried"] <= max(tried, 8)
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_does_not_come_again_is_nobodys_fault_yet(workers: int, tmp_path: Path) -> None:
    def once() -> None:
        if not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            raise OSError("stale file handle")

    loader = make(Recordings({9: once}), workers)
    with pytest.raises(OSError, match="stale") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert (found["blame"], found["samples"][0]["index"]) == ("unknown", 9)
    assert "read again, it did not do that" in found["cause"]
    loader.close()


def test_the_only_sample_there_is_cannot_be_judged() -> None:
    loader = make(Recordings({0: refuse}, length=1), 0)
    with pytest.raises(ValueError) as caught:
        list(loader.batches(0, 0))
    assert (charge_of(caught.value) or {})["blame"] == "unknown"


def test_a_script_that_raises_its_own_error_from_it_still_says_which_sample() -> None:
    loader = make(Recordings({9: refuse}), 0)
    try:
        try:
            list(loader.batches(0, 0))
        except ValueError as error:
            raise LookupError("mine") from error
    except LookupError as error:
        assert (charge_of(error) or {})["samples"] == [{"index": 9, "source": "sub-09_eeg.set"}]
    assert charge_of(ValueError("another")) is None


class Uneven(Recordings):
    """Sample 9 is one number short."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index)[: 2 if index == 9 else 3]


class Ragged(Recordings):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index + 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_of_another_size_is_the_datas_fault(workers: int) -> None:
    loader = make(Uneven(), workers)
    with pytest.raises(RuntimeError, match=r"equal size|resize storage") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert (found["blame"], found["samples"]) == ("data", [{"index": 9, "source": "sub-09_eeg.set"}])
    assert "has shape (2,) where 3 others have shape (3,)" in found["sentence"]
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_all_differ_in_size_are_the_codes_fault(workers: int) -> None:
    loader = make(Ragged(), workers)
    with pytest.raises(RuntimeError, match="equal size") as caught:
        list(loader.batches(0, 0))
    assert (charge_of(caught.value) or {})["blame"] == "code"
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_raising_samples_are_skipped_where_that_is_allowed(workers: int, events: list[Event]) -> None:
    loader = record(make(Recordings({9: refuse, 10: refuse, 21: refuse}), workers, shuffle=True), events)
    loader.policy.skip_bad = True
    values = train(loader, epochs=2)
    plain = train(make(Recordings(), 0, shuffle=True), epochs=2)
    kept = [value[[int(row[0]) not in (9, 10, 21) for row in value]] for value in plain]
    assert same(values, [value for value in kept if len(value)])  # the others are as they always were
    told = [(name, details["index"], details["source"]) for name, details in events]
    assert sorted(told) == [("quarantined", index, f"sub-{index:02d}_eeg.set") for index in (9, 10, 21)]
    assert [sample["why"] for sample in loader.quarantined] == ["raised ValueError: no label"] * 3


def test_code_that_fails_for_every_sample_is_never_skipped() -> None:
    loader = make(Recordings(dict.fromkeys(range(LENGTH), refuse)), 0)
    loader.policy.skip_bad = True
    with pytest.raises(ValueError, match="no label"):
        list(loader.batches(0, 0))
    assert loader.quarantined == []


def test_too_many_bad_samples_end_the_run() -> None:
    loader = make(Recordings(dict.fromkeys(range(0, LENGTH, 2), refuse)), 0)
    loader.policy.skip_bad = True
    with pytest.raises(ValueError) as caught:
        list(loader.batches(0, 0))
    assert len(loader.quarantined) == 10
    assert "10 samples are left out already: `data.most_bad` allows more" in (charge_of(caught.value) or {})["hints"]
    loader.policy.most_bad = 50
    assert len([*loader.batches(0, 0)]) == 6


def test_a_run_says_what_its_loaders_may_leave_out(tmp_path: Path) -> None:
    sample_marks.begin(tmp_path, policy=sample_marks.Policy(skip_bad=True, most_bad=3.0))
    try:
        loader = make(Recordings({9: refuse}), 0)
        assert (loader.policy.skip_bad, loader.policy.most_bad) == (True, 3.0)
        assert len([*loader.batches(0, 0)]) == 6
    finally:
        sample_marks.end()
    assert make(Recordings(), 0).policy == sample_marks.Policy()
