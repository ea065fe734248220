"""Faces as text: a history of events goes in, what a person or a file sees comes out."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from holdfast.cli.face_choice import choose
from holdfast.cli.faces import PlainFace, QuietFace, plain_value
from holdfast.cli.terminal import TerminalFace, live_line, marked_lines, table_head, table_row
from holdfast.console.output import Output, Screen
from holdfast.console.text import Lines, without_control
from holdfast.run.events import Event
from tests.cli.showing import BEAT, HEADER, history, screen

PLAIN = """\
2026-11-15T09:12:04Z start run=calm-heron workload=eeg device=cuda:0 dtype=fp32 seed=7 \
folder=runs/eeg-20261115-0912-calm-heron
2026-11-15T09:15:13Z epoch epoch=1 step=8 train_loss=0.6931 valid_bacc=0.563 saved=true seconds=184.5 device=cuda:0
2026-11-15T09:22:09Z fault code=F005 device=cuda:0 step=12 phase=backward kind=hang action=replace \
reason="new worker on cuda:0 fp32, try 1 of 3" folder=runs/x/faults/01
2026-11-15T09:22:28Z recovered step=12 seconds=19.2 lost_s=20
2026-11-15T09:23:00Z fault code=F009 device=cuda:0 step=13 kind=unsupported action=next_rung \
reason="cuda:0 fp32 → cpu fp32" folder=runs/x/faults/02
2026-11-15T09:23:00Z moved step=12 before="cuda:0 fp32" after="cpu fp32"
2026-11-15T09:24:00Z note text="memory: trying 2 pieces again"
2026-11-15T09:25:00Z stopping signal=SIGINT step=3900
2026-11-15T09:25:01Z end state=STOPPED exit_code=130 step=3900 message="stopped at step 3900" \
saved="step 3900 in runs/x"
"""

TERMINAL = """\
holdfast 0.1.0 · eeg · cuda:0 fp32 · seed 7
run    runs/eeg-20261115-0912-calm-heron
watch  holdfast watch calm-heron      stop   holdfast stop calm-heron
differs from default: lr=3e-4

  epoch   train_loss   valid_bacc   saved     time   device
 ──────  ───────────  ───────────  ──────  ───────  ───────
      1       0.6931       0.5630       +   3m 04s   cuda:0
 09:22:09  ! cuda:0 stopped answering at step 12 in backward               F005
           ↺ new worker on cuda:0 fp32, try 1 of 3
           ✓ training again after 19 s
 09:23:00  ! cuda:0 cannot run this with the installed torch at step 13    F009
           ↺ cuda:0 fp32 → cpu fp32, from step 12
 09:24:00  • memory: trying 2 pieces again
saving step 3 900, ^C again to stop now
"""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day on the screen are local ones."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_a_file_gets_one_line_an_event() -> None:
    stream = io.StringIO()
    face = PlainFace(screen(stream), HEADER)
    for event in history():
        face.event(event)
    assert stream.getvalue() == PLAIN


def test_a_terminal_gets_a_table_with_the_faults_in_time_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    face = TerminalFace(screen(stream), HEADER, progress=False)
    for event in history():
        face.event(event)
    assert stream.getvalue() == TERMINAL


def test_limits_are_told_in_time_order_and_the_bar_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = [
        ("warn", "the CPU is at 84 °C, limits.cpu_c is 80 °C"),
        ("slow", "slowed down, resting 50 % of the time: the CPU is at 84 °C, limits.cpu_c is 80 °C"),
        ("pause", "paused: the CPU is at 86 °C, limits.cpu_c is 80 °C"),
        ("resume", "going on at full speed: the CPU is at 71 °C"),
    ]
    stream, held = io.StringIO(), []
    face = TerminalFace(screen(stream), HEADER, progress=False)
    for second, (action, text) in enumerate(texts):
        face.event(Event("limit", f"2026-11-15T09:22:0{second}Z", {"limit": "cpu_c", "action": action, "text": text}))
        held.append(face._held)
    assert held == ["", "slowed down", "paused", ""]
    assert stream.getvalue() == (
        " 09:22:00  ! the CPU is at 84 °C, limits.cpu_c is 80 °C\n"
        " 09:22:01  ↺ slowed down, resting 50 % of the time: the CPU is at 84 °C,\n"
        "             limits.cpu_c is 80 °C\n"
        " 09:22:02  ↺ paused: the CPU is at 86 °C, limits.cpu_c is 80 °C\n"
        " 09:22:03  ✓ going on at full speed: the CPU is at 71 °C\n"
    )


def test_the_bell_rings_for_a_pause_and_the_end_and_only_if_it_was_asked_for() -> None:
    limit = Event("limit", "2026-11-15T09:22:00Z", {"action": "pause", "text": "paused"})
    end = Event("end", "2026-11-15T09:23:00Z", {"state": "FINISHED"})
    for bell, rings in ((True, 2), (False, 0)):
        stream = io.StringIO()
        face = TerminalFace(screen(stream), dataclasses.replace(HEADER, bell=bell), progress=False)
        face.event(limit)
        face.event(end)
        assert stream.getvalue().count("\a") == rings


def test_what_binds_the_run_is_told_once_it_is_clear_and_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    input_bound = {"time": "2026-11-15T09:22:00Z", "device": "cpu", "recent_s": {"data": 40.0, "forward": 20.0}}
    busy = {**input_bound, "recent_s": {"data": 5.0, "forward": 55.0}}
    stream, plain = io.StringIO(), io.StringIO()
    faces = [TerminalFace(screen(stream), HEADER, progress=False), PlainFace(screen(plain), HEADER)]
    for face in faces:
        for info in [input_bound] * 60 + [busy] * 5 + [input_bound] * 30 + [busy] * 60:
            face.beat(info)
    lines = [line for line in stream.getvalue().splitlines() if "bound by" in line]
    assert lines == [
        " 09:22:00  • bound by input: 67 % reading data, 33 % computing",
        " 09:22:00  • bound by the CPU: 92 % computing, 8.3 % reading data",
    ]
    assert plain.getvalue().count(" bottleneck bound=input input_pct=66.7 compute_pct=33.3") == 1
    assert plain.getvalue().count(" bottleneck ") == 2


def test_a_disk_that_takes_nothing_is_told_once_and_stays_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    refused = {"text": "No space left on device", "reason": "time", "memory_only": True}
    events = [
        Event("not_saved", "2026-11-15T09:22:09.700Z", {**refused, "step": 3600}),
        Event("saved_again", "2026-11-15T09:25:17.700Z", {"seconds": 188.0}),
        Event("not_saved", "2026-11-15T09:26:00.000Z", {**refused, "step": None}),
        Event(
            "rescued", "2026-11-15T09:27:00.000Z", {"text": "the run goes to /var/tmp/x instead", "path": "/var/tmp/x"}
        ),
        Event("not_saved", "2026-11-15T09:28:00.000Z", {"text": "the snapshot was overwritten", "reason": "time"}),
    ]
    stream = io.StringIO()
    face = TerminalFace(screen(stream), HEADER, progress=False)
    for event in events:
        face.event(event)
    assert stream.getvalue() == (
        " 09:22:09  ! the run folder cannot be written: No space left on device\n"
        "           ↺ training continues in memory; the last checkpoint is step 3 600\n"
        " 09:25:17  ✓ saving again after 3m 08s\n"
        " 09:26:00  ! the run folder cannot be written: No space left on device\n"
        "           ↺ training continues in memory; there is no checkpoint yet\n"
        " 09:27:00  • the run goes to /var/tmp/x instead\n"
        " 09:28:00  ! a checkpoint could not be written: the snapshot was overwritten\n"
    )
    plain = io.StringIO()
    PlainFace(screen(plain), HEADER).event(events[0])
    assert plain.getvalue() == (
        '2026-11-15T09:22:09Z not_saved text="No space left on device" reason=time memory_only=true step=3600\n'
    )


def test_without_unicode_there_are_plain_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    face = TerminalFace(screen(stream, unicode=False), HEADER, progress=False)
    for event in history():
        face.event(event)
    text = stream.getvalue()
    assert text.isascii()
    assert "[<] new worker on cuda:0 fp32, try 1 of 3" in text
    assert "[ok] training again after 19 s" in text


def test_the_scripts_output_is_shown_in_whole_lines() -> None:
    stream = io.StringIO()
    face = PlainFace(screen(stream), HEADER)
    face.output("loading\r 10 %\r 50 %")
    face.output("\r100 %\nred \x1b[31malarm\x1b[0m\x07\nhal")
    face.output("f a line\n")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "output 100 %",
        "output red alarm",
        "output half a line",
    ]


def test_a_line_that_never_ends_does_not_fill_the_memory() -> None:
    lines = Lines()
    assert [len(line) for line in lines.feed("x" * 100_000)] == [100_000]
    for _ in range(1000):
        lines.feed("\r" + "=" * 500)
    assert lines.flush() == ["=" * 500]


def test_no_control_character_reaches_a_file() -> None:
    assert without_control("\x1b]0;title\x07a\x1b[2Kb\x00c\td") == "abc\td"
    assert plain_value("two words") == '"two words"'
    assert plain_value(0.1 + 0.2) == "0.3"
    assert plain_value('say "x"\x1b[0m') == '"say \\"x\\""'


def test_the_live_line() -> None:
    wide = " epoch 7/60 ━━━━━━━━━━━━━━╸────────────────────   41 %  492/1200  6.4 it/s  2h 48m left"
    assert live_line(BEAT, 88) == wide
    narrow = live_line(BEAT, 50)
    assert narrow == " epoch 7/60    41 %  492/1200  6.4 it/s  2h 48m left"
    evaluating = live_line({**BEAT, "phase": "evaluate"}, 100)
    assert evaluating.endswith("2h 48m left  evaluating")
    without_epochs = {**BEAT, "epochs": 0, "batches": 0, "time_left_s": None, "rate": 0.05}
    assert live_line(without_epochs, 80) == " step 7 692     20 s/it"
    replaced = {**BEAT, "phase": "setup", "step": 7692, "steps_total": 72000}
    assert live_line(replaced, 88, "recovering").endswith("2h 48m left  recovering"), "the bar survives a restart"
    assert "━" in live_line(replaced, 100, "recovering")
    preparing = {**BEAT, "phase": "setup", "progress": {"done": 30, "total": 120, "label": "reading files"}}
    assert live_line(preparing, 50) == " reading files ━━━━╸──────────────   25 %  30/120"


def test_progress_in_a_file_comes_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("holdfast.cli.faces.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    face = PlainFace(screen(stream), HEADER)
    for _ in range(130):
        now[0] += 1.0
        face.beat(BEAT)
    line = (
        "2026-11-15T09:33:00Z progress phase=backward epoch=7 pct=11 step=7692/72000 rate=6.4 eta_s=10080 loss=0.51\n"
    )
    assert stream.getvalue() == 2 * line


def test_a_table_shows_as_many_metrics_as_fit() -> None:
    names = [f"metric_{letter}" for letter in "abcdefgh"]
    for width in (40, 80, 200):
        for line in table_head(names, width):
            assert len(line) <= width
    row = table_row(3, names, dict.fromkeys(names, 0.5), False, 61.0, "cpu", 80)
    assert row.split() == ["3", *["0.5000"] * 3, "1m", "01s", "cpu"]


def test_a_long_sentence_goes_on_under_itself() -> None:
    text = "the worker on cuda:0 was killed from outside (SIGKILL) at step 3 862 in backward"
    assert marked_lines("09:22:09", "!", text, "F007", 80) == [
        " 09:22:09  ! the worker on cuda:0 was killed from outside (SIGKILL) at     F007",
        "             step 3 862 in backward",
    ]


def test_which_face(tmp_path: Path) -> None:
    pipe, terminal = io.StringIO(), screen(io.StringIO())
    to_pipe = Screen(pipe, color=False, unicode=True, tty=False, width=100)
    cases: list[tuple[Output, type]] = [
        (Output(out=terminal, err=terminal), TerminalFace),
        (Output(out=terminal, err=terminal, plain=True), PlainFace),
        (Output(out=to_pipe, err=terminal), PlainFace),
        (Output(out=terminal, err=terminal, quiet=True), QuietFace),
        (Output(out=to_pipe, err=terminal, as_json=True), TerminalFace),
        (Output(out=terminal, err=to_pipe, as_json=True), PlainFace),
    ]
    for output, kind in cases:
        assert type(choose(output, HEADER).face) is kind
