"""What is wrong with the small files beside a recording is named by `check`, and is the reason in `prepare`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import cache
from tests.workloads.eeg.preparing import prepared
from tests.workloads.eeg.sets import TASK, stem, write_channels, write_events
from tests.workloads.eeg.test_check import LONG, clean_set, found

NAME = f"sub-02_task-{TASK}"


def beside(root: Path, ending: str) -> Path:
    return Path(f"{stem(root, 'sub-02')}_{ending}")


def commas(path: Path, sign: str = ",") -> None:
    path.write_text(path.read_text().replace("\t", sign))


Damage = Callable[[Path], Any]
CASES: list[tuple[str, Damage, str, str]] = [
    ("rates", lambda r: beside(r, "eeg.json").write_text('{"SamplingFrequency": 500}'), "rates-disagree",
     "its sidecar says 500 Hz, its header 250 Hz"),
    ("half a json", lambda r: beside(r, "eeg.json").write_text('{"SamplingFrequency": 25'), "broken-json", "no json"),
    ("a list", lambda r: beside(r, "eeg.json").write_text("[1, 2]"), "broken-json", "holds no names with values"),
    ("no json", lambda r: beside(r, "eeg.json").unlink(), "missing-json", "no eeg.json"),
    ("commas", lambda r: commas(beside(r, "events.tsv")), "broken-table", "separated by commas, not by tabs"),
    ("semicolons", lambda r: commas(beside(r, "events.tsv"), ";"), "broken-table", "separated by semicolons"),
    ("spaces", lambda r: commas(beside(r, "channels.tsv"), "  "), "broken-table", "separated by spaces"),
    ("no onset", lambda r: beside(r, "events.tsv").write_text("when\twhat\n1\tx\n"), "broken-table", "`onset`"),
    ("no events", lambda r: beside(r, "events.tsv").unlink(), "missing-table", "no events.tsv"),
    ("no channels", lambda r: beside(r, "channels.tsv").unlink(), "missing-table", "no channels.tsv"),
    ("twice", lambda r: write_events(r, "sub-02", [*LONG, LONG[1]]), "duplicate-events", "1 event"),
    ("renamed", lambda r: write_channels(r, "sub-02", ("E1", "Fz", "E3", "Cz")), "renamed-channels",
     "its channels.tsv names Fz, its header E2"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_check_names_it(tmp_path: Path, damage: Damage, code: str, words: str) -> None:
    data = clean_set(tmp_path / "data")
    damage(data)
    seen = found(data)
    assert words in seen[code][NAME]
    assert set(seen) - {code} <= {"no-stimuli"}  # nothing else is said about it that is not true


def test_a_table_of_subjects_with_commas_is_named_and_is_the_reason(tmp_path: Path) -> None:
    data = clean_set(tmp_path / "data")
    commas(data / "participants.tsv")
    assert found(data)["broken-table"] == {
        str(data / "participants.tsv"): "it is separated by commas, not by tabs",
    }
    with pytest.raises(UserError) as caught:
        prepared(data, tmp_path / "cache", "challenge2", tasks=("*",))
    assert "participants.tsv cannot be read" in caught.value.message and "commas" in str(caught.value.cause)


def test_the_reason_in_prepare_is_the_true_one(tmp_path: Path) -> None:
    data = clean_set(tmp_path / "data")
    commas(beside(data, "events.tsv"))
    report = prepared(data, tmp_path / "cache")
    assert report.left_out == {"broken table": [NAME]}
    assert "separated by commas" in report.outcomes[1].detail
    assert report.windows == 2


def test_tables_that_all_call_a_channel_otherwise_are_the_reason_and_its_name_in_the_header_works(
    tmp_path: Path,
) -> None:
    data = clean_set(tmp_path / "data")
    for number in (1, 2, 3):
        write_channels(data, f"sub-0{number}", ("E1", "Fz", "E3", "Cz"))
    report = prepared(data, tmp_path / "cache")
    assert list(report.left_out) == ["renamed channels"] and report.windows == 0
    assert report.outcomes[1].detail == "its channels.tsv names Fz, its header E2"
    assert prepared(data, tmp_path / "other", channels=("E1", "E2", "E3", "Cz")).windows == 3


def test_what_is_odd_but_used_is_said(tmp_path: Path) -> None:
    data = clean_set(tmp_path / "data")
    beside(data, "eeg.json").write_text(json.dumps({"SamplingFrequency": 500}))
    write_events(data, "sub-02", [*LONG, LONG[1]])
    write_channels(data, "sub-02", ("E1", "Fz", "E3", "Cz"))
    report = prepared(data, tmp_path / "cache")
    assert len(cache.open(report.folder)) == 3 and not report.drops  # the event that stands there twice is one trial
    said = "\n".join(report.lines())
    assert f"its sidecar says 500 Hz, its header 250 Hz: the header counts: {NAME}" in said
    assert f"its channels.tsv names Fz, its header E2: the header counts: {NAME}" in said
    assert f"events that stand there twice count once: {NAME}" in said
