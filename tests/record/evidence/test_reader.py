"""Commands that answer, fail, or do not end: real processes, none of them waited for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.record.evidence.reader import Answer, Reader

from .places import command, started


def wait(reader: Reader) -> Answer:
    deadline = time.monotonic() + 30
    while (answer := reader.answer()) is None:
        assert time.monotonic() < deadline, "no answer at all"
        time.sleep(0.01)
    return answer


def test_an_answer(tmp_path: Path) -> None:
    script = command(tmp_path, "tell", says="x" * 300_000)  # more than a pipe holds
    assert wait(Reader([str(script)])) == Answer("x" * 300_000)


def test_a_failure_says_why(tmp_path: Path) -> None:
    script = command(tmp_path, "refuse", says="half an answer", on_stderr="not permitted\nat all\n", code=1)
    assert wait(Reader([str(script)])) == Answer(why="not permitted")
    assert wait(Reader([str(command(tmp_path, "mute"))])) == Answer(why="it said nothing (exit status 0)")


def test_what_is_not_installed(tmp_path: Path) -> None:
    assert Reader([str(tmp_path / "none")]).answer() == Answer(why="not installed")


def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    script = command(tmp_path, "hang", sleeps=600)
    reader = Reader([str(script)], patience=1.5)
    assert reader.answer() is None  # at once, while it works
    assert wait(reader) == Answer(why="gave no answer within 2 s")
    for pid in started(tmp_path, "hang"):
        assert not Path(f"/proc/{pid}").exists() or os.waitpid(pid, os.WNOHANG)[0] == pid
