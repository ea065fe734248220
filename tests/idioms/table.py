"""Makes docs/idioms.md: every idiom in every way, from real runs. `python -m tests.idioms.table` from the root.

About a quarter of an hour on two cores. `--only WORD` runs the idioms with that word in their name and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from holdfast.supervisor.process_start import NurseryLauncher
from tests.idioms.kit import WAYS, Kit
from tests.idioms.kit_list import idioms

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "idioms.md"
HEAD = """# Ordinary idioms under faults

<!-- Made by `python -m tests.idioms.table`; do not edit. -->

Each row is an idiom of ordinary PyTorch loops: a plain script and its port are in `tests/idioms/`. Each cell is what
came of a run of it. *equal*: the weights, bit for bit, the logged numbers and the count of steps are those of the quiet
run. *clear error*: the run stops and says why. A cell that says *DIFFERS* is a defect.

- plain: the weights of the port are those of the plain PyTorch script, where the idiom has one.
- quiet: the run ends without a fault.
- killed: its worker is killed with SIGKILL in the middle of five loop bodies, two of them in a row.
- stopped and resumed: it is asked to stop, then resumed.
- supervisor killed: the supervisor is killed with SIGKILL, then the run is resumed.

"""


def measure(scratch: Path, only: str = "", ways: tuple[str, ...] = WAYS) -> dict[str, dict[str, str]]:
    """The cells of the table."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    nursery = NurseryLauncher({"PYTHONPATH": os.environ["PYTHONPATH"]}, [])
    kit = Kit(scratch, nursery)
    found: dict[str, dict[str, str]] = {}
    try:
        for name, idiom in idioms().items():
            if only in name:
                found[name] = {way: kit.cell(idiom, way) for way in ways}
                print(name, found[name], flush=True)
    finally:
        nursery.close()
    return found


def page(cells: dict[str, dict[str, Any]]) -> str:
    rows = [f"| idiom | {' | '.join(WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
    for name, row in cells.items():
        rows.append(f"| {name} | {' | '.join(row[way].partition(':')[0] for way in WAYS)} |")
    return HEAD + "\n".join(rows) + "\n"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    order = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="holdfast-idioms-") as scratch:
        cells = measure(Path(scratch), order.only)
    if not order.only:
        PAGE.write_text(page(cells), encoding="utf-8")
    return int(any("DIFFERS" in cell for row in cells.values() for cell in row.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
