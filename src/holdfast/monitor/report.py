"""One HTML file about a run: it opens without a network, can be mailed, and holds the charts, faults, receipt and log.

    write(run, path)       # the page of the run, with its scripts, styles and numbers inside

The same scripts as the live page, put inline and named by their digests in the page's own content policy, so that a
browser runs these and nothing that a run folder may have smuggled into the data.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from holdfast.base.folders import write_whole
from holdfast.monitor import payload, scenes
from holdfast.monitor.logs import clean
from holdfast.monitor.places import open_inside
from holdfast.monitor.reader import Run

STATIC = Path(__file__).parent / "web" / "static"
SCRIPTS = ("base.js", "chart.js", "timeline.js", "source.js", "panels.js", "world.js", "run.js", "main.js")
POINTS = 2000
"""Points a curve: as many as two screens are wide."""
LOG_LINES = 1000
MOST_FAULTS = 30
MOST_TEXT = 32 << 10
MOST_TEXTS = 3 << 20
MOST_PICTURES = 12 << 20
_READABLE = (".txt", ".json", ".log")


def write(run: Run, path: Path) -> int:
    """Write the report whole or not at all; returns its bytes."""
    data = html(run).encode()
    write_whole(path, data)
    return len(data)


def html(run: Run) -> str:
    """The page as text."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; img-src data: blob:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(run.name)} · holdfast</title>
<style>{style}</style>
</head>
<body>
<header id="top"></header>
<main id="main" tabindex="-1"></main>
<noscript><p>{escape(payload.summary(run))}</p><p>The charts of this report need JavaScript.</p></noscript>
<script type="application/json" id="report-data">{inside_html(data(run))}</script>
<script>{script}</script>
</body>
</html>
"""


def data(run: Run) -> dict[str, Any]:
    """Everything the page shows, as the server would have given it."""
    head = payload.head(run, run.path.name)
    body = payload.body(run)
    keys = [line["key"] for chart in head["charts"] for line in chart["lines"]]
    texts = _texts(run, [file["path"] for file in body["files"]])
    for file in body["files"]:
        file["shown"] = file["path"] in texts
    return {
        "schema": 1,
        "head": head,
        "body": body,
        "series": payload.series(run, keys, POINTS),
        "log": run.log_tail(LOG_LINES),
        "texts": texts,
        "world": scenes.world(run.world),
        "pictures": _pictures(run, body["pictures"]),
    }


def _pictures(run: Run, named: list[dict[str, Any]]) -> dict[str, str]:
    """Films and images as part of the file, as many as can still be mailed."""
    found: dict[str, str] = {}
    room = MOST_PICTURES
    for each in named:
        try:
            kind, data = scenes.read_picture(run.path, each["path"])
        except OSError:
            continue
        room -= len(data)
        if room < 0:
            break
        found[each["path"]] = f"data:{kind};base64,{b64encode(data).decode()}"
    return found


def _texts(run: Run, paths: list[str]) -> dict[str, str]:
    """The evidence of the newest faults, and the small files: the beginning of each, within bounds."""
    folders = [fault.folder for fault in run.faults[-MOST_FAULTS:] if fault.folder]
    wanted = [path for path in paths if path.rpartition("/")[0] in folders and path.endswith(_READABLE)]
    wanted += [path for path in ("receipt.json", "run.json", "traceback.txt") if path in paths]
    found: dict[str, str] = {}
    room = MOST_TEXTS
    for path in wanted:
        try:
            with open_inside(run.path, path) as file:
                text = file.read(MOST_TEXT).decode(errors="replace")
        except OSError:
            continue
        room -= len(text)
        if room < 0:
            break
        found[path] = "\n".join(map(clean, text.split("\n")))
    return found


def digest(text: str) -> str:
    """A script or style as a content policy names it."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def inside_html(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
