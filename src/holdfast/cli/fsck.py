"""`holdfast fsck`: what of a run folder is good, what is damaged, and where a resume would go on.

    holdfast fsck calm-heron
    holdfast fsck /mnt/backup/job-20261115-0912-calm-heron --json

It reads every byte that has a digest, changes nothing, and works on live, crashed, copied and foreign folders.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, add_run, count, counted, size, table
from holdfast.console.text import without_control
from holdfast.console.usage import Parser
from holdfast.record import audit
from holdfast.record.audit import DAMAGED, GOOD, MISSING, NOTED, READABLE, UNKNOWN, Audit, Item
from holdfast.run.folder import RunFolder, find_run, list_runs
from holdfast.run.reference import handle
from holdfast.run.states import LIVE_STATES, RunState

_SIGNS = {GOOD: "[✓]", READABLE: "[✓]", DAMAGED: "[✗]", MISSING: "[✗]", UNKNOWN: "[!]", NOTED: "[!]"}
_STYLES = {GOOD: "green", READABLE: "green", DAMAGED: "red", MISSING: "red", UNKNOWN: "yellow", NOTED: "yellow"}
_NAMED = 8
"""Damaged tensors that are named without -v."""


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "fsck",
        description="""\
Check the files of a run for damage. Changes nothing.

examples:
  holdfast fsck calm-heron              by name, by folder, or `latest`
  holdfast fsck /mnt/backup/calm-heron  a copy in another place
  holdfast fsck latest -v               name every damaged tensor
  holdfast fsck latest --json           print the result as JSON

It checks every tensor of every checkpoint, the weights, the journal and the fault folders.
""",
    )
    add_run(parser)
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    found = audit.look(_find(args))
    code = ExitCode.NO if found.damaged else ExitCode.OK
    if output.as_json:
        output.json({**to_json(found), "exit_code": int(code)})
    elif output.quiet:
        for item in found.damaged:
            output.print(without_control(f"{item.name}: {item.why}"))
    else:
        _print(found, output)
    return code


def _find(args: argparse.Namespace) -> Path:
    """A folder as it was named, even if its run.json is damaged: finding that out is what this is for."""
    path = Path(args.name)
    if path.is_dir() and (os.path.lexists(path / "run.json") or (path / "checkpoints").is_dir()):
        return path
    root = root_of(args)
    for known in reversed(list_runs(root)):
        if args.name in ("latest", known.name, known.path.name):
            return known.path
    return find_run(root, args.name).path


# The screen -----------------------------------------------------------------------------------------------


def _print(found: Audit, output: Output) -> None:
    output.print(without_control(" · ".join(word for word in (found.run, found.workload, found.state) if word)))
    sections = (
        ("Checkpoints", found.checkpoints),
        ("Weights", found.weights),
        ("Records", found.records),
        ("Faults", _folded(found.faults)),
        ("Leftovers", found.leftovers),
    )
    for title, items in sections:
        if items:
            output.print()
            output.print(title)
            _print_items(items, output)
    output.print()
    for line in closing(found):
        output.print(without_control(line))


def _print_items(items: list[Item], output: Output) -> None:
    lines = table([(_label(item), size(item.size), words(item)) for item in items], right=(1,))
    for item, line in zip(items, lines, strict=True):
        sign = output.out.style(_SIGNS[item.state], _STYLES[item.state])
        output.print(f"  {sign} {without_control(line)}")
        for name in _tensors(item, everything=bool(output.verbose)):
            output.print(without_control(f"        {name}"))


def _label(item: Item) -> str:
    return item.name if item.step is None else f"step {count(item.step)}"


def words(item: Item) -> str:
    """good · damaged: its bytes are not the ones written · 31 lines, 1 torn line, skipped"""
    if item.lines is not None:
        return ", ".join(word for word in (counted(item.lines, "line"), item.why) if word)
    return f"{item.state}: {item.why}" if item.why else item.state


def _tensors(item: Item, *, everything: bool) -> list[str]:
    names = item.tensors if everything else item.tensors[:_NAMED]
    hidden = len(item.tensors) - len(names)
    return [*names, *([f"and {hidden} more; `-v` names all"] if hidden else [])]


def _folded(faults: list[Item]) -> list[Item]:
    """Good ones are many and alike: one line for all of them."""
    good = [item for item in faults if not item.bad]
    folded = [Item(counted(len(good), "folder"), READABLE, size=sum(item.size or 0 for item in good))] if good else []
    return [*folded, *(item for item in faults if item.bad)]


def closing(found: Audit) -> list[str]:
    """Whether you are fine, and what a resume would do."""
    damaged = found.damaged
    names = ", ".join(item.name for item in damaged[:3])
    more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
    first = f"Damaged or missing: {names}{more}." if damaged else "No damage was found."
    return [first, *_prospect(found)]


def _prospect(found: Audit) -> list[str]:
    usable = found.usable
    if found.state == RunState.FINISHED or found.state in LIVE_STATES:
        return []
    if usable is not None:
        name = handle(RunFolder(found.path))
        return [f"`holdfast resume {name}` continues from step {count(usable.step)}."]
    return ["No checkpoint can be used: `holdfast resume` starts from the beginning."]


def to_json(found: Audit) -> dict[str, Any]:
    usable = found.usable
    return {
        "run": found.run,
        "folder": str(found.path.absolute()),
        "state": found.state,
        "good": not found.damaged,
        "damaged": [item.name for item in found.damaged],
        "newest_good": None if usable is None else {"step": usable.step, "path": _path(found, usable)},
        "checkpoints": [
            {"step": item.step, **_item(found, item), "tensors": list(item.tensors)} for item in found.checkpoints
        ],
        "weights": [_item(found, item) for item in found.weights],
        "records": [{**_item(found, item), "lines": item.lines, "torn": item.torn} for item in found.records],
        "faults": [_item(found, item) for item in found.faults],
        "leftovers": [_item(found, item) for item in found.leftovers],
    }


def _item(found: Audit, item: Item) -> dict[str, Any]:
    return {"name": item.name, "path": _path(found, item), "bytes": item.size, "state": item.state, "why": item.why}


def _path(found: Audit, item: Item) -> str:
    return str(found.path.absolute() / item.name)
