"""`holdfast uninstall`: what it names is what it removes, and nothing of yours is among it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import uninstall
from holdfast.cli.main import main
from holdfast.run.folder import RunFolder
from holdfast.supervisor import at_boot


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with everything that holdfast leaves there."""
    for name in ("HOLDFAST_STATE", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", *uninstall.VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("holdfast.supervisor.rescue_folder.bases", lambda: iter([tmp_path / "tmp"]))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(at_boot, "find_system", lambda: "systemd")
    monkeypatch.setattr(at_boot, "_ask", lambda words, env: None)  # this machine's own systemd is not asked
    monkeypatch.chdir(tmp_path)
    files = {
        ".cache/holdfast/compile/inductor/kernel.so": "x" * 5000,
        ".local/state/holdfast/seal.key": "secret",
        ".local/state/holdfast/ledger.jsonl": "{}",
        ".config/holdfast/config.toml": "[run]\nseed = 3\n",
        ".config/other/file": "mine",
        ".cache/other/file": "mine",
        "tmp/holdfast-rescue-abc/run/run.json": "{}",
        "project/train.py": "mine",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = RunFolder.create(tmp_path / "runs", "job", {"state": "FINISHED"})
    run.close()
    at_boot.install(at_boot.Job("calm-heron", run.path.resolve(), tmp_path), "systemd")
    return tmp_path


def everything(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() or path.is_symlink()}


REMOVED = {
    ".cache/holdfast/compile/inductor/kernel.so",
    ".local/state/holdfast/seal.key",
    ".local/state/holdfast/ledger.jsonl",
    ".config/holdfast/config.toml",
    ".config/systemd/user/holdfast-calm-heron.service",
}


def test_a_dry_run_names_it_and_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(home)
    assert main(["uninstall", "--dry-run"]) == 0
    assert everything(home) == before
    said = capsys.readouterr().out
    run = next((home / "runs").iterdir()).name
    would, stays = said.split("This stays:\n")
    assert would.startswith("This would be removed:\n  ~/.config/systemd/user/holdfast-calm-heron.service ")
    for path in ("~/.cache/holdfast ", "~/.local/state/holdfast ", "~/.config/holdfast/config.toml ", run):
        assert path in would
    assert "~/runs " in stays and "1 run\n" in stays and "holdfast-rescue-abc" in stays
    assert stays.endswith("The program itself: `pip uninstall holdfast` (pipx, uv: the same word).\n")


def test_it_removes_what_it_named_and_nothing_else(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(home)
    assert main(["uninstall", "--dry-run", "--json"]) == 0
    named = json.loads(capsys.readouterr().out)["removed"]
    assert main(["uninstall", "--yes", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["removed"] == named and said["failed"] == []
    gone = before - everything(home)
    links = {name for name in gone if "default.target.wants" in name}
    assert gone - links == REMOVED
    assert main(["uninstall", "--yes"]) == 0
    assert capsys.readouterr().out.startswith("Nothing to remove.\n")


def test_without_a_terminal_it_asks_for_a_yes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(home)
    assert main(["uninstall"]) == 2
    assert "error: there is no terminal to ask you in" in capsys.readouterr().err
    assert everything(home) == before


def test_a_run_under_way_is_not_pulled_away_from_under(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create(home / "runs", "job", {"state": "RUNNING"})
    run.lock()
    before = everything(home)
    assert main(["uninstall", "--yes"]) == 2
    assert f"error: {run.name} is running" in capsys.readouterr().err
    run.close()
    assert everything(home) == before


def test_places_that_you_chose_and_checkouts_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = home / "project" / "holdfast"
    (chosen / ".git").mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_STATE", str(chosen))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "project"))
    assert {item.path for item in uninstall.found()} & {chosen, home / "project"} == set()
    assert chosen in {item.path for item in uninstall.stays(home / "runs")}


def test_every_folder_that_a_workload_may_be_given_is_known_and_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.workloads.detection import index
    from holdfast.workloads.eeg import classify_data, inputs

    assert set(uninstall.VARIABLES) == {inputs.DEMO, classify_data.KEPT, index.CACHE}
    for name in uninstall.VARIABLES:
        place = home / "chosen" / name
        place.mkdir(parents=True)
        (place / "windows").write_text("mine")
        monkeypatch.setenv(name, str(place))
    assert main(["uninstall", "--yes", "--json"]) == 0
    told = {each["path"]: each["what"] for each in json.loads(capsys.readouterr().out)["stays"]}
    for name in uninstall.VARIABLES:
        assert told[str(home / "chosen" / name)] == f"data, where {name} says"
        assert (home / "chosen" / name / "windows").read_text() == "mine"


def test_a_link_is_removed_and_not_followed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = home / ".local/state/holdfast"
    moved = home / "elsewhere"
    os.rename(state, moved)
    state.symlink_to(moved)
    assert main(["uninstall", "--yes", "-q"]) == 0
    assert not os.path.lexists(state) and (moved / "seal.key").exists()
