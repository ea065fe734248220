"""The picture for a large terminal: frames, curves with fault marks, devices, a lane a device, events.

fits(93, 30)                        # True: from here on there is room for it
for line in picture(scene, 93, 30): print(line)
"""

from __future__ import annotations

import functools
from datetime import datetime

from holdfast.base.human import metric, percent
from holdfast.monitor.terminal.curves import bar, curve, lane, marks
from holdfast.monitor.terminal.notes import Note
from holdfast.monitor.terminal.scene import Curve, Scene
from holdfast.monitor.terminal.small import bottleneck_lines, cut, device_lines, sides, with_plan, worth_showing

WIDE, HIGH = 90, 24
"""The smallest terminal it fits."""
_CHART = 44
"""Columns that a curve wants."""


def fits(width: int, height: int) -> bool:
    return width >= WIDE and height >= HIGH


def picture(
    scene: Scene, width: int, height: int, *, footer: tuple[str, str] = ("", ""), ascii: bool = False
) -> list[str]:
    """Exactly `height` lines of exactly `width` characters."""
    inner = width - 4
    head = [_progress(scene, inner), *_facts(scene, inner)]
    head += bottleneck_lines(scene, inner)
    head += [f"! {problem}" for problem in scene.problems[:2]]
    devices = device_lines(scene.devices[:6], inner)
    timeline = _timeline(scene, inner)
    fixed = 2 + len(head) + (1 + len(devices) if devices else 0) + (1 + len(timeline) if timeline else 0) + 1
    free = height - fixed
    chart_rows = 0 if not scene.curves else max(4, min(14, (free - 1) * 3 // 5))
    room = free - (1 + chart_rows if chart_rows else 0)
    lines = [_top(scene, width), *(_line(text, width) for text in head)]
    seam = ""
    if chart_rows:
        rule, rows, seam = _charts(scene.curves, width, chart_rows, ascii)
        lines += [rule, *rows]
    if devices:
        lines += [_rule("devices", width, seam), *(_line(text, width) for text in devices)]
        seam = ""
    if timeline:
        lines += [_rule("timeline", width, seam), *(_line(text, width) for text in timeline)]
        seam = ""
    shown = worth_showing(scene.notes, max(0, room))
    newest = next((note for note in shown if note.fault is not None), None)
    events = [_note(note, inner, asked=note is newest) for note in shown]
    lines += [_rule("events", width, seam), *(_line(text, width) for text in events)]
    lines += [_line("", width)] * (height - 1 - len(lines))
    return [*lines[: height - 1], _bottom(footer, width)]


def _top(scene: Scene, width: int) -> str:
    left = f"┌ holdfast ─ {cut(scene.name, 30)} ─ {cut(scene.workload, 20)} "
    right = f" {scene.state} {scene.lasted} ─ {scene.sign_of_life} ┐"
    return cut(left + "─" * max(1, width - len(left) - len(right)) + right, width)


def _bottom(footer: tuple[str, str], width: int) -> str:
    """└ ? help  q quit ───── read only ─┘"""
    left, right = footer
    text = f"└ {cut(left, width - len(right) - 8)} " if left else "└"
    end = f" {right} ─┘" if right else "─┘"
    return text + "─" * max(0, width - len(text) - len(end)) + end


def _rule(title: str, width: int, seam: str = "") -> str:
    """├ devices ─────┴──────┤, where the line above has a seam."""
    line = f"├ {title} "
    line += "─" * (width - 1 - len(line))
    cells = list(line)
    for at, char in enumerate(seam):
        if char == "│" and 0 < at < len(cells) and cells[at] == "─":
            cells[at] = "┴"
    return "".join(cells) + "┤"


def _line(text: str, width: int) -> str:
    return f"│ {cut(text, width - 4):<{width - 4}} │"


def _progress(scene: Scene, width: int) -> str:
    tail = "  ".join(part for part in (percent(scene.share), scene.left) if part and part != "-")
    room = width - len(scene.where) - len(tail) - 4
    middle = bar(scene.share, room) if scene.share is not None else ""
    return "  ".join(part for part in (scene.where, middle, tail) if part)


def _facts(scene: Scene, width: int) -> list[str]:
    facts = " · ".join([*scene.facts, *([scene.rate] if scene.rate else [])])
    if len(facts) + len(scene.trouble) + 2 <= width:
        return [sides(facts, scene.trouble, width), *([scene.plan] if scene.plan else [])]
    return [facts, *with_plan(scene.trouble, scene, width)]


def _charts(curves: list[Curve], width: int, rows: int, ascii: bool) -> tuple[str, list[str], str]:
    """The rule above the curves, their lines, and where the seams between them are."""
    number = max(1, min(len(curves), width // _CHART, 4))
    widths = [(width - 1) // number] * number
    widths[-1] += (width - 1) - sum(widths)
    rule, lines = "├", [""] * rows
    for at, (each, size) in enumerate(zip(curves[:number], widths, strict=True)):
        best = f" best {metric(each.best)} " if each.best is not None and size > 40 else ""
        whole = f"{each.name} ({each.about})" if each.about else each.name
        name = whole if len(whole) + len(best) <= size - 14 else each.name
        title = f" {cut(name, size - 20)} {metric(each.last)} "
        rule += title + "─" * max(0, size - 1 - len(title) - len(best)) + best
        rule += "┤" if at == number - 1 else "┬"
        drawn = _chart(each, size - 2, rows, ascii)
        lines = [f"{line}│ {cut(text, size - 2):<{size - 2}}" for line, text in zip(lines, drawn, strict=True)]
    seam = "".join("│" if char in "┬" else " " for char in rule)
    return rule, [line + "│" for line in lines], seam


@functools.lru_cache(maxsize=16)
def _chart(each: Curve, width: int, rows: int, ascii: bool) -> tuple[str, ...]:
    """Numbers at the left, the curve, and marks where faults were. Kept: it is drawn again and again."""
    known = [value for value in each.values if value == value and abs(value) != float("inf")]
    label = 8
    top, bottom = (metric(max(known)), metric(min(known))) if known else ("", "")
    room = max(4, width - label - 2)
    body = curve(each.values, room, rows, ascii=ascii)
    flags = marks(each.faults, room)
    if flags:  # over the curve, in its first row that is empty there, and else in the first
        body = _overlay(body, flags)
    labels = [top, *[""] * (rows - 2), bottom] if rows > 1 else [top]
    if top == bottom:
        labels = ["" if row != (rows - 1) // 2 else top for row in range(rows)]
    return tuple(f"{cut(text, label):>{label}} {line}" for text, line in zip(labels, body, strict=True))


def _overlay(body: list[str], flags: str) -> list[str]:
    lines = [list(line.ljust(len(flags))) for line in body]
    for at, flag in enumerate(flags):
        if flag == "▼":
            place = next((row for row in range(len(lines)) if lines[row][at] == " "), 0)
            below = next((row for row in range(len(lines)) if lines[row][at] != " "), None)
            row = below - 1 if below else place
            lines[max(0, row)][at] = "▼"
    return ["".join(line).rstrip() for line in lines]


def _timeline(scene: Scene, width: int) -> list[str]:
    rows = scene.lanes[:5]
    if not rows or scene.ends <= scene.began:
        return []
    label = max(7, *(len(row.device) for row in rows)) + 1
    room = width - label - 1
    lines = [
        f"{row.device:<{label}}" + lane(row.pieces, row.faults, scene.now, scene.began, scene.ends, room)
        for row in rows
    ]
    return [*lines, " " * label + _axis(scene, room)]


def _axis(scene: Scene, room: int) -> str:
    """09:12                    now                 12:22"""
    with_seconds = scene.ends - scene.began < 600
    form = "%H:%M:%S" if with_seconds else "%H:%M" if scene.ends - scene.began < 86400 else "%d. %H:%M"

    def clock(when: float) -> str:
        return datetime.fromtimestamp(when).strftime(form)

    begin, end = clock(scene.began), clock(scene.ends)
    cells = [" "] * room
    now = int((scene.now - scene.began) / (scene.ends - scene.began) * room)
    if scene.live and len(begin) + 2 < now < room - len(end) - 5:
        cells[now : now + 3] = list("now")
    cells[: len(begin)] = list(begin)
    cells[room - len(end) :] = list(end)
    return "".join(cells).rstrip()


def _note(note: Note, width: int, *, asked: bool) -> str:
    """`asked`: the fault that the enter key tells about."""
    text = f"{note.when}  {note.sign} {note.text}"
    right = f"{note.code}  enter: why" if asked else note.code
    return sides(text, right, width) if right else text
