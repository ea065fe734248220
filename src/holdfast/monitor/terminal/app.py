"""`holdfast watch` in a terminal: keys, time and the screen. What is seen is drawn elsewhere, as text.

    Watch([folder, …], explain=lambda code: […]).run()

It only reads, once a second, or less often where all CPUs are busy with the run, and in small portions, so that a
journal of a million lines does not hold the keys.
Whatever a run folder holds, or does while it is looked at, is at worst a line on the screen that says so.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from holdfast.base.control_characters import without_control
from holdfast.base.errors import HoldfastError
from holdfast.monitor import reader
from holdfast.monitor.terminal import large, light, pages, small
from holdfast.monitor.terminal.curves import plain
from holdfast.monitor.terminal.first import COLORS, picture
from holdfast.monitor.terminal.notes import Note
from holdfast.monitor.terminal.scene import curve_of, look
from holdfast.run.states import RunState

EVERY = 1.0
"""Seconds between two looks: a run writes its beat as often."""
SLOWEST = 4.0
SHARE = 0.002
"""Of a machine whose CPUs are all busy, that looking may take: then looks come less often, up to SLOWEST."""
PORTION = 0.15
"""Seconds a look may take."""
RUNS_EVERY = 5.0
MODES = ("picture", "events", "log", "graph", "runs")
_NEEDS_YOU = (RunState.FINISHED, RunState.FAILED, RunState.CRASHED, RunState.GAVE_UP, RunState.STOPPED, RunState.PAUSED)

Explain = Callable[[str], Sequence[str]]


class Watch(App[None]):
    """Several runs, one at a time."""

    CSS = "Screen { overflow: hidden; } Page { width: 100%; height: 100%; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "leave", "quit", priority=True, show=False),
    ]

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        find: Callable[[], Sequence[Path]] | None = None,
        at: int = 0,
        explain: Explain | None = None,
        trust: Callable[[], dict[str, str]] | None = None,
        stop: Callable[[str], str] | None = None,
        ascii: bool = False,
        bell: bool = False,
        every: float = EVERY,
        opened: reader.Run | None = None,
    ) -> None:
        super().__init__()
        self.folders = list(folders)
        self.at = at
        self.mode = "picture"
        self.wanted = ""
        """What is filtered for."""
        self.message = ""
        self._find = find
        self._explain = explain or (lambda code: [])
        self._ledger = trust
        self._stop = stop
        self._ascii = ascii
        self._bell = bell
        self._every = every
        self._open: dict[Path, reader.Run | str] = {} if opened is None else {opened.path: opened}
        """Runs that were opened, or why they cannot be."""
        self._kept: dict[Path, dict[str, Any]] = {}
        self._chosen = False
        """Whether somebody has gone to a run by a key: then it stays."""
        self._cursor = 0
        self._back = 0
        self._metric = 0
        self._typing = False
        self._asking = False
        self._why: list[str] = []
        self._trust: dict[str, str] = {}
        self._listed = time.monotonic()
        self._spent = time.process_time()
        self._states: dict[Path, str] = {}

    # -- life ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Page()

    def on_mount(self) -> None:
        self.register_theme(light.THEME)
        self.ansi_theme_light = light.COLORS
        self._dress(light.chosen(os.environ))
        if self._ledger is not None:
            self._trust = self._ledger()
        self.set_timer(self._every, self._look_again)
        self.call_after_refresh(self.draw)

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self.draw)

    def _dress(self, theme: str | None) -> None:
        if theme is not None:
            self.theme = theme
            self.query_one(Page).undress()

    def _look_again(self) -> None:
        self.tick()
        spent, self._spent = time.process_time() - self._spent, time.process_time()
        self.set_timer(pause(self._every, spent), self._look_again)

    def tick(self) -> None:
        """Look again, and draw."""
        now = time.monotonic()
        if self._find is not None and now - self._listed >= RUNS_EVERY:
            self._listed = now
            self._find_new()
        self._refresh(self.current)
        self.draw()

    def _find_new(self) -> None:
        assert self._find is not None
        try:
            new = [path for path in self._find() if path not in self.folders]
        except OSError:
            return
        self.folders += new
        here = self.current
        if new and not self._chosen and not (isinstance(here, reader.Run) and here.live):
            self.at = len(self.folders) - 1  # what was shown is over, and something new begins

    def _refresh(self, run: reader.Run | str | None) -> None:
        if not isinstance(run, reader.Run):
            return
        try:
            run.refresh(PORTION)
        except (OSError, HoldfastError) as error:  # the folder was taken away while we looked
            self._open[run.path] = f"{run.path} cannot be read any more: {error}"
            return
        before, self._states[run.path] = self._states.get(run.path), run.state
        if self._bell and before is not None and before != run.state and run.state in _NEEDS_YOU:
            self.bell()

    # -- runs ------------------------------------------------------------------------------------------------

    @property
    def current(self) -> reader.Run | str | None:
        """The run that is looked at, or in words why it cannot be."""
        return self.opened(self.folders[self.at]) if self.folders else None

    def opened(self, path: Path) -> reader.Run | str:
        if path not in self._open:
            try:
                self._open[path] = reader.open(path, budget_s=PORTION)
            except HoldfastError as error:
                self._open[path] = f"{error.message}{f': {error.cause}' if error.cause else ''}"
        return self._open[path]

    def _all(self) -> list[reader.Run]:
        found = [self.opened(path) for path in self.folders]
        return [run for run in found if isinstance(run, reader.Run)]

    # -- drawing ---------------------------------------------------------------------------------------------

    def draw(self) -> None:
        width, height = self.size.width, self.size.height
        if width < 2 or height < 2:
            return
        lines = self.lines(width, height)
        if self._ascii:
            lines = [plain(line) for line in lines]
        for page in self.query(Page):  # none: the app is closing, and a timer that was due comes after its page
            page.put(lines)

    def lines(self, width: int, height: int) -> list[str]:
        """What the terminal shows, as text."""
        run = self.current
        if run is None:
            return ["no runs here yet; this page waits for one", "", "q quit"]
        if self.mode == "help":
            return self._framed("help", pages.keys(self._stop is None), width, height)
        if self.mode == "runs":
            page = pages.runs(self._all(), width, height - 3, self._cursor)
            return self._framed(f"{len(self.folders)} run{'s' * (len(self.folders) != 1)}", page, width, height)
        if isinstance(run, str):
            return self._framed(self.folders[self.at].name, textwrap.wrap(f"! {run}", width), width, height)
        return self._of_run(run, width, height)

    def _of_run(self, run: reader.Run, width: int, height: int) -> list[str]:
        scene = look(run, self._trust, kept=self._kept.setdefault(run.path, {}))
        if run.behind > 1 << 16:
            scene.problems.append(f"still reading: {run.behind / 1e6:.0f} MB to go")
        title = f"{scene.name} · {scene.state} {scene.lasted}"
        if self.mode == "why":
            shown = self._why[self._back : self._back + height - 3]
            return self._framed(f"{title} · why", shown, width, height)
        if self.mode == "events":
            notes = pages.chosen_notes(scene.notes, self.wanted)
            self._cursor = max(0, min(self._cursor, len(notes) - 1))
            return self._framed(
                f"{title} · events", pages.events(notes, width, height - 3, self._cursor), width, height
            )
        if self.mode == "log":
            wanted = pages.matching(run.log_tail(2000), self.wanted)
            return self._framed(f"{title} · log", pages.log(wanted, width, height - 3, self._back), width, height)
        if self.mode == "graph":
            names = list(run.curves)
            if not names:
                return self._framed(f"{title} · graph", ["nothing was logged yet"], width, height)
            each = curve_of(run, names[self._metric % len(names)], 2 * width)
            return self._framed(
                f"{title} · graph", pages.graph(each, width, height - 3, ascii=self._ascii), width, height
            )
        footer = self._footer(width - 8 if large.fits(width, height) else width)
        return picture(scene, width, height, footer=footer, ascii=self._ascii)

    def _framed(self, title: str, page: Sequence[str], width: int, height: int) -> list[str]:
        lines = [small.cut(title, width), "─" * width, *(small.cut(line, width) for line in page)][: height - 1]
        return [*lines, *[""] * (height - 1 - len(lines)), self._bottom(width)]

    def _bottom(self, width: int) -> str:
        return small.sides(*self._footer(width), width)

    def _footer(self, width: int) -> tuple[str, str]:
        """The last line: what is typed, asked or told; else the keys."""
        if self._typing:
            return f"/{self.wanted}▮", "enter: keep   escape: all"
        if self._asking:
            return "stop this run, with its state saved? y / n", ""
        if self.message:
            return self.message, ""
        if self.wanted:
            return f"only lines with: {self.wanted}", "escape: all"
        return pages.footer(width, self._stop is None)

    # -- keys ------------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        self.exit()

    def on_key(self, event: events.Key) -> None:
        """Every key of pages.KEYS; what is typed after `/` is the filter."""
        event.prevent_default()
        event.stop()
        self.message = ""
        if self._typing:
            self._type(event)
        elif self._asking:
            self._answer(event.key)
        else:
            self.press(event.key)
        self.draw()

    def press(self, key: str) -> None:
        if key in ("left", "right") and self.folders:
            self.at, self._chosen = (self.at + (1 if key == "right" else -1)) % len(self.folders), True
            self._cursor = self._back = 0
            self._refresh(self.current)
        elif key in ("up", "k", "down", "j", "pageup", "pagedown", "home", "end"):
            self._move(key)
        elif key == "tab":
            now = MODES.index(self.mode) if self.mode in MODES else -1
            self._go(MODES[(now + 1) % len(MODES)])
        elif key in ("question_mark", "h", "f1"):
            self._go("help")
        elif key == "escape":
            self.wanted = ""
            self._go("events" if self.mode == "why" else "picture")
        elif key == "g":
            self._metric += 1 if self.mode == "graph" else 0
            self._go("graph")
        elif key in ("e", "l", "r"):
            self._go({"e": "events", "l": "log", "r": "runs"}[key])
        elif key == "slash":
            self._typing, self.wanted = True, ""
            if self.mode not in ("events", "log"):
                self._go("events")
        elif key == "w":
            self._tell_web()
        elif key == "d":
            self._dress(light.THEME.name if self.current_theme.dark else light.DARK)
        elif key == "enter":
            self._enter()
        elif key == "s" and self._stop is not None:
            self._asking = True

    def _go(self, mode: str) -> None:
        self.mode, self._cursor, self._back = mode, self.at if mode == "runs" else 0, 0

    def _move(self, key: str) -> None:
        far = max(1, self.size.height - 4)
        by = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -far, "pagedown": far, "home": -(10**9), "end": 10**9}[
            key
        ]
        if self.mode == "log":
            self._back = max(0, min(self._back - by, 2000))
        elif self.mode == "why":
            self._back = max(0, min(self._back + by, max(0, len(self._why) - far)))
        elif self.mode == "runs":
            self._cursor = max(0, min(self._cursor + by, len(self.folders) - 1))
        else:
            if self.mode == "picture":
                self._go("events")
            self._cursor = max(0, self._cursor + by)

    def _enter(self) -> None:
        run = self.current
        if self.mode == "runs":
            rows = self._all()
            if rows:
                self.at, self._chosen = self.folders.index(rows[min(self._cursor, len(rows) - 1)].path), True
            self._go("picture")
            return
        if not isinstance(run, reader.Run):
            return
        notes = pages.chosen_notes(look(run).notes, self.wanted)
        chosen = notes[self._cursor : self._cursor + 1] if self.mode == "events" else notes
        self._ask_why(run, next((note for note in chosen if note.fault is not None), None))

    def _ask_why(self, run: reader.Run, note: Note | None) -> None:
        known = run.faults
        index = None if note is None or note.fault is None else note.fault - (run.faults_total - len(known))
        if index is None or not 0 <= index < len(known):
            self.message = "there is nothing to tell about this; choose a fault (marked !) and press enter"
            return
        fault = known[index]
        self._why = pages.why(run, fault, self._explain(fault.code), max(40, self.size.width))
        self._go("why")

    def _tell_web(self) -> None:
        run = self.current
        name = run.name if isinstance(run, reader.Run) else "RUN"
        self.message = f"`holdfast watch {name} --web` shows it in a browser"

    def _type(self, event: events.Key) -> None:
        if event.key == "enter":
            self._typing = False
        elif event.key == "escape":
            self._typing, self.wanted = False, ""
        elif event.key == "backspace":
            self.wanted = self.wanted[:-1]
        elif event.character and event.character.isprintable():
            self.wanted += event.character
        self._cursor = self._back = 0

    def _answer(self, key: str) -> None:
        self._asking = False
        run = self.current
        if key == "y" and self._stop is not None and isinstance(run, reader.Run):
            self.message = self._stop(str(run.path))


def colored(line: str) -> Text:
    text = Text(without_control(line), no_wrap=True, overflow="crop", end="")
    text.highlight_regex(COLORS)
    return text


def pause(every: float, cost_s: float) -> float:
    """Seconds to the next look, which costs about as much CPU time as the last one did."""
    cores = os.cpu_count() or 1
    if every < EVERY or not hasattr(os, "getloadavg") or os.getloadavg()[0] < 0.6 * cores:
        return every
    return min(SLOWEST, max(every, cost_s / (SHARE * cores)))


class Page(Widget):
    """Lines of text. Only those that have changed are drawn again: a look at a run must not cost it its CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._base: Style | None = None
        """Made once: finding it out takes longer than drawing a line."""

    def put(self, lines: list[str]) -> None:
        before, self.lines = self.lines, lines
        longest = max(len(before), len(lines))
        changed = [at for at in range(longest) if before[at : at + 1] != lines[at : at + 1]]
        if changed:
            self.refresh(*(Region(0, at, self.size.width, 1) for at in changed))

    def undress(self) -> None:
        """The colours have changed."""
        self._base = None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        text = colored(self.lines[y]) if y < len(self.lines) else Text("")
        strip = Strip(text.render(self.app.console, end=""))
        if self._base is None:
            self._base = self.rich_style
        return strip.adjust_cell_length(self.size.width).apply_style(self._base)
