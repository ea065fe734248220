#!/usr/bin/env python3
"""Write the tables of docs/how-it-compares.md from what benchmarks/peers.py and benchmarks/wishes/wishes.py measured.

python scripts/make_peer_docs.py             write them
python scripts/make_peer_docs.py --check     exit 1 if they are out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pages import ROOT, keep

RESULT = ROOT / "benchmarks" / "results" / "peers-cpu.json"
PAGE = "how-it-compares.md"
FIRST = "<!-- Made by scripts/make_peer_docs.py from benchmarks/results/peers-cpu.json: edit there. -->"
LAST = "<!-- End of peers-cpu.json. -->"
WISHES = [ROOT / "benchmarks" / "results" / name for name in ("wishes-cpu.json", "wishes-h200.json")]
FIRST_WISH = "<!-- Made by scripts/make_peer_docs.py from benchmarks/results/wishes-cpu.json: edit there. -->"
LAST_WISH = "<!-- End of wishes-cpu.json. -->"
FAULTS = {
    "kill": "`kill -9` of the process that trains",
    "hang": "it hangs",
    "oom": "out of memory, once",
    "assert": "device-side assert, once",
    "bad": "a sample that cannot be read",
}


def render() -> str:
    """The page, with its tables made anew."""
    page = _with_wishes((ROOT / "docs" / PAGE).read_text(encoding="utf-8"))
    before, _, rest = page.partition(FIRST)
    _, _, after = rest.partition(LAST)
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else None
    lines = ["Not measured yet: `make bench ARGS='--parts peers'`."] if kept is None else [*tables(kept)]
    return "".join([before, FIRST, "\n\n", "\n".join(lines), "\n\n", LAST, after])


def _with_wishes(page: str) -> str:
    before, _, rest = page.partition(FIRST_WISH)
    _, _, after = rest.partition(LAST_WISH)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in WISHES if path.exists()]
    lines = ["| thread | the wish | without holdfast | with it |", "|---|---|---|---|"]
    for wish in (wish for kept in found for wish in kept["wishes"].values()):
        place, _, number = wish["thread"].partition("#")
        link = f"[{wish['thread']}](https://github.com/{place}/issues/{number})"
        lines.append(f"| {link} | {wish['wish']} | {_told(wish['peer'])} | {_told(wish['holdfast'])} |")
    return "".join([before, FIRST_WISH, "\n\n", "\n".join(lines), "\n\n", LAST_WISH, after])


def _told(outcome: dict[str, Any]) -> str:
    return f"{'yes' if outcome['fulfilled'] else '**no**'}: {outcome['says']}".replace("|", "\\|")


def tables(kept: dict[str, Any]) -> Iterator[str]:
    measured = kept["measured"]
    ways = list(measured["undisturbed"])
    cells = {(cell["way"], cell["fault"]): cell for cell in measured["cells"]}
    yield f"| {measured['steps']} steps; the fault comes after step {measured['at_step']} | {' | '.join(ways)} |"
    yield f"|---|{'---|' * len(ways)}"
    for fault, words in FAULTS.items():
        row = [_cell(cells.get((way, fault)), measured["hangs_after_s"]) for way in ways]
        if any(cell != "-" for cell in row):
            yield f"| {words} | {' | '.join(row)} |"
    plain = measured["undisturbed"]
    yield f"| undisturbed: time a step, beside the bare loop | {' | '.join(_cost(plain[way], way) for way in ways)} |"
    same = [_yes(plain[way]["same_bits_each_time"]) for way in ways]
    yield f"| undisturbed: the same bits each time | {' | '.join(same)} |"
    yield ""
    named = ", ".join(
        f"{name} {version}"
        for name, version in kept["versions"].items()
        if name in ("torch", "accelerate", "pytorch-lightning")
    )
    machine = kept["machine"]
    load = machine["load_average"][0]
    yield f"Measured on {kept['date']} with {named} on {machine['cores']} cores ({machine['cpu']}, load {load} at the"
    yield f"end), by `{kept['command']}`."


def _cell(cell: dict[str, Any] | None, patience: float) -> str:
    if cell is None:
        return "-"
    if cell["hangs"]:
        return f"**hangs**: no step for {patience:.0f} s, ended by us"
    if not cell["finished"]:
        return f"**not finished**: ends with code {cell['exit_code']} after {cell['reached']} steps"
    equal = {True: "weights equal", False: "other weights", None: "bits cannot be compared"}[cell["weights_equal"]]
    steps = f"{cell['repeated']} {'step' if cell['repeated'] == 1 else 'steps'} repeated"
    lost = max(cell["seconds_lost"] or 0.0, 0.0)
    return f"finished; {steps}, {lost:.1f} s lost, {equal}"


def _cost(row: dict[str, Any], way: str) -> str:
    shown = f"{row['step_ms']:.2f} ms"
    return shown if way == "bare" else f"{shown} ({row['overhead_percent']:+.1f} %)"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    sys.exit(keep(PAGE, render(), sys.argv[1:]))
