"""A folder with many runs: listing them looks at each of them once, not at all of them for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.monitor.places import MOST_RUNS, Places
from holdfast.monitor.web.hub import Hub

from .folders import plain


def test_the_list_looks_at_each_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        plain(tmp_path / "runs" / f"eeg-20261115-09{number:02}-calm-heron")
    looked: list[Path] = []
    is_run = Places._is_run
    monkeypatch.setattr(Places, "_is_run", staticmethod(lambda path: looked.append(path) or is_run(path)))
    rows = Hub(Places(tmp_path / "runs")).rows()
    assert len(rows) == 40 and len(looked) == 40
    assert Places(tmp_path / "runs").path("calm-heron").name == "eeg-20261115-0939-calm-heron", "the newest of a name"


def test_the_list_keeps_the_newest_whatever_their_folders_are_called(tmp_path: Path) -> None:
    """`zoo-…` of last year goes before `eeg-…` of today; a run that was named on the command line stays."""
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for number in range(30):
        plain(runs / f"zoo-2025-{number:03}", created=f"2025-01-01T00:{number:02}:00.000Z")
    for number in range(MOST_RUNS - 10):
        plain(runs / f"eeg-2026-{number:03}", created=f"2026-01-01T{number // 60:02}:{number % 60:02}:00.000Z")
    named = plain(elsewhere / "oldest", created="2020-01-01T00:00:00.000Z")
    places = Places(runs, [named])
    found = places.ids()
    assert len(found) == MOST_RUNS and places.left_out == 21
    assert found[0] == "oldest"
    assert found[1:10] == [f"zoo-2025-{number:03}" for number in range(21, 30)]
    assert found[-1] == f"eeg-2026-{MOST_RUNS - 11:03}"


def test_the_newest_of_a_name_is_the_one_that_began_last(tmp_path: Path) -> None:
    plain(tmp_path / "windows-20250101-0900-calm-heron", created="2025-01-01T09:00:00.000Z")
    newest = plain(tmp_path / "eeg-20261115-0912-calm-heron", created="2026-11-15T09:12:00.000Z")
    assert Places(tmp_path).path("calm-heron") == newest


def test_a_folder_that_was_made_anew_has_its_own_age(tmp_path: Path) -> None:
    old = plain(tmp_path / "a", created="2020-01-01T00:00:00.000Z")
    plain(tmp_path / "b", created="2024-01-01T00:00:00.000Z")
    places = Places(tmp_path)
    assert places.ids() == ["a", "b"]
    old.rename(tmp_path.parent / "taken-away")
    plain(tmp_path / "a", created="2026-01-01T00:00:00.000Z")
    assert places.ids() == ["b", "a"]


def test_a_run_that_is_too_old_for_the_list_is_found_by_its_name(tmp_path: Path) -> None:
    """A bookmark to it goes on working: by the name of its folder and by its own, and nothing outside is found."""
    for number in range(MOST_RUNS):
        plain(tmp_path / "runs" / f"eeg-2026-{number:03}", created="2026-01-01T00:00:00.000Z")
    old = plain(tmp_path / "runs" / "eeg-20240101-0900-calm-heron", created="2024-01-01T09:00:00.000Z")
    plain(tmp_path / "outside", created="2024-01-01T09:00:00.000Z")
    places = Places(tmp_path / "runs")
    hub = Hub(places)
    assert places.ids()[0] != old.name and places.left_out == 1, "the list is cut"
    assert places.path(old.name) == places.path("calm-heron") == old
    with hub.run("calm-heron") as each:
        assert each.run.path == old
    assert [row["id"] for row in hub.some(["eeg-2026-001", "calm-heron", "nobody"])] == ["eeg-2026-001", old.name]
    for name in ("../outside", "..", ".", "", "outside", "runs/eeg-2026-001", "eeg-2026-001/", "a\0b", "C:", "nobody"):
        with pytest.raises(KeyError):
            places.path(name)
