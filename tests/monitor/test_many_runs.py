"""A folder with many runs: listing them looks at each of them once, not at all of them for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.monitor.places import Places
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
