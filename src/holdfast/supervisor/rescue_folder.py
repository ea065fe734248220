"""Where a run goes whose folder cannot be written to any more, when it must end. No torch here.

    place = find(run_folder.path.name, need=2_400_000_000)      # an empty folder with room, or None
    run_folder.move_to(place)                                   # records go on there
    keeping.finish(["final"], folder=place)                     # and so does the state

The place is a run folder like any other: `holdfast resume` takes it. It is where the system keeps what must outlive a
reboot, or TMPDIR if somebody set that, or the home folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "holdfast-rescue-"
SPARE = 1 << 20
"""Bytes for the records, besides the state and the weights."""


def find(name: str, *, need: int) -> Path | None:
    """A path, not made yet, for a run folder called `name`, in a new folder with room for `need` bytes."""
    for base in bases():
        try:
            if shutil.disk_usage(base).free < need + SPARE:
                continue
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)) / name
        except OSError:
            continue
    return None


def bases() -> Iterator[Path]:
    if os.environ.get("TMPDIR"):
        yield Path(os.environ["TMPDIR"])
    if os.name == "posix":
        yield Path("/var/tmp")
    yield Path(tempfile.gettempdir())
    yield Path(os.path.expanduser("~"))
