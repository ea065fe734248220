"""Scores never miss a sample silently: a bad one ends the evaluation, or is named where it may be missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.faults.bad_samples import BadSamples, charge_of
from tests.data.loaders import POSIX, Event, Hanging, leave, record
from tests.data.recordings import LENGTH, Recordings, known_from_the_start, make, refuse, segfault

pytestmark = POSIX


def test_a_score_never_misses_a_sample_silently() -> None:
    loader = known_from_the_start([9])
    with pytest.raises(BadSamples) as caught:
        iter(loader)
    assert "sample 9 (sub-09_eeg.set) cannot be read, and no score may miss a sample" in caught.value.message
    assert caught.value.cause == "in training it told to"
    assert "allow_missing=True" in caught.value.hints[0]
    assert (charge_of(caught.value) or {})["samples"] == [{"index": 9, "source": "sub-09_eeg.set"}]


@pytest.mark.sample(3)
@pytest.mark.parametrize("act", [segfault, leave, Hanging])
def test_a_poison_sample_in_an_evaluation_ends_it(act: Any, events: list[Event], tmp_path: Path, hurry: Any) -> None:
    act = act(tmp_path / "hanging") if act is Hanging else act
    loader = record(make(Recordings({9: act}), 1), events)
    if isinstance(act, Hanging):
        hurry(loader, act.now)
    got = []
    with pytest.raises(BadSamples) as caught:
        for value in loader:
            got.append(value)
    assert len(got) == 2
    assert [sample["index"] for sample in caught.value.charge.samples] == [9]
    assert "allow_missing=True" in caught.value.hints[0]
    assert loader.quarantined == [] and not any(name == "quarantined" for name, _ in events)
    loader.close()


@pytest.mark.parametrize(
    ("workers", "act", "quarantine"), [(0, refuse, True), (1, refuse, False), (1, leave, True), (1, leave, False)]
)
def test_an_evaluation_that_may_miss_samples_says_which(
    workers: int, act: Callable[[], None], quarantine: bool, events: list[Event]
) -> None:
    """What the training may leave out is another matter."""
    loader = record(make(Recordings({9: act}), workers, allow_missing=True), events)
    loader.policy.quarantine = quarantine
    for _ in range(2):
        seen = [int(index) for value in loader for index in value[:, 0]]
        assert seen == [index for index in range(LENGTH) if index != 9]
        assert loader.missing == (9,)
    told = {"count": 1, "samples": [9], "text": "an evaluation went without sample 9 (sub-09_eeg.set)"}
    assert [details for name, details in events if name == "missing"] == [told] * 2
    loader.close()


def test_an_evaluation_in_the_middle_of_an_epoch_leaves_the_batch_at_hand_as_it_was() -> None:
    loader = make(Recordings({9: refuse}), 0, allow_missing=True)
    loader.dataset.bad = {}
    seen = []
    for batch in loader.batches(0, 0):
        if batch.index == 2:  # sample 9 is in it, and was fine
            assert 9 in batch.samples
            loader.dataset.bad = {9: refuse}
            assert len([*loader]) == 6
            loader.dataset.bad = {}
        loader.advance(batch)
        seen += batch.samples.tolist()
    loader.finish_epoch()
    assert seen == list(range(LENGTH)) and (loader.skipped, loader.repeated) == (0, 0)
    assert [len(batch.samples) for batch in loader.batches(1, 0)] == [4, 4, 3, 4, 4, 4]


def test_a_loader_without_poison_has_nothing_missing() -> None:
    loader = make(Recordings(), 0)
    assert len([*loader]) == 6
    assert (loader.missing, loader.quarantined) == ((), [])
