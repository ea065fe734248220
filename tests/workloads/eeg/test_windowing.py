"""Where windows are: never an exception, and every trial that is not used is counted."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.workloads.eeg import windowing
from holdfast.workloads.eeg.bids import Event
from holdfast.workloads.eeg.windowing import Names

NAN = math.nan


def event(onset: float, value: str, *, duration: float = NAN, feedback: str = "") -> Event:
    return Event(onset=onset, duration=duration, value=value, feedback=feedback)


def trial(start: float, press: float | None = 1.5, feedback: str = "smiley_face") -> list[Event]:
    events = [event(start, "contrastTrial_start"), event(start + 2, "left_target")]
    if press is not None:
        events.append(event(start + 2 + press, "left_buttonPress", feedback=feedback))
    return events


def test_a_window_begins_half_a_second_after_the_stimulus() -> None:
    cut = windowing.challenge1(trial(1.0), samples=2000, rate=100)
    assert [(each.start, each.row) for each in cut.windows] == [
        (350, {"onset": 3.0, "event": "left_target", "response_time": 1.5, "correct": 1.0})
    ]
    assert cut.drops == Counter()


def test_the_first_press_counts_and_a_press_before_the_stimulus_does_not() -> None:
    events = [*trial(1.0), event(2.0, "right_buttonPress"), event(5.0, "left_buttonPress", feedback="non_target")]
    assert windowing.challenge1(events, 2000, 100).windows[0].row["response_time"] == 1.5


def test_the_last_trial_is_not_lost_and_its_press_has_an_end() -> None:
    """Trials end where the next begins; the last has none, and a press minutes later is not its answer."""
    assert len(windowing.challenge1([*trial(1.0), *trial(8.0)], 2000, 100).windows) == 2
    late = [*trial(1.0, press=None), event(14.0, "left_buttonPress")]
    assert windowing.challenge1(late, 2000, 100).drops == {"no response": 1}


@pytest.mark.parametrize(
    ("events", "samples", "drops"),
    [
        ([*trial(1.0, press=None)], 2000, {"no response": 1}),
        ([event(1.0, "contrastTrial_start")], 2000, {"no stimulus": 1}),
        ([*trial(1.0)], 500, {"past the end": 1}),
        ([*trial(-4.0)], 2000, {"before the start": 1}),
        (
            [event(1.0, "contrastTrial_start"), event(NAN, "left_target")],
            2000,
            {"onset not a number": 1, "no stimulus": 1},
        ),
        ([*trial(1.0), event(4.0, "boundary")], 2000, {"across a boundary": 1}),
        ([], 2000, {}),
        ([*trial(1.0)], 0, {"past the end": 1}),
    ],
)
def test_what_cannot_be_is_counted_by_reason(events: list[Event], samples: int, drops: dict[str, int]) -> None:
    cut = windowing.challenge1(events, samples, 100)
    assert (cut.windows, dict(cut.drops)) == ([], drops)


@pytest.mark.parametrize("duration", [NAN, 0.0, -1.0, 1e300, 2.0])
def test_durations_are_never_looked_at(duration: float) -> None:
    """The user's `arange: cannot compute length`: a size inferred from a duration of 0."""
    events = [event(1.0, "contrastTrial_start", duration=duration), event(3.0, "left_target", duration=duration)]
    events.append(event(4.5, "left_buttonPress", duration=duration))
    assert len(windowing.challenge1(events, 2000, 100).windows) == 1
    assert len(windowing.around(events, 2000, 100, values=["left_*"], size=1.0).windows) == 2


def test_correct_or_not_or_unknown() -> None:
    events = [*trial(1.0), *trial(8.0, feedback="sad_face"), *trial(15.0, feedback="")]
    cut = windowing.challenge1(events, 4000, 100)
    assert [each.row["correct"] for each in cut.windows] == [1.0, 0.0, None]


def test_other_names_and_a_trial_that_begins_with_its_stimulus() -> None:
    events = [event(1.0, "target_valid_left"), event(1.6, "buttonPress_up"), event(5.0, "target_invalid_left")]
    cut = windowing.challenge1(events, 2000, 100, names=Names("", ("target_*",), ("buttonPress_*",)))
    assert [round(each.row["response_time"], 3) for each in cut.windows] == [0.6]
    assert cut.drops == {"no response": 1}


def test_fixed_windows_and_a_file_that_is_too_short() -> None:
    cut = windowing.fixed([], 1000, 100, size=4.0, stride=2.0)
    assert [each.start for each in cut.windows] == [0, 200, 400, 600]
    assert windowing.fixed([], 399, 100, size=4.0, stride=2.0).drops == {"too short": 1}
    assert windowing.fixed([event(3.0, "boundary")], 800, 100).drops == {"across a boundary": 2}


@pytest.mark.parametrize("onset", [1.8e306, -1e300, math.inf, math.nan])
def test_a_time_that_no_recording_has_is_no_time(onset: float) -> None:
    assert windowing.fixed([event(onset, "boundary")], 800, 100).windows
    cut = windowing.challenge1([event(onset, "left_target"), event(onset, "contrastTrial_start")], 800, 100)
    assert not cut.windows and cut.drops
    around = windowing.around([event(onset, "9999")], 800, 100, values=["9999"])
    assert not around.windows and around.drops == {"onset not a number": 1}


times = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-5, 40))
names = st.sampled_from(["contrastTrial_start", "left_target", "right_buttonPress", "boundary", "9999", "", "[", "*"])
events_ = st.lists(st.builds(event, times, names, duration=times), max_size=40)


@given(events_, st.integers(0, 4000), st.sampled_from([100.0, 256.0, 500.0]))
def test_nothing_in_events_raises_and_no_trial_is_lost(events: list[Event], samples: int, rate: float) -> None:
    cut = windowing.challenge1(events, samples, rate)
    trials, lost = windowing.trials(events, Names())
    assert len(cut.windows) + sum(cut.drops.values()) == len(trials) + lost
    for each in [*cut.windows, *windowing.fixed(events, samples, rate).windows]:
        assert 0 <= each.start <= samples
    for each in cut.windows:
        assert each.start + round(2 * rate) <= samples
        assert math.isfinite(each.row["response_time"])
        assert each.row["response_time"] >= 0
