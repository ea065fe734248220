"""What stands in a run folder and was never put there by us: links, pipes, sockets, devices, second names.

    check(run)          # UserError that names the first such thing; nothing is opened, nothing is written
    found(run)          # the same as a sentence, or None

Everything below the run folder that we read or write is looked at. Folders of a script's own (`wandb`, say) are not: we
never go there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.base.folders import DEEPEST, kind
from holdfast.base.human import shorten

FOLDERS = ("checkpoints", "faults", "doubtful", "slots", "script", "tb", "trackers")
"""What we make in a run folder, and all that is in it."""
GROWING = ("journal.jsonl", "metrics.jsonl", "readings.jsonl", "output.log", "lock", "messages.log", "supervisor.log")
"""What is appended to, and so must have no second name elsewhere."""
FILES = (
    *GROWING,
    "run.json",
    "beat.json",
    "last.json",
    "receipt.json",
    "traceback.txt",
    "best.safetensors",
    "final.safetensors",
    "output.1.log",
    "report.html",
)


def check(run: Path) -> None:
    """Refuse a run folder that nobody should write to."""
    what = found(run)
    if what is not None:
        raise UserError(
            f"{shorten(str(run))} is not used: {what}",
            cause="a run folder may come from somebody else, and holdfast must not write outside of it",
            hints=["move it away if you know what it is, then try again"],
        )


def found(run: Path) -> str | None:
    """The first thing that should not be there, in words such as "checkpoints is a link"; None if all is well."""
    for name, status in _entries(run):
        what = _wrong(run, name, status)
        if what is None and name in FOLDERS:
            what = _below(run / name, name)
        if what is not None:
            return what
    return None


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """What cannot be read, or goes while we look, is said by whoever needs it."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(folder))
    for name in names:
        with contextlib.suppress(OSError):
            yield name, os.lstat(folder / name)


def _wrong(run: Path, name: str, status: os.stat_result) -> str | None:
    what = kind(status.st_mode)
    if name in FOLDERS and what is None:
        return f"{name} is a file, not a folder"
    if what is not None and (what != "a folder" or name in FILES):
        return f"{_sayable(name)} is {what}"
    if name not in GROWING:
        return None
    if status.st_nlink > 1:
        return f"{name} has a second name (a hard link) elsewhere"
    ours = not hasattr(os, "geteuid") or status.st_uid == os.geteuid() or status.st_uid == run.stat().st_uid
    return None if ours else f"{name} belongs to another user"


def _below(folder: Path, shown: str, deep: int = 0) -> str | None:
    if deep > DEEPEST:
        return f"{shown.partition('/')[0]} has too many folders within each other"
    for name, status in _entries(folder):
        what = kind(status.st_mode)
        if what == "a folder":
            deeper = _below(folder / name, f"{shown}/{_sayable(name)}", deep + 1)
            if deeper is not None:
                return deeper
        elif what is not None:
            return f"{shown}/{_sayable(name)} is {what}"
    return None


def _sayable(name: str) -> str:
    """A name that a terminal can be given."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:100]
