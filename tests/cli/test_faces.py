"""Faces as text: a history of events goes in, what a person or a file sees comes out."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
from pathlib import Path
from typing import Any, TextIO

import pytest

from holdfast.cli import summary
from holdfast.cli.faces import Careful, Header, PlainFace, QuietFace, choose, plain_value
from holdfast.cli.output import Output, Screen
from holdfast.cli.reading import Look
from holdfast.cli.terminal import TerminalFace, live_line, marked_lines, table_head, table_row
from holdfast.cli.text import Lines, without_control
from holdfast.events import Event
from holdfast.runfolder import RunFolder, write_json

HEADER = Header(
    "0.1.0", "calm-heron", "calm-heron", "eeg", "runs/eeg-20261115-0912-calm-heron", "cuda:0 fp32", 7, ["lr=3e-4"]
)

HISTORY = """
{"time": "2026-11-15T09:12:04.118Z", "event": "start", "run": "calm-heron"}
{"time": "2026-11-15T09:12:09.000Z", "event": "worker", "generation": 0, "pid": 71, "device": "cuda:0"}
{"time": "2026-11-15T09:15:12.000Z", "event": "log", "step": 8, "epoch": 0, "values": {"train_loss": 0.6931}}
{"time": "2026-11-15T09:15:12.001Z", "event": "log", "step": 8, "epoch": 0, "values": {"valid_bacc": 0.563}}
{"time": "2026-11-15T09:15:13.500Z", "event": "epoch", "epoch": 0, "step": 8, "best": true, "device": "cuda:0"}
{"time": "2026-11-15T09:22:09.700Z", "event": "fault", "code": "F005", "kind": "hang", "device": "cuda:0", "step": 12,
 "phase": "backward", "sentence": "cuda:0 stopped answering at step 12 in backward", "action": "replace",
 "reason": "new worker on cuda:0 fp32, try 1 of 3", "folder": "runs/x/faults/01"}
{"time": "2026-11-15T09:22:28.000Z", "event": "recovered", "step": 12, "seconds": 19.2, "lost_s": 20.0}
{"time": "2026-11-15T09:23:00.000Z", "event": "fault", "code": "F009", "kind": "unsupported", "device": "cuda:0",
 "step": 13, "sentence": "cuda:0 cannot run this with the installed torch at step 13", "action": "next_rung",
 "reason": "cuda:0 fp32 → cpu fp32", "folder": "runs/x/faults/02"}
{"time": "2026-11-15T09:23:00.100Z", "event": "moved", "step": 12, "before": "cuda:0 fp32", "after": "cpu fp32"}
{"time": "2026-11-15T09:24:00.000Z", "event": "note", "text": "memory: trying 2 pieces again"}
{"time": "2026-11-15T09:25:00.000Z", "event": "stopping", "signal": "SIGINT", "step": 3900}
{"time": "2026-11-15T09:25:01.000Z", "event": "end", "state": "STOPPED", "exit_code": 130, "step": 3900,
 "error": {"message": "stopped at step 3900", "saved": "step 3900 in runs/x"}}
"""

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


def history() -> list[Event]:
    records = HISTORY.replace("\n {", "\n{").replace(",\n ", ", ").strip().splitlines()
    events = [Event.from_line(line) for line in records]
    assert all(events) and len(events) == 12
    return [event for event in events if event]


def screen(stream: TextIO, *, unicode: bool = True) -> Screen:
    return Screen(stream, color=False, unicode=unicode, tty=True, width=80)


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
        " 09:22:09  ! the run folder takes nothing more: No space left on device\n"
        "           ↺ training goes on in memory; the last checkpoint is step 3 600\n"
        " 09:25:17  ✓ saving again after 3m 08s\n"
        " 09:26:00  ! the run folder takes nothing more: No space left on device\n"
        "           ↺ training goes on in memory; there is no checkpoint yet\n"
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


BEAT = {
    "time": "2026-11-15T09:33:00.000Z",
    "phase": "backward",
    "epoch": 6,
    "epochs": 60,
    "batch": 492,
    "batches": 1200,
    "step": 7692,
    "steps_total": 72000,
    "rate": 6.4,
    "time_left_s": 10080.0,
    "loss": 0.51,
    "progress": None,
}


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


# What may go wrong with a face ----------------------------------------------------------------------------


def test_a_broken_pipe_silences_the_face() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    face = Careful(PlainFace(screen(stream), HEADER))
    for event in history():
        face.event(event)
    face.beat(BEAT)
    face.output("more\n")
    face.close()
    assert face.face is None and face.why is not None and "BrokenPipeError" in face.why
    with pytest.raises(OSError):
        stream.close()


def test_a_closed_terminal_silences_the_face() -> None:
    """Rich would end the process on a broken pipe; a terminal that is gone gives EIO."""
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w")
    face = Careful(TerminalFace(screen(stream), HEADER))
    face.event(history()[0])
    face.beat(BEAT)
    os.close(master)
    for event in history()[1:]:
        face.event(event)
    face.beat(BEAT)
    face.close()
    assert face.face is None


def test_rich_may_not_exit_the_supervisor() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    face = Careful(TerminalFace(screen(stream), HEADER))
    face.event(history()[0])
    assert face.face is None and face.why is not None and "BrokenPipeError" in face.why
    with pytest.raises(OSError):
        stream.close()


def test_a_face_that_is_wrong_is_silent() -> None:
    class Wrong(QuietFace):
        def event(self, event: Event) -> None:
            raise KeyError("a bug in a face")

    face = Careful(Wrong())
    face.event(history()[0])
    face.event(history()[1])
    assert face.why is not None and "a bug in a face" in face.why


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


# The closing summary --------------------------------------------------------------------------------------


def test_samples_that_were_left_out_are_in_the_closing_words() -> None:
    receipt: dict[str, object] = {"steps": 3, "samples_skipped": 0, "samples_repeated": 0, "samples_quarantined": 2}
    assert summary.receipt_words(receipt).endswith("samples: 0 skipped, 0 seen twice, 2 left out")
    assert summary.receipt_words({**receipt, "samples_quarantined": 0}).endswith("0 seen twice")
    assert summary.fault_words({"bad_data": 1}) == "1 error in the data"


def make_run(root: Path, state: str, **info: Any) -> RunFolder:
    path = root / "eeg-20261115-0912-calm-heron"
    for part in ("checkpoints/000024", "faults/01"):
        (path / part).mkdir(parents=True)
    write_json(path / "checkpoints/000024/digest.json", {"step": 24, "bytes": 1000})
    write_json(path / "run.json", {"schema": 1, "format": 1, "workload": "eeg", "state": state, **info})
    events = [
        {"time": "2026-11-15T09:00:00Z", "event": "start"},
        {"time": "2026-11-15T09:10:00Z", "event": "fault", "kind": "hang", "code": "F005"},
        {"time": "2026-11-15T09:59:00Z", "event": "epoch", "epoch": 2},
        {"time": "2026-11-15T10:00:00Z", "event": "end", "state": state},
    ]
    (path / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"torn')
    metrics = [
        {"step": 8 * (n + 1), "epoch": n, "train_loss": 0.7 - 0.2 * n, "valid_bacc": 0.5 + 0.1 * n} for n in range(3)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    write_json(path / "beat.json", {"epochs": 3, "step": 24, "steps_total": 24})
    receipt = {
        "steps": 24,
        "faults": {"hang": 2, "out_of_memory": 1},
        "survived": state == "FINISHED",
        "recoveries": 3,
        "steps_repeated": 4,
        "steps_lost": 0,
        "samples_skipped": 0,
        "samples_repeated": 0,
        "seconds_lost": 170.0,
        "weights_sha256": "3f" * 32 if state == "FINISHED" else None,
    }
    write_json(path / "receipt.json", receipt)
    return RunFolder(path)


BOOKS = {
    "accounts": {"timeline": [{"device": "cuda:0", "from_step": 0, "to_step": 12}, {"device": "cpu", "from_step": 12}]},
    "best": {"name": "valid_bacc", "value": 0.7, "step": 24, "epoch": 2},
}

CLOSING = """\
✓ finished 3 epochs, 24 steps, in 1h 00m on cuda:0, then cpu
  best valid_bacc 0.7000 at epoch 3

  train_loss  █▅▁   0.7000 → 0.3000
  valid_bacc  ▁▅█   0.5000 → 0.7000

  faults   2 hangs, 1 out-of-memory fault; all recovered; 2m 50s lost (4.7 %)
  receipt  24 steps: 4 repeated, 0 lost; samples: 0 skipped, 0 seen twice
  weights  sha256 3f3f3f3f3f3f3f3f…

  best     eeg-20261115-0912-calm-heron/best.safetensors
  final    eeg-20261115-0912-calm-heron/final.safetensors

  holdfast show calm-heron        everything about this run
  holdfast report calm-heron      the same as one page, to keep or to send
"""

STOPPED = """\
• stopped at step 24 in 1h 00m on cuda:0, then cpu · best valid_bacc 0.7000 at epoch 3

  train_loss  █▅▁   0.7000 → 0.3000
  valid_bacc  ▁▅█   0.5000 → 0.7000

  faults   2 hangs, 1 out-of-memory fault; 2m 50s lost (4.7 %)
  receipt  24 steps: 4 repeated, 0 lost; samples: 0 skipped, 0 seen twice

  saved    step 24 in eeg-20261115-0912-calm-heron/checkpoints/000024

  holdfast resume calm-heron      go on from what was saved
  holdfast show calm-heron        everything about this run
"""


def test_the_closing_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_RUN_FOLDER", ".")
    run = make_run(tmp_path, "FINISHED", exit_code=0, **BOOKS)
    for name in ("best", "final"):
        (run.path / f"{name}.safetensors").write_bytes(b"")
    assert "\n".join(summary.closing(Look(run), 80)) + "\n" == CLOSING


def test_the_closing_says_what_it_cost_what_bound_it_and_what_the_plan_said(tmp_path: Path) -> None:
    plan = {"time_s": 11400, "time_low_s": 10200, "time_high_s": 12600, "cost_usd": 0.22, "usd_per_kwh": 0.17}
    run = make_run(tmp_path, "FINISHED", exit_code=0, threads=1, plan=plan, **BOOKS)
    beat = {"device": "cuda:0", "energy_wh": {"cuda:0": 1210.4, "cpu": 140.0}, "loaders": 0}
    beat |= {"phases_s": {"data": 1800.0, "forward": 900.0, "backward": 700.0, "loop": 30.0}}
    write_json(run.path / "beat.json", beat)
    lines = summary.accounts(Look(run), 100)
    text = " ".join(" ".join(lines).split())
    assert "cost 1.35 kWh (cuda:0 1.21, cpu 0.14), $0.23; the plan said 3h 10m ±20m and $0.22, it took 1h" in text
    assert "bound by input: 52 % reading data, 47 % computing; most worth changing: Loader(num_workers=" in text
    write_json(run.path / "run.json", {**run.info, "plan": ["a", "list"]})
    write_json(run.path / "beat.json", {"energy_wh": {"cpu": "much"}, "phases_s": 3})
    assert not any("cost" in line or "bound" in line for line in summary.accounts(Look(run), 100))


def test_a_plan_by_its_option_is_told_too(tmp_path: Path) -> None:
    plan = {"seconds": 11400, "low": 11000, "high": 14400, "option": "cuda:0 fp32"}
    run = make_run(tmp_path, "FINISHED", exit_code=0, plan=plan, **BOOKS)
    cost = next(line for line in summary.accounts(Look(run), 140) if "cost" in line)
    assert "the plan said 3h 10m ±28m 20s for cuda:0 fp32, it took 1h" in cost


def test_the_closing_of_a_stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path, "STOPPED", exit_code=75, **BOOKS)
    assert "\n".join(summary.closing(Look(run), 100)) + "\n" == STOPPED.replace(
        "holdfast resume calm-heron ", f"holdfast resume {run.path.name} "
    ).replace("holdfast show calm-heron ", f"holdfast show {run.path.name} "), "not where runs usually are"
    monkeypatch.setenv("HOLDFAST_RUN_FOLDER", ".")
    assert "\n".join(summary.closing(Look(run), 100)) + "\n" == STOPPED


def test_a_folder_full_of_nonsense_can_still_be_closed(tmp_path: Path) -> None:
    """A run folder may come from somebody else."""
    run = make_run(tmp_path, "FINISHED", accounts=["no"], best="no", exit_code="no", settings=3)
    (run.path / "beat.json").write_text('{"epochs": "many", "step": [], "steps_total": {}, "recoveries": null}')
    (run.path / "metrics.jsonl").write_text('{"step": "x", "epoch": null, "loss": "low"}\n[1]\nno\n')
    (run.path / "receipt.json").write_text('{"faults": [1], "steps": "x", "seconds_lost": "long"}')
    assert summary.closing(Look(run), 80)
    assert Look(run).row()["run"] == "calm-heron"
