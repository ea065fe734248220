"""Lines of kernel logs as machines printed them: each is understood, and what is no fault is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.faults.classification import Kind
from holdfast.faults.kernel_messages import NVIDIA, Message, explained, messages, parse, seen_with, worst
from holdfast.faults.terms import Health

HERE = Path(__file__).parent


def _lines() -> list[tuple[str, str | None, int | None, str | None, str]]:
    rows = [
        line.split(maxsplit=4) for line in (HERE / "kernel_messages.txt").read_text().splitlines() if line[0] != "#"
    ]
    return [
        (
            id,
            None if device == "-" else device,
            None if pid == "-" else int(pid),
            None if process == "-" else process,
            text.replace("\\n", "\n"),
        )
        for id, device, pid, process, text in rows
    ]


LINES = _lines()


@pytest.mark.parametrize(("id", "device", "pid", "process", "text"), LINES)
def test_each_line_is_understood(id: str, device: str | None, pid: int | None, process: str | None, text: str) -> None:
    entry = parse(text, source="kmsg", time_ns=1)
    assert entry is not None
    assert (entry.id, entry.device, entry.pid, entry.process) == (id, device, pid, process)
    assert entry.to_json()["text"] == text


@pytest.mark.parametrize("text", (HERE / "harmless.txt").read_text().splitlines())
def test_what_is_no_fault_is_passed_over(text: str) -> None:
    assert parse(text) is None


def test_every_pattern_has_a_real_line() -> None:
    assert {row.id for row in messages() if row.regex} <= {line[0] for line in LINES}


@pytest.mark.parametrize("row", [row for row in messages() if row.regex], ids=lambda row: row.id)
def test_words_do_not_hide_what_the_pattern_would_find(row: Message) -> None:
    for text in [line[-1] for line in LINES if row.found_in(line[-1])]:
        assert any(word in text for word in row.words), text


def test_ids_are_names_and_stand_alone() -> None:
    ids = [row.id for row in messages()]
    assert len(set(ids)) == len(ids)
    assert all(row.means and row.action and row.kinds for row in messages())
    assert not any(text.endswith(".") for row in messages() for text in (row.means, row.action))


def test_a_number_that_is_not_listed_is_still_an_xid() -> None:
    entry = parse("NVRM: Xid (PCI:0000:0d:00): 951, An error of a driver to come")
    assert entry is not None
    assert (entry.code, entry.id, entry.device) == ("Xid 951", "xid-other", "0000:0d:00.0")


@pytest.mark.parametrize("number", range(1, 173))
def test_every_number_of_nvidias_catalogue_is_known(number: int) -> None:
    entry = parse(f"NVRM: Xid (PCI:0000:0d:00): {number}, pid=4711, name=python, something")
    row = explained(f"xid {number}")
    assert entry is not None and row is not None
    assert (entry.id, entry.device, entry.pid, row.xid) == (f"xid-{number}", "0000:0d:00.0", 4711, number)
    if row.nvidia is None:  # the newest have no action in it yet
        assert number >= 162
    else:
        assert NVIDIA[row.nvidia] in row.you_can


@pytest.mark.parametrize(
    ("action", "least"),
    [("RESET_GPU", Health.MACHINE), ("RESTART_BM", Health.MACHINE), ("RESTART_VM", Health.MACHINE)],
)
def test_what_nvidia_would_reset_is_not_called_harmless(action: str, least: Health) -> None:
    rows = [row for row in messages() if row.nvidia == action]
    assert rows and {row.health for row in rows} == {least}


@pytest.mark.parametrize(
    ("text", "means", "health"),
    [
        (
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            "the driver asks for: OS Reboot",
            Health.MACHINE,
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            "the driver asks for: None",
            Health.ALIVE,
        ),
    ],
)
def test_xid_154_says_what_the_card_needs(text: str, means: str, health: Health) -> None:
    entry = parse(text)
    assert entry is not None
    assert (entry.means, entry.health) == (means, health)


def test_a_crash_names_its_library() -> None:
    text = "python[812]: segfault at 0 ip 3320e1 sp 7ffd error 4 in libamdhip64.so.5.7.31921[7f3300000000+1c0000]"
    entry = parse(text)
    assert entry is not None
    assert entry.sentence() == "a process crashed in native code, in libamdhip64.so.5.7.31921"


def test_sentences_say_where() -> None:
    entry = parse("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")
    assert entry is not None
    assert entry.sentence() == "the GPU has fallen off the bus (Xid 79, 0000:65:00.0)"


def test_the_worst_is_what_needs_most_and_came_first() -> None:
    texts = [
        "amdgpu 0000:28:00.0: Fence fallback timer expired on ring gfx_0.0.0",
        "amdgpu 0000:28:00.0: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641",
        "amdgpu 0000:28:00.0: GPU reset begin!. Source:  1",
    ]
    found = [entry for number, text in enumerate(texts) if (entry := parse(text, time_ns=number))]
    chosen = worst(found)
    assert chosen is not None
    assert chosen.id == "amdgpu-ring-timeout"
    assert worst([]) is None


@pytest.mark.parametrize("asked", ["79", "xid79", "XID79", "Xid 79", "xid-79", LINES[0][-1]])
def test_a_row_is_found_by_what_people_have(asked: str) -> None:
    row = explained(asked)
    assert row is not None
    assert row.id == "xid-79"


@pytest.mark.parametrize("asked", ["0", "xid 0", "999", "hello", "F003", ""])
def test_what_is_no_message_finds_nothing(asked: str) -> None:
    assert explained(asked) is None


def test_what_goes_with_a_fault() -> None:
    assert seen_with(Kind.HOST_MEMORY)[0].id == "oom-kill-group"
    assert [row.id for row in seen_with(Kind.DRIVER)].index("xid-79") < len(seen_with(Kind.DRIVER)) / 2
    assert seen_with(Kind.USER_ERROR) == []


def test_lines_of_a_stranger_do_no_harm() -> None:
    """A log may hold anything: long lines, zero bytes, half a message."""
    for text in ("", "NVRM: Xid (", "NVRM: Xid (PCI:zz): 79,", "ring " + "x" * 100_000 + " timeout", "\0" * 1000):
        parse(text)
