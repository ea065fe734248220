"""Whatever the process of a candidate does is a result; real processes, real signals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.optimize.children import Child, Failed


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}:{root}")
    with Child.start(tmp_path, cache=tmp_path, module="tests.optimize.unruly") as child:
        yield child
    assert not processes.exists(child.pid)


def test_an_answer_comes_through_whatever_libraries_print(child: Child) -> None:
    assert child.ask({"do": "hello"}, 60) == {"hello": True}
    assert child.rss() is None or child.rss() > 1_000_000  # type: ignore[operator]


def test_an_error_is_told_in_one_line_and_the_child_goes_on(child: Child) -> None:
    with pytest.raises(Failed, match=r"RuntimeError: no such kernel$") as failed:
        child.ask({"do": "raise"}, 60)
    assert failed.value.kind == "error"
    assert child.ask({"do": "hello"}, 60)


def test_a_crash_is_named(child: Child) -> None:
    with pytest.raises(Failed, match="killed by SIGSEGV") as failed:
        child.ask({"do": "crash"}, 60)
    assert failed.value.kind == "crash"
    with pytest.raises(Failed):
        child.ask({"do": "hello"}, 60)


def test_an_end_has_its_code_and_last_words(child: Child) -> None:
    with pytest.raises(Failed, match="code 7: the last words"):
        child.ask({"do": "exit"}, 60)


def test_a_hang_ends_at_the_deadline(child: Child) -> None:
    child.ask({"do": "hello"}, 60)
    began = time.monotonic()
    with pytest.raises(Failed, match="gave no answer in 1 s") as failed:
        child.ask({"do": "hang"}, 1.0)
    assert failed.value.kind == "hang" and time.monotonic() - began < 100
    assert not processes.exists(child.pid)


def test_what_it_started_ends_with_it(child: Child) -> None:
    grandchild = child.ask({"do": "child"}, 60)["pid"]
    child.close()
    until = time.monotonic() + 20
    while (seen := processes.inspect(grandchild)) is not None and seen.state != "Z" and time.monotonic() < until:
        time.sleep(0.02)
    assert seen is None or seen.state == "Z"
