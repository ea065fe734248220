"""`holdfast uninstall`: take away what holdfast keeps outside of run folders. Runs and the package itself stay.

    holdfast uninstall --dry-run       name it, with sizes, and change nothing
    holdfast uninstall                 ask, then remove it

docs/what-lies-where.md has the same list with reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import compile_cache, state_folder
from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, counted, shorten, size, table
from holdfast.console.text import without_control
from holdfast.console.usage import Parser
from holdfast.monitor import index
from holdfast.run.folder import list_runs
from holdfast.run.settings import user_file
from holdfast.run.states import LIVE_STATES
from holdfast.supervisor import at_boot, rescue_folder

CACHE = "cache: compiled kernels, indexes of runs, prepared demo data, tokens of the page"
STATE = "state: the ledger of devices, verdicts, plans, the key that seals your runs, hidden arguments"
START = "start after a boot of the run"
CONFIG = "your settings"
VARIABLES = ("HOLDFAST_EEG_DEMO", "HOLDFAST_EEG_WINDOWS", "HOLDFAST_DETECTION_CACHE")


@dataclass(frozen=True, slots=True)
class Item:
    """Something that lies somewhere, and what it is."""

    what: str
    path: Path
    size: int
    run: str | None = None
    """Of a start-up file: the run that it continues."""

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "path": str(self.path), "bytes": self.size}


def add_parser(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "uninstall",
        description="""\
Remove what holdfast keeps outside of run folders: caches, the ledger, settings, start-up files.

examples:
  holdfast uninstall --dry-run        show what would be removed, and what stays
  holdfast uninstall                  ask, then remove it
  pip uninstall holdfast              afterwards: remove the program itself

Run folders stay. After it, devices have no history, and `holdfast resume` asks before it continues a run.
""",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed and change nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    root = root_of(args)
    items, kept = found(), list(stays(root))
    if not args.dry_run:
        _check_nothing_runs(root)
        if items and not args.yes:
            _ask(items, kept, output)
        failed = [(item, why) for item in items if (why := remove(item)) is not None]
    else:
        failed = []
    _tell(items, kept, failed, args.dry_run, output)
    return ExitCode.NO if failed else ExitCode.OK


# What there is ----------------------------------------------------------------------------------------------------


def found() -> list[Item]:
    """Everything that is holdfast's alone, as far as this user's environment names it."""
    items = [Item(f"{START} {Path(of).name}", path, _size(path), of) for path, of in _start_ups()]
    places = [(CACHE, path) for path in _caches()]
    state = state_folder.state_folder()
    if _ours(state) and not os.environ.get(state_folder.VARIABLE):  # a place that you chose may hold anything
        places.append((STATE, state))
    places.append((CONFIG, user_file(os.environ)))
    seen: list[Path] = []
    for what, path in places:
        if os.path.lexists(path) and not any(path == other or path.is_relative_to(other) for other in seen):
            seen.append(path)
            items.append(Item(what, path, _size(path)))
    return items


def _caches() -> Iterator[Path]:
    home = Path(os.environ.get("HOME") or os.path.expanduser("~"))
    candidates = (compile_cache.user_cache(), index.cache_folder(), home / ".cache" / "holdfast")
    yield from (path for path in dict.fromkeys(candidates) if _ours(path))


def _ours(path: Path) -> bool:
    """One of the folders that holdfast names itself; never a checkout that happens to have that name."""
    return path.is_absolute() and not any((path / name).exists() for name in (".git", "pyproject.toml"))


def _start_ups() -> list[tuple[Path, str]]:
    try:
        return at_boot.every(at_boot.find_system())
    except UserError:  # no service here that could start anything
        return []


def stays(root: Path) -> Iterator[Item]:
    """What is yours, or was put where you said."""
    runs = list_runs(root)
    if runs:
        yield Item(counted(len(runs), "run"), root.absolute(), _size(root))
    for base in dict.fromkeys(rescue_folder.bases()):
        with contextlib.suppress(OSError):
            for path in sorted(base.glob(f"{rescue_folder.PREFIX}*")):
                yield Item("a run that was rescued from a full disk", path, _size(path))
    state = state_folder.state_folder()
    if os.environ.get(state_folder.VARIABLE) and state.is_dir():
        what = f"state, where {state_folder.VARIABLE} says; remove it if nothing else is in it"
        yield Item(what, state, _size(state))
    for name in VARIABLES:
        if os.environ.get(name):
            yield Item(f"data, where {name} says", Path(os.environ[name]), _size(Path(os.environ[name])))


def _size(path: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        total = path.lstat().st_size if not path.is_dir() or path.is_symlink() else 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


# Removing it ------------------------------------------------------------------------------------------------------


def _check_nothing_runs(root: Path) -> None:
    live = [each.name for each in list_runs(root) if each.info.get("state") in LIVE_STATES and each.in_use()]
    if live:
        raise UserError(
            f"{live[0]} is running",
            cause="it uses what would be removed",
            hints=[f"stop it first: `holdfast stop {name}`" for name in live[:3]],
        )


def _ask(items: list[Item], kept: list[Item], output: Output) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(
            "there is no terminal to ask you in",
            hints=["look first: `holdfast uninstall --dry-run`", "then `holdfast uninstall --yes`"],
        )
    for line in _lines("This would be removed:", items):
        output.err.write(line)
    output.err.write("Type yes to remove it:")
    if sys.stdin.readline().strip().lower() != "yes":
        raise UserError("nothing was removed", cause="the answer was not yes")


def remove(item: Item) -> str | None:
    """None if it is gone, else why not. A link is removed, and what it points to stays."""
    try:
        if item.run is not None:
            at_boot.remove(Path(item.run), at_boot.find_system())
        elif stat.S_ISDIR(item.path.lstat().st_mode):
            shutil.rmtree(item.path)
        else:
            item.path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{error.filename or item.path}: {error.strerror or error}"
    return "it is still there" if os.path.lexists(item.path) else None


# Telling ----------------------------------------------------------------------------------------------------------


def _tell(items: list[Item], kept: list[Item], failed: list[tuple[Item, str]], dry: bool, output: Output) -> None:
    not_gone = {id(item) for item, _ in failed}
    gone = [item for item in items if id(item) not in not_gone]
    if output.as_json:
        output.json(
            {
                "schema": 1,
                "dry_run": dry,
                "removed": [item.to_json() for item in gone],
                "failed": [{**item.to_json(), "why": why} for item, why in failed],
                "stays": [item.to_json() for item in kept],
            }
        )
        return
    lines = _lines("This would be removed:" if dry else "Removed:", gone) if gone else ["Nothing to remove."]
    lines += _lines("This stays:", kept) if kept else []
    for line in [*lines, "", "The program itself: `pip uninstall holdfast` (pipx, uv: the same word)."]:
        output.print(line)
    for item, why in failed:
        output.note(without_control(f"! {shorten(str(item.path))} could not be removed: {why}"))


def _lines(title: str, items: list[Item]) -> list[str]:
    rows = [(f"  {shorten(str(item.path))}", size(item.size), item.what) for item in items]
    return [title, *(without_control(line) for line in table(rows, right=(1,)))]
