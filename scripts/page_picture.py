#!/usr/bin/env python3
"""Photographs docs/pictures/page-light.png and page-dark.png: the page of a training that is hit three times.

    python scripts/page_picture.py        # about a minute on two cores; the run is real

The script is the one of README.md, the faults are those of terminal_picture.py. Nothing is kept unless all faults came
and the weights are those of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from browser import Browser, monitor
from pages import ROOT
from terminal_picture import COMMAND, script, typed

PLACE = ROOT / "docs" / "pictures"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-page-") as place:
        folder = Path(place)
        (folder / "my_script.py").write_text(script(), encoding="utf-8")
        text, code = typed(COMMAND, folder)
        if code or "bit for bit" not in text:
            print(f"error: that was no run to show (exit code {code}):\n{text}")
            return 1
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        newest = max((folder / "runs").iterdir(), key=lambda run: run.stat().st_ctime)
        with monitor(folder / "runs") as address:
            for name in ("light", "dark"):
                with Browser(width=1000, height=720, dark=name == "dark") as browser:
                    browser.go(address)
                    browser.go(f"{address.partition('?')[0]}r/{newest.name}")
                    browser.keep(PLACE / f"page-{name}.png")
                    print(f"docs/pictures/page-{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
