#!/usr/bin/env python3
"""Write the tables of measurements in docs/doctor.md from the results that are kept.

python scripts/make_tester_docs.py             write them
python scripts/make_tester_docs.py --check     exit 1 if they are out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pages import ROOT, keep

RESULT = "testers-cpu.json"
FIRST = "<!-- Made by scripts/make_tester_docs.py from benchmarks/results/: edit there. -->"
LAST = "<!-- End of what was made. -->"
TESTERS = {
    "is_available": "`torch.cuda.is_available()`",
    "collect_env": "`torch.utils.collect_env`",
    "accelerate test": "`accelerate test`",
    "doctor": "`holdfast doctor`",
}


def render() -> str:
    """The whole page, with its tables made anew."""
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(FIRST)
    _, _, after = rest.partition(LAST)
    kept: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / RESULT).read_text(encoding="utf-8"))
    return "".join([before, FIRST, "\n\n", "\n".join(_table(kept)), "\n\n", LAST, after])


def _table(kept: dict[str, Any]) -> Iterator[str]:
    measured, versions = kept["measured"], kept["versions"]
    yield f"| the device has | {' | '.join(TESTERS.values())} | what the doctor says |"
    yield f"|---|{'---|' * (len(TESTERS) + 1)}"
    for name, row in measured["rows"].items():
        answers = " | ".join(_answer(row[tester]) for tester in TESTERS)
        yield (
            f"| {name} wrong | {answers} | {_said(row['doctor'])} |"
            if name == "nothing"
            else (f"| {name} | {answers} | {_said(row['doctor'])} |")
        )
    total = measured["behaviours"]
    counts = " | ".join(f"**{measured['noticed'][tester]} of {total}**" for tester in TESTERS)
    yield f"| **noticed** | {counts} | |"
    yield ""
    yield (
        f"Measured on {kept['date']} with torch {versions['torch']} and accelerate {versions['accelerate']} by "
        f"`{kept['command']}`."
    )


def _answer(row: dict[str, Any]) -> str:
    if row["noticed"] == "yes" and row.get("set") == "full":
        return "yes, with `--full`"
    return str(row["noticed"])


def _said(row: dict[str, Any]) -> str:
    """Its findings by their codes, each a link, and the verdict."""
    codes = [each.partition(" ")[0] for each in row["findings"]]
    links = ", ".join(f"[{code}](findings/{code}.md)" for code in codes)
    verdict = str(row["verdict"]).replace("_", " ")
    return f"{verdict}: {links}" if links else verdict


if __name__ == "__main__":
    sys.exit(keep("doctor.md", render(), sys.argv[1:]))
