"""The part `idioms` of bench.py: ordinary PyTorch idioms under kills; the table of docs/idioms.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from common import ROOT, Bound, exactly


def idioms(scratch: Path, quick: bool) -> dict[str, Any]:
    """Each idiom in each way: equal, a clear error, or neither."""
    sys.path.insert(0, str(ROOT))
    from tests.idioms import table

    folder = scratch / "idioms"
    folder.mkdir()
    cells = table.measure(folder, "accumulation by hand" if quick else "")
    if not quick:
        table.PAGE.write_text(table.page(cells), encoding="utf-8")
    return {"idioms": len(cells), "cells": cells}


def idioms_bounds(measured: dict[str, Any]) -> list[Bound]:
    differing = sum("DIFFERS" in cell[0] for row in measured["cells"].values() for cell in row.values())
    return [exactly("cells that differ silently", differing, 0)]
