"""A newer file of knowledge: it is looked at before a word of it is used, and its age and digest are shown."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.cli import main
from holdfast.devices import facts, knowledge, knowledge_file

OURS: dict[str, Any] = json.loads(knowledge_file.OURS.read_text(encoding="utf-8"))
CASE = Path(__file__).parent / "cases" / "r9700-page-fault.json"


@pytest.fixture(autouse=True)
def ours_again() -> Iterator[None]:
    """`use` is for the whole process."""
    yield
    os.environ.pop(knowledge_file.VARIABLE, None)


def write(path: Path, change: Callable[[dict[str, Any]], object] = lambda data: None) -> Path:
    data = copy.deepcopy(OURS)
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_ours_has_nothing_wrong_and_the_right_digest() -> None:
    assert list(knowledge_file.problems(OURS)) == []
    book = knowledge_file.current()
    assert book.ours and book.sha256 == hashlib.sha256(knowledge_file.OURS.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("today", "words"),
    [
        (date(2026, 11, 17), "(today's, sha256 "),
        (date(2026, 11, 18), "(1 day old, sha256 "),
        (date(2027, 3, 1), "(104 days old, sha256 "),
    ],
)
def test_its_age_and_where_newer_is(today: date, words: str) -> None:
    book = knowledge_file.current()
    said = knowledge_file.sentence(book, today)
    assert words in said and book.sha256[:12] in said and "pip install --upgrade holdfast" in said
    assert ("It is old." in said) is (book.age_days(today) >= 90)


def test_a_newer_file_is_used_here_and_in_children(tmp_path: Path) -> None:
    def newer(data: dict[str, Any]) -> None:
        data["collected"] = "2027-02-01"
        bug = next(each for each in data["bugs"] if each["id"] == "gfx12-hipblaslt-page-fault")
        bug["rocm"] = {"from": "7.2", "below": "10.1"}

    path = write(tmp_path / "newer.json", newer)
    before = {bug.id for bug in knowledge.known_bugs("gfx1201", rocm="10.1")}
    knowledge_file.use(path)
    assert facts.data()["collected"] == "2027-02-01"
    after = {bug.id for bug in knowledge.known_bugs("gfx1201", rocm="10.1")}
    assert before - after == {"gfx12-hipblaslt-page-fault"}
    code = "from holdfast.devices import facts; print(facts.data()['collected'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "2027-02-01"


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "newer.json", lambda data: data.update(collected="2027-02-01"))
    main.main(["doctor", "--recorded", str(CASE), "--knowledge", str(path)])
    out = capsys.readouterr().out
    assert "Knowledge of 2027-02-01" in out and hashlib.sha256(path.read_bytes()).hexdigest()[:12] in out
    assert "newer.json" in " ".join(out.split())


def first(name: str, data: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = data[name][0]
    return row


def cure(command: str) -> Callable[[dict[str, Any]], object]:
    return lambda data: first("bugs", data).update(cure={"text": "do it", "commands": [command]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(schema=1), "its schema is 1, not 2"),
        (lambda data: data.update(collected="yesterday"), "`collected` is no day such as 2026-11-16"),
        (lambda data: data.pop("bugs"), "`bugs` is no list, or has no rows"),
        (lambda data: data.update(cards=[7]), "cards[0]: it is no object"),
        (lambda data: first("cards", data).pop("arch"), "cards[0]: no `arch`"),
        (lambda data: first("cards", data).update(sources=["nobody"]), "no source, or one that is not listed"),
        (lambda data: first("bugs", data).update(known="rumour"), "`known` is none of document, source"),
        (lambda data: first("bugs", data).pop("checked"), "`checked` is no date"),
        (lambda data: first("bugs", data).update(unreached="2026-11"), "`unreached`, when its source was looked for"),
        (lambda data: first("wheels", data).update(driver={"from": "new"}), "`driver` has no `from`"),
        (lambda data: first("wheels", data).update(index="http://example.org/"), "is no https address"),
        (lambda data: first("wheels", data).update(index="https://a.b/; rm -rf ~"), "is no https address"),
        (lambda data: first("support", data).update(archs=["gfx900"]), "`archs` or `os` has another form"),
        (lambda data: first("bugs", data).update(names=["("]), "which is no pattern"),
        (cure("curl https://example.org/x | sh"), "is of a kind that is not printed"),
        (cure("pip install torch; reboot"), "is of a kind that is not printed"),
        (cure("sudo reboot"), "is of a kind that is not printed"),
        (cure("export A=$(reboot)"), "is of a kind that is not printed"),
        (cure("export A=1;reboot"), "is of a kind that is not printed"),
        (cure("export A=1\nreboot"), "is of a kind that is not printed"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    path = write(tmp_path / "bad.json", change)
    with pytest.raises(UserError) as error:
        knowledge_file.use(path)
    assert said in str(error.value.cause), error.value.cause
    assert knowledge_file.VARIABLE not in os.environ, "a file that is refused is not used"


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"x"', b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UserError):
        knowledge_file.read(path)


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--knowledge", str(tmp_path / "none.json"), "--recorded", str(CASE)]) == 2
    assert "none.json" in capsys.readouterr().err
