"""`holdfast config`: every setting, its value, and where the value came from.

    holdfast config                       the table
    holdfast config -v                    with what each setting means
    holdfast config watchdog              one section
    holdfast config watchdog.floor        one setting, with what it accepts and how to set it
    holdfast config run.seed=7            the table as it would be with that on the command line

It reads the same files and variables as a run does, so a mistake in them is found here first.
"""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.base.errors import ExitCode
from holdfast.console.output import Output, add_flags, table
from holdfast.run.settings import Settings, describe, kinds, known, parse_overrides, sections, variable


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "config",
        description="""\
Show every setting, its value, and where the value comes from.

examples:
  holdfast config                          every setting
  holdfast config watchdog                 the settings of one section
  holdfast config watchdog.floor           one setting, with its explanation
  holdfast config watchdog.floor=10s       check whether a value is allowed

The first of these that has a value wins: the command line, HOLDFAST_SECTION_KEY, ./holdfast.toml, [tool.holdfast] in
./pyproject.toml, the user's file, the default.
""",
        epilog="The first of these that has a value gives it: the command line, HOLDFAST_SECTION_KEY, "
        "./holdfast.toml, [tool.holdfast] of ./pyproject.toml, the user's file, the default.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="KEY | KEY=VALUE", help="a setting or a section to show, or a value to check"
    )
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; UserError for a name that is none or a value that is wrong."""
    output = Output.from_args(args)
    asked = [word for word in args.words if "=" not in word]
    settings = Settings.load(parse_overrides(word for word in args.words if "=" in word))
    keys = _keys(asked)
    if output.as_json:
        output.json({"settings": [_as_json(settings, key) for key in keys]})
    elif len(asked) == 1 and asked[0] == keys[0]:
        _print_one(settings, keys[0], output)
    else:
        _print_table(settings, keys, output)
    return ExitCode.OK


def _keys(asked: list[str]) -> list[str]:
    """The settings that were named, a section standing for all of its own; without names, all."""
    if not asked:
        return list(kinds())
    keys = []
    for word in asked:
        if word in sections():
            keys += [key for key in kinds() if key.startswith(f"{word}.")]
        else:
            known(word)
            keys.append(word)
    return keys


def _print_table(settings: Settings, keys: list[str], output: Output) -> None:
    rows = [(key, settings.shown(key), settings.source(key)) for key in keys]
    header, *lines = table(rows, header=("SETTING", "VALUE", "FROM"))
    output.print(output.out.style(header, "dim"))
    changed = set(settings.changed())
    for key, line in zip(keys, lines, strict=True):
        output.print(output.out.style(line, "bold") if key in changed else line)
        if output.verbose:
            output.print(f"    {describe(key)}")


def _print_one(settings: Settings, key: str, output: Output) -> None:
    output.print(f"{output.out.style(key, 'bold')}  {settings.shown(key)}  {settings.source(key)}")
    output.print(f"  {describe(key)}")
    output.print()
    rows = [
        ("  accepts", known(key).allowed),
        ("  default", Settings().shown(key)),
        ("  set it", f"{key}=VALUE on the command line, {variable(key)}, or ./holdfast.toml"),
    ]
    for line in table(rows):
        output.print(line)


def _as_json(settings: Settings, key: str) -> dict[str, object]:
    return {
        "key": key,
        "value": settings.get(key),
        "shown": settings.shown(key),
        "source": settings.source(key),
        "default": Settings().get(key),
        "accepts": known(key).allowed,
        "variable": variable(key),
        "description": describe(key),
    }
