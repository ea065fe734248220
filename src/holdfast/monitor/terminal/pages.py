"""Pages beside the picture: events, why, log, one curve, runs, help. Lines of text, cut to the terminal.

page = events(scene.notes, width, height, cursor=3)
keys(KEYS)                                # the help page is made from the table of keys, so it cannot lie
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.base.files import read_json
from holdfast.base.human import count, duration, metric, percent
from holdfast.monitor.reader import Run
from holdfast.monitor.story import Fault
from holdfast.monitor.terminal.curves import curve, marks
from holdfast.monitor.terminal.notes import Note, clean
from holdfast.monitor.terminal.scene import Curve, trouble
from holdfast.monitor.terminal.small import cut, sides


class Key(NamedTuple):
    """A key, what the bottom line calls it, and what it does."""

    key: str
    shown: str
    short: str
    does: str


KEYS = (
    Key("question_mark", "?", "help", "this page"),
    Key("left", "←→", "run", "the run before, the run after"),
    Key("tab", "tab", "page", "the next page: picture, events, log, graph, runs"),
    Key("e", "e", "events", "everything that happened; ↑↓ choose"),
    Key("enter", "enter", "why", "why the chosen fault happened, and what holdfast did"),
    Key("l", "l", "log", "what the script printed"),
    Key("g", "g", "graph", "one metric, large; g again: the next metric"),
    Key("r", "r", "runs", "every run; ↑↓ choose, enter opens"),
    Key("slash", "/", "filter", "show only lines with these words; escape: all again"),
    Key("w", "w", "web", "how to see this run in a browser"),
    Key("d", "d", "light", "light or dark colours"),
    Key("escape", "esc", "back", "back to the picture"),
    Key("q", "q", "quit", "leave; the run goes on"),
)


def footer(width: int, read_only: bool = True) -> tuple[str, str]:
    """As many keys as fit, and what may be done here."""
    right = "read only" if read_only else "s stop"
    wanted = [key for key in KEYS if key.short in ("help", "run", "events", "why", "log", "graph", "filter", "web")]
    words = [f"{key.shown} {key.short}" for key in wanted]
    while words and len("  ".join([*words, "q quit"])) + len(right) + 2 > width:
        words.pop(-1)
    return "  ".join([*words, "q quit"]), right


def window(lines: Sequence[str], height: int, cursor: int | None = None) -> tuple[int, Sequence[str]]:
    """The part of a list that is seen, with the chosen line in it."""
    if cursor is None or len(lines) <= height:
        return 0, lines[:height]
    first = max(0, min(cursor - height // 2, len(lines) - height))
    return first, lines[first : first + height]


def matching(lines: Iterable[str], wanted: str) -> list[str]:
    return [line for line in lines if wanted.lower() in line.lower()] if wanted else list(lines)


def chosen_notes(notes: Sequence[Note], wanted: str) -> list[Note]:
    return [note for note in notes if wanted.lower() in f"{note.text} {note.code}".lower()] if wanted else list(notes)


def events(notes: Sequence[Note], width: int, height: int, cursor: int) -> list[str]:
    """One a line, the newest first, the chosen one marked."""
    if not notes:
        return ["no events"]
    lines = []
    for at, note in enumerate(notes):
        pointer = "▸" if at == cursor else " "
        text = f"{pointer} {note.when}  {note.sign} {note.text}"
        right = f"{note.code}  enter: why" if note.code and at == cursor else note.code
        lines.append(sides(text, right, width) if right else cut(text, width))
    return list(window(lines, height, cursor)[1])


def why(run: Run, fault: Fault, explanation: Sequence[str], width: int) -> list[str]:
    """What is known about one fault: what happened, whose fault it was, what followed, what was kept."""
    rows = [
        ("what", fault.sentence),
        ("where", _place(fault)),
        ("blame", fault.blame_sentence or fault.blame or "not decided"),
        ("then", fault.reason),
        ("after", _after(fault)),
        ("kept", _kept(run.path, fault)),
    ]
    lines = [f"{clean(fault.code) or 'fault'} · {clean(fault.kind)}", ""]
    for label, text in rows:
        if text:
            lines += textwrap.wrap(
                clean(text), width - 2, initial_indent=f"  {label:<7}", subsequent_indent=" " * 9
            ) or [f"  {label}"]
    lines += _found(run.path, fault, width)
    if explanation:
        lines += ["", *(cut(line, width) for line in explanation)]
    return lines


def _place(fault: Fault) -> str:
    parts = [fault.device or "", f"step {count(fault.step)}" if fault.step is not None else ""]
    return ", ".join(part for part in [*parts, f"in {fault.phase}" if fault.phase else ""] if part)


def _after(fault: Fault) -> str:
    if not fault.recovered:
        return "not recovered"
    if fault.recovered_s is None:
        return "recovered within the step"
    lost = f", {duration(fault.lost_s)} lost" if fault.lost_s else ""
    return f"training again after {duration(fault.recovered_s)}{lost}"


def _kept(folder: Path, fault: Fault) -> str:
    if not fault.folder:
        return ""
    try:
        names = sorted(entry.name for entry in (folder / fault.folder).iterdir() if entry.is_file())
    except OSError:
        return f"{fault.folder} cannot be read"
    return f"{fault.folder}: {', '.join(names[:12])}"


def _found(folder: Path, fault: Fault, width: int) -> list[str]:
    """The evidence of fault.json, a line a value; long ones stay in the file."""
    if not fault.folder:
        return []
    record = read_json(folder / fault.folder / "fault.json") or {}
    inner = record.get("fault")
    evidence = inner.get("evidence") if isinstance(inner, dict) else None
    if not isinstance(evidence, dict) or not evidence:
        return []
    rows = [
        f"  {clean(key)}: {clean(value if isinstance(value, str) else json.dumps(value))}"
        for key, value in evidence.items()
    ]
    return ["", "What was found", *(cut(row, width) for row in rows[:12])]


def log(lines: Sequence[str], width: int, height: int, back: int) -> list[str]:
    """The end of the log, or `back` lines before it."""
    if not lines:
        return ["the script has printed nothing"]
    end = max(min(height, len(lines)), len(lines) - back)
    return [cut(clean(line), width) for line in lines[max(0, end - height) : end]]


def graph(each: Curve, width: int, height: int, *, ascii: bool) -> list[str]:
    """One metric over the whole page."""
    known = [value for value in each.values if value == value and abs(value) != float("inf")]
    if not known:
        return [each.name, "", "nothing was logged under this name yet"]
    rows = max(2, height - 3)
    room = max(10, width - 11)
    body = curve(each.values, room, rows, ascii=ascii)
    low, high = min(known), max(known)
    named = {*range(0, rows - 3, 4), 0, rows - 1}  # the last two are not closer to each other than the rest
    labels = [metric(high - (high - low) * row / (rows - 1)) if row in named else "" for row in range(rows)]
    name = f"{each.name} ({each.about})" if each.about else each.name
    title = f"{name}   {metric(each.first)} → {metric(each.last)}   best {metric(each.best)} @ {each.best_at}"
    lines = [f"{cut(label, 9):>9} {line}" for label, line in zip(labels, body, strict=True)]
    axis = sides(f"step {count(each.steps[0])}", f"step {count(each.steps[1])}", room) if each.steps else ""
    return [cut(title, width), " " * 10 + marks(each.faults, room), *lines, " " * 10 + axis]


def runs(rows: Sequence[Run], width: int, height: int, cursor: int) -> list[str]:
    """Every run, one a line; a column is as wide as its longest word.

    Where that is too wide for the terminal, the time that was lost is left out, and then what the runs train.
    """
    cells = []
    for at, run in enumerate(rows):
        progress = run.progress
        left = duration(progress.time_left_s) + " left" if progress.time_left_s is not None else duration(run.lasted_s)
        pointer = "▸" if at == cursor else " "
        where = clean(run.device or "-")
        share = f"{percent(progress.share):>5}"
        name = f"{pointer} {clean(run.name)}"
        cells.append((name, clean(run.workload or "-"), run.state, where, share, left, trouble(run)))
    if not cells:
        return ["no runs"]
    lines = _aligned(cells)
    for without, gap in (((), 2), ((1,), 2), ((1,), 1)):
        if max(map(len, lines)) <= width:
            break
        short = [(*row[:-1], row[-1].partition(" · ")[0]) for row in cells]
        lines = _aligned([tuple(word for at, word in enumerate(row) if at not in without) for row in short], gap)
    return list(window([cut(line, width) for line in lines], height, cursor)[1])


def _aligned(cells: Sequence[tuple[str, ...]], gap: int = 2) -> list[str]:
    """Columns as wide as their longest word; the last one is as long as it is."""
    widest = [min(24, max(map(len, column))) for column in zip(*cells, strict=True)]
    between = " " * gap
    return [
        between.join(
            [*(f"{cut(word, wide):<{wide}}" for word, wide in zip(row[:-1], widest[:-1], strict=True)), row[-1]]
        )
        for row in cells
    ]


def keys(read_only: bool) -> list[str]:
    lines = ["holdfast watch", "", *(f"  {key.shown:<7} {key.does}" for key in KEYS)]
    if not read_only:
        lines.append("  s       stop this run, with its state saved; asks first")
    note = "It only reads: nothing here changes a run." if read_only else "Started with --control: `s` can stop a run."
    return [*lines, "", note]
