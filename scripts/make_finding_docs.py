#!/usr/bin/env python3
"""Write docs/findings.md, and a page for each code below docs/findings/, from the texts the program itself uses.

python scripts/make_finding_docs.py             write it
python scripts/make_finding_docs.py --check     exit 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pages import ROOT, keep, said

from holdfast.devices.findings import Explanation, explanations

_GROUPS = (
    ("D001", "What became of a probe"),
    ("D010", "Card, driver and build do not fit"),
    ("D020", "Wrong numbers"),
    ("D034", "Limits, load and time"),
    ("D050", "What is known already"),
    ("D060", "The machine"),
    ("D070", "Your own model"),
    ("D080", "All in all"),
    ("D090", "What Windows and macOS do less well than Linux"),
)
"""Each with its first code."""


MADE = "<!-- Made by scripts/make_finding_docs.py from src/holdfast/devices/findings.toml: edit there. -->"


def pages() -> dict[str, str]:
    """By their names in docs/: the overview, and one for each code."""
    return {
        "findings.md": "\n".join(
            [
                MADE,
                "# Findings",
                "",
                "What `holdfast doctor` can find. Each has a page that says what it means and what you can do;",
                "`holdfast explain D002` prints the same. What happens to a run is under [faults](faults.md).",
                "",
                *_overview(),
            ]
        ),
        **{f"findings/{row.code}.md": "\n".join([MADE, *_page(row)]) for row in explanations()},
    }


def _overview() -> Iterator[str]:
    groups = dict(_GROUPS)
    yield "| code | level | finding |"
    yield "|---|---|---|"
    for row in explanations():
        if row.code in groups:
            yield f"| | | **{groups[row.code]}** |"
        yield f"| [{row.code}](findings/{row.code}.md) | {row.level} | {row.title} |"
    yield ""
    yield "*note*: good to know. *warning*: may cost you time or results. *error*: something does not work or is wrong."
    yield "The [verdict](concepts.md#trust) on a device follows from its probes and the ledger, not from these levels."
    yield "A report from elsewhere never outweighs a probe: what passes here is used."
    yield ""


def _page(row: Explanation) -> Iterator[str]:
    yield f"# {row.code} {row.title}"
    yield ""
    yield f"`{row.slug}` · {row.level}"
    yield ""
    yield from said(row)
    if row.needs:
        yield f"Evidence: {', '.join(f'`{name}`' for name in row.needs)}."
        yield ""
    if row.measured_by:
        yield f"Measured by `{row.measured_by}`."
        yield ""
    yield "[All findings](../findings.md) · [The doctor](../doctor.md)"
    yield ""


def main(argv: list[str]) -> int:
    wanted = pages()
    stale = [path for path in (ROOT / "docs" / "findings").glob("*.md") if f"findings/{path.name}" not in wanted]
    if argv == ["--check"]:
        return int(bool(stale) or any(keep(name, text, argv) for name, text in wanted.items()))
    for path in stale:
        path.unlink()
    return max(keep(name, text, argv) for name, text in wanted.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
