"""When a cell was run, and with which code: "2026-11-17 3c435154"."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def stamp() -> str:
    """The day, and the newest commit that changed src/; with a plus sign if src/ has changes of its own."""
    return f"{datetime.now(timezone.utc):%Y-%m-%d} {code()}"


@cache
def code() -> str:
    """Asked for once: a commit made during a run of hours does not change the code that was imported."""
    newest = _git("log", "-1", "--format=%h", "--abbrev=8", "--", "src")
    return f"{newest}{'+' if _git('status', '--porcelain', '--', 'src') else ''}" if newest else "of an unknown commit"


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()
