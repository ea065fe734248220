"""benchmarks/rank_strangers: patches apply to their commits, a difference is seen, the page says what was measured."""

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
PLACE = ROOT / "benchmarks" / "rank_strangers"
SOURCES = Path(os.environ.get("HOLDFAST_STRANGERS", ROOT / "build" / "strangers"))
NAMES = sorted(path.name.partition(".")[0] for path in PLACE.glob("*.holdfast.patch"))
PAGE = ROOT / "docs" / "more-than-one-machine.md"


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for path in (ROOT / "benchmarks", PLACE):
        monkeypatch.syspath_prepend(str(path))
    before = set(sys.modules)
    yield importlib.import_module("rank_strangers")
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_script_has_its_patches_and_nothing_of_it_is_kept_here(strangers: ModuleType) -> None:
    assert sorted(strangers.STRANGERS) == NAMES
    assert {path.name for path in PLACE.iterdir() if path.suffix == ".py"} == {"rank_strangers.py"}
    authors = {each.repository.partition("/")[0] for each in strangers.STRANGERS.values()}
    assert len(NAMES) >= 8 and len(authors) >= 4
    assert sum(each.held_out for each in strangers.STRANGERS.values()) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_patches_apply_to_their_commit(strangers: ModuleType, tmp_path: Path, name: str) -> None:
    try:
        script = strangers.fetched(name, tmp_path / "here" / name, SOURCES, patched=True)
    except strangers.Skip as reason:
        pytest.skip(f"{reason}; HOLDFAST_STRANGERS names the folder of the repositories")
    compile(script.read_text(), str(script), "exec")
    assert "def train(session)" in script.read_text()


def test_a_difference_is_seen(strangers: ModuleType) -> None:
    def ran(*lives: str, kills: int = 0) -> object:
        return strangers.Ran(0, "", {0: [strangers.Lived(1, [], list(life)) for life in lives]}, [(0, 0)] * kills)

    quiet = ran("abcdefgh")
    assert strangers.steps_are_those_of(quiet, quiet) == "equal"
    assert strangers.steps_are_those_of(quiet, ran("abcd", "cdefgh", kills=1)) == "equal", "two were computed again"
    assert strangers.steps_are_those_of(quiet, ran("abcdcdefgh", kills=1)) == "equal", "in the same process"
    for other in (ran("abcd", "fgh", kills=1), ran("abcdefg"), ran("abxdefgh")):
        assert strangers.steps_are_those_of(quiet, other).startswith("DIFFERS")


def test_what_the_page_says_was_measured(strangers: ModuleType) -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "ranks-strangers-cpu.json").read_text())["scripts"]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert set(kept) <= set(strangers.STRANGERS)
    for name, row in kept.items():
        stranger = strangers.STRANGERS[name]
        assert (row["repository"], row["commit"]) == (stranger.repository, stranger.commit)
        assert row["held_out"] == stranger.held_out
        (line,) = [line for line in page if line.startswith(f"| {stranger.repository}: {Path(stranger.files[0]).name}")]
        assert stranger.commit[:8] in line and ("held out" in line) == stranger.held_out
        if row.get("killed") == "finished":
            assert row["process_of_rank_0"] == "kept" and row["weights"] == row["steps_of_the_quiet_run"] == "equal"
            assert f" {row['kills']} kill" in line and "equal" in line
        else:
            assert "not" in line, "the page says so"
