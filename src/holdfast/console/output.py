"""How the command line speaks: streams, colour, signs, numbers, errors. Nothing else decides these.

    output = Output.from_args(args)              # after `add_flags(parser)`
    output.print("what was asked for")           # stdout; silent with --json
    output.note("what is going on")              # stderr; silent with -q
    output.json({"runs": []})                    # stdout; one object with "schema": 1
    output.error(error)                          # error / cause / saved / hint

Text is written with the signs of the design (✓ ✗ ↺ · → █); a stream that cannot show them, or `--ascii`,
gets plain ones (`[ok] [x]`). Every colour stands beside a word or a sign, so nothing is lost without it.

Text may hold what others wrote. Everything that is written here loses its control characters; the colours of `style`
are put in afterwards, and no text can contain one. Whoever draws asks the screen (`redraw`, `wipe`, `ring`).
The formats of numbers (`duration`, `count`, `size`, ...) are those of `holdfast.base.human`, here by name as well.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.base.control_characters import without_control
from holdfast.base.human import BLOCKS, count, counted, duration, metric, percent, shorten, size, sparkline, table

if TYPE_CHECKING:
    import argparse

    from holdfast.base.errors import HoldfastError

__all__ = [
    "Output",
    "Screen",
    "add_flags",
    "count",
    "counted",
    "duration",
    "metric",
    "percent",
    "print_error",
    "shorten",
    "size",
    "sparkline",
    "table",
    "use_color",
]

SCHEMA = 1

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "error": "1;31",
    "hint": "1;36",
}

# `style` marks where a colour begins and ends with a word that nobody else knows, so only we can ask for one.
_MARK = f"\x1b{os.urandom(8).hex()}:"
_MARKED = re.compile(rf"{_MARK}([0-9;]+)m")

# What a terminal without Unicode gets. Boxed signs come first: "[✓]" is "[ok]", not "[[ok]]".
_ASCII = {
    "[✓]": "[ok]",
    "[!]": "[!!]",
    "[✗]": "[x]",
    "[☠]": "[x]",
    "✓": "[ok]",
    "✗": "[x]",
    "☠": "[x]",
    "↺": "[<]",
    "⇒": "[=]",
    "▼": "v",
    "●": "*",
    "•": "*",
    "·": "-",
    "→": "->",
    "←": "<-",
    "…": "...",
    "±": "+-",
    "°": "",
    "━": "=",
    "╸": "-",
    "─": "-",
    "│": "|",
    "▮": "#",
    "\u2009": " ",
    "\u202f": " ",
    **dict(zip(BLOCKS, "_.-~=+*#", strict=True)),
}


@dataclass(frozen=True)
class Screen:
    """One stream and what it can show. stdout and stderr are judged apart: one may be a pipe."""

    stream: TextIO
    color: bool
    unicode: bool
    tty: bool
    width: int

    @classmethod
    def of(
        cls,
        stream: TextIO | None,
        *,
        color: str = "auto",
        ascii: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Screen:
        """Judge `stream`; None (a program without a console) writes nowhere."""
        env = os.environ if env is None else env
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (it lives as long as the process)
        tty = _is_tty(stream)
        return cls(
            stream=stream,
            color=use_color(color, tty=tty, env=env),
            unicode=not ascii and _is_unicode(stream),
            tty=tty,
            width=_width(env) if tty else 100,
        )

    def style(self, text: str, name: str) -> str:
        """`text` in one of the few styles of holdfast, or as it is where there is no colour. `write` puts it in."""
        return f"{_MARK}{_STYLES[name]}m{text}{_MARK}0m" if self.color and text else text

    def fit(self, text: str) -> str:
        """`text` without control characters, with signs that this stream can show."""
        text = without_control(text)
        if not self.unicode:
            for sign, plain in _ASCII.items():
                text = text.replace(sign, plain)
        return text

    def write(self, text: str = "", *, before: str = "", end: str = "\n") -> None:
        """One line. A character the stream cannot show is escaped: no path or message may crash a command."""
        self._send(before + self._rendered(text) + end)

    def redraw(self, text: str) -> None:
        """Over the line where the cursor stands, as far as there is room."""
        self._send("\r\x1b[2K" + self.fit(text).replace("\n", " ")[: max(self.width - 1, 20)])

    def wipe(self) -> None:
        """Take away what `redraw` has drawn."""
        self._send("\r\x1b[2K")

    def ring(self) -> None:
        """The bell of the terminal."""
        self._send("\a")

    def _rendered(self, text: str) -> str:
        """Cleaned between our colours, and these as the terminal wants them."""
        parts = _MARKED.split(text)
        return "".join(f"\x1b[{part}m" if at % 2 else self.fit(part) for at, part in enumerate(parts))

    def _send(self, text: str) -> None:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            encoding = self.stream.encoding or "ascii"
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stream.flush()


@dataclass(frozen=True)
class Output:
    """Both streams and what the user asked to see."""

    out: Screen
    err: Screen
    as_json: bool = False
    quiet: bool = False
    verbose: int = 0
    plain: bool = False
    progress: bool = True

    @classmethod
    def from_args(
        cls,
        args: argparse.Namespace,
        *,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Output:
        """From the flags of `add_flags`; a flag that a command does not have counts as not given."""
        flag = vars(args).get
        color, ascii = flag("color") or "auto", bool(flag("ascii"))
        return cls(
            out=Screen.of(stdout or sys.stdout, color=color, ascii=ascii, env=env),
            err=Screen.of(stderr or sys.stderr, color=color, ascii=ascii, env=env),
            as_json=bool(flag("json")),
            quiet=bool(flag("quiet")),
            verbose=int(flag("verbose") or 0),
            plain=bool(flag("plain")),
            progress=not flag("no_progress"),
        )

    def print(self, text: str = "") -> None:
        """What the user asked for, on stdout. With --json only `json` writes there."""
        if not self.as_json:
            self.out.write(text)

    def note(self, text: str = "") -> None:
        """What is going on, on stderr."""
        if not self.quiet:
            self.err.write(text)

    def json(self, data: Mapping[str, Any]) -> None:
        """The one object of --json: ASCII text, so that no locale can break it; NaN becomes null."""
        text = json.dumps(_jsonable({"schema": SCHEMA, **data}), indent=2, allow_nan=False)
        self.out.stream.write(text + "\n")
        self.out.stream.flush()

    def error(self, error: HoldfastError) -> None:
        """The four parts of an error on stderr, and with --json the same as the one object on stdout."""
        print_error(error, self.err)
        if self.as_json:
            self.json({"error": error.to_json()})


def add_flags(
    parser: argparse.ArgumentParser, *, json: bool = True, plain: bool = False, progress: bool = False
) -> None:
    """The output flags, the same in every command; `plain` and `progress` where there is such output."""
    group = parser.add_argument_group("output")
    if json:
        group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    if plain:
        group.add_argument("--plain", action="store_true", help="print one record per line, without boxes")
    if progress:
        group.add_argument("--no-progress", action="store_true", help="show no progress bar")
    group.add_argument("-q", "--quiet", action="store_true", help="print only the result and errors")
    group.add_argument("-v", "--verbose", action="count", default=0, help="print more detail")
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        metavar="WHEN",
        help="auto, always or never (default: auto)",
    )
    group.add_argument("--ascii", action="store_true", help="use ASCII signs instead of Unicode")


def add_run(parser: argparse.ArgumentParser) -> None:
    """The run that a command is about."""
    parser.add_argument("name", metavar="RUN", help="a run: its name such as calm-heron, its folder, or `latest`")


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Where it is looked for."""
    parser.add_argument("--folder", metavar="PATH", help="the folder of the runs (default: the setting run.folder)")


def print_error(error: HoldfastError, screen: Screen | None = None) -> None:
    """error / cause / saved, then the hints after a blank line."""
    screen = screen or Screen.of(sys.stderr)
    screen.write(_labelled("error:", error.message, screen.style("error:", "error")))
    for label, text in (("cause", error.cause), ("saved", error.saved)):
        if text:
            screen.write(_labelled(f"  {label}:", text, "  " + screen.style(f"{label}:", "bold")))
    if error.hints:
        screen.write()
    for hint in error.hints:
        screen.write(_labelled("hint:", hint, screen.style("hint:", "hint")))


def _labelled(label: str, text: str, styled: str) -> str:
    """Further lines of `text` stand under its first one."""
    indent = "\n" + " " * (len(label) + 1)
    return f"{styled} {indent.join(text.splitlines())}"


# What a stream can show -----------------------------------------------------------------------------------


def use_color(flag: str, *, tty: bool, env: Mapping[str, str]) -> bool:
    """--color, then NO_COLOR, then FORCE_COLOR (an empty one does not count), then TERM=dumb, then tty."""
    if flag != "auto":
        return flag == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR"):
        return True
    if env.get("TERM") == "dumb":
        return False
    if sys.platform == "win32" and not (env.get("WT_SESSION") or env.get("TERM")):
        return False  # the old Windows console prints the codes themselves
    return tty


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _is_unicode(stream: TextIO) -> bool:
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace("_", "")
    return encoding.startswith("utf")


def _width(env: Mapping[str, str]) -> int:
    columns = env.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) else shutil.get_terminal_size((80, 24)).columns


def _jsonable(data: Any) -> Any:
    """NaN and infinity as null: JSON has neither, and unknown is null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): _jsonable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_jsonable(value) for value in data]
    return data
