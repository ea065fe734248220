"""Text that others wrote, made harmless for a terminal: nothing in it moves a cursor or sets a title.

    without_control("\\x1b[2Jhello\\u202e")     # "hello": newline and tab stay, what steers a terminal goes
    one_line("two\\nlines")                     # "two lines": for a field of a table, a title, a name

A run folder, a data set or the message of a library may hold anything. `cli.output` cleans every text that a command
prints; whatever draws on a terminal in another way cleans with the same function.
"""

from __future__ import annotations

import re

_STRING = r"[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
"""The text of a title, a link or a device command, up to its end. One without an end stays, as text."""
_CONTROL = re.compile(
    rf"(?:\x1b[\]P_^X]|[\x90\x98\x9d-\x9f]){_STRING}"  # OSC, DCS, APC, PM, SOS, also as one character
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, colour, erase
    r"|\x1b[ -/]*[0-~]"  # the short ones: reset, character sets
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # every other control character; newline and tab stay
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"  # what turns the direction, or begins a line
)
_BYTE = re.compile(r"[\ud800-\udfff]")
"""Half a character: how Python keeps a byte of a file name that is no text. Some streams would write the byte."""


def without_control(text: str) -> str:
    """Text that cannot move a cursor or change a terminal. Newline and tab stay."""
    return _BYTE.sub(lambda half: f"\\u{ord(half[0]):04x}", _CONTROL.sub("", text))


def one_line(text: str) -> str:
    """The same in one line: for a name, a field of a table, a title."""
    return re.sub(r"[\n\t]+", " ", without_control(text))
