"""Where the time goes as a picture: a flame graph in plain HTML, without scripts.

picture(rows, whole=0.103)        # what is inside of what stands below it; a line above it is its share of 103 ms

Layers are placed by the dots or slashes in their names; nodes without either stand under their kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import Any

DEEPEST = 6
SMALLEST = 0.004
"""Shares of the whole below this are drawn together."""
COLOURS = ("#0072b2", "#b14f00", "#007a59", "#8f5aa8", "#7a6a00", "#56708a", "#a34a6b", "#4a7c59")
STYLE = """
.flame{margin:.3rem 0 1rem}.flame .scale{height:5px;background:#67707a;margin-bottom:3px}
.flame div{min-width:0}.flame .row{display:flex}.flame .bar{overflow:hidden;height:19px;
font-size:11px;line-height:17px;color:#fff;padding:1px 0 1px 4px;white-space:nowrap;border-right:1px solid #fff;
border-bottom:1px solid #fff;box-sizing:border-box}
"""


@dataclass
class Node:
    """A part of a name, and the time of all that begins with it."""

    name: str
    seconds: float = 0.0
    inside: dict[str, Node] = field(default_factory=dict)


def tree(rows: list[dict[str, Any]]) -> Node:
    """The rows of a profile, put into each other."""
    whole = Node("all")
    for row in rows:
        seconds, at = float(row["seconds"]), whole
        whole.seconds += seconds
        for part in _path(str(row["layer"]), str(row["kind"])):
            at = at.inside.setdefault(part, Node(part))
            at.seconds += seconds
    return whole


def _path(layer: str, kind: str) -> list[str]:
    parts = [part for part in re.split(r"[./]+", layer) if part]
    if len(parts) < 2:
        parts = [kind, layer]
    return parts[:DEEPEST]


def picture(rows: list[dict[str, Any]], whole: float) -> str:
    """The graph, and above it a line as long as its share of the whole."""
    root = tree(rows)
    if root.seconds <= 0 or whole <= 0:
        return ""
    width = min(100.0, 100 * root.seconds / whole)
    line = f'<div class=scale style="width:{width:.2f}%"></div>'
    return f"<div class=flame>{line}<div class=row>{_level(root, root.seconds, 0)}</div></div>"


def _level(parent: Node, whole: float, shade: int) -> str:
    told, rest = [], 0.0
    children = sorted(parent.inside.values(), key=lambda each: -each.seconds)
    for number, each in enumerate(children):
        if each.seconds < SMALLEST * whole:
            rest += each.seconds
            continue
        told.append(_block(each, parent.seconds, whole, shade + number))
    if rest > 0:
        told.append(_block(Node("…", rest), parent.seconds, whole, shade + len(told)))
    return "".join(told)


def _block(each: Node, parent_s: float, whole: float, shade: int) -> str:
    share = 100 * each.seconds / parent_s if parent_s else 0.0
    title = escape(f"{each.name} · {1000 * each.seconds:.3g} ms · {100 * each.seconds / whole:.1f} %", quote=True)
    name = each.name
    while len(each.inside) == 1:  # a name that holds one other and nothing else is drawn with it
        only = next(iter(each.inside.values()))
        if only.seconds < 0.999 * each.seconds:
            break
        name, each = f"{name}.{only.name}", only
    below = f"<div class=row>{_level(each, whole, shade)}</div>" if each.inside else ""
    return (
        f'<div style="width:{share:.2f}%"><div class=bar style="background:{COLOURS[shade % len(COLOURS)]}" '
        f'title="{title}">{escape(name)}</div>{below}</div>'
    )
