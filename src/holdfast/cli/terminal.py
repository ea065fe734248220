"""A run in a terminal: a header, a table that grows by a row an epoch, faults in time order, one live line.

Rich draws the live line and keeps it below what is printed above it; this is the only module that imports it.
The line is drawn when the supervisor beats, once a second, so no thread is needed.
"""

from __future__ import annotations

import signal
import textwrap
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.cli.faces import Bound, Epochs, Header, QuietFace
from holdfast.cli.run_facts import local_time
from holdfast.console.output import Screen, count, duration, metric, percent
from holdfast.console.text import Lines, without_control
from holdfast.run.events import Event

_INDENT = " " * 11
"""Where text stands under a time of day."""


class _Console(Console):
    """Rich would exit the process when a pipe breaks; here that only silences the face."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class TerminalFace(QuietFace):
    """The face of `holdfast train` for a person."""

    def __init__(self, screen: Screen, header: Header, *, progress: bool = True) -> None:
        self.screen = screen
        self.header = header
        self._console = _Console(
            file=screen.stream,
            force_terminal=True,
            no_color=not screen.color,
            color_system="standard" if screen.color else None,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if progress else None
        self._lines = Lines()
        self._epochs = Epochs()
        self._bound = Bound(header.threads)
        self._columns: list[str] = []
        self._state = "starting: importing torch"
        self._held = ""

    # -- what happens --------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None:
            handler(event)
        elif isinstance(event.data.get("text"), str):
            self._mark(event, "•", event.data["text"], "dim")

    def _on_start(self, event: Event) -> None:
        for line in header_lines(self.header, self._console.width):
            self._print(line)
        if self._live is not None:
            self._live.start()
            self._draw(Text(f" {self._state}"))

    def _on_worker(self, event: Event) -> None:
        self._state = ""
        self._epochs.starts(event)

    def _on_log(self, event: Event) -> None:
        self._epochs.log(event)

    def _on_epoch(self, event: Event) -> None:
        values, seconds = self._epochs.end(event)
        if any(name not in self._columns for name in values):
            self._columns += [name for name in values if name not in self._columns]
            self._print()
            for line in table_head(self._columns, self._console.width):
                self._print(line, "dim")
        epoch = int(event.data.get("epoch", 0)) + 1
        best = bool(event.data.get("best"))
        device = str(event.data.get("device") or "")
        row = table_row(epoch, self._columns, values, best, seconds, device, self._console.width)
        self._print(row, "bold" if best else "")

    def _on_fault(self, event: Event) -> None:
        data = event.data
        action = str(data.get("action") or "")
        sentence, code = str(data.get("sentence") or data.get("kind")), str(data.get("code") or "")
        self._mark(event, "!", sentence, "yellow", right=code)
        if action in ("give_up", "fail"):
            self._below("✗", str(data.get("reason") or "nothing is left to try"), "red")
        elif action != "next_rung" and data.get("reason"):
            self._below("↺", str(data["reason"]), "cyan")
        self._state = "recovering"

    def _on_moved(self, event: Event) -> None:
        data = event.data
        self._below("↺", f"{data.get('before')} → {data.get('after')}, from step {count(data.get('step'))}", "cyan")

    def _on_verdict(self, event: Event) -> None:
        if event.data.get("blame") not in ("outside", "memory"):  # there the fault's own line says it
            self._below("⇒", str(event.data.get("sentence")), "magenta")

    def _on_undone(self, event: Event) -> None:
        first, last = event.data.get("to_step"), event.data.get("from_step")
        if isinstance(first, int) and isinstance(last, int):
            steps = f"{count(last - first)} step{'s' if last - first != 1 else ''}"
            self._below(
                "↺", f"back to step {count(first)}, where the device and the CPU agreed: {steps} undone", "cyan"
            )

    def _on_recovered(self, event: Event) -> None:
        seconds = event.data.get("seconds")
        after = f" after {duration(seconds)}" if isinstance(seconds, (int, float)) else ""
        self._below("✓", f"training again{after}", "green")
        self._state = ""

    def _on_checkpoint(self, event: Event) -> None:
        return None

    def _on_not_saved(self, event: Event) -> None:
        text, step = event.data.get("text"), event.data.get("step")
        if not event.data.get("memory_only"):
            self._mark(event, "!", f"a checkpoint could not be written: {text}", "yellow")
            return
        self._mark(event, "!", f"the run folder cannot be written: {text}", "yellow")
        last = f"the last checkpoint is step {count(step)}" if isinstance(step, int) else "there is no checkpoint yet"
        self._below("↺", f"training continues in memory; {last}", "cyan")
        self._state = "in memory only"

    def _on_saved_again(self, event: Event) -> None:
        self._mark(event, "✓", f"saving again after {duration(event.data.get('seconds'))}", "green")
        self._state = ""

    def _on_limit(self, event: Event) -> None:
        """A limit of the settings was passed, acts, or is kept again."""
        action, text = str(event.data.get("action")), str(event.data.get("text"))
        if action in ("resume", "clear"):
            self._mark(event, "✓", text, "green")
        elif action in ("slow", "pause"):
            self._mark(event, "↺", text, "cyan")
        else:
            self._mark(event, "!", text, "yellow")
        if action == "pause":
            self._ring()
        self._held = {"slow": "slowed down", "pause": "paused"}.get(action, "" if action != "warn" else self._held)

    def _on_stopping(self, event: Event) -> None:
        name = str(event.data.get("signal"))
        self._state = "saving"
        step = count(event.data.get("step"))
        again = "^C again to stop now" if name == signal.Signals.SIGINT.name else f"after {name}"
        self._print(f"saving step {step}, {again}", "bold")

    def _on_end(self, event: Event) -> None:
        self.close()
        self._ring()

    def _ring(self) -> None:
        if self.header.bell:
            self.screen.ring()

    def output(self, text: str) -> None:
        for line in self._lines.feed(text):
            self._console.print(Text(without_control(line)))

    def close(self) -> None:
        for line in self._lines.flush():
            self._console.print(Text(without_control(line)))
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    # -- the live line -------------------------------------------------------------------------------------

    def beat(self, info: dict[str, Any]) -> None:
        self._epochs.loss = info.get("loss")
        bottleneck = self._bound.news(info)
        if bottleneck is not None:
            event = Event("bottleneck", str(info.get("time")))
            self._mark(event, "•", bottleneck.sentence, "")
            if bottleneck.advice:
                self._below("→", bottleneck.advice, "cyan")
        if self._live is not None:
            width = self._console.width - 3  # room for the ^C that a terminal echoes at the end of the line
            self._draw(
                Text(self._fit(live_line(info, width, self._state or self._held)), no_wrap=True, overflow="crop")
            )

    def _draw(self, text: Text) -> None:
        if self._live is not None:
            self._live.update(text, refresh=True)

    # -- lines that stay -----------------------------------------------------------------------------------

    def _mark(self, event: Event, sign: str, text: str, style: str, *, right: str = "") -> None:
        for line in marked_lines(local_time(event), sign, text, right, self._console.width):
            self._print(line, style)

    def _below(self, sign: str, text: str, style: str) -> None:
        first = f"{_INDENT}{sign} "
        room = max(20, self._console.width - 1)
        wrapped = textwrap.wrap(
            text, room, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
        )
        for line in wrapped or [first.rstrip()]:
            self._print(line, style)

    def _print(self, line: str = "", style: str = "") -> None:
        self._console.print(Text(self._fit(line), style=style))

    def _fit(self, text: str) -> str:
        return self.screen.fit(text)


# Pure text ------------------------------------------------------------------------------------------------


def header_lines(header: Header, width: int) -> list[str]:
    """Four lines: what runs, where it lives, how to look at it, what is not the default."""
    resumed = "" if header.resumed_from is None else f" · resumed at step {count(header.resumed_from)}"
    differs = ", ".join(header.differs)
    last = f"differs from default: {differs}" if differs else "all settings at their defaults"
    look = f"watch  holdfast watch {header.handle}"
    both = f"{look}      stop   holdfast stop {header.handle}"
    return [
        f"holdfast {header.version} · {header.workload} · {header.device} · seed {header.seed}{resumed}",
        f"run    {header.folder}",
        both if len(both) <= width else look,
        last if len(last) <= width else last[: width - 1] + "…",
    ]


def table_head(columns: list[str], width: int) -> list[str]:
    """Names and a rule; as many metrics as fit."""
    shown, _ = _fitting(columns, width)
    names = ["epoch", *shown, "saved", "time", "device"]
    widths = _widths(shown)
    right = [f"{name:>{size}}" for name, size in zip(names, widths, strict=True)]
    return [
        "  ".join([" " + right[0], *right[1:]]),
        "  ".join([" " + "─" * widths[0], *("─" * size for size in widths[1:])]),
    ]


def table_row(
    epoch: int,
    columns: list[str],
    values: dict[str, float | None],
    best: bool,
    seconds: float | None,
    device: str,
    width: int,
) -> str:
    shown, _ = _fitting(columns, width)
    cells = [
        count(epoch),
        *(metric(values[name]) if name in values else "" for name in shown),
        "+" if best else "",
        duration(seconds),
        device,
    ]
    sized = [f"{cell:>{size}}" for cell, size in zip(cells, _widths(shown), strict=True)]
    return ("  ".join([" " + sized[0], *sized[1:]])).rstrip()


def _widths(shown: list[str]) -> list[int]:
    return [6, *(max(11, len(name)) for name in shown), 6, 7, 7]


def _fitting(columns: list[str], width: int) -> tuple[list[str], int]:
    """The metrics that fit beside the other columns, and how many do not."""
    shown = list(columns)
    while shown and sum(_widths(shown)) + 2 * (len(shown) + 3) + 1 > width:
        shown.pop()
    return shown, len(columns) - len(shown)


def marked_lines(when: str, sign: str, text: str, right: str, width: int) -> list[str]:
    """A sign under a time of day, a text that goes on under itself, a code at the right edge."""
    first = f" {when}  {sign} "
    room = max(20, width - len(first) - (len(right) + 2 if right else 0) - 1)
    head, *rest = textwrap.wrap(text, room, break_long_words=False) or [""]
    line = f"{first}{head:<{room}}  {right}" if right else first + head
    return [line.rstrip(), *(" " * len(first) + more for more in rest)]


def live_line(info: dict[str, Any], width: int, state: str = "") -> str:
    """epoch 7/60 ━━━━━━━╸─────  41 %  492/1200  6.4 it/s  2h 48m left"""
    work = info.get("progress")
    phase = str(info.get("phase") or "")
    again = bool(info.get("step") and info.get("steps_total"))  # a worker that was replaced: the bar stays
    if phase == "setup" and isinstance(work, dict):
        label = str(work.get("label") or "preparing")
        return _bar_line(f" {label} ", _share(work.get("done"), work.get("total")), _of(work), width)
    if phase == "setup" and not again:
        return f" {state or 'setting up'}"
    epochs, batches = int(info.get("epochs") or 0), int(info.get("batches") or 0)
    epoch = int(info.get("epoch") or 0) + 1
    left = f" epoch {min(epoch, epochs)}/{epochs} " if epochs else f" step {count(info.get('step'))} "
    rate, remaining = info.get("rate"), info.get("time_left_s")
    words = [f"{info.get('batch')}/{batches}"] if batches else []
    words += [f"{rate_words(rate)}"] if rate else []
    words += [f"{duration(remaining)} left"] if remaining is not None else []
    doing = state or ({"evaluate": "evaluating", "save": "saving", "compile": "compiling"}.get(phase, ""))
    words += [doing] if doing else []
    return _bar_line(left, _share(info.get("batch"), batches), "  ".join(words), width)


def _bar_line(left: str, share: float | None, right: str, width: int) -> str:
    shown = f"{percent(share):>5}" if share is not None else ""
    tail = f"  {shown}  {right}".rstrip()
    room = min(60, width - len(left) - len(tail) - 1)
    bar = "" if share is None or room < 8 else _bar(share, room)
    return f"{left}{bar}{tail}"


def _bar(share: float, room: int) -> str:
    full = int(share * room)
    edge = "╸" if full < room and share > 0 else ""
    return "━" * full + edge + "─" * (room - full - len(edge))


def _share(done: object, total: object) -> float | None:
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return None
    return min(1.0, max(0.0, done / total))


def _of(work: dict[str, Any]) -> str:
    return f"{count(work.get('done'))}/{count(work.get('total'))}"


def rate_words(rate: float) -> str:
    """6.4 it/s; slow steps the other way round: 12 s/it."""
    if rate >= 100:
        return f"{rate:.0f} it/s"
    return f"{rate:.1f} it/s" if rate >= 0.95 else f"{duration(1 / rate)}/it"
