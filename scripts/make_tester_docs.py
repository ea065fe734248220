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

FIRST = "<!-- Made by scripts/make_tester_docs.py from benchmarks/results/{name}: edit there. -->"
LAST = "<!-- End of {name}. -->"
TESTERS = {
    "is_available": "`torch.cuda.is_available()`",
    "collect_env": "`torch.utils.collect_env`",
    "accelerate test": "`accelerate test`",
    "doctor": "`holdfast doctor`",
}


def render() -> str:
    """The whole page, with its tables made anew."""
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    for name, table in TABLES.items():
        first, last = FIRST.format(name=name), LAST.format(name=name)
        before, _, rest = page.partition(first)
        _, _, after = rest.partition(last)
        kept: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))
        page = "".join([before, first, "\n\n", "\n".join(table(kept)), "\n\n", last, after])
    return page


def _card(kept: dict[str, Any]) -> Iterator[str]:
    """What a real card showed."""
    yield "| on an H200 | |"
    yield "|---|---|"
    yield from (f"| {what} | {figure} |" for what, figure in _figures(kept))
    yield ""
    yield "How much of its bound a right card uses, by precision:"
    yield ""
    yield "| precision | checks | median | most |"
    yield "|---|---|---|---|"
    for name, row in kept["full"]["share_of_bound"].items():
        yield f"| {name} | {row['checks']} | {row['median']:.0%} | {row['max']:.0%} |"
    yield ""
    where = f"{kept['machine']['gpu']}, torch {kept['versions']['torch']}"
    yield f"Measured on {kept['date']} ({where}). Every check with its error, its bound and its time is in"
    yield "`benchmarks/results/doctor-h200.json`."


def _figures(kept: dict[str, Any]) -> Iterator[tuple[str, str]]:
    quick, full, planted = (kept[name] for name in ("quick", "full", "planted"))
    yield "`holdfast doctor --device cuda:0`", f"{quick['verdicts'][0]} after {min(quick['seconds']):.0f} s"
    yield "the same, with what is known", f"{quick['remembered_seconds']:.1f} s"
    counts = full["counts"]
    bad = sum(counts[word] for word in ("failed", "crashed", "hung"))
    said = f"{counts['passed']} checks passed, {bad} failed, {counts['skipped']} do not apply"
    yield "`--full`", f"{said}; {full['seconds']:.0f} s"
    fp32, tf32 = (kept["tf32"]["linear"][name][f"linear {name} forward"] for name in ("fp32", "tf32"))
    apart = f"off by {fp32['error']:.1e} and by {tf32['error']:.1e}; fp32 may be off by {fp32['bound']:.1e}"
    yield "a product in fp32 and in TF32", apart
    wrong = planted["alone"]["conv2d fp32"]["conv2d fp32 backward"]
    found = f"found: off by {wrong['error']:.0e}, limit {wrong['bound']:.1e}"
    yield (
        f"a planted wrong kernel (`{planted['kernel']}`)",
        f"{found}; its cure by the try number {len(planted['tried'])}",
    )


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


TABLES = {"testers-cpu.json": _table, "doctor-h200.json": _card}


if __name__ == "__main__":
    sys.exit(keep("doctor.md", render(), sys.argv[1:]))
