"""Where a sample came from: asked, found in lists of paths, seen through wrappers; and never an error."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from holdfast.data.sample_sources import MOST_TEXT, described, source_of


class Samples(Dataset[int]):
    """Five samples, and whatever attributes a test wants."""

    def __init__(self, length: int = 5, **attributes: Any) -> None:
        self.length = length
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        raise AssertionError("nothing is read to find a name")


PATHS = [f"data/{number}.edf" for number in range(5)]


class Telling(Samples):
    def source(self, index: int) -> str:
        return f"recording {index // 2}"


def test_a_dataset_that_knows_is_asked() -> None:
    assert source_of(Telling(files=PATHS), 4) == "recording 2"


@pytest.mark.parametrize(
    "attributes",
    [
        {"files": PATHS},
        {"paths": [Path(path) for path in PATHS]},
        {"_filenames": tuple(PATHS)},
        {"image_files": np.array(PATHS)},
        {"samples": [(path, 1) for path in PATHS]},
        {"imgs": [[path, 1] for path in PATHS]},
        {"records": [{"label": 1, "path": path} for path in PATHS]},
        {"whatever": [Path(path) for path in PATHS]},
        {"labels": [1] * 5, "names": ["a b", "c d", "e f", "g h", "i j"], "own": PATHS},
    ],
    ids=lambda attributes: next(iter(attributes)),
)
def test_a_list_with_one_path_per_sample_is_found(attributes: dict[str, Any]) -> None:
    assert source_of(Samples(**attributes), 3) == "data/3.edf"


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"files": PATHS[:4]},  # not one per sample
        {"samples": ["so good", "not bad at all. Never", "well/hm, yes", "no", "why?"]},  # the samples themselves
        {"labels": ["cat", "dog", "cat", "dog", "cat"]},
        {"files": [None] * 5},
        {"samples": torch.zeros(5)},
    ],
)
def test_where_nobody_knows_nothing_is_invented(attributes: dict[str, Any]) -> None:
    assert source_of(Samples(**attributes), 2) is None


def test_subsets_and_splits_are_looked_through() -> None:
    whole = Samples(files=PATHS)
    assert source_of(Subset(whole, [4, 2]), 1) == "data/2.edf"
    for part in random_split(whole, [2, 3], generator=torch.Generator().manual_seed(1)):
        for place, index in enumerate(part.indices):
            assert source_of(part, place) == f"data/{index}.edf"
    assert source_of(Subset(Subset(whole, np.array([4, 2, 0])), torch.tensor([2, 0])), 0) == "data/0.edf"  # type: ignore[arg-type]


def test_concatenations_are_looked_through() -> None:
    joined = ConcatDataset([Samples(files=PATHS), Samples(2, files=["x.set", "y.set"]), Telling()])
    assert [source_of(joined, index) for index in (0, 4, 5, 6, 7)] == [
        "data/0.edf",
        "data/4.edf",
        "x.set",
        "y.set",
        "recording 0",
    ]


def test_a_wrapper_of_the_same_length_is_looked_through() -> None:
    assert source_of(Samples(dataset=Samples(files=PATHS)), 1) == "data/1.edf"
    assert source_of(Samples(4, dataset=Samples(files=PATHS)), 1) is None  # which sample is which?


class Series:
    """As pandas has it, as far as it matters."""

    def __init__(self, pairs: Mapping[str, Any]) -> None:
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs.items()


class Recording(Samples):
    """As braindecode has it: many windows, one description, which is a property."""

    @property
    def description(self) -> Any:
        return self._description


def test_windows_of_a_recording_are_named_by_its_description() -> None:
    windows = ConcatDataset(
        [
            Recording(_description=Series({"subject": "NDARAC904DMU", "task": "RestingState", "age": 9.5})),
            Recording(_description=Series({"subject": "NDARAD", "path": "sub-NDARAD/eeg/sub-NDARAD_eeg.set"})),
            Recording(raw=SimpleNamespace(filenames=(Path("sub-X_eeg.set"),))),
        ]
    )
    assert source_of(windows, 3) == "subject=NDARAC904DMU, task=RestingState, age=9.5"
    assert source_of(windows, 7) == "sub-NDARAD/eeg/sub-NDARAD_eeg.set"
    assert source_of(windows, 12) == "sub-X_eeg.set"


def test_braindecode_like_datasets_without_cumulative_sizes_are_looked_through() -> None:
    joined = Samples(10, datasets=[Samples(files=PATHS), Samples(files=[f"b{n}.set" for n in range(5)])])
    assert source_of(joined, 7) == "b2.set"


class Awkward(Samples):
    """Does what it should not when it is looked at."""

    @property
    def files(self) -> list[str]:
        time.sleep(600)
        raise OSError("the disk is gone")

    def source(self, index: int) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("dataset", [None, 3, [], [1, 2, 3], TensorDataset(torch.zeros(3)), Awkward(), object()])
def test_whatever_it_is_there_is_no_error(dataset: Any) -> None:
    began = time.monotonic()
    assert source_of(dataset, 2) is None
    assert source_of(dataset, 10**9) is None
    assert time.monotonic() - began < 100


def test_a_circle_ends() -> None:
    one = Samples()
    one.__dict__["dataset"] = Samples(dataset=one)
    assert source_of(one, 1) is None


def test_control_characters_and_length_are_kept_from_the_terminal() -> None:
    dataset = Samples(files=["a\x1b[31m\tb.edf", "x" * 4000 + "/tail.edf", "\udcff.edf", "ok.edf", ""])
    assert source_of(dataset, 0) == "a?[31m?b.edf"
    long = source_of(dataset, 1)
    assert long is not None and len(long) == MOST_TEXT and long.endswith("/tail.edf")
    assert source_of(dataset, 2) == "?.edf"
    assert described(dataset, [3, 4]) == [{"index": 3, "source": "ok.edf"}, {"index": 4, "source": None}]
