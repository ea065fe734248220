"""What is added from outside, one file each: faults, probes, remedies, workloads, engines.

    HOLDFAST_ADD=~/mine holdfast doctor            # one folder, or several as in PATH

    mine/
      faults/licence_lost.toml                     # a kind of fault: its messages, its texts, its row of the ladder
      probes/big_sort.py                           # a probe: PROBES, and the functions they name
      remedies/slow_clock.toml                     # a remedy: when to try it, what it sets, what it costs
      workloads/spirals.py                         # a workload: a script with `train(session)`
      engines/by_hand.py                           # an engine: `build` makes a file of a model, `load` runs it

    for file in files("remedies", "*.toml"):       # by whoever keeps such things; nothing where nothing was added
        for name, table in tables(file).items(): ...

These files are code, or change what is done: they are the user's own, as scripts are, and come from the environment
alone, never from a run folder. A file that cannot be used is an error of the user that names it. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.base import toml_file
from holdfast.base.errors import UserError

VARIABLE = "HOLDFAST_ADD"


def folders() -> tuple[Path, ...]:
    """The folders that were named. UserError for one that is not there: a slip would go unnoticed."""
    named = [word for word in os.environ.get(VARIABLE, "").split(os.pathsep) if word.strip()]
    found = tuple(Path(word).expanduser().resolve() for word in named)
    for folder in found:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder", cause=f"it is named in {VARIABLE}")
    return found


def files(what: str, pattern: str) -> list[Path]:
    """The files below `what` of each folder, sorted within it."""
    return [path for folder in folders() for path in sorted((folder / what).glob(pattern)) if path.is_file()]


def tables(file: Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file by their names; UserError for a file that has anything else."""
    data = toml_file.load(file)
    loose = [name for name, value in data.items() if not isinstance(value, dict)]
    if loose:
        raise UserError(f"{file}: `{loose[0]}` is outside of a table", hints=["begin with a line [name]"])
    return data


def check_fields(where: str, table: Mapping[str, Any], known: Mapping[str, type], needed: Iterable[str]) -> None:
    """UserError for a field that is missing, unknown, or not of its type."""
    missing = [name for name in needed if name not in table]
    if missing:
        raise UserError(f"{where} has no `{missing[0]}`", hints=[f"it needs {', '.join(needed)}"])
    for name, value in table.items():
        if name not in known:
            raise UserError(f"{where} has an unknown field `{name}`", hints=[f"fields: {', '.join(known)}"])
        if not isinstance(value, known[name]):
            raise UserError(f"{where}: `{name}` must be {_WORDS.get(known[name], known[name].__name__)}")


_WORDS = {str: "a text", list: "a list", dict: "a table", bool: "true or false"}
