"""The run folder: who holds it, what is read from one that somebody else wrote, and what is never written."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ExitCode, UserError
from holdfast.run.events import DURABLE, Event
from holdfast.run.folder import (
    RunFolder,
    find_run,
    list_runs,
    name_of,
    new_name,
    read_events,
    read_json,
    read_lines,
    redact,
    write_json,
)


def made(root: Path, workload: str = "eeg", **info: Any) -> RunFolder:
    return RunFolder.create(root, workload, {"created": "2026-11-15T09:12:00.000Z", "state": "RUNNING", **info})


HOLDER = """
import sys
from pathlib import Path
from holdfast.run.folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
run.lock()
print("held", flush=True)
sys.stdin.read()
"""


def hold(run: RunFolder) -> subprocess.Popen[str]:
    """Another process with the run's lock, until its input is closed."""
    command = [sys.executable, "-c", HOLDER, str(run.path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


# -- making and finding --------------------------------------------------------------------------------------


def test_a_new_run_is_private_and_complete(tmp_path: Path) -> None:
    run = made(tmp_path / "runs", seed=7)
    assert re.fullmatch(r"eeg-\d{8}-\d{4}-[a-z]+-[a-z]+", run.path.name)
    assert sorted(entry.name for entry in run.path.iterdir()) == ["checkpoints", "faults", "run.json"]
    assert (run.info["run"], run.info["format"], run.info["schema"], run.info["seed"]) == (run.name, 1, 1, 7)
    if sys.platform != "win32":
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def test_names_can_be_said_and_are_not_given_twice() -> None:
    taken: set[str] = set()
    for _ in range(300):
        name = new_name(taken)
        assert re.fullmatch(r"[a-z]+-[a-z]+(-\d+)?", name)
        assert name not in taken
        taken.add(name)


def test_a_name_does_not_come_from_the_users_seed() -> None:
    code = "import random; random.seed(0)\nfrom holdfast.run.folder import new_name; print(new_name(set()))"
    names = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)}
    assert len(names) > 1


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("eeg-20261115-0912-calm-heron", "calm-heron"),
        ("my-own-workload-20261115-0912-calm-heron-1234", "calm-heron-1234"),
        ("renamed", "renamed"),
    ],
)
def test_the_name_of_a_folder(folder: str, name: str) -> None:
    assert name_of(Path("runs") / folder) == name


def test_a_place_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError) as caught:
        made(tmp_path / "runs")
    assert "cannot create a run folder" in caught.value.message
    assert any("run.folder" in hint for hint in caught.value.hints)
    assert caught.value.exit_code is ExitCode.USAGE


def test_runs_are_listed_by_age_and_found_in_every_way(tmp_path: Path) -> None:
    old = made(tmp_path, created="2026-11-14T10:00:00.000Z")
    new = made(tmp_path, created="2026-11-15T10:00:00.000Z")
    middle = made(tmp_path, created="2026-11-14T20:00:00.000Z")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "file").write_text("")
    assert [run.path for run in list_runs(tmp_path)] == [old.path, middle.path, new.path]
    assert find_run(tmp_path, "latest").path == new.path
    assert find_run(tmp_path, old.name).path == old.path
    assert find_run(tmp_path, middle.path.name).path == middle.path
    assert find_run(tmp_path, str(old.path)).path == old.path


def test_a_run_that_is_not_there_and_one_that_was_probably_meant(tmp_path: Path) -> None:
    run = made(tmp_path)
    with pytest.raises(UserError) as caught:
        find_run(tmp_path, run.name[:-1])
    assert caught.value.hints == (f"a similar run exists: `{run.name}`",)
    with pytest.raises(UserError, match="no run `latest`"):
        find_run(tmp_path / "nowhere", "latest")
    assert list_runs(tmp_path / "nowhere") == []


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    for content in (None, "", "{", "[1]", "null", '"run"'):
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        with pytest.raises(UserError, match="is not a run folder"):
            RunFolder.open(tmp_path)


@pytest.mark.parametrize("version", [None, "1", 1.5])
def test_a_run_without_a_format_is_none(tmp_path: Path, version: Any) -> None:
    run = made(tmp_path)
    run.update_info(format=version)
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("version", [2, 99])
def test_a_run_of_a_newer_holdfast_is_not_touched(tmp_path: Path, version: Any) -> None:
    run = made(tmp_path)
    run.update_info(format=version)
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(UserError) as caught:
        RunFolder.open(run.path)
    assert "written by a newer holdfast" in caught.value.message
    assert f"its format is {version}" in str(caught.value.cause)
    assert (run.path / "run.json").read_bytes() == before


# -- the lock ------------------------------------------------------------------------------------------------


def test_a_run_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    holder = hold(run)
    with pytest.raises(UserError) as caught:
        run.lock(wait=0.1)
    assert caught.value.message == f"{run.name} is in use"
    assert caught.value.cause == f"it is held by pid {holder.pid}"
    assert f"stop it with `holdfast stop {run.name}`" in caught.value.hints
    assert run.in_use()
    holder.communicate("")
    assert not run.in_use()
    run.lock()
    assert (run.path / "lock").read_text() == f"pid {os.getpid()}\n"
    run.close()
    assert not run.in_use()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    run = made(tmp_path)
    holder = hold(run)
    holder.kill()
    holder.communicate()
    run.lock(wait=0.1)
    run.close()


def test_a_lock_can_be_waited_for(tmp_path: Path) -> None:
    """A keeper that outlived its supervisor lets go once the last snapshot is saved."""
    run = made(tmp_path)
    holder = hold(run)
    threading.Timer(0.3, lambda: holder.communicate("")).start()
    run.lock(wait=20.0)
    run.close()
    holder.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not inherited")
def test_a_lock_lives_on_in_a_child_that_was_given_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.lock()
    assert run.lock_fd is not None
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(command, pass_fds=[run.lock_fd], stdin=subprocess.PIPE)
    run.close()
    assert run.in_use()
    child.communicate(b"")
    assert not run.in_use()


def test_a_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "lock").mkdir()
    with pytest.raises(UserError, match="lock is a folder"):
        run.lock()
    assert not run.in_use()


def test_a_live_state_with_nobody_there_is_a_crash(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert run.state() == "CRASHED"
    holder = hold(run)
    assert run.state() == "RUNNING"
    holder.communicate("")
    run.update_info(state="FINISHED")
    assert run.state() == "FINISHED"
    (run.path / "run.json").unlink()
    assert run.state() == "CRASHED"


# -- what is never written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["train", "my.py", "lr=3e-4"], ["train", "my.py", "lr=3e-4"]),
        (["wandb_api_key=abc"], ["wandb_api_key=***"]),
        (["--hf-token", "abc", "x"], ["--hf-token", "***", "x"]),
        (["--hf-token=abc"], ["--hf-token=***"]),
        (["db.PASSWORD=a=b"], ["db.PASSWORD=***"]),
        (["token", "abc"], ["token", "abc"]),
        (["secret=", "next"], ["secret=***", "next"]),
        (["--apikey"], ["--apikey"]),
        (["private_key=k", "credential=c", "passwd=p"], ["private_key=***", "credential=***", "passwd=***"]),
        (["max_tokens=512", "tokenizer=bpe"], ["max_tokens=512", "tokenizer=bpe"]),
    ],
)
def test_secrets_are_left_out_of_what_is_kept(argv: list[str], kept: list[str]) -> None:
    assert redact(argv) == kept


# -- JSON files ----------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """A reader beside a writer sees one of the two contents, never a part, never nothing."""
    path = tmp_path / "beat.json"
    contents = [{"n": number, "text": "x" * 5000} for number in (1, 2)]
    write_json(path, contents[0])

    def write() -> None:
        for number in range(300):
            write_json(path, contents[number % 2], durable=False)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert read_json(path) in contents
    writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["beat.json"]


def test_what_cannot_be_json_is_written_as_text(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"path": Path("x")})
    assert read_json(tmp_path / "a.json") == {"path": "x"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe{}", b"1e999", b"nan"])
def test_a_file_that_is_something_else_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "missing.json") is None


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with open(path, "wb") as file:
        file.truncate(17 << 20)
    assert read_json(path) is None


def test_a_nest_without_end_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    assert read_json(tmp_path / "a.json") is None
    (tmp_path / "b.jsonl").write_text("[" * 100_000 + "\n" + '{"ok": 1}\n')
    assert list(read_lines(tmp_path / "b.jsonl")) == [{"ok": 1}]


# -- journal and metrics -------------------------------------------------------------------------------------


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    run = made(tmp_path)
    events = [Event.now("start", device="cpu"), Event.now("fault", code="F006", step=12), Event.now("end")]
    for event in events:
        run.append(event)
    run.close()
    assert list(run.events()) == events


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = Event("start", "2026-11-15T09:12:00.000Z", {"step": 1})
    lines = [
        whole.to_line().encode(),
        b'{"time": "2026", "event": "fau',
        b"",
        b"not json",
        b"[1, 2]",
        b"\xff\xfe\xfa",
        b'{"no": "event"}',
        b'{"event": 7}',
        b'{"event": "end"}',
    ]
    path.write_bytes(b"\n".join(lines))
    assert list(read_events(path)) == [whole, Event("end", "", {})]


def test_a_line_torn_by_a_power_cut_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "journal.jsonl").write_text('{"time": "2026", "event": "half')
    run.append(Event.now("start", device="cpu"))
    run.close()
    assert [event.kind for event in run.events()] == ["start"]


def test_no_journal_is_no_events(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert list(run.events()) == []
    assert run.metrics() == []
    assert run.receipt() is None


def test_what_must_survive_a_power_cut_is_named() -> None:
    assert {"start", "fault", "checkpoint", "end"} <= DURABLE


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "1", '{"event": null}', '{"time": "now"}', '{"event": ["a"]}', "\0\0\0"]
)
def test_a_line_that_is_no_event(line: str) -> None:
    assert Event.from_line(line) is None


def test_the_time_of_an_event() -> None:
    event = Event.now("start", path=Path("x"))
    again = Event.from_line(event.to_line())
    assert again is not None
    assert again.data == {"path": "x"}
    seconds = again.seconds()
    assert seconds is not None and seconds > 1.7e9
    assert Event("start", "yesterday").seconds() is None


def test_a_repeated_step_counts_once_with_its_last_values(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.append_metrics({"step": 10, "epoch": 0, "loss": 1.0})
    run.append_metrics({"step": 10, "epoch": 0, "accuracy": 0.5})
    run.append_metrics({"step": 20, "epoch": 1, "loss": 0.9})
    run.append_metrics({"step": 20, "epoch": 1, "loss": 0.8})
    run.close()
    assert run.metrics() == [
        {"step": 10, "epoch": 0, "loss": 1.0, "accuracy": 0.5},
        {"step": 20, "epoch": 1, "loss": 0.8},
    ]


def test_folders_of_faults_are_numbered_on(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert [run.next_fault_folder().name for _ in range(3)] == ["01", "02", "03"]
    (run.path / "faults" / "99").mkdir()
    (run.path / "faults" / "notes").mkdir()
    assert run.next_fault_folder().name == "100"


def test_the_beat_is_there_for_readers_elsewhere(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.write_beat({"step": 3, "loss": None})
    assert json.loads((run.path / "beat.json").read_text()) == {"step": 3, "loss": None}
