"""The side by side: a real process that gets a real fault is seen for what it is, and the table says so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIZE = {"PEER_EPOCHS": "1", "PEER_SAMPLES": "320", "PEER_AT": "5"}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("peers")
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def plain(seconds: float = 10.0, sha256: str = "a", step_ms: float = 5.0) -> dict[str, Any]:
    return {"seconds": seconds, "sha256": sha256, "step_ms": step_ms, "finished": True}


@pytest.mark.long
def test_a_bare_loop_that_is_killed_is_not_finished(peers: ModuleType, tmp_path: Path) -> None:
    found = peers._run(tmp_path / "killed", "bare", "kill", SIZE)
    assert (found["finished"], found["exit_code"], found["hangs"]) == (False, -9, False)
    assert found["reached"] == found["computed"] == 5 and found["sha256"] is None


@pytest.mark.long
def test_what_hangs_is_ended(peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "HANGS_AFTER", 2.0)
    found = peers._run(tmp_path / "hangs", "bare", "hang", SIZE)
    assert found["hangs"] and not found["finished"] and found["reached"] == 5 and found["exit_code"] is not None


def test_a_run_with_a_fault_is_held_against_those_without(peers: ModuleType) -> None:
    usual = [plain(9.0), plain(11.0)]
    same = peers._against(plain(14.5), usual)
    assert (same["seconds_lost"], same["weights_equal"]) == (4.5, True)
    assert peers._against(plain(12.0, "b"), usual)["weights_equal"] is False
    assert peers._against(plain(12.0, "b"), [plain(), plain(sha256="c")])["weights_equal"] is None
    dead = {**plain(), "finished": False, "sha256": None}
    assert (peers._against(dead, usual)["seconds_lost"], peers._against(dead, usual)["weights_equal"]) == (None, None)


def test_cost_is_a_ratio_of_the_same_round(peers: ModuleType) -> None:
    ours, bare = [plain(step_ms=11.0), plain(step_ms=5.5)], [plain(step_ms=10.0), plain(step_ms=5.0)]
    assert peers._undisturbed(ours, bare)["overhead_percent"] == pytest.approx(10.0)


def test_bounds_are_about_our_own_row(peers: ModuleType) -> None:
    cell = {"way": "holdfast", "fault": "kill", "finished": True, "weights_equal": True, "repeated": 1}
    other = {**cell, "way": "bare", "finished": False, "weights_equal": None}
    measured = {"cells": [cell, other], "undisturbed": {"bare": plain(), "holdfast": plain()}, "skipped": []}
    assert all(bound.holds for bound in peers.peers_bounds(measured))
    for spoiled in ({"finished": False}, {"weights_equal": False}, {"repeated": 3}):
        worse = {**measured, "cells": [{**cell, **spoiled}, other]}
        assert [bound.holds for bound in peers.peers_bounds(worse)].count(False) == 1


def test_the_table_says_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    docs = importlib.import_module("make_peer_docs")
    good = {"hangs": False, "finished": True, "repeated": 50, "seconds_lost": 4.26, "weights_equal": False}
    assert docs._cell(good, 45.0) == "finished; 50 steps repeated, 4.3 s lost, other weights"
    assert docs._cell({**good, "hangs": True}, 45.0) == "**hangs**: no step for 45 s, ended by us"
    dead = {"hangs": False, "finished": False, "exit_code": -9, "reached": 250}
    assert docs._cell(dead, 45.0) == "**not finished**: ends with code -9 after 250 steps"
    assert docs._cell(None, 45.0) == "-"
