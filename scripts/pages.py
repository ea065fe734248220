"""What the scripts that make a page of docs/ have in common: where things are, and writing or checking the page.

from pages import keep                                # first: it lets the script import holdfast from src/
sys.exit(keep("faults.md", render(), sys.argv[1:]))   # 1 with --check and a page that is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))


def said(row: Any) -> Iterator[str]:
    """What `holdfast explain` says about a fault or a finding, as paragraphs."""
    for heading, text in (
        ("What was seen", row.seen),
        ("What it means for you", row.means),
        ("What holdfast does", row.does),
        ("What you can do", row.you_can),
    ):
        yield f"**{heading}.** {text}"
        yield ""


def keep(name: str, text: str, argv: list[str]) -> int:
    """Write docs/NAME, or with `--check` only say whether it is as it should be."""
    page = ROOT / "docs" / name
    if argv == ["--check"]:
        return 0 if page.exists() and page.read_text(encoding="utf-8") == text else 1
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8", newline="\n")
    print(page.relative_to(ROOT))
    return 0
