"""What a script printed or wrote as text, compared with what it printed in undisturbed runs.

    compare([first_lines, second_lines], lines)      # (True, False or None; the same in words)

A number that differs between two undisturbed runs is a time, a rate or a date: it is not compared, in any line that has
the same words. Everything else has to be equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.console.output import counted

_NUMBER = re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its words, and its numbers in their order."""

    words: str
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Line:
        return cls(" ".join(_NUMBER.sub("#", text).split()), tuple(_NUMBER.findall(text)))


def compare(references: Sequence[Sequence[str]], lines: Sequence[str]) -> tuple[bool | None, str]:
    """Whether these lines are those of the undisturbed runs, and that in words. None: it cannot be told."""
    first = references[0]
    wanted = [Line.of(text) for text in first]
    others = [[Line.of(text) for text in each] for each in references[1:]]
    if any(len(other) != len(wanted) for other in others):
        return None, "two undisturbed runs have different numbers of lines"
    times, loose = _differing(wanted, others)
    left_out = f"; {_times(len(times))} left out, because undisturbed runs differ there" if times or loose else ""
    ours = [Line.of(text) for text in lines]
    pairs = enumerate(zip(wanted, ours, strict=False))
    wrong = next((at for at, pair in pairs if at not in loose and not _equal(*pair, times)), None)
    said = "" if wrong is None else f"line {wrong + 1} is {_short(lines[wrong])}, undisturbed {_short(first[wrong])}"
    if len(ours) != len(wanted):
        return False, f"{counted(len(ours), 'line')}, undisturbed {len(wanted)}" + (f"; {said}" if said else "")
    if wrong is None:
        return True, f"{counted(len(wanted), 'line')}, each as in the undisturbed runs{left_out}"
    if not others and wanted[wrong].words == ours[wrong].words:
        return None, f"{said}; two undisturbed runs tell whether this is a time"
    return False, said


def _differing(wanted: list[Line], others: list[list[Line]]) -> tuple[set[tuple[str, int]], set[int]]:
    """Numbers that differ between undisturbed runs, by the words of their line; and lines whose words differ."""
    times: set[tuple[str, int]] = set()
    loose: set[int] = set()
    for other in others:
        for at, (one, two) in enumerate(zip(wanted, other, strict=True)):
            if one.words != two.words:
                loose.add(at)
                continue
            times |= {(one.words, i) for i, pair in enumerate(zip(one.numbers, two.numbers, strict=True)) if _two(pair)}
    return times, loose


def _two(pair: tuple[str, str]) -> bool:
    return pair[0] != pair[1]


def _equal(was: Line, now: Line, times: set[tuple[str, int]]) -> bool:
    if was.words != now.words:
        return False
    pairs = enumerate(zip(was.numbers, now.numbers, strict=True))
    return all(one == two or (was.words, at) in times for at, (one, two) in pairs)


def _times(count: int) -> str:
    return f"{counted(count, 'number')} of a line" if count else "lines"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
