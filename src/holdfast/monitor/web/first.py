"""The first bytes of a page: where the runs stand, in plain HTML, before any script has come.

    of_run(head, body)             the page of a run with its sentence and its numbers in it
    of_list(listing, folder)       the page of all runs, or of those that are compared
    SCRIPT                         every script of the page as one file

A browser paints them as soon as they are there: one answer, with the style in it, and nothing to wait for. The scripts
come behind and draw the same again, with charts. Text from a run folder stays text: it is escaped here, and what the
scripts get of it is JSON that cannot end the element it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.base.human import count, duration, metric, percent
from holdfast.monitor.report import digest, inside_html

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("base", "chart", "timeline", "source", "panels", "world", "run", "runs", "compare", "main")
_STATES = {
    "STARTING": ("◌", "calm"), "RUNNING": ("●", "good"), "RECOVERING": ("↺", "warn"), "MOVED": ("⇢", "warn"),
    "PAUSED": ("‖", "warn"), "STOPPED": ("■", "calm"), "FINISHED": ("✓", "good"), "FAILED": ("✗", "bad"),
    "CRASHED": ("✗", "bad"), "GAVE_UP": ("✗", "bad"),
}  # fmt: skip
_MOST_VALUES = 12
THEMES = ("light", "dark")


class Script(NamedTuple):
    """All scripts in one file, and an address that changes with them."""

    text: str
    version: str


def _script() -> Script:
    text = "\n".join((STATIC / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return Script(text, sha256(text.encode()).hexdigest()[:16])


SCRIPT = _script()
_STYLE = (STATIC / "style.css").read_text(encoding="utf-8")
_PAGE = (STATIC / "page.html").read_text(encoding="utf-8")
STYLE_DIGEST = digest(_STYLE)


def of_run(head: Mapping[str, Any], body: Mapping[str, Any], theme: str = "") -> str:
    """The page of a run. Whoever has chosen dark shall not see a flash of light."""
    name = str(head["run"])
    return _page(f"{name} · holdfast", name, _lead(head) + _values(head), {"head": head, "body": body}, theme)


def of_list(listing: Mapping[str, Any], folder: str, theme: str = "") -> str:
    """Every run, as the hub lists them."""
    rows = list(listing["runs"])
    shown = _table(rows) if rows else f'<p class="muted">There are no runs in {escape(folder)} yet.</p>'
    card = f'<section class="card"><div class="title"><h2>Runs</h2></div>{shown}</section>'
    return _page("runs · holdfast", "runs", card, {**listing, "runs": rows, "folder": folder}, theme)


def of_some(rows: Iterable[Mapping[str, Any]], theme: str = "") -> str:
    """Runs that are compared: what is known of each at a glance. Their curves come later."""
    rows = list(rows)
    lead = f'<section class="lead"><h1 class="sentence">{len(rows)} runs, side by side.</h1></section>'
    card = f'<section class="card">{_table(rows)}</section>'
    return _page("compare · holdfast", "compare", lead + card, None, theme)


def of_nothing(name: str, theme: str = "") -> str:
    """A run that is not here; the scripts say so."""
    return _page("holdfast", name, '<p class="muted">reading the run folder …</p>', None, theme)


def _page(title: str, here: str, main: str, data: Any, theme: str) -> str:
    parts = {
        "title": escape(title),
        "theme": f' data-theme="{theme}"' if theme in THEMES else "",
        "style": _STYLE,
        "here": escape(here),
        "main": main,
        "data": "" if data is None else _data(data),
        "script": f"/static/all.js?v={SCRIPT.version}",
    }
    pieces = _PAGE.split("@@")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def _data(data: Any) -> str:
    return f'<script type="application/json" id="first-data">{inside_html(data)}</script>'


def _badge(state: object) -> str:
    sign, kind = _STATES.get(str(state), ("?", "calm"))
    return f'<span class="badge {kind}"><span class="sign" aria-hidden="true">{sign}</span>{escape(str(state))}</span>'


def _lead(head: Mapping[str, Any]) -> str:
    """As run.js draws it."""
    share = 1.0 if head["state"] == "FINISHED" else head["share"]
    problems = "".join(f'<p class="problem"><b>! </b>{escape(str(each))}</p>' for each in head["problems"])
    facts = "".join(
        f'<span class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></span>' for value, name in _facts(head)
    )
    bound = head["bottleneck"] or {}
    told = "; ".join(str(bound[key]) for key in ("sentence", "advice") if bound.get(key))
    return (
        '<section class="lead" aria-label="status of the run">'
        f'<div class="eyebrow">{_badge(head["state"])} {escape(str(head["workload"] or ""))} · '
        f"{escape(str(head['run']))}</div>"
        f'<h1 class="sentence">{escape(head["sentence"])}</h1><p class="verdict">{escape(head["verdict"] or "")}</p>'
        f'<div class="problems">{problems}</div><div class="band"><div class="track">'
        f'<svg class="done" width="{_width(share)}" aria-hidden="true"></svg></div>'
        f'<div class="facts">{facts}</div></div>'
        f'<p class="bottleneck">{escape(told)}</p></section>'
    )


def _facts(head: Mapping[str, Any]) -> list[tuple[str, str]]:
    progress, best = head["progress"], head["best"]
    share = 1.0 if head["state"] == "FINISHED" else head["share"]
    of = f"/{count(progress['of'])}" if progress["of"] and progress["of"] != progress["step"] else ""
    epoch = f"{progress['epoch']}/{progress['epochs']}" if progress["epoch"] and progress["epochs"] else None
    step = head["checkpoint"]["step"]
    plan = head["plan"] or {}
    took = "time so far" if head["live"] else "total time"
    found = [
        (None if share is None else percent(share), "done"),
        (epoch, "epoch"),
        (None if progress["step"] is None else count(progress["step"]) + of, "step"),
        (None if progress["rate"] is None else metric(progress["rate"]), "steps/s"),
        (None if progress["time_left_s"] is None else duration(progress["time_left_s"]), "time left"),
        (None if head["lasted_s"] is None else duration(head["lasted_s"]), took),
        (head["device"], "device"),
        (None if step is None else f"step {count(step)}", "last save"),
        (metric(best["value"]) if best else None, f"best {best['name']}" if best else ""),
        (plan.get("time") or None, f"planned time for {plan['option']}" if plan.get("option") else "planned time"),
    ]
    return [(str(value), name) for value, name in found if value is not None]


def _values(head: Mapping[str, Any]) -> str:
    """The last of each metric, where its chart will be."""
    shown = list(head["metrics"].items())[:_MOST_VALUES]
    if not shown:
        return ""
    facts = "".join(
        f'<span class="fact"><b>{escape(metric(value))}</b><span>{escape(str(name))}</span></span>'
        for name, value in shown
    )
    title = '<div class="title"><h2>Charts</h2></div>'
    return f'<section class="card" aria-busy="true">{title}<div class="facts">{facts}</div></section>'


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    names = ("run", "state", "progress", "time left", "device", "best", "faults")
    heads = "<td></td>" + "".join(f'<th scope="col">{name}</th>' for name in names)  # a box to choose it comes there
    return (
        f'<div class="scroll"><table class="list runs"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(map(_row, rows))}</tbody></table></div>"
    )


def _row(row: Mapping[str, Any]) -> str:
    share = 1.0 if row["state"] == "FINISHED" else row["share"]
    faults, best = row["faults"], row["best"] or {"value": None, "name": ""}
    cells = [
        f'<a class="name" href="/r/{quote(str(row["id"]), safe="")}">{escape(str(row["run"]))}</a>'
        f'<span class="muted small"> {escape(str(row["workload"] or ""))}</span>',
        _badge(row["state"]),
        f'<span class="bar-cell"><span class="mini"><svg class="fill" width="{_width(share)}"></svg></span>'
        f'<span class="small">{percent(share)} <span class="muted">{count(row["step"])}</span></span></span>',
        duration(row["time_left_s"]) if row["live"] else "",
        escape(str(row["device"] or "-")),
        f'{escape(metric(best["value"]))} <span class="muted small">{escape(str(best["name"]))}</span>'
        if best
        else "-",
        "-" if faults is None else str(faults) if faults else "none",
    ]
    return f"<tr><td></td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _width(share: float | None) -> str:
    known = share is not None and math.isfinite(share)
    return f"{100 * min(1.0, max(0.0, share or 0.0)):.1f}%" if known else "0"
