"""Windows hold the responses that are to be learned, or somebody is told before training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import cache, ready, response_windows
from tests.workloads.eeg.preparing import prepared
from tests.workloads.eeg.sets import Row, make_set


def cueing(times: list[float]) -> list[Row]:
    """A stimulus every four seconds, each with a press after this many seconds."""
    rows: list[Row] = []
    for number, time in enumerate(times):
        rows.append((2.0 + 4 * number, "n/a", "target_left", "n/a"))
        rows.append((2.0 + 4 * number + time, "n/a", "buttonPress_left", "n/a"))
    return rows


NAMES = response_windows.windowing.Names("", ("target_*",), ("buttonPress_*",))
QUICK = [0.3, 0.35, 0.4, 0.6]
"""Three of four press before the competition's windows begin."""


def made(root: Path, times: list[float]) -> Path:
    return make_set(root, subjects=3, events=cueing(times), seconds=30.0)


@pytest.mark.parametrize(
    ("times", "shift"),
    [([0.9, 1.2, 2.1, 1.7], 0.5), (QUICK, 0.0), ([2.6, 2.9, 3.4, 3.1], 1.5)],
)
def test_where_windows_begin_comes_from_the_response_times(tmp_path: Path, times: list[float], shift: float) -> None:
    report = prepared(made(tmp_path / "data", times), tmp_path / "cache", names=NAMES)
    windows = cache.open(report.folder)
    assert windows.meta["recipe"]["shift"] == shift
    assert response_windows.outside(windows.table["response_time"], shift, 2.0) == 0
    assert f"{shift:g} to {shift + 2:g} s after the stimulus, chosen from 12 response times" in report.placed
    assert any(report.placed in line for line in report.lines())
    # The first sample is where it says: the recording is white noise, so no other place has these numbers.
    from holdfast.workloads.eeg import bdf
    from tests.workloads.eeg.sets import recording_of

    whole = bdf.open(recording_of(tmp_path / "data", "sub-01")).read(range(4))
    first = round((2.0 + shift) * 100)
    np.testing.assert_allclose(windows.signals[0], whole[:, first : first + 200], atol=1e-9)


def test_windows_that_most_responses_lie_outside_of_are_refused_with_what_would_hold_them(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        prepared(made(tmp_path / "data", QUICK), tmp_path / "cache", names=NAMES, shift=0.5)
    assert "75.0% of the response times" in str(caught.value.cause)
    assert "`holdfast eeg prepare … --shift 0` holds 100.0% of them" in caught.value.hints[0]
    assert not (tmp_path / "cache").exists()


def test_some_responses_outside_are_a_warning_in_prepare_and_in_training(tmp_path: Path) -> None:
    times = [0.3, 0.8, 0.9, 1.0]
    report = prepared(made(tmp_path / "data", times), tmp_path / "cache", names=NAMES, shift=0.5)
    assert "25.0% of the response times" in report.warning
    assert any(report.warning in line for line in report.lines())
    windows = cache.open(report.folder)
    said = response_windows.judge(windows.table["response_time"], ready.start_of(windows), 2.0)
    assert said == report.warning
    again = prepared(tmp_path / "data", tmp_path / "cache", names=NAMES, shift=0.5)
    assert again.reused and (again.placed, again.warning) == (report.placed, report.warning)


def test_training_refuses_windows_that_cannot_hold_the_label(tmp_path: Path) -> None:
    """A cache that an earlier version made, or somebody else."""
    report = prepared(made(tmp_path / "data", QUICK), tmp_path / "cache", names=NAMES, shift=0.0)
    import json

    path = report.folder / cache.META
    meta = json.loads(path.read_text())
    meta["recipe"]["shift"] = 0.5
    path.write_text(json.dumps(meta))
    with pytest.raises(UserError, match="cannot hold what is to be learned"):
        ready.challenge1({"data": str(tmp_path / "cache")})


def test_the_docs_name_a_command_for_a_cueing_set_that_holds_its_responses() -> None:
    """The command of the docs gives no shift: it is the one that the data ask for."""
    docs = (Path(__file__).parents[3] / "docs" / "eeg-data.md").read_text()
    (line,) = [each for each in docs.splitlines() if each.startswith("$") and "--stimulus 'target_*'" in each]
    assert "--shift" not in line
