"""Text that others wrote: a script's output, the words in a run folder that came from somewhere else.

without_control("\\x1b[2Jhello")     # "hello": nothing that moves a cursor or renames a terminal
lines = Lines(); lines.feed("10 %\\r100 %\\n")      # ["100 %"]
"""

from __future__ import annotations

from holdfast.base.control_characters import without_control

__all__ = ["Lines", "without_control"]


class Lines:
    """What a script prints, whole lines only; a line that was drawn over with carriage returns counts once."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        *whole, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        if len(self._rest) > 1 << 16:  # a script that never ends a line must not fill our memory
            whole, self._rest = [*whole, self._rest], ""
        elif "\r" in self._rest:
            self._rest = "\r" + self._rest.rstrip("\r").rpartition("\r")[2]
        return [_last_drawn(line) for line in whole]

    def flush(self) -> list[str]:
        rest, self._rest = self._rest, ""
        return [_last_drawn(rest)] if rest.strip() else []


def _last_drawn(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
