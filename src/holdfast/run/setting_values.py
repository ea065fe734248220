"""What a setting accepts: how it is read from text or TOML, how it is shown, what the error says.

    every: float = setting(60.0, DURATION)       # a field of a frozen dataclass, with its kind
    DURATION.parse("1h30m")                      # 5400.0; ValueError for what is not a duration
    DURATION.show(5400.0)                        # "1h 30m"
    Choice("auto", "memory", "file").allowed     # "auto, memory or file"

Plain classes, because dataclasses take a millisecond each to make and every command would pay for them.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import field
from typing import Any, TypeVar

from holdfast.base.units import parse_bytes, parse_duration, write_bytes, write_duration

T = TypeVar("T")


class Kind:
    """What a setting accepts, how it is read from text or TOML, and how it is shown."""

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed
        """Ends the sentence "use ..."."""

    def parse(self, value: object) -> object:
        """The typed value; ValueError if `value` is not one."""
        raise NotImplementedError

    def show(self, value: object) -> str:
        """The value as a person would write it; `parse` reads it back."""
        return str(value)


class Duration(Kind):
    """Seconds, above zero and finite."""

    def parse(self, value: object) -> float:
        seconds = parse_duration(value) if isinstance(value, str) else _number(value)
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError
        return seconds

    def show(self, value: object) -> str:
        return write_duration(_number(value))


class Bytes(Kind):
    """Bytes, above zero."""

    def parse(self, value: object) -> int:
        size = parse_bytes(value) if isinstance(value, str) else _whole(value)
        if size <= 0:
            raise ValueError
        return size

    def show(self, value: object) -> str:
        return write_bytes(_whole(value))


class Int(Kind):
    """A whole number from `low` to `high`, or to what 64 bits hold."""

    def __init__(self, allowed: str, low: int, high: int = 2**63 - 1) -> None:
        super().__init__(allowed)
        self.low, self.high = low, high

    def parse(self, value: object) -> int:
        number = int(value) if isinstance(value, str) else _whole(value)
        if not self.low <= number <= self.high:
            raise ValueError
        return number


class Float(Kind):
    """A finite number from `low` on."""

    def __init__(self, allowed: str, low: float) -> None:
        super().__init__(allowed)
        self.low = low

    def parse(self, value: object) -> float:
        number = float(value) if isinstance(value, str) else _number(value)
        if not (math.isfinite(number) and number >= self.low):
            raise ValueError
        return number

    def show(self, value: object) -> str:
        return repr(_number(value)).removesuffix(".0")


class Bool(Kind):
    """True or false, in the words people use for it."""

    def parse(self, value: object) -> bool:
        word = str(value).strip().lower()
        if isinstance(value, (str, bool, int)) and word in ("true", "yes", "on", "1"):
            return True
        if isinstance(value, (str, bool, int)) and word in ("false", "no", "off", "0"):
            return False
        raise ValueError

    def show(self, value: object) -> str:
        return "true" if value else "false"


class Text(Kind):
    """Text that matches a pattern."""

    def __init__(self, allowed: str, pattern: str = r"\S(.*\S)?") -> None:
        super().__init__(allowed)
        self.pattern = pattern

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise ValueError
        return value


class CommandLine(Text):
    """A program and its arguments. What only a shell understands is refused: it would be handed over as an argument."""

    def parse(self, value: object) -> str:
        text = super().parse(value)
        words = shlex.shlex(text, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        words.commenters = ""
        if any(set(word) <= set("|&;<>()") for word in words if word):  # ValueError for a quotation without an end
            raise ValueError
        return text


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *options: str) -> None:
        super().__init__(f"{', '.join(options[:-1])} or {options[-1]}")
        self.options = options

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise ValueError
        return value


class OrAuto(Kind):
    """The word auto, or what `inner` accepts."""

    def __init__(self, inner: Kind) -> None:
        super().__init__(f"auto, or {inner.allowed}")
        self.inner = inner

    def parse(self, value: object) -> object:
        return value if value == "auto" else self.inner.parse(value)

    def show(self, value: object) -> str:
        return "auto" if value == "auto" else self.inner.show(value)


class OrOff(Kind):
    """The word off, or what `inner` accepts. Off is None."""

    def __init__(self, inner: Kind) -> None:
        super().__init__(f"off, or {inner.allowed}")
        self.inner = inner

    def parse(self, value: object) -> object:
        return None if value is None or value is False or value == "off" else self.inner.parse(value)

    def show(self, value: object) -> str:
        return "off" if value is None else self.inner.show(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


DURATION = Duration("a duration above zero such as 90s, 5m or 1h30m")
BYTES = Bytes("a size above zero such as 512MiB or 4GB")
BOOL = Bool("true or false")


def at_least(low: int, what: str = "a whole number") -> Int:
    """`at_least(1, "a whole number of steps")`: the words are what the error shows."""
    return Int(f"{what}, {low} or more", low)


def between(low: int, high: int) -> Int:
    return Int(f"a whole number from {low} to {high}", low, high)


def setting(default: T, kind: Kind) -> T:
    """A dataclass field with its kind. Typed as its default, which is how type checkers see any field."""
    made: Any = field(default=default, metadata={"kind": kind})
    return made  # type: ignore[no-any-return]
