#!/usr/bin/env python3
"""Write the table of docs/any-script.md from what benchmarks/external.py measured.

python scripts/make_script_table.py             write it
python scripts/make_script_table.py --check     exit 1 if it is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULT = ROOT / "docs" / "any-script.md", ROOT / "benchmarks" / "results" / "external-cpu.json"
BEGIN, END = "<!-- table: made by scripts/make_script_table.py -->\n", "<!-- end of the table -->"
FAULTS = {
    "kill": "`kill -9`",
    "segfault": "segfault",
    "hang": "hang",
    "hang_gil": "hang, GIL held",
    "oom": "memory error",
    "full_disk": "full disk",
    "damaged": "killed, its newest checkpoint damaged",
}
SCRIPTS = ("plain loop", "plain --resume", "Lightning", "HF Trainer", "Accelerate", "ultralytics")


def table(record: dict[str, Any]) -> str:
    cells = {(cell["script"], cell["fault"], cell["how"]): cell for cell in record["measured"]["cells"]}
    lines = ["| script | fault | alone | under `holdfast run` | with the integration |", "|---|---|---|---|---|"]
    missing = []
    for script in SCRIPTS:
        for fault, words in FAULTS.items():
            row = [_cell(cells.get((script, fault, how))) for how in ("alone", "run", "integration")]
            if any(part != "-" for part in row):
                lines.append(f"| {script} | {words} | {' | '.join(row)} |")
            else:
                missing.append((script, fault))
    machine = record["machine"]
    facts = [record["date"], machine.get("cpu"), f"{machine['cores']} cores" if machine.get("cores") else None]
    if machine.get("load_average"):
        facts.append(f"load {machine['load_average'][0]:.0f} before it")
    said = f"Measured on {', '.join(str(fact) for fact in facts if fact)}: `{record['command']}`."
    if missing:
        said += f" {len(missing)} of {len(SCRIPTS) * len(FAULTS)} rows are not measured yet."
    return "\n".join([*lines, "", said])


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    if not cell.get("came"):
        return "the fault did not come"
    if not cell["finishes"]:
        return "no" if cell["how"] == "alone" else f"no (exit {cell['exit_code']})"
    if cell["steps_repeated"] is None:
        return "yes"
    steps = "1 step" if cell["steps_repeated"] == 1 else f"{cell['steps_repeated']} steps"
    return f"yes, {steps}, {cell['seconds_lost']:.0f} s"


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(json.loads(RESULT.read_text()))}\n{END}{after}"


def main() -> int:
    text = PAGE.read_text()
    new = page(text)
    if "--check" in sys.argv:
        return int(new != text)
    PAGE.write_text(new)
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
