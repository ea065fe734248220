"""Command lines that cannot be understood, said the same way by every command.

    error: unexpected argument `--devise`

      tip: a similar one exists: `--device`

    For more information, try `holdfast train --help`

`Parser` is argparse with this voice: it raises `UsageError` instead of printing its own kind of text and exiting.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from holdfast.base.errors import UserError
from holdfast.console.exit_codes import lines
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
        self._positionals.title = "arguments"

    def format_usage(self) -> str:
        """One line: the options have a list of their own below."""
        return f"usage: {' '.join([self.prog, '[OPTIONS]', *map(_shape, self._get_positional_actions())])}\n"

    def format_help(self) -> str:
        """What the command does, its examples, then arguments, options and exit codes."""
        formatter = self._get_formatter()
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        page = [*fitted(self.description or ""), "", self.format_usage()]
        page += [formatter.format_help(), *fitted("\n".join(lines(self.command)))]
        return "\n".join(page).strip("\n") + "\n"

    def error(self, message: str) -> NoReturn:
        raise UsageError(_in_plain_words(message), command=self.command)

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

    def tools(self) -> dict[str, str]:
        """Name and purpose of each tool, for a command that is a family of them."""
        return {}

    def tool(self, name: str) -> Parser:
        """The parser of one of `tools`."""
        raise KeyError(name)

    def for_script(self) -> None:
        """This command runs a script, so a stray flag may have been meant for that."""
        self._takes_script = True


_KINDS = {"int": "a whole number", "float": "a number"}


def _in_plain_words(message: str) -> str:
    """What argparse says, as the rest of holdfast says it."""
    missing = re.fullmatch(r"the following arguments are required: (.+)", message)
    if missing:
        return f"{missing[1]} is missing" if "," not in missing[1] else f"{missing[1]} are missing"
    wrong = re.fullmatch(r"argument (\S+): invalid (\w+) value: '(.*)'", message)
    if wrong and wrong[2] in _KINDS:
        return f"{wrong[1].partition('/')[0]} is `{wrong[3]}`, but it has to be {_KINDS[wrong[2]]}"
    choice = re.fullmatch(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.+)\)", message)
    if choice:
        return (
            f"{choice[1].partition('/')[0]} is `{choice[2]}`, but it has to be one of {choice[3].replace(chr(39), '')}"
        )
    bare = re.fullmatch(r"argument (\S+): expected (?:one|at least one) argument", message)
    if bare:
        return f"{bare[1]} needs a value"
    return message


def fitted(text: str) -> list[str]:
    """Lines that fit the terminal: prose is wrapped, an example too long for a line gets its comment below it."""
    width = max(40, min(shutil.get_terminal_size((80, 24)).columns - 2, 110))
    found: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        rows = paragraph.splitlines()
        prose = not any(row.startswith(" ") for row in rows)
        found += ["", *(textwrap.wrap(" ".join(rows), width) if prose else _narrowed(rows, width))]
    return found[1:]


def _narrowed(rows: list[str], width: int) -> Iterator[str]:
    below = any(len(row) > width for row in rows)  # then every comment stands below its example, not only some
    for row in rows:
        code = re.match(r" {2,4}(\d+)  ", row)
        comment = re.match(r"(  \S.*?\S)\s{2,}(\S.*)$", row)
        if code:
            yield from textwrap.wrap(row, width, subsequent_indent=" " * code.end())
        elif below and comment:
            yield comment[1]
            yield f"      {comment[2]}"
        elif below and row.startswith(" " * 20):
            yield f"      {row.strip()}"
        else:
            yield row


def _shape(action: argparse.Action) -> str:
    """A positional argument as the usage line shows it: RUN, [RUN], [KEY=VALUE ...]."""
    name = str(action.metavar or action.dest.upper())
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)


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
