"""The benchmarks as a program: what a part that fails, or a figure out of bounds, does to the others."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("bench")))  # a failed part leaves its runs
    for name in ("PYTHONPATH", "HOLDFAST_STATE"):
        monkeypatch.setenv(name, "")  # restored afterwards: the benchmarks set them for what they start
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "jobs"))
    yield importlib.import_module("bench")
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_part_that_fails_loses_nothing_of_the_others(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    common = importlib.import_module("common")

    def fails(scratch: Path, quick: bool) -> dict[str, Any]:
        """Fails."""
        raise OSError("no such device")

    def figures(scratch: Path, quick: bool) -> dict[str, Any]:
        """Two figures."""
        return {"seconds": 0.7, "lost": 0}

    def kept(measured: dict[str, Any]) -> list[Any]:
        return [common.exactly("lost", measured["lost"], 0)]

    def broken(measured: dict[str, Any]) -> list[Any]:
        return [*kept(measured), common.at_most("seconds", measured["seconds"], 0.5, quick=False)]

    parts = {"a": bench.Part(fails, kept), "b": bench.Part(figures, broken), "c": bench.Part(figures, kept)}
    monkeypatch.setattr(bench, "PARTS", parts)
    (tmp_path / "a-cpu.json").write_text("what was measured last time")
    assert bench._all(["a", "b", "c"], tmp_path, quick=False) == 1
    assert (tmp_path / "a-cpu.json").read_text() == "what was measured last time"
    b, c = (json.loads((tmp_path / f"{name}-cpu.json").read_text()) for name in "bc")
    assert b["measured"] == c["measured"] == {"seconds": 0.7, "lost": 0}
    assert [bound["holds"] for bound in b["bounds"]] == [True, False]
    lines = capfd.readouterr().out.splitlines()
    assert lines[-3:] == [
        "✗ a  failed, nothing kept: OSError: no such device",
        "✗ b  seconds: 0.7, bound 0.5",
        "✓ c",
    ]
    assert bench._all(["c"], tmp_path, quick=False) == 0
    assert bench._all(["b"], tmp_path, quick=True) == 0  # a smoke test is too short for that bound


def test_a_smoke_test_keeps_no_figures(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []
    monkeypatch.setattr(bench, "_all", lambda names, results, quick: places.append(results) or 0)
    for words in (["--quick"], []):
        monkeypatch.setattr(sys, "argv", ["bench.py", *words])
        assert bench.main() == 0
    assert places[0] != bench.RESULTS and not places[0].exists()
    assert places[1] == bench.RESULTS


def test_the_models_are_as_large_as_they_are_called(bench: ModuleType) -> None:
    models = importlib.import_module("models")
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in models.make(name).parameters()) for name in models.SIZES}
    assert sizes["100m"] >= 100_000_000
    assert 500_000 <= sizes["550k"] <= 600_000
    assert 3_000_000 <= sizes["3m"] <= 4_000_000
    assert set(models.BATCHES) == set(models.SIZES)


def test_the_usual_parts_of_a_device_fit_into_one_call(bench: ModuleType) -> None:
    """The machine that has one may be ours for ten minutes: none of them is skipped for want of time."""
    hardware = importlib.import_module("hardware")
    usual = [part.seconds for part in hardware.PARTS.values() if not part.asked]
    assert len(usual) >= 5
    assert sum(usual) <= 470


@pytest.mark.long
def test_the_driver_of_costs_measures_both_forms_of_a_script(bench: ModuleType, tmp_path: Path) -> None:
    """A tiny job, bare and held: windows of both, the time from start to exit, and what the run wrote down."""
    cost = importlib.import_module("cost")
    (tmp_path / "job").mkdir()
    row = cost.measure("mlp", cost.QUICK["mlp"], "cpu", tmp_path / "job", 300.0, cost.TURNS[:2])
    assert "error" not in row, (tmp_path / "job" / "output.txt").read_text()
    assert [turn["how"] for turn in row["turns"]] == ["bare", "held"]
    assert all(len(turn["windows_ms"]) == 6 and turn["code"] == 0 for turn in row["turns"])
    assert row["ratio"] == row["held_ms"] / row["bare_ms"] > 0
    assert row["bare_over_bare"] is None, "one bare turn says nothing about the noise"
    assert row["cadence"]["step_ms"] > 0
    assert [each["event"] for each in cost.journals(tmp_path / "job")][-1] == "end"
    assert cost.table([row]).splitlines()[-1].startswith("| mlp | ")


def test_a_job_that_does_not_get_through_is_said_to(bench: ModuleType, tmp_path: Path) -> None:
    cost = importlib.import_module("cost")
    (tmp_path / "job").mkdir()
    row = cost.measure("mlp", cost.QUICK["mlp"], "cpu", tmp_path / "job", 0.0, cost.TURNS[:2])
    assert row["error"] == "out of time" and [turn["how"] for turn in row["turns"]] == ["bare"]
    assert cost.table([row]).splitlines()[-1] == "| mlp | out of time | | | 9.0 | | | |"
