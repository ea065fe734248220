"""What to call a run in a command that is typed here: its name, or its folder where the name is not found."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings


def handle(run: RunFolder) -> str:
    """`calm-heron` where `holdfast resume calm-heron` would find it from here, else the path."""
    try:
        root = Path(Settings.load().run.folder)
    except UserError:
        return run.name
    try:
        return run.name if run.path.absolute().parent == root.absolute() else shown(run.path)
    except OSError:  # the current folder was deleted
        return str(run.path)


def shown(path: Path) -> str:
    """Relative to here where it is below here, so that a line can be copied and is short."""
    try:
        here = Path.cwd()
    except OSError:  # the current folder was deleted: nothing is below it
        return str(path)
    for base in (here, here.resolve()):
        try:
            return str(path.relative_to(base))
        except ValueError:
            continue
    return str(path)
