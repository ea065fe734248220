"""`holdfast watch` itself: keys go in, the text of the screen comes out. A real Textual app without a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual", reason="the extra `monitor` is not installed")

from textual.pilot import Pilot

from holdfast.monitor.terminal import app as terminal
from holdfast.monitor.terminal import light
from holdfast.monitor.terminal.app import Page, Watch
from tests.monitor.folders import NOW, make_run


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)


def shown(app: Watch) -> str:
    """What is on the screen."""
    page = app.query_one(Page)
    drawn = [page.render_line(y).text.rstrip() for y in range(app.size.height)]
    assert drawn == [line.rstrip() for line in page.lines] + [""] * (len(drawn) - len(page.lines))
    return "\n".join(page.lines)


def play(app: Watch, act: Callable[[Pilot[Any]], Coroutine[Any, Any, None]], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await act(pilot)

    asyncio.run(run())


def pressing(app: Watch, *keys: str, size: tuple[int, int] = (80, 24)) -> list[str]:
    """The screen after each key."""
    seen: list[str] = []

    async def act(pilot: Pilot[Any]) -> None:
        seen.append(shown(app))
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            seen.append(shown(app))

    play(app, act, size)
    return seen


def test_every_page_has_a_key_and_tells_its_name(tmp_path: Path) -> None:
    app = Watch([make_run(tmp_path).path], explain=lambda code: [f"about {code}"])
    picture, events, why, log, graph, runs, help_page = pressing(app, "e", "enter", "l", "g", "r", "question_mark")
    assert picture.startswith("calm-heron · eeg · MOVED 1h 01m")
    assert events.startswith("calm-heron · MOVED 1h 01m · events") and "▸ 10:13:26  · saved step 1 900" in events
    assert "choose a fault (marked !) and press enter" in why, "the newest event is no fault"
    assert "warning: channel Cz is flat" in log
    assert "train_loss   0.6900 → 0.3634   best 0.3634 @ epoch 19" in graph
    assert "▸ calm-heron  eeg  MOVED" in runs
    assert "  q       leave; the run goes on" in help_page
    assert all(page.splitlines()[-1].rstrip().endswith("read only") for page in (picture, events, log, graph, runs))


def test_enter_tells_why(tmp_path: Path) -> None:
    app = Watch([make_run(tmp_path).path], explain=lambda code: [f"about {code}"])
    newest = pressing(app, "enter")[-1]
    assert "F004 · device_lost" in newest and "about F004" in newest
    app = Watch([make_run(tmp_path / "b").path], explain=lambda code: [f"about {code}"])
    chosen = pressing(app, "e", *["down"] * 7, "enter")[-1]
    assert "F005 · hang" in chosen
    assert "  blame  the device is to blame: the CPU computed the step" in chosen
    assert "  after  training again after 17 s, 18 s lost" in chosen
    assert "  kept   faults/01: fault.json, stderr.txt" in chosen
    assert "  silence_s: 91.0" in chosen and "about F005" in chosen


def test_a_filter_leaves_out_what_does_not_match(tmp_path: Path) -> None:
    app = Watch([make_run(tmp_path).path])
    *_, typed, kept, all_again = pressing(app, "l", "slash", *"flat", "enter", "escape")
    assert "warning: channel Cz is flat" in typed and "epoch 1 done" not in typed and "/flat" in typed
    assert "only lines with: flat" in kept and "epoch 1 done" not in kept
    assert all_again.startswith("calm-heron · eeg"), "escape leads back to the picture"
    app = Watch([make_run(tmp_path / "b").path])
    found = pressing(app, "slash", *"lost", "enter")[-1]
    assert [line[2:10] for line in found.splitlines() if "·" not in line[:40] and "F00" in line] == ["09:50:56"]


def test_several_runs_and_new_ones(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, name=name).path for name in ("calm-heron", "keen-skua")]
    found = list(paths)
    app = Watch(paths, find=lambda: found)
    app._listed -= 60.0
    found.append(make_run(tmp_path, "FINISHED", name="young-badger").path)

    async def act(pilot: Pilot[Any]) -> None:
        await pilot.press("right")
        assert shown(app).startswith("keen-skua")
        app.tick()
        await pilot.press("right")
        assert shown(app).startswith("young-badger · eeg · FINISHED")
        await pilot.press("right")
        assert shown(app).startswith("calm-heron")
        await pilot.press("r", "down", "enter")
        assert shown(app).startswith("keen-skua")

    play(app, act)


def test_it_is_live(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    app = Watch([run.path])

    async def act(pilot: Pilot[Any]) -> None:
        beat = json.loads((run.path / "beat.json").read_text())
        (run.path / "beat.json").write_text(json.dumps({**beat, "step": 2345}))
        app.tick()
        assert "step 2 345/6 000" in shown(app)
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert shown(app).startswith("┌ holdfast ─ calm-heron ─ eeg ─")
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        lines = shown(app).splitlines()
        assert len(lines) <= 10 and max(map(len, lines)) <= 40 and "epoch 20/60" in lines[1]

    play(app, act)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_without_unicode(tmp_path: Path, size: tuple[int, int]) -> None:
    for page in pressing(Watch([make_run(tmp_path).path], ascii=True), "e", "g", "r", "question_mark", size=size):
        assert page.isascii(), page


def test_a_folder_that_is_no_run_or_goes_away_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = make_run(tmp_path)
    app = Watch([tmp_path / "empty", run.path])

    async def act(pilot: Pilot[Any]) -> None:
        words = " ".join(shown(app).split())
        assert "! " in words and "is not a run folder: it has no readable run.json" in words, words
        await pilot.press("right")
        assert shown(app).startswith("calm-heron")
        shutil.rmtree(run.path)
        app.tick()
        assert shown(app)
        await pilot.press("e", "l", "g", "enter")

    play(app, act)
    assert "no runs here yet" in pressing(Watch([]))[0]


def test_it_only_reads_unless_it_was_asked_to_stop_runs(tmp_path: Path) -> None:
    stopped: list[str] = []
    run = make_run(tmp_path)
    assert "stop this run" not in pressing(Watch([run.path]), "s")[-1]

    def stop(folder: str) -> str:
        stopped.append(folder)
        return "asked it to save and stop"

    asked, refused, again, told = pressing(Watch([run.path], stop=stop), "s", "n", "s", "y")[1:]
    assert "stop this run, with its state saved? y / n" in asked and "s stop" in refused
    assert "asked it to save and stop" in told and "y / n" in again
    assert stopped == [str(run.path)]


def test_a_look_that_is_due_while_the_app_closes_is_no_error(tmp_path: Path) -> None:
    """On a busy machine the page is removed before the last timer fires."""
    app = Watch([make_run(tmp_path).path])

    async def act(_: Pilot[Any]) -> None:
        await app.query_one(Page).remove()
        app.tick()

    play(app, act)


def test_nothing_in_the_run_folder_changes(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    def state() -> Sequence[tuple[str, int, int]]:
        return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in run.path.rglob("*"))

    before = state()
    pressing(Watch([run.path]), "e", "enter", "escape", "l", "g", "r", "w", "q")
    assert state() == before


def test_where_all_cpus_are_busy_it_looks_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 2.0, 2.0))
    assert terminal.pause(1.0, 0.010) == 1.0, "what it takes, nobody else wants"
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 2.0, 2.0))
    assert terminal.pause(1.0, 0.010) == pytest.approx(2.5)
    assert terminal.pause(1.0, 0.001) == 1.0
    assert terminal.pause(1.0, 5.0) == terminal.SLOWEST
    assert terminal.pause(0.2, 5.0) == 0.2, "somebody asked for it"
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "getloadavg", lambda: (70.0, 70.0, 70.0))
    assert terminal.pause(1.0, 0.010) == 1.0


def test_light_colours_by_a_key_or_where_the_terminal_is_light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLORFGBG", raising=False)
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)
    app, seen = Watch([make_run(tmp_path).path]), []

    async def act(pilot: Pilot[Any]) -> None:
        for _ in range(3):
            strip = app.query_one(Page).render_line(0)
            seen.append(
                {str(part.style.bgcolor.get_truecolor()) for part in strip if part.style and part.style.bgcolor}
            )
            await pilot.press("d")
            await pilot.pause()

    play(app, act)
    assert seen[1] == {"ColorTriplet(red=255, green=255, blue=255)"} and seen[0] == seen[2] != seen[1]
    assert light.chosen({"COLORFGBG": "0;15"}) == light.chosen({"COLORFGBG": "0;default;7"}) == "holdfast-light"
    assert light.chosen({"COLORFGBG": "15;0"}) is light.chosen({}) is None
    assert light.chosen({"COLORFGBG": "0;15", "TEXTUAL_THEME": "nord"}) is None, "a theme that was chosen stays"


def test_light_colours_have_the_contrast_of_aa() -> None:
    def luminance(color: Sequence[int]) -> float:
        parts = [each / 255 for each in color]
        red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    ground = luminance(light.GROUND)
    contrasts = [(ground + 0.05) / (luminance(light.COLORS.ansi_colors[at]) + 0.05) for at in range(16)]
    assert min(contrasts) >= 4.5


def test_many_runs_in_a_small_terminal(tmp_path: Path) -> None:
    """What went wrong is not cut off: what the runs train is left out instead."""
    paths = [make_run(tmp_path, name=name, workload="eeg-challenge1").path for name in ("calm-heron", "silver-bunting")]
    narrow = pressing(Watch(paths), "r")[-1].splitlines()
    assert narrow[2].startswith("▸ calm-heron      MOVED  cpu") and "…" not in narrow[2]
    assert narrow[2].rstrip().endswith("2 faults, both recovered")
    tight = pressing(Watch(paths), "r", size=(len(narrow[2].rstrip()) - 2, 24))[-1].splitlines()
    assert tight[2].rstrip().endswith("2 faults, both recovered"), "narrower gaps come before a cut"
    wide = pressing(Watch(paths), "r", size=(200, 50))[-1].splitlines()
    assert wide[2].startswith("▸ calm-heron      eeg-challenge1  MOVED  cpu") and "lost" in wide[2]


def test_a_graph_has_steps_below_it(tmp_path: Path) -> None:
    lines = pressing(Watch([make_run(tmp_path).path]), "g")[-1].splitlines()
    assert lines[-2].split() == ["step", "100", "step", "1", "900"]
    assert len(lines[-2]) == 79 and lines[-2].startswith(" " * 10 + "step 100")


def test_a_sparkline_has_one_colour() -> None:
    line = terminal.colored("train_loss  █▇▅▃▂▁  0.69 → 0.36")
    assert [(line.plain[span.start : span.end], span.style) for span in line.spans] == [("█▇▅▃▂▁", "cyan")]
