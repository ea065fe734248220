"""The files that a script wrote, compared with those of undisturbed runs.

    compare([first, second], files)      # (True, False or None; the same in words), of {path: Written}

A file that differs between two undisturbed runs, or has a date in its name, is not compared as bytes. A text is then
compared line by line as printed.py does it, anything else is left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.console.output import counted
from holdfast.testing import printed
from holdfast.testing.script_copy import Written

Files = Mapping[str, Written]


def compare(references: Sequence[Files], files: Files) -> tuple[bool | None, str]:
    """Whether the files are those of the undisturbed runs, and that in words. None: there is nothing to compare."""
    if not any(references):
        return None, "it wrote no files"
    wanted = sorted(name for name in references[0] if all(name in other for other in references))
    left_out = {_dated(name) for each in references for name in each if name not in wanted}
    equal = 0
    for name in wanted:
        if name not in files:
            return False, f"{name} is missing"
        same, why = _one([each[name] for each in references], files[name])
        if same is False:
            return False, f"{name}: {why}"
        equal += same is True
        left_out |= set() if same else {name}
    more = [name for name in files if name not in wanted and _dated(name) not in left_out]
    words = f"{counted(equal, 'file')}, each as in the undisturbed runs" if equal else "no file can be compared"
    words += f"; {len(left_out)} left out, because {_why(references)}" if left_out else ""
    words += f"; and {counted(len(more), 'more file')}, like {min(more)}" if more else ""
    return (True if equal else None), words


def _one(references: Sequence[Written], file: Written) -> tuple[bool | None, str]:
    sums = {each.sha256 for each in references}
    if file.sha256 in sums:
        return True, ""
    texts = [each.lines for each in references if each.lines is not None]
    if len(texts) == len(references) and file.lines is not None:
        return printed.compare(texts, file.lines)
    if len(sums) > 1:
        return None, ""
    return False, "its bytes are others"


def _why(references: Sequence[Files]) -> str:
    return "undisturbed runs differ there" if len(references) > 1 else "numbers in it may be times"


def _dated(name: str) -> str:
    """The name without its digits: event files have the time and the process in it."""
    return re.sub(r"\d+", "#", name)
