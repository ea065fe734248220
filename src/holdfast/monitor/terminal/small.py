"""The picture for a small terminal, and for `holdfast watch -1`: what matters most is left out last.

for line in picture(scene, 80, 24): print(line)

calm-heron · eeg · RUNNING 1h 02m                                  live ● 0.8 s
epoch 20/60 ━━━━━━━━━━━╸──────────────────────── 32 %   2h 08m left   6.4 it/s
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.human import metric, percent, size, sparkline
from holdfast.monitor.terminal.curves import bar, gauge, lane
from holdfast.monitor.terminal.notes import Note
from holdfast.monitor.terminal.scene import Curve, DeviceRow, Scene

_NUMBERS = (3, 4, 5)
"""Columns of the devices that stand at the right."""
Part = tuple[int, list[str]]
"""How easily it is left out (0 never), and its lines."""


def picture(scene: Scene, width: int = 80, height: int | None = None, *, events: int = 4) -> list[str]:
    """At most `height` lines of at most `width` characters; without a height, all of it."""
    parts: list[Part] = [
        (0, [sides(heading(scene, width - len(scene.sign_of_life) - 2), scene.sign_of_life, width)]),
        (0, [progress(scene, width)]),
        (6, [""]),
        *((1 if number == 0 else 3, [curve_line(curve, width)]) for number, curve in enumerate(scene.curves[:4])),
        (6, [""] if scene.curves else []),
        *((4, [line]) for line in device_lines(scene.devices[:4], width)),
        (6, [""] if scene.devices else []),
        *((2, [line]) for line in fact_lines(scene, width)),
        *((3, [line]) for line in bottleneck_lines(scene, width)),
        (0, [f"! {problem}" for problem in scene.problems[:2]]),
        (5, lanes(scene, width)),
    ]
    lines = fitted(parts, None if height is None else height - 1)
    room = events if height is None else max(0, height - len(lines))
    lines += [note_line(note, width) for note in worth_showing(scene.notes, room)]
    return [cut(line, width) for line in lines]


def fitted(parts: list[Part], height: int | None) -> list[str]:
    """The lines of the parts, without those most easily left out where there are too many."""
    kept = [(ease, line) for ease, lines in parts for line in lines]
    while height is not None and len(kept) > max(2, height):
        worst = max(ease for ease, _ in kept)
        if worst == 0:
            break
        last = max(at for at, (ease, _) in enumerate(kept) if ease == worst)
        del kept[last]
    return [line for _, line in kept]


def worth_showing(notes: list[Note], room: int) -> list[Note]:
    """The newest that fit; ends of epochs and saves only where there is room to spare."""
    telling = [note for note in notes if note.sign != "·"]
    return telling[:room] if len(telling) >= room else notes[:room]


def fact_lines(scene: Scene, width: int) -> list[str]:
    """Where it stands and what went wrong; on two lines where one is too short."""
    facts = " · ".join(scene.facts)
    both = f"{facts} · {scene.trouble}"
    lines = [both] if len(both) <= width or not facts else [facts, scene.trouble]
    return [*lines[:-1], *with_plan(lines[-1], scene, width)]


def with_plan(line: str, scene: Scene, width: int) -> list[str]:
    """A line, and what the plan said: behind it where there is room, else below."""
    if not scene.plan:
        return [line]
    both = f"{line} · {scene.plan}"
    return [both] if len(both) <= width else [line, scene.plan]


def bottleneck_lines(scene: Scene, width: int) -> list[str]:
    """One line, or two where one is too short."""
    found = scene.bottleneck
    if found is None:
        return []
    if len(found.line) <= width or not found.advice:
        return [found.line]
    return [found.sentence, f"  {found.advice}"]


def heading(scene: Scene, room: int) -> str:
    """The name and the state; what it trains, where there is room for that too."""
    state = f"{scene.state} {scene.lasted}"
    whole = f"{scene.name} · {scene.workload} · {state}"
    return whole if len(whole) <= room else f"{scene.name} · {state}"


def progress(scene: Scene, width: int) -> str:
    """epoch 20/60 ━━━━━╸──── 32 %   2h 08m left   6.4 it/s"""
    parts = [part for part in (percent(scene.share), scene.left, scene.rate) if part and part != "-"]
    while len(parts) > 1 and len("   ".join(parts)) + len(scene.where) + 1 > width:
        parts.pop()
    tail = "   ".join(parts)
    room = width - len(scene.where) - len(tail) - 2
    middle = bar(scene.share, room) if scene.share is not None and room >= 5 else ""
    return " ".join(part for part in (scene.where, middle, tail) if part)


def curve_line(curve: Curve, width: int) -> str:
    """train_loss  ▇▆▅▅▄▄▃▃▃▂▂▂▂▁▁▁▁▁   0.693 → 0.412   best 0.409 @ epoch 18"""
    name = f"{cut(curve.name, 12):<11} "
    course = f"{metric(curve.first)} → {metric(curve.last)}"
    best = f"best {metric(curve.best)} @ {curve.best_at}" if curve.best is not None else ""
    room = width - len(name) - len(course) - 3
    spark = min(20, room - len(best) - 3)
    if spark < 8:
        best, spark = "", min(20, room)
    picture = f"{sparkline(list(curve.values), spark):<{spark}}" if spark >= 4 else ""
    return f"{name}{picture}  {course}   {best}".rstrip()


def device_lines(rows: list[DeviceRow], width: int) -> list[str]:
    """cuda:0  RX 7900 XTX  ▮▮▮▮▮▮▮▮▮· 94 %  18.1/24.0 GB  78 °C  288 W  use with care

    Columns are as wide as they need to be. One nobody can fill is not there; names go first where there is no room.
    """
    cells = []
    for row in rows:
        load = f"{gauge(row.load)} {percent(row.load):>5}" if row.load is not None else ""
        cells.append([row.device, cut(row.name, 24), load, *readings(row), row.trust])
    for gap, leave_out in ((3, ()), (2, ()), (2, (1,)), (2, (1, 5)), (2, (1, 5, 6)), (1, (1, 2, 5, 6))):
        lines = _columns(cells, gap, leave_out)
        if max(map(len, lines), default=0) <= width:
            break
    return [cut(line, width) for line in lines]


def _columns(cells: list[list[str]], gap: int, leave_out: Sequence[int]) -> list[str]:
    shown = [at for at in range(7) if at not in leave_out and any(line[at] for line in cells)]
    widths = {at: max(len(line[at]) for line in cells) for at in shown}
    aligned = [
        [f"{line[at]:>{widths[at]}}" if at in _NUMBERS else f"{line[at]:<{widths[at]}}" for at in shown]
        for line in cells
    ]
    return [(" " * gap).join(line).rstrip() for line in aligned]


def readings(row: DeviceRow) -> list[str]:
    """Memory, temperature, power; what is unknown is left out."""
    memory = ""
    if row.memory_total:
        total = size(row.memory_total)
        used = size(row.memory_used) if row.memory_used is not None else None
        same = used is not None and used.split(" ")[-1] == total.split(" ")[-1]
        memory = f"{used.split(' ')[0]}/{total}" if same and used else f"{used}/{total}" if used else total
    heat = "" if row.temperature_c is None else f"{row.temperature_c:.0f} °C"
    power = "" if row.power_w is None else f"{row.power_w:.0f} W"
    return [memory, heat, power]


def lanes(scene: Scene, width: int) -> list[str]:
    rows = scene.lanes[:4]
    if not rows or scene.ends <= scene.began:
        return []
    label = max(7, *(len(row.device) for row in rows)) + 1
    return [
        f"{row.device:<{label}}"
        + lane(row.pieces, row.faults, scene.now, scene.began, scene.ends, max(10, width - label))
        for row in rows
    ]


def note_line(note: Note, width: int) -> str:
    text = f"{note.when} {note.sign} {note.text}"
    return sides(text, note.code, width) if note.code else text


def sides(left: str, right: str, width: int) -> str:
    """Two texts at the two edges; the right one goes first where there is no room."""
    room = width - len(right) - 2
    if room < 16:
        return cut(left, width)
    return f"{cut(left, room):<{room}}  {right}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
