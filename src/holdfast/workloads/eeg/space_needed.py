"""What preparing will need of a machine, before it begins: space on the disk, and memory for each process.

space_needed.guard_disk(target, recordings, recipe, channels)         # UserError if the cache cannot fit
space_needed.memory_of_one(recordings, recipe, channels)              # bytes, for the longest recording

Both are estimates from what the sidecars and the file system say; nothing is opened.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.base.human import size as bytes_in_words
from holdfast.workloads.eeg import cache
from holdfast.workloads.eeg.bids import Recording
from holdfast.workloads.eeg.recipe import Recipe

_PYTHON = 96 << 20
"""An interpreter with numpy."""
_FILTERING = 6 * (32 << 20)
"""A block of channels, its spectrum, and what stands between the two; see `making`."""


def guard_disk(target: Path, recordings: Sequence[Recording], recipe: Recipe, channels: Sequence[str]) -> None:
    """Say before hours of work that it will not fit. Windows cut at events are few: those are not guessed."""
    if recipe.kind not in ("challenge2", "pretrain") and not recipe.labels:
        return
    seconds = sum(_seconds(each) for each in recordings)
    needed = seconds / recipe.stride * len(channels) * recipe.samples * 4
    held = (target / cache.SIGNALS).stat().st_size if (target / cache.SIGNALS).exists() else 0
    free = shutil.disk_usage(target).free + held
    if needed > free:
        raise UserError(
            f"the cache would need about {bytes_in_words(needed)}, {bytes_in_words(free)} are free in {target}",
            hints=["choose another disk, fewer tasks or subjects, or a longer `--stride`"],
        )


def memory_of_one(recordings: Sequence[Recording], recipe: Recipe, channels: Sequence[str]) -> float:
    """Bytes that a process needs for the longest of these: its signals at the new rate, and what is made of them."""
    return max((_memory(each, recipe, len(channels)) for each in recordings), default=0.0)


def _memory(recording: Recording, recipe: Recipe, channels: int) -> float:
    file = _size(recording.path)
    whole = _seconds(recording) * recipe.rate * channels * 4 or 2.0 * file  # without a sidecar: a sample has two bytes
    windows = whole * max(1.0, recipe.size / recipe.stride)
    # Formats that are not read in blocks come into memory as a whole, and once more as numbers.
    at_once = 0.0 if recording.path.suffix.lower() in (".bdf", ".edf") else 2.0 * file
    return _PYTHON + at_once + whole + max(_FILTERING, windows)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _seconds(recording: Recording) -> float:
    return max(0.0, files.number(recording.sidecar.get("RecordingDuration")))
