"""Sides never share a subject, whatever the releases are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg.splits import folds, split


def table(releases: list[str], subjects: int = 12, windows: int = 3) -> dict[str, Any]:
    people = np.repeat([f"S{number:02d}" for number in range(subjects)], windows)
    return {"subject": people, "release": np.repeat([releases[n % len(releases)] for n in range(subjects)], windows)}


def sides(parts: Any, rows: dict[str, Any]) -> list[set[str]]:
    return [set(rows["subject"][each].tolist()) for each in (parts.train, parts.valid, parts.test)]


def test_the_official_release_is_the_test() -> None:
    rows = table(["R1", "R2", "R10", "R5"])
    parts = split(rows)
    assert set(rows["release"][parts.test]) == {"R5"}
    assert set(rows["release"][parts.valid]) == {"R10"}  # the last by number, not by letter
    assert parts.how == "test R5, validation R10: 6 training, 3 validation, 3 test subjects"


@pytest.mark.parametrize("releases", [[""], ["R1"], ["R1", "R2"], ["R1", "R2", "R5"]])
def test_nobody_is_on_two_sides_and_everybody_is_on_one(releases: list[str]) -> None:
    rows = table(releases)
    parts = split(rows)
    one, two, three = sides(parts, rows)
    assert not (one & two or one & three or two & three)
    assert one | two | three == set(rows["subject"].tolist())
    assert one and two and three


def test_a_subject_in_two_releases_is_refused() -> None:
    rows = table(["R1", "R2", "R5"])
    rows["subject"][rows["release"] == "R5"] = "S00"
    with pytest.raises(UserError, match="subject S00 is in training and in test"):
        split(rows)


def test_rows_that_are_left_out_are_on_no_side() -> None:
    rows = table(["R1", "R2", "R5"])
    keep = np.arange(len(rows["subject"])) % 2 == 0
    parts = split(rows, keep=keep)
    assert keep[np.concatenate([parts.train, parts.valid, parts.test])].all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"valid": "R9"}, "no window is of release R9"),
        ({"valid": "R2", "test": "R2"}, "R2 cannot validate and be the test as well"),
        ({"valid": "R1,R2", "test": "R5"}, "no windows are left for training"),
    ],
)
def test_what_cannot_be_is_said(words: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        split(table(["R1", "R2", "R5"]), **words)


def test_one_subject_is_split_in_time() -> None:
    rows = {
        **table([""], subjects=1, windows=20),
        "recording": np.repeat(["a", "b"], 10),
        "onset": np.tile(np.arange(10.0), 2),
    }
    parts = split(rows)
    assert parts.how == "within 1 subject, by time: 10 training, 4 validation, 6 test windows"
    assert len(set(np.concatenate([parts.train, parts.valid, parts.test]).tolist())) == 20
    for name in ("a", "b"):
        mine = [rows["onset"][each][rows["recording"][each] == name] for each in (parts.train, parts.valid, parts.test)]
        assert mine[0].max() < mine[1].min() and mine[1].max() < mine[2].min()
    with pytest.raises(UserError, match="too few to train on"):
        split({**table([""], subjects=1, windows=1), "recording": np.array(["a"]), "onset": np.array([0.0])})


def test_folds_are_releases_where_there_are_enough_and_subjects_otherwise() -> None:
    rows = table(["R1", "R2", "R3", "R4"])
    every = np.arange(len(rows["subject"]))
    by_release = folds(rows, every, 4)
    assert len({(release, fold) for release, fold in zip(rows["release"], by_release, strict=True)}) == 4
    by_subject = folds(table(["R1"]), every, 3)
    people: dict[str, set[int]] = {}
    for name, fold in zip(rows["subject"].tolist(), by_subject.tolist(), strict=True):
        people.setdefault(name, set()).add(fold)
    assert all(len(found) == 1 for found in people.values())
    assert set(by_subject.tolist()) == {0, 1, 2}
