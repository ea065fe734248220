"""benchmarks/strangers: the patches are small, apply to the commits they name, and the driver notices a difference."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "benchmarks" / "strangers"
SOURCES = Path(os.environ.get("HOLDFAST_STRANGERS", ROOT / "build" / "strangers"))
NAMES = sorted(path.stem for path in PLACE.glob("*.patch"))


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(PLACE))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module("strangers")
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_script_has_a_patch_and_nothing_of_it_is_kept_here(strangers: ModuleType) -> None:
    assert sorted(strangers.STRANGERS) == NAMES
    assert {path.name for path in PLACE.glob("*.py")} == {"strangers.py"}
    assert all(strangers.changed(name)["removed"] <= 8 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_applies_to_its_commit(strangers: ModuleType, tmp_path: Path, name: str) -> None:
    try:
        script = strangers.fetched(name, tmp_path / "here" / name, SOURCES, patched=True)
    except strangers.Skip as reason:
        pytest.skip(f"{reason}; HOLDFAST_STRANGERS names the folder of the repositories")
    compile(script.read_text(), str(script), "exec")
    assert "import holdfast" in script.read_text()


def test_a_difference_is_seen(strangers: ModuleType) -> None:
    quiet = strangers.Ran(0, ["iter 1: loss 2.5"], "a", "")
    assert strangers.verdict(quiet, quiet) == "equal"
    assert strangers.verdict(quiet, strangers.Ran(0, ["iter 1: loss 2.5"], "b", "")) == "DIFFERS: other weights"
    assert strangers.verdict(quiet, strangers.Ran(0, ["iter 1: loss 2.6"], "a", "")).startswith("DIFFERS: 2 lines")
    assert strangers.verdict(quiet, strangers.Ran(3, [], "a", "error: no")).startswith("DIFFERS: ends with 3")


def test_what_the_page_says_was_measured(strangers: ModuleType) -> None:
    path = ROOT / "benchmarks" / "results" / "strangers-cpu.json"
    kept = json.loads(path.read_text())["scripts"]
    assert set(kept) == set(strangers.STRANGERS)
    for name, row in kept.items():
        stranger = strangers.STRANGERS[name]
        assert (row["repository"], row["commit"]) == (stranger.repository, stranger.commit)
        assert list(row["cells"]) == list(strangers.WAYS), name
        assert not [said for said, _ in row["cells"].values() if "DIFFERS" in said], row
