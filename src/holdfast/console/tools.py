"""A command that is several: `holdfast eeg check DATA`. Each tool is a parser of its own, with its own help.

return Tools("eeg", "About.", {"check": Tool("eeg_data:add_check", "what would break other tools")})
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.console.output import Screen
from holdfast.console.usage import One, Parser, UsageError, similar


class Tool(NamedTuple):
    """Where a tool lives, module:function, and what it is for."""

    place: str
    help: str


class Tools(Parser):
    """Finds the tool and lets its parser do the rest."""

    def __init__(self, name: str, about: str, tools: dict[str, Tool]) -> None:
        super().__init__(name, add_help=False)
        self._about, self._rows = about, tools
        for tool in tools:  # so that whoever asks for the flags of the command gets those of its tools
            self._actions.extend(self.tool(tool)._actions)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        words = list(argv)
        at = 0
        while at < len(words) and words[at].startswith("-"):
            at += 2 if words[at] == "--color" else 1
        tool = words[at] if at < len(words) else None
        if tool is None:
            if not words or {"-h", "--help"} & set(words):
                Screen.of(sys.stdout).write(self.format_help(), end="")
                return argparse.Namespace(run=lambda args: 0)
            raise UsageError(f"`holdfast {self.command}` needs the name of a tool", command=self.command)
        if tool not in self._rows:
            tips = similar(tool, self._rows, "tool")
            raise UsageError(f"`holdfast {self.command}` has no `{tool}`", command=self.command, tips=tips)
        return self.tool(tool).parse([*words[:at], *words[at + 1 :]])

    def tools(self) -> dict[str, str]:
        return {name: tool.help for name, tool in self._rows.items()}

    def tool(self, name: str) -> Parser:
        module, _, function = self._rows[name].place.partition(":")
        add: Any = getattr(importlib.import_module(module), function or "add_parser")
        parser: Parser = add(One())
        return parser

    def format_help(self) -> str:
        lines = [f"  holdfast {self.command} {name:<10}{tool.help}" for name, tool in self._rows.items()]
        return "\n".join(
            [
                self._about,
                "",
                "tools:",
                *lines,
                "",
                f"usage: holdfast {self.command} TOOL [ARGUMENTS]",
                "",
                f"`holdfast {self.command} TOOL --help` shows examples and options of one tool.",
                "",
            ]
        )
