"""Makes docs/idioms.md: every idiom in every way, from real runs. `python -m tests.idioms.table` from the root.

Two hours on two cores. It can be done in parts, in any order: the cells are kept as JSON after each one, in
benchmarks/results/idioms-cpu.json or in the file of `--cells`. `--only WORD`, `--part K/N`, `--way WAY` (several times)
and `--missing` say which are run, `--with FILE` adds cells of another file, `--page` writes the page from what is kept.

    python -m tests.idioms.table --way killed --way hung
    python -m tests.idioms.table --missing --only DataLoader
    python -m tests.idioms.table --page
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from holdfast.supervisor.process_start import NurseryLauncher
from tests.idioms.kit import WAYS, Kit
from tests.idioms.kit_list import idioms
from tests.idioms.stamp import stamp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "idioms.md"
RESULT = ROOT / "benchmarks" / "results" / "idioms-cpu.json"
HEAD = """# Ordinary idioms under faults

<!-- Made by `python -m tests.idioms.table --page` from benchmarks/results/idioms-cpu.json; do not edit. -->

Each row is an idiom of ordinary PyTorch loops, written as a holdfast script in `tests/idioms/`. Each cell is the result
of one run of it. *equal*: the weights, bit for bit, the logged numbers and the count of steps are those of the quiet
run. *clear error*: the run stops and says why. A cell that says *DIFFERS* is a defect.

- plain: the same loop without holdfast, where the idiom has one; *equal* if the quiet run ends with its weights.
- quiet: a run without a fault; *equal* if it finishes.
- killed: its worker is killed with SIGKILL in the middle of five loop bodies, two of them in a row.
- hung: a forward does not come back; the watchdog ends the process.
- out of memory: two forwards raise `OutOfMemoryError`.
- stopped and resumed: it is asked to stop, then resumed.
- supervisor killed: the supervisor is killed with SIGKILL, then the run is resumed.

An empty cell of *plain* has nothing to run; any other empty cell was not run. The rows that begin with *docs* are the
scripts of [A training that changes on the way](changing-on-the-way.md), as they are printed there: they are killed, or
asked to stop, after an update, and hang or run out of memory in the first layer after one. The rows that begin with
*held out* were written last, by [Writing a script](writing-a-script.md) alone, in the shape of well-known loops:
pytorch/examples (mnist, vae, imagenet), minGPT and nanoGPT. They are not the scripts of those projects: data and models
are small stand-ins.

"""


STRANGERS = """
## Scripts of other people

Each of these is the file of its project at the named commit, with the lines of holdfast that the docs ask for, under
`holdfast run` on small data. `python benchmarks/strangers/strangers.py` takes it and applies the patch of that folder.
*as it is*: the patched script prints the numbers of the original. For timm it prints others from the second epoch on,
and a line of `holdfast run` says why: with `persistent_workers=True`, loader processes draw on from epoch to epoch, and
those of a killed script cannot be restored, so they are new in each epoch. The other columns compare the weights, bit
for bit, and all numbers that it prints with those of its quiet run. It is killed five times, two of them in a row; the
other faults come once. Each comes right after an update.

ImageNet with a killed supervisor was run three times: a script outlives its supervisor by a moment, and what it prints
then is read by nobody. Until it was kept from committing in that moment, one of two runs lost a printed line.

"""
OTHERS = ROOT / "benchmarks" / "results" / "strangers-cpu.json"
OTHER_WAYS = ("as it is", *WAYS[1:])


Cells = dict[str, dict[str, list[str]]]
"""By idiom and way: what came of it, and when it was run with which code (stamp.py)."""


def measure(
    scratch: Path,
    only: str = "",
    ways: tuple[str, ...] = WAYS,
    cells: Cells | None = None,
    keep: Path | None = None,
    part: tuple[int, int] = (1, 1),
) -> Cells:
    """The cells of the table. Those that are in `cells` already are not run again; `keep` has them after each one."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    nursery = NurseryLauncher({"PYTHONPATH": os.environ["PYTHONPATH"]}, [])
    kit = Kit(scratch, nursery)
    found: Cells = {} if cells is None else cells
    try:
        for number, (name, idiom) in enumerate(idioms().items()):
            mine = only in name and number % part[1] == part[0] - 1
            for way in ways if mine else ():
                row = found.setdefault(name, {})
                if way not in row:
                    row[way] = [kit.cell(idiom, way), stamp()]
                    print(f"{name} | {way} | {row[way][0]}", flush=True)
                    if keep is not None:
                        write(keep, found)
    finally:
        nursery.close()
    return found


def read(path: Path) -> Cells:
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def write(path: Path, cells: Cells) -> None:
    """In the order of the kit; one row a line."""
    order = [name for name in idioms() if name in cells] + [name for name in cells if name not in idioms()]
    rows = [f" {json.dumps(name)}: {json.dumps(cells[name])}" for name in order]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def page(cells: Cells) -> str:
    rows = [(name, cells[name]) for name in cells]
    return HEAD + _table("idiom", WAYS, rows) + strangers()


def strangers() -> str:
    """The table of benchmarks/strangers, as far as it was measured."""
    if not OTHERS.exists():
        return ""
    rows = []
    for row in json.loads(OTHERS.read_text("utf-8"))["scripts"].values():
        address = f"https://github.com/{row['repository']}/blob/{row['commit']}/{row['file']}"
        changed = f"{row['added']}, {row['removed']}"
        rows.append((f"[{row['repository']} {row['file']}]({address}) | {changed}", row["cells"]))
    return STRANGERS + _table("script | lines added, removed", OTHER_WAYS, rows)


def _table(head: str, ways: tuple[str, ...], rows: list[tuple[str, dict[str, list[str]]]]) -> str:
    """The rows, and below them when they were run. Most cells have one stamp; the others bear a number."""
    stamps = Counter(row[way][1] for _, row in rows for way in ways if way in row).most_common()
    marks = {each: f" ({number})" if number else "" for number, (each, _) in enumerate(stamps)}
    lines = [f"| {head} | {' | '.join(ways)} |", "|---" * (head.count("|") + 1 + len(ways)) + "|"]
    for name, row in rows:
        lines.append(f"| {name} | {' | '.join(_shown(row[way], marks) if way in row else '' for way in ways)} |")
    lines.append("")
    for number, (each, count) in enumerate(stamps):
        day, _, code = each.partition(" ")
        which = (
            f"The {count} cells with ({number})" if number else f"{count} cells" if stamps[1:] else f"All {count} cells"
        )
        lines.append(f"{which} were run on {day} with the code {code}.")
    return "\n".join(lines) + "\n"


def _shown(cell: list[str], marks: dict[str, str]) -> str:
    said = cell[0].partition(":")[0]
    return f"{said}{marks[cell[1]]}" if said else ""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--way", action="append", choices=WAYS, default=[])
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th idiom, from the K-th on")
    parser.add_argument("--cells", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--with", dest="others", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--missing", action="store_true", help="run only cells that the file does not have")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from the file")
    order = parser.parse_args(words)
    kept = read(order.cells)
    for other in order.others:
        for name, row in read(other).items():
            kept.setdefault(name, {}).update(row)
    ways = tuple(order.way) or WAYS
    if not order.page:
        if not order.missing:
            kept = {
                name: {w: c for w, c in row.items() if order.only not in name or w not in ways}
                for name, row in kept.items()
            }
        with tempfile.TemporaryDirectory(prefix="holdfast-idioms-") as scratch:
            first, _, count = order.part.partition("/")
            measure(Path(scratch), order.only, ways, kept, order.cells, (int(first), int(count)))
    write(order.cells, kept)
    if order.page or not (order.only or order.way):
        PAGE.write_text(page(read(order.cells)), encoding="utf-8")
    return int(any("DIFFERS" in cell[0] for row in kept.values() for cell in row.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
