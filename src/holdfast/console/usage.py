"""Command lines that cannot be understood, said the same way by every command.

    error: unexpected argument `--devise`

      tip: a similar one exists: `--device`

    For more information, try `holdfast train --help`

`Parser` is argparse with this voice: it raises `UsageError` instead of printing its own kind of text and exiting.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn

from holdfast.base.errors import UserError
from holdfast.console.output import Screen


class UsageError(UserError):
    """The command line is wrong; `command` names the help page to read."""

    def __init__(self, message: str, *, command: str = "", cause: str | None = None, tips: Sequence[str] = ()) -> None:
        super().__init__(message, cause=cause, hints=tips)
        self.command = command


class Parser(argparse.ArgumentParser):
    """One command's arguments."""

    def __init__(self, name: str, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=f"holdfast {name}", allow_abbrev=False, **options)  # type: ignore[arg-type]
        self.command = name

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, command=self.command)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """All of `argv`; words may stand between flags, which argparse alone does not allow."""
        args, rest = self.parse_known_args(argv)
        for word in rest:
            if word.startswith("-") or not isinstance(getattr(args, "words", None), list):
                raise self._unexpected(word)
            args.words = [*args.words, word]
        return args

    def _unexpected(self, word: str) -> UsageError:
        flag = word.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        tips = similar(flag, known, "one") if word.startswith("-") else []
        if word.startswith("-") and hasattr(self, "_takes_script"):
            tips.append(f"to pass it to the script, write it after `--`: `-- {word}`")
        return UsageError(f"unexpected argument `{word}`", command=self.command, tips=tips)

    def for_script(self) -> None:
        """This command runs a script, so a stray flag may have been meant for that."""
        self._takes_script = True


class One:
    """Stands where argparse expects its sub-parsers: a command adds itself, and only that one is built."""

    def add_parser(self, name: str, *, help: str = "", **options: object) -> Parser:
        return Parser(name, **options)


def similar(word: str, known: Iterable[str], what: str) -> list[str]:
    """A tip with the name that was probably meant, or none."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return [f"a similar {what} exists: `{close[0]}`"] if close else []


def print_usage_error(error: UsageError, screen: Screen) -> None:
    screen.write(f"{screen.style('error:', 'error')} {error.message}")
    if error.cause:
        screen.write(f"  {screen.style('cause:', 'bold')} {error.cause}")
    if error.hints:
        screen.write()
    for tip in error.hints:
        screen.write(f"  {screen.style('tip:', 'hint')} {tip}")
    screen.write()
    words = " ".join(["holdfast", *error.command.split(), "--help"])
    screen.write(f"For more information, try `{words}`")
