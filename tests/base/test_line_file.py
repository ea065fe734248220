"""Lines on disks that fill up, turn read-only, are taken away and come back: none is lost, torn or written twice."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from holdfast.base.line_file import LineFile
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from tests.disks import fill, make_room, read_only, small_disk


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_are_there_at_once(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "journal")
    for number in range(3):
        file.append(f"line {number}", durable=number == 1)
        assert lines(tmp_path / "journal") == [f"line {each}" for each in range(number + 1)]
    file.close()
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    again = LineFile(tmp_path / "journal")
    again.append("more")
    again.close()
    assert lines(tmp_path / "journal")[-1] == "more"


def test_a_full_disk_and_then_room(tmp_path: Path) -> None:
    """A line that was cut in the middle by the end of the disk is finished, not torn and not written twice."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = LineFile(disk / "journal")
        file.append("before")
        fill(disk)
        wanted = [f"line {number} {'x' * 700}" for number in range(50)]
        for line in wanted:
            file.append(line, durable=True)
        assert file.waiting > 0
        assert file.problem is not None and file.problem.errno == errno.ENOSPC
        assert not file.flush()
        make_room(disk)
        assert file.flush()
        assert (file.waiting, file.problem, file.dropped) == (0, None, 0)
        file.close()
        assert lines(disk / "journal") == ["before", *wanted]


def test_a_folder_that_is_moved_away_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = LineFile(folder / "journal")
    file.append("before")
    folder.rename(tmp_path / "away")
    file.append("meanwhile")
    assert not folder.exists(), "nothing is put in the place of what somebody took away"
    assert file.problem is not None and file.problem.errno == errno.ENOENT
    (tmp_path / "away").rename(folder)
    file.append("after")
    file.close()
    assert lines(folder / "journal") == ["before", "meanwhile", "after"]


def test_a_folder_that_is_deleted_and_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = LineFile(folder / "journal")
    file.append("before")
    shutil.rmtree(folder)
    file.append("meanwhile")
    folder.mkdir()
    (folder / "journal").write_text('{"torn')
    file.append("after")
    file.close()
    assert lines(folder / "journal") == ['{"torn', "meanwhile", "after"]


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = LineFile(folder / "journal")
    with read_only(folder):
        file.append("meanwhile")
        assert file.problem is not None and file.problem.errno == errno.EROFS
    file.append("after")
    assert lines(folder / "journal") == ["meanwhile", "after"]


def test_what_waits_is_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "gone" / "journal", most=500)
    for number in range(100):
        file.append(f"line {number:03d}")
    assert file.waiting == 500 // len("line 000\n") and file.waiting + file.dropped == 100
    (tmp_path / "gone").mkdir()
    file.close()
    assert lines(tmp_path / "gone" / "journal") == [f"line {number:03d}" for number in range(file.dropped, 100)]


def test_it_can_go_on_elsewhere_even_if_its_file_was_deleted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    file = LineFile(tmp_path / "a" / "journal")
    file.append("before")
    shutil.rmtree(tmp_path / "a")
    file.append("meanwhile")
    file.move(tmp_path / "b" / "journal")
    file.append("after")
    file.close()
    assert lines(tmp_path / "b" / "journal") == ["before", "meanwhile", "after"]


# The run folder that is made of them ------------------------------------------------------------------------


def held(root: Path) -> RunFolder:
    run = RunFolder.create(root, "job", {"state": "RUNNING", "seed": 7})
    run.lock()
    return run


def test_a_run_on_a_full_disk_forgets_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        run = held(disk)
        fill(disk)
        for number in range(200):
            run.append(Event.now("note", text=f"{number} {'x' * 100}"))
            run.append_metrics({"step": number, "loss": 0.5})
            run.write_beat({"step": number})
        run.update_info(state="RECOVERING", steps=200)
        run.put("receipt.json", {"steps": 200})
        assert run.problem is not None and run.problem.errno == errno.ENOSPC
        assert run.info["state"] == "RECOVERING", "what is known is what was said last"
        assert RunFolder(run.path).info["state"] == "RUNNING"
        assert not run.flush()
        assert not list(run.path.glob(".*.tmp")), "nothing half-written is left lying about"
        make_room(disk)
        assert run.flush() and run.problem is None
        run.close()
        again = RunFolder(run.path)
        assert (again.info["state"], again.info["steps"], again.info["seed"]) == ("RECOVERING", 200, 7)
        assert again.receipt() == {"steps": 200}
        assert [event.data["text"].split()[0] for event in again.events()] == [str(each) for each in range(200)]
        assert [record["step"] for record in again.metrics()] == list(range(200))


def test_a_run_whose_folder_is_deleted_is_whole_again_in_a_new_one(tmp_path: Path) -> None:
    run = held(tmp_path)
    run.append(Event.now("start"))
    shutil.rmtree(run.path)
    run.append(Event.now("fault"))
    run.update_info(state="RECOVERING")
    assert not run.path.exists()
    run.path.mkdir()
    assert run.flush()
    assert RunFolder(run.path).info == {**run.info, "state": "RECOVERING", "seed": 7}
    assert RunFolder(run.path).in_use(), "and it is held"
    run.close()
    assert not RunFolder(run.path).in_use()


def test_only_the_owner_of_a_run_may_wait_for_its_disk(tmp_path: Path) -> None:
    """A command that does not hold the lock has nobody who would write it later."""
    run = RunFolder.create(tmp_path, "job", {})
    shutil.rmtree(run.path)
    try:
        run.update_info(state="STOPPED")
    except OSError as error:
        assert error.errno == errno.ENOENT
    else:
        raise AssertionError("it was silently forgotten")


def test_a_run_that_moves_takes_its_records_along(tmp_path: Path) -> None:
    run = held(tmp_path / "runs")
    run.append(Event.now("start"))
    run.append_metrics({"step": 1, "loss": 0.5})
    before = run.path
    shutil.rmtree(before)
    run.append(Event.now("fault"))
    run.move_to(tmp_path / "rescue" / before.name)
    run.append(Event.now("end"))
    run.update_info(state="GAVE_UP")
    run.close()
    assert (run.left, run.path) == (before, tmp_path / "rescue" / before.name)
    moved = RunFolder.open(run.path)
    assert [event.kind for event in moved.events()] == ["start", "fault", "end"]
    assert (moved.info["state"], moved.info["seed"], moved.name) == ("GAVE_UP", 7, run.name)
    assert moved.metrics() == [{"step": 1, "loss": 0.5}]
    assert os.stat(run.path).st_mode & 0o777 == 0o700
