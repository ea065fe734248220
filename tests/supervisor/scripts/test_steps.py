"""Which step a checkpoint belongs to: by the hook's own notes, and only without them by the clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.run.folder import RunFolder
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.own_checkpoints import Found
from holdfast.supervisor.scripts.steps import Save, Steps

NOW = 1_700_000_000_123_456_789
TICK = 10_000_000


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "train", {"state": "STARTING"})


def steps_of(run: RunFolder, *saves: Save) -> Steps:
    notes = Notes(run.path / "script")
    lines = [json.dumps(list(save)) for save in saves]
    (notes.folder / "saves.jsonl").write_text("\n".join(lines) + "\n")
    steps = Steps(run)
    steps.process_ended(notes)
    notes.close()
    return steps


def test_steps_shorter_than_a_tick_of_the_clock_are_told_apart(tmp_path: Path, run: RunFolder) -> None:
    """Five steps and two saves between two ticks: the files have one date, and steps of their own."""
    first, second = tmp_path / "a.pt", tmp_path / "b.pt"
    for path in (first, second):
        path.touch()
    steps = steps_of(run, Save(20, NOW, str(first)), Save(25, NOW, str(second)))
    assert steps.of(Found(first, NOW)) == (20, True)
    assert steps.of(Found(second, NOW)) == (25, True)


def test_a_file_system_with_a_clock_of_its_own_does_not_matter_where_each_file_is_written_once(
    tmp_path: Path, run: RunFolder
) -> None:
    path = tmp_path / "checkpoint-00030.pt"
    path.touch()
    assert steps_of(run, Save(30, NOW, str(path))).of(Found(path, NOW - 60 * 10**9)) == (30, True)


def test_a_save_that_was_killed_before_it_wrote_does_not_count(tmp_path: Path, run: RunFolder) -> None:
    path = tmp_path / "last.pt"
    path.touch()
    steps = steps_of(run, Save(20, NOW, str(path)), Save(25, NOW + TICK, str(path)))
    assert steps.of(Found(path, NOW)) == (20, True)


def test_a_folder_has_the_step_of_its_files_and_a_renamed_file_that_of_its_save(tmp_path: Path, run: RunFolder) -> None:
    folder, renamed = tmp_path / "step_40", tmp_path / "last.pt"
    folder.mkdir()
    (folder / "optimizer.bin").touch()
    steps = steps_of(
        run,
        Save(40, NOW, str(folder / "optimizer.bin")),
        Save(45, NOW + TICK, str(tmp_path / "last.tmp")),
        Save(50, NOW + 2 * TICK, ""),
    )
    assert steps.of(Found(folder, NOW + TICK)) == (40, True)
    assert steps.of(Found(renamed, NOW + TICK)) == (45, True)
    assert steps.of(Found(tmp_path / "through-memory.pt", NOW + 3 * TICK)) == (50, True)
    assert steps.of(Found(tmp_path / "named.ckpt", NOW, step=12)) == (12, True)


def test_without_a_note_the_clock_has_to_do_and_is_not_sure(tmp_path: Path, run: RunFolder) -> None:
    other = tmp_path / "other.pt"
    other.touch()
    assert steps_of(run, Save(20, NOW, str(other))).of(Found(tmp_path / "model.npz", NOW)) == (0, False)


def test_whoever_goes_on_with_the_run_still_knows(tmp_path: Path, run: RunFolder) -> None:
    path = tmp_path / "a.pt"
    path.touch()
    steps_of(run, Save(20, NOW, str(path)))
    assert Steps(run).of(Found(path, NOW)) == (20, True)


@pytest.mark.parametrize("text", ["{", "[]", "[1, 2]", '["1", 2, "x"]', '[1, 2, "\\u0000"]', "[" * 5000, "\xff"])
def test_notes_that_are_none_are_passed_over(tmp_path: Path, run: RunFolder, text: str) -> None:
    (run.path / "script").mkdir()
    (run.path / "script" / "saves.jsonl").write_bytes(text.encode("latin-1"))
    run.update_info(saves=text)
    assert Steps(run).of(Found(tmp_path / "a.pt", NOW)) == (0, False)


@pytest.mark.long
def test_the_hook_notes_the_step_of_each_save_and_leaves_tracebacks_alone(tmp_path: Path) -> None:
    """A file, a folder's file by an open handle, and memory; and an error of torch.save looks as it does without us."""
    code = """
import io, sys, torch
param = torch.nn.Parameter(torch.zeros(2)); param.grad = torch.ones(2)
optimizer = torch.optim.SGD([param], lr=0.1)
torch.save({}, "before.pt")
for _ in range(3): optimizer.step()
torch.save({}, "a.pt")
optimizer.step()
with open("b.pt", "wb") as file: torch.save({}, file)
torch.save({}, io.BytesIO())
torch.save({}, "no/such/folder.pt")
"""
    notes = Notes(tmp_path / "notes", step=10)
    told = []
    for env in ({**os.environ}, notes.environment({**os.environ})):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 1
        told.append(done.stderr)
    assert told[0] == told[1] and "_holdfast_hook" not in told[1]
    saves = [json.loads(line) for line in (notes.folder / "saves.jsonl").read_text().splitlines()]
    names = [(step, os.path.basename(path)) for step, _, path in saves]
    assert names == [(10, "before.pt"), (13, "a.pt"), (14, "b.pt"), (14, ""), (14, "folder.pt")]
    for _, when, path in saves[:3]:
        assert when <= os.stat(path).st_mtime_ns, path
    notes.close()
