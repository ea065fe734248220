"""Nothing that is written to or deleted from a run folder leaves it, whatever stands there. Each writer, each thing."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import folders, planted
from holdfast.base.board import Board
from holdfast.base.errors import UserError
from holdfast.base.files import read_json, remove, write_json
from holdfast.base.folders import open_growing, write_whole
from holdfast.data import sample_marks
from holdfast.record.evidence import folder as evidence
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.tensorboard_file import EventFile
from holdfast.state import checkpoint
from holdfast.state.slots import Arena
from holdfast.state.weights_file import write_weights
from holdfast.supervisor import undo
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.script_record import Record
from tests.security.planting import KINDS, LINKS, in_time, outside, plant, seen
from tests.state.checkpoints import payload as small_state

payload = functools.cache(small_state)


@pytest.fixture(params=["by descriptor", "by path"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder; once where folders have descriptors, and once as where they have none."""
    if request.param == "by path":
        monkeypatch.setattr(folders, "BY_DESCRIPTOR", False)
    elif not folders.BY_DESCRIPTOR:
        pytest.skip("this system has no descriptors of folders")
    made = RunFolder.create(tmp_path / "runs", "job", {"state": "STOPPED"})
    (made.path / "faults" / "01").mkdir()
    return made.path


def _lock(run: Path) -> None:
    folder = RunFolder(run)
    try:
        folder.lock()
    finally:
        folder.close()


def _append(run: Path) -> None:
    folder = RunFolder(run)
    folder.append(Event.now("note", text="ours"))
    folder.append_metrics({"step": 1})
    folder.append_reading({"step": 1})
    folder.close()


def _move_lines(run: Path) -> None:
    folder = RunFolder(run)
    folder.append(Event.now("note", text="ours"))
    folder.move_to(run.parent / "elsewhere")
    folder.close()


def _save(run: Path) -> None:
    for step in (10, 20, 30):
        checkpoint.write(run / "checkpoints", payload(), step=step)
        checkpoint.prune(run / "checkpoints", keep=1, newest=step)


def _prune(run: Path) -> None:
    checkpoint.prune(run / "checkpoints", keep=1)
    checkpoint.make_room(run / "checkpoints", keep=1)


def _set_aside(run: Path) -> None:
    undo.set_aside(run, 0, best=True)


def _evidence(run: Path) -> None:
    evidence.write_text(run / "faults" / "01" / "README.txt", "ours")
    evidence.add(run / "faults" / "01", "fault.json", verdict={"blame": "device"})
    RunFolder(run).next_fault_folder()


def _slots(run: Path) -> None:
    Arena.create(4096, slots=2, folder=run / "slots", named=True).close()
    remove(run / "slots")


def _board(run: Path) -> None:
    folders.Folder.at(run / "slots", inner=1, make=True).close()
    Board.create(path=run / "slots" / "board-0").close()


def _events(run: Path) -> None:
    events = EventFile(run / "tb")
    events.scalars(1, 0.0, {"loss": 1.0})
    events.close()


def _output(run: Path) -> None:
    record = Record(run / "output.log", most=10)
    for _ in range(5):
        record.write(b"what the script printed")
    record.close()


def _stacks(run: Path) -> None:
    os.close(open_growing(run / "stacks-0.txt", empty=True))


def _notes(run: Path) -> None:
    Notes(run / "script").close()


def _marks(run: Path) -> None:
    sample_marks.begin(run)
    sample_marks.end()


WRITERS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "the lock": (_lock, ("lock",)),
    "the journal": (_append, ("journal.jsonl", "metrics.jsonl", "readings.jsonl")),
    "the journal, moved": (_move_lines, ("journal.jsonl", "metrics.jsonl")),
    "run.json": (lambda run: RunFolder(run).put("run.json", {"ours": 1}), ("run.json",)),
    "the beat": (lambda run: RunFolder(run).write_beat({"ours": 1}), ("beat.json",)),
    "the last word": (lambda run: write_json(run / "last.json", {"ours": 1}), ("last.json",)),
    "a text": (lambda run: write_whole(run / "traceback.txt", b"ours"), ("traceback.txt",)),
    "a checkpoint": (_save, ("checkpoints", "checkpoints/000020", f"checkpoints/.000020.{os.getpid()}.tmp")),
    "pruning": (_prune, ("checkpoints", "checkpoints/000005", "checkpoints/.000005.77.tmp")),
    "weights": (
        lambda run: write_weights(run / "best.safetensors", payload()),
        ("best.safetensors", f".best.safetensors.{os.getpid()}.tmp"),
    ),
    "what is doubtful": (_set_aside, ("doubtful", "checkpoints", "checkpoints/000002", "best.safetensors")),
    "evidence": (_evidence, ("faults", "faults/01", "faults/01/README.txt", "faults/01/fault.json")),
    "slots": (_slots, ("slots",)),
    "the board": (_board, ("slots", "slots/board-0")),
    "for TensorBoard": (_events, ("tb",)),
    "the output": (_output, ("output.log", "output.1.log")),
    "stacks": (_stacks, ("stacks-0.txt",)),
    "notes of a script": (_notes, ("script",)),
    "marks": (_marks, (f"{sample_marks._PREFIX}{os.getpid()}", f"{sample_marks._PREFIX}1")),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_reaches_out_of_the_folder(run: Path, tmp_path: Path, writer: str) -> None:
    write, names = WRITERS[writer]
    before_all = run.rename(tmp_path / "as it was")
    for name in names:
        for kind in KINDS if folders.BY_DESCRIPTOR else (*LINKS, "pipe"):
            shutil.copytree(before_all, run)
            place = outside(tmp_path)
            at = run / name
            remove_all(at)
            at.parent.mkdir(exist_ok=True)
            if not plant(kind, at, place):
                continue
            before = seen(place)
            with in_time(f"{writer}, {name}, {kind}"), contextlib.suppress(OSError, UserError):
                write(run)
            assert seen(place) == before, f"{writer}: {kind} as {name} was followed"
            remove_all(tmp_path / "outside")
            remove_all(run)
            remove_all(run.parent / "elsewhere")


def remove_all(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def test_writers_do_write_where_nothing_is_planted(run: Path) -> None:
    """Otherwise the test above would hold for a writer that does nothing."""
    for name, (write, _) in WRITERS.items():
        if name != "the journal, moved":
            write(run)
    there = {path.relative_to(run).as_posix() for path in run.rglob("*")}
    wanted = {"lock", "journal.jsonl", "metrics.jsonl", "readings.jsonl", "run.json", "beat.json", "traceback.txt"}
    wanted |= {
        "faults/01/README.txt",
        "faults/02",
        "doubtful/000030",
        "doubtful/best.safetensors",
        "tb",
        "output.1.log",
    }
    assert wanted <= there
    assert read_json(run / "run.json") == {"ours": 1}


def test_pruning_leaves_what_does_not_carry_our_digest(run: Path) -> None:
    kept = run / "checkpoints" / "000001"
    kept.mkdir()
    (kept / "thesis.tex").write_text("years of work")
    mixed = run / "checkpoints" / "000002"
    mixed.mkdir()
    for name in ("digest.json", "thesis.tex"):
        (mixed / name).write_text("years of work")
    for step in (10, 20, 30):
        checkpoint.write(run / "checkpoints", payload(), step=step)
    assert checkpoint.prune(run / "checkpoints", keep=1, newest=30) == [20, 10]
    assert (kept / "thesis.tex").exists() and (mixed / "thesis.tex").exists() and (mixed / "digest.json").exists()


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_what_is_written_is_its_owners_alone(run: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for name, (write, _) in WRITERS.items():
            if name != "the journal, moved":
                write(run)
    finally:
        os.umask(before)
    for path in run.rglob("*"):
        if path.name != "01":  # which this test has made
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.lstat().st_mode) == wanted, path.relative_to(run)


def test_a_file_that_grows_must_be_ours(run: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    (run / "journal.jsonl").write_text("")
    os.chown(run / "journal.jsonl", 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_growing(run / "journal.jsonl")
    os.chown(run, 12345, 12345)  # a file system that gives everything to one user
    os.close(open_growing(run / "journal.jsonl"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
@pytest.mark.parametrize("name", ["lock", "journal.jsonl", "run.json", "checkpoints/000001/state.safetensors", "tb/x"])
def test_a_folder_with_such_a_thing_is_refused(run: Path, tmp_path: Path, kind: str, name: str) -> None:
    assert planted.found(run) is None
    at = run / name
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    if not plant(kind, at, outside(tmp_path)):
        pytest.skip("only root can make a device")
    if kind == "hard link" and name not in planted.GROWING:
        assert planted.found(run) is None  # it is replaced or only read
        return
    before = seen(run)
    with pytest.raises(UserError) as caught:
        RunFolder(run).lock()
    assert name in caught.value.message and caught.value.cause and caught.value.hints
    assert seen(run) == before
