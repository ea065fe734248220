"""Pictures of a run as text: what `holdfast watch` shows, in every size."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.monitor import reader
from holdfast.monitor.terminal import large, pages, small
from holdfast.monitor.terminal.curves import bar, curve, gauge, lane, marks, plain
from holdfast.monitor.terminal.scene import Scene, look
from tests.monitor.folders import NOW, make_run

TRUST = {"cuda:0": "probation", "cpu": "trusted"}
FOOTER = ("? help  q quit", "read only")


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = look(reader.open(make_run(tmp_path).path, cached=False), TRUST)
    object.__setattr__(made, "bottleneck", None)  # its advice depends on this machine's CPUs
    return made


SMALL = """\
calm-heron · eeg · MOVED 1h 01m                          live ● 0.8 s, elsewhere
epoch 20/60 ━━━━━━━━━━━━╸───────────────────────── 32 %   2h 08m left   1.9 s/it

train_loss  █▇▇▇▆▆▅▅▄▄▄▃▃▃▂▂▂▁▁   0.6900 → 0.3634   best 0.3634 @ epoch 19
valid_bacc  ▁▂▃▄▄▅▅▆▆▆▇▇▇▇█████   0.5600 → 0.8355   best 0.8355 @ epoch 19

cuda:0  ··········   0 %   1.2/24.0 GB  48 °C   22 W  probation, standby
cpu     ▮▮▮▮▮▮▮▮▮·  94 %  11.2/64.0 GB  78 °C  142 W  trusted, in use

cpu · step 1 943/6 000 · backward · saved 38 s ago
2 faults, both recovered · 28 s lost (0.7 %)
cuda:0  ███▼██████████▼
cpu                   ██████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
10:13:26 · saved step 1 900
09:51:05 ✓ training again after 9 s
09:50:56 ↺ cuda:0 → cpu at step 1 470
09:50:56 ! cuda:0 was lost at step 1 471 in forward                         F004
09:43:44 · saved step 1 000
09:22:21 ✓ training again after 17 s
09:22:21 ⇒ the device is to blame: the CPU computed the step
09:22:04 ! cuda:0 stopped answering at step 400 in backward                 F005
09:12:04 ▸ started on cuda:0
"""
LARGE = """\
┌ holdfast ─ calm-heron ─ eeg ────────────────────── MOVED 1h 01m ─ live ● 0.8 s, elsewhere ┐
│ epoch 20/60  ━━━━━━━━━━━━━━━━━━╸──────────────────────────────────────  32 %  2h 08m left │
│ cpu · step 1 943/6 000 · backward · saved 38 s ago · 1.9 s/it                             │
│ 2 faults, both recovered · 28 s lost (0.7 %)                                              │
├ train_loss 0.3634 ───────────── best 0.3634 ┬ valid_bacc 0.8355 ───────────── best 0.8355 ┤
│   0.6900 ⠉⠢⢄  ▼                             │   0.8355                        ⢀⣀⠤⠤⠔⠒⠒⠒⠉⠉⠉ │
│             ⠑⠤⢄                             │                          ⢀⣀⠤⠤⠒⠊⠉⠁ ▼         │
│                ⠉⠑⠤⢄                         │                      ⡠⠤⠊⠉⠁                  │
│                    ⠉⠒⠤⠤⡀                    │               ▼   ⡠⠒⠉                       │
│                        ⠈⠉⠢⢄⡀                │               ⢀⠤⠔⠉                          │
│                            ⠈⠉⠒⠤⢄⡀ ▼         │             ⢀⠔⠁                             │
│                                 ⠈⠉⠢⠤⢄⣀      │            ⡠⠃                               │
│   0.3634                              ⠉⠑⠢⠤⣀ │   0.5600 ⡠⠊                                 │
├ devices ────────────────────────────────────┴─────────────────────────────────────────────┤
│ cuda:0  RX 7900 XTX    ··········   0 %   1.2/24.0 GB  48 °C   22 W  probation, standby   │
│ cpu     Ryzen 9 7950X  ▮▮▮▮▮▮▮▮▮·  94 %  11.2/64.0 GB  78 °C  142 W  trusted, in use      │
├ timeline ─────────────────────────────────────────────────────────────────────────────────┤
│ cuda:0  ████▼███████████▼                                                                 │
│ cpu                     ███████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  │
│         09:12                     now                                              12:22  │
├ events ───────────────────────────────────────────────────────────────────────────────────┤
│ 09:51:05  ✓ training again after 9 s                                                      │
│ 09:50:56  ↺ cuda:0 → cpu at step 1 470                                                    │
│ 09:50:56  ! cuda:0 was lost at step 1 471 in forward                     F004  enter: why │
│ 09:22:21  ✓ training again after 17 s                                                     │
│ 09:22:21  ⇒ the device is to blame: the CPU computed the step                             │
│ 09:22:04  ! cuda:0 stopped answering at step 400 in backward                         F005 │
└ ? help  q quit ─────────────────────────────────────────────────────────────── read only ─┘
"""
TINY = """\
calm-heron · MOVED 1h 01m
epoch 20/60 ━━╸────── 32 %   2h 08m left
train_loss  █▇▆▅▄▄▃▂▂▁  0.6900 → 0.3634
valid_bacc  ▁▂▄▅▆▇▇▇██  0.5600 → 0.8355
cuda:0  1.2/24.0 GB 48 °C
cpu    11.2/64.0 GB 78 °C
cpu · step 1 943/6 000 · backward · sav…
2 faults, both recovered · 28 s lost (0…
09:51:05 ✓ training again after 9 s
"""


def text(lines: list[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_eighty_columns(scene: Scene) -> None:
    assert text(small.picture(scene, 80, 23)) == SMALL


def test_a_large_terminal(scene: Scene) -> None:
    lines = large.picture(scene, 93, 28, footer=FOOTER)
    assert {len(line) for line in lines} == {93} and len(lines) == 28
    assert text(lines) == LARGE


def test_forty_by_ten_shows_what_matters_most(scene: Scene) -> None:
    lines = small.picture(scene, 40, 9)
    assert max(map(len, lines)) <= 40 and len(lines) <= 9
    assert text(lines) == TINY


@pytest.mark.parametrize(("width", "height"), [(10, 3), (20, 5), (40, 10), (80, 24), (93, 30), (200, 70), (90, 24)])
def test_any_size_is_kept(scene: Scene, width: int, height: int) -> None:
    lines = small.picture(scene, width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    if large.fits(width, height):
        lines = large.picture(scene, width, height, footer=FOOTER)
        assert len(lines) == height and {len(line) for line in lines} == {width}


def test_without_unicode_every_character_has_a_plain_one(scene: Scene) -> None:
    for lines in (small.picture(scene, 80, 24), large.picture(scene, 120, 40, footer=FOOTER, ascii=True)):
        plainly = [plain(line) for line in lines]
        assert all(line.isascii() for line in plainly)
        assert [len(line) for line in plainly] == [len(line) for line in lines], "columns stay"
        assert not any("?" in line for line in plainly[:-1]), plainly


def test_a_run_that_is_not_there_any_more_says_since_when(tmp_path: Path) -> None:
    crashed = look(reader.open(make_run(tmp_path, "RUNNING", boot_id=None).path, cached=False))
    assert (crashed.state, crashed.live, crashed.sign_of_life) == ("CRASHED", False, "ended 10:14")
    assert crashed.devices[0].load is None, "what it read then is not how it is now"


def test_text_of_a_run_cannot_move_the_cursor(tmp_path: Path) -> None:
    run = make_run(tmp_path, "RUNNING", workload="x\x1b[2J\x07y")
    with open(run.path / "journal.jsonl", "a", encoding="utf-8") as journal:
        journal.write(
            '{"time": "2026-11-15T10:00:00Z", "event": "note", "text": "\\u001b]0;gone\\u0007\\nsecond"}\n{"torn'
        )
    scene = look(reader.open(run.path, cached=False))
    drawn = "\n".join([*small.picture(scene, 80), *large.picture(scene, 120, 40)])
    assert not any((ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in drawn)
    assert scene.notes[0].text == " second"


def test_a_folder_full_of_nonsense_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "FINISHED", device=3, best=[], accounts="x", created=None)
    (run.path / "beat.json").write_text(
        '{"readings": {"devices": [7, {"device": [], "load_pct": "hot"}]}, "recent_s": 1}'
    )
    (run.path / "metrics.jsonl").write_text('{"step": 1, "epoch": 0, "loss": "low"}\n{"step": 2, "loss": 1e999}\n')
    scene = look(reader.open(run.path, cached=False))
    assert small.picture(scene, 80, 24) and large.picture(scene, 120, 40)


# Parts ----------------------------------------------------------------------------------------------------


def test_bars_gauges_and_lanes() -> None:
    assert bar(0.5, 10) == "━━━━━╸────"
    assert (bar(0.0, 5), bar(1.0, 5), bar(None, 5)) == ("─────", "━━━━━", "─────")
    assert (gauge(0.94), gauge(0.0), gauge(None, 3)) == ("▮▮▮▮▮▮▮▮▮·", "··········", "   ")
    assert lane([(0, 40), (40, 100)], [40], now=60, begin=0, end=100, width=10) == "████▼██░░░"
    assert marks([0.0, 0.5, 1.0], 5) == "▼ ▼ ▼"


def test_a_curve_has_its_peaks_where_they_are() -> None:
    assert curve([0, 1], 2, 1) == ["⡠⠊"]
    rows = curve([0.0] * 50 + [9.0] + [0.0] * 50, 20, 4)
    assert rows[0].strip() and all(len(row) <= 20 for row in rows), "one value among a hundred is seen"
    assert curve([float("nan")], 5, 2) == ["", ""]
    assert curve([2.0], 5, 1)[0].strip()


def test_the_keys_of_the_help_are_those_of_the_table() -> None:
    page = pages.keys(read_only=True)
    assert len([line for line in page if line.startswith("  ")]) == len(pages.KEYS)
    assert page[-1] == "It only reads: nothing here changes a run."
    assert pages.footer(93) == (
        "? help  ←→ run  e events  enter why  l log  g graph  / filter  w web  q quit",
        "read only",
    )
    assert pages.footer(40)[0].endswith("q quit") and len(pages.footer(40)[0]) <= 29


PLAN = {"seconds": 11400.0, "low": 10200.0, "high": 12600.0, "option": "cuda:0 fp32"}
ROW = {
    "row": 1,
    "where": "cuda:0 fp32",
    "preset": "as asked",
    "time_s": 11400,
    "time_low_s": 10200,
    "time_high_s": 12600,
}


@pytest.mark.parametrize("plan", [PLAN, ROW], ids=["by option", "by row"])
@pytest.mark.parametrize("width", [80, 100, 150])
def test_what_the_plan_said_stands_beside_what_is(tmp_path: Path, width: int, plan: dict[str, object]) -> None:
    made = look(reader.open(make_run(tmp_path, plan=plan).path, cached=False), TRUST)
    for lines in (small.picture(made, width), large.picture(made, max(90, width), 30, footer=FOOTER)):
        assert sum("the plan said 3h 10m ±20m for cuda:0 fp32" in line for line in lines) == 1
        assert all(len(line) <= max(90, width) for line in lines)


@pytest.mark.parametrize(
    "plan",
    [
        3, [1], {}, {"seconds": "long"}, {"seconds": -1.0}, {"seconds": float("nan"), "low": {}, "option": 3},
        {"option": "\x1b[2Jcpu"}, {"seconds": 1e400}, {"seconds": True},
    ],
)  # fmt: skip
def test_a_plan_that_is_none_is_not_shown(tmp_path: Path, plan: object) -> None:
    made = look(reader.open(make_run(tmp_path, plan=plan).path, cached=False), TRUST)
    assert made.plan == ""


def test_a_plan_moves_no_cursor(tmp_path: Path) -> None:
    plan = {"seconds": 60.0, "low": 60.0, "high": 60.0, "option": "\x1b[2J" + "x" * 500}
    made = look(reader.open(make_run(tmp_path, plan=plan).path, cached=False), TRUST)
    assert made.plan.startswith("the plan said 1m 00s for ") and "\x1b" not in made.plan and len(made.plan) < 120
