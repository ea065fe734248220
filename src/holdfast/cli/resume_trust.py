"""Before a run goes on: is its folder this user's alone, and did this user start here what its run.json names?

    check_own(folder, path)                              # UserError; nothing has been written before it
    agreed = Request(command, place).agree(folder, output, given=…)    # UserError, or whether it is to be sealed now

What one unpacks is one's own, so owning a folder proves nothing. A run whose seal holds (holdfast.run.seal) was started
here. Any other is shown, word by word, and goes on only if a person types yes, or gives the script or command again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.console.output import Output, table
from holdfast.run.folder import RunFolder
from holdfast.run.reference import handle
from holdfast.run.settings import Settings

_OTHERS = (
    (stat.S_IWOTH, stat.S_IXOTH, "anybody", "every user of this machine"),
    (stat.S_IWGRP, stat.S_IXGRP, "its group", "everybody in its group"),
)


# Whose it is ----------------------------------------------------------------------------------------------------


def check_own(folder: RunFolder, path: Path) -> None:
    """Resuming runs the script that run.json names: only one outside of a folder that is yours alone may be it."""
    inside = not path.is_absolute() or path.resolve().is_relative_to(folder.path.resolve())
    if inside:
        raise UserError(
            f"{visible(folder.name)} names a script inside its own folder",
            cause=f"{visible(str(path))}: a run folder may come from somebody else, and nothing in it is executed",
            hints=["copy the script out and start a new run with it"],
        )
    if hasattr(os, "getuid"):
        check_owner(folder)


def check_owner(folder: RunFolder) -> None:
    """The folder and its run.json are this user's, and nobody else can change what run.json says."""
    if sys.platform == "win32":
        return  # a folder's owner is no number there
    file = (folder.path / "run.json").lstat()
    if not stat.S_ISREG(file.st_mode):
        raise UserError(
            f"the run.json of {visible(folder.name)} is a link",
            cause="another user may be able to write the file it points to",
        )
    for what, owner in (("run.json", file.st_uid), ("folder", folder.path.stat().st_uid)):
        if owner != os.getuid():
            raise UserError(
                f"{visible(folder.name)} belongs to another user",
                cause=f"its {what} is owned by uid {owner}, and resuming runs the script it names",
                hints=["copy the folder if you trust it: the copy is yours"],
            )
    found = open_to(folder.path)
    if found is not None:
        raise UserError(
            f"{visible(folder.name)} can be changed by {found[0]}",
            cause=f"{found[1]} can change its run.json, and resuming runs the script it names",
            hints=[f"if it still says what you started: `chmod -R go-w {shlex.quote(visible(str(folder.path)))}`"],
        )


def open_to(folder: Path) -> tuple[str, str] | None:
    """Who else can write run.json, or put another in its place; nobody on a disk that knows no permissions."""
    above, file = folder.stat().st_mode, (folder / "run.json").stat().st_mode
    for write, enter, short, long in _OTHERS:
        replaced = above & write and above & enter and not above & stat.S_ISVTX
        if (replaced or (file & write and above & enter)) and _knows_permissions(folder):
            return short, long
    return None


def _knows_permissions(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as private:  # its descriptor is asked: a name may lead elsewhere by now
            return not os.fstat(private.fileno()).st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    except OSError as error:
        return error.errno != errno.EROFS  # nobody can write to a disk that is read-only


# Who started it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What a resume would start, for a person to read."""

    command: Sequence[str]
    place: Path
    settings: Sequence[str] = ()
    then: Sequence[str] = ()
    """The command of the stages that follow, without a question of their own."""
    way: str = "--script PATH"
    """How it is given again, where nobody is there to be asked."""

    def agree(self, folder: RunFolder, output: Output, *, given: bool = False) -> bool:
        """False if this user started it here; True if it is agreed to now; UserError if it is not."""
        if folder.vouched:
            return False
        if given:
            output.note(
                f"• {visible(folder.name)} was not started here, or was changed: it continues with the command you gave"
            )
            self._show(output.note)
            return True
        if not (_is_terminal(0) and _is_terminal(2)):
            raise self._refusal(folder, "there is no terminal to ask you in")
        output.err.write(f"! {visible(folder.name)} was not started here by you, or its run.json was changed since")
        self._show(output.err.write)
        output.err.write("  It can do everything that you can. Type yes to run it:")
        if sys.stdin.readline().strip().lower() != "yes":
            raise self._refusal(folder, "the answer was not yes")
        return True

    def _show(self, write: Callable[[str], None]) -> None:
        rows = [("  it runs", _line(self.command)), ("  in", visible(str(self.place)))]
        rows += [("  then", _line(self.then))] if self.then else []
        rows += [("  with", _line(self.settings))] if self.settings else []
        for line in table(rows):
            write(line)

    def _refusal(self, folder: RunFolder, why: str) -> UserError:
        return UserError(
            f"{visible(folder.name)} was not started here by you, or its run.json was changed since: {why}",
            cause=f"it would run {_line(self.command)} in {visible(str(self.place))}",
            hints=[
                f"in a terminal, `holdfast resume {shlex.quote(visible(handle(folder)))}` asks you",
                f"or give it yourself: `holdfast resume {shlex.quote(visible(handle(folder)))} {self.way}`",
            ],
        )


def changed(settings: Settings) -> list[str]:
    """Settings that are not the usual ones, as they are typed."""
    return [f"{key}={settings.shown(key)}" for key in settings.changed() if not key.startswith("notify.")]


def visible(text: str) -> str:
    """Every character that a terminal would not show, or would obey, as its escape: nothing is hidden, nothing acts."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _line(words: Sequence[str]) -> str:
    return visible(shlex.join(words))


def _is_terminal(number: int) -> bool:
    with contextlib.suppress(OSError):
        return os.isatty(number)
    return False
