"""Marks: what a process was reading when it was really killed, found by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.data import sample_marks
from holdfast.data.sample_marks import IDLE

READ = """
import os, sys
from pathlib import Path
from holdfast.data import sample_marks
here = sample_marks.begin(Path(sys.argv[1]))
place = here.place(int(sys.argv[2]), epoch=1, batch=2)
place[0] = 3
place[0] = int(sys.argv[3])
os.kill(os.getpid(), int(sys.argv[4]))
"""


@pytest.fixture(autouse=True)
def no_marks_left() -> Iterator[None]:
    yield
    sample_marks.end()


def die(folder: Path, *, kind: int = 7, index: int = 4711, number: int = signal.SIGKILL) -> None:
    ended = subprocess.run([sys.executable, "-c", READ, str(folder), str(kind), str(index), str(int(number))])
    assert ended.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_what_a_killed_process_was_reading_is_a_suspect(tmp_path: Path, number: signal.Signals) -> None:
    die(tmp_path, number=number)
    found = sample_marks.begin(tmp_path).suspects(7)
    assert [(suspect.index, suspect.strikes, suspect.acquitted) for suspect in found] == [(4711, 1, False)]
    assert sample_marks.begin(tmp_path).suspects(8) == []


def test_one_that_was_reading_nothing_leaves_no_suspect(tmp_path: Path) -> None:
    die(tmp_path, index=IDLE)
    assert sample_marks.begin(tmp_path).suspects(7) == []


def test_strikes_and_verdicts_add_up_over_processes(tmp_path: Path) -> None:
    die(tmp_path)
    die(tmp_path)
    die(tmp_path, index=5)
    die(tmp_path, index=IDLE)
    here = sample_marks.begin(tmp_path)
    assert {suspect.index: suspect.strikes for suspect in here.suspects(7)} == {4711: 2, 5: 1}
    here.acquit(next(suspect for suspect in here.suspects(7) if suspect.index == 5))
    sample_marks._current.clear()  # as if this process had been killed as well
    assert {suspect.index: suspect.acquitted for suspect in sample_marks.begin(tmp_path).suspects(7)} == {
        4711: False,
        5: True,
    }


def test_only_one_file_is_there_and_none_after_the_end(tmp_path: Path) -> None:
    for _ in range(3):
        die(tmp_path)
    sample_marks.begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"reading-{os.getpid()}"]
    assert (tmp_path / f"reading-{os.getpid()}").stat().st_mode & 0o777 == 0o600
    sample_marks.end()
    assert list(tmp_path.iterdir()) == []
    assert sample_marks.current() is None


def test_more_suspects_than_there_is_room_for_push_out_the_oldest(tmp_path: Path) -> None:
    for _ in range(30):
        here = sample_marks.begin(tmp_path)
        here.place(7, epoch=0, batch=0)[0] = _
        sample_marks._current.clear()
    found = [suspect.index for suspect in sample_marks.begin(tmp_path).suspects(7)]
    assert found[-1] == 29 and len(found) == 24


def test_foreign_files_are_no_suspects(tmp_path: Path) -> None:
    (tmp_path / "reading-1").write_bytes(b"\xff" * 1024)
    (tmp_path / "reading-2").write_bytes(b"short")
    (tmp_path / "reading-3").mkdir()
    os.mkfifo(tmp_path / "reading-4")
    (tmp_path / "reading-5").symlink_to(tmp_path / "nowhere")
    assert sample_marks.begin(tmp_path).suspects(7) == []


def test_a_folder_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    here = sample_marks.begin(tmp_path / "gone")
    here.place(7, epoch=0, batch=0)[0] = 3
    assert here.path is None


def test_a_kind_is_the_same_in_every_process() -> None:
    code = "from holdfast.data.sample_marks import kind_of; print(kind_of([('m', 'Data', '')], 5, None))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": "9"})
    assert int(said.stdout) == sample_marks.kind_of([("m", "Data", "")], 5, None)
    assert sample_marks.kind_of([("m", "Data", "")], 6, None) != sample_marks.kind_of([("m", "Data", "")], 5, None)
