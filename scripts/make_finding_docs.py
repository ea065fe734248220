#!/usr/bin/env python3
"""Write docs/findings.md from the texts the program itself uses.

python scripts/make_finding_docs.py             write it
python scripts/make_finding_docs.py --check     exit 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pages import keep

from holdfast.findings import Explanation, explanations

_GROUPS = (
    ("D001", "What became of a probe"),
    ("D010", "Card, driver and build do not fit"),
    ("D020", "Wrong numbers"),
    ("D034", "Limits, load and time"),
    ("D050", "What is known already"),
    ("D060", "The machine"),
    ("D070", "Your own model"),
    ("D080", "All in all"),
)
"""Each with its first code."""


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!-- Made by scripts/make_finding_docs.py from src/holdfast/devices/findings.toml: edit there. -->",
            "# Findings",
            "",
            "What `holdfast doctor` can find, what it means, and what you can do.",
            "`holdfast explain D002` prints the same. What happens to a run is under [faults](faults.md).",
            "",
            *_overview(),
            *(line for row in explanations() for line in _section(row)),
        ]
    )


def _overview() -> Iterator[str]:
    groups = dict(_GROUPS)
    yield "| code | level | finding |"
    yield "|---|---|---|"
    for row in explanations():
        if row.code in groups:
            yield f"| | | **{groups[row.code]}** |"
        yield f"| [{row.code}](#{row.code.lower()}) | {row.level} | {row.title} |"
    yield ""
    yield "*note*: good to know. *warning*: the device is used with care. *error*: it is not used, or not in this way."
    yield "A report from elsewhere never outweighs a probe: what passes here is used."
    yield ""


def _section(row: Explanation) -> Iterator[str]:
    yield f'<a id="{row.code.lower()}"></a>'
    yield ""
    yield f"## {row.code} {row.title}"
    yield ""
    yield f"`{row.slug}` · {row.level}"
    yield ""
    for heading, text in (
        ("What was seen", row.seen),
        ("What it means for you", row.means),
        ("What holdfast does", row.does),
        ("What you can do", row.you_can),
    ):
        yield f"**{heading}.** {text}"
        yield ""
    if row.needs:
        yield f"Evidence: {', '.join(f'`{name}`' for name in row.needs)}."
        yield ""
    if row.measured_by:
        yield f"Measured by `{row.measured_by}`."
        yield ""


if __name__ == "__main__":
    sys.exit(keep("findings.md", render(), sys.argv[1:]))
