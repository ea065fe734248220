"""Which step a checkpoint belongs to, from what the hook inside the script wrote down itself.

    steps = Steps(run_folder)             # a run that goes on remembers what its earlier processes saved
    steps.look(notes, beat)               # again and again while the script runs, and once more when it has ended
    step, sure = steps.of(found)          # sure: counted in the script, not told by the clock

The hook knows each call of `torch.save`: the step, the file, and the time by the clock that also dates files. A
checkpoint written in another way (safetensors, numpy) has only its date: its step is the last one made before it, and
because a file's date may be 10 ms behind, that is said with "about".
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from holdfast.base.board import Beat
from holdfast.base.files import open_regular
from holdfast.run.folder import RunFolder
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.own_checkpoints import Found

KEPT = 200
"""Saves that are remembered: what a script wrote before those is hardly its newest checkpoint."""
MOST_MARKS = 50_000
_COARSE = 2_000_000_000
"""Some file systems date to the second, and FAT to two."""


class Save(NamedTuple):
    """One call of torch.save."""

    step: int
    time_ns: int
    path: str
    """Empty where it went into memory first."""


class Steps:
    """The steps of a run by the clock, and what was saved at which."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._marks: list[tuple[int, int]] = []
        self._saves: dict[Save, None] = dict.fromkeys(_readable(run.info.get("saves")))
        for save in _in_file(run.path / "script"):  # the last supervisor was killed: its script's notes are still here
            self._saves[save] = None

    def look(self, notes: Notes, beat: Beat) -> None:
        """Steps since the last look."""
        newest = self._marks[-1][1] if self._marks else 0
        if beat.step != newest:
            self._marks += notes.marks(newest if beat.step > newest else beat.step - beat.attempts)
            if len(self._marks) > MOST_MARKS:
                del self._marks[: MOST_MARKS // 2 : 2]

    def process_ended(self, notes: Notes) -> None:
        """What it saved is remembered, also for whoever resumes the run."""
        self._read(notes)
        rows = [list(save) for save in self._saves]
        if rows and rows != self._run.info.get("saves"):
            self._run.update_info(saves=rows)

    def _read(self, notes: Notes) -> None:
        for save in _in_file(notes.folder):
            self._saves.pop(save, None)
            self._saves[save] = None
        for save in list(self._saves)[:-KEPT]:
            del self._saves[save]

    def of(self, found: Found, notes: Notes | None = None) -> tuple[int, bool]:
        """The step a checkpoint was written at, and whether that was counted."""
        if found.step is not None:
            return found.step, True
        if notes is not None:
            self._read(notes)
        step = _saved_at(found, self._saves)
        return (step, True) if step is not None else (self._by_the_clock(found.time_ns), False)

    def _by_the_clock(self, time_ns: int) -> int:
        gaps = sorted(later[0] - earlier[0] for earlier, later in itertools.pairwise(self._marks[-200:]))
        # A file's time is that of the clock's last tick, up to 10 ms ago: half a step of grace, and no more.
        grace = min(10_000_000, gaps[len(gaps) // 2] // 2) if gaps else 0
        before = [step for when, step in self._marks if when <= time_ns + grace]
        return before[-1] if before else 0


def _saved_at(found: Found, saves: Iterable[Save]) -> int | None:
    """The step of the last save that can have written this: into it, or through memory or under another name."""
    latest = found.time_ns + (_COARSE if found.time_ns % 1_000_000_000 == 0 else 0)
    place = os.path.realpath(found.path)
    into = [save for save in saves if save.path and _within(os.path.realpath(save.path), place)]
    if len({save.step for save in into}) == 1:  # whatever its date: nothing else has ever written there
        return into[0].step
    early = [save for save in into or saves if save.time_ns <= latest]
    fitting = early if into else [save for save in early if not os.path.exists(save.path)]
    return max(fitting, key=lambda save: save.time_ns).step if fitting else None


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(place + os.sep)


def _in_file(folder: Path) -> list[Save]:
    """What the hook wrote: a script's file, read like one from anywhere."""
    try:
        with io.TextIOWrapper(open_regular(folder / "saves.jsonl"), "utf-8", errors="replace") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError:
        return []
    rows = []
    for line in lines[-KEPT:]:
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return _readable(rows)


def _readable(rows: object) -> list[Save]:
    kept = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, list) and [type(part) for part in row] == [int, int, str] and "\0" not in row[2]:
            kept.append(Save(*row))
    return kept
