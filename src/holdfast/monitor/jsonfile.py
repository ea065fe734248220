"""JSON files of a run folder, which may be anybody's: replaced whole while we look, or not JSON at all.

file = JsonFile(run / "beat.json")
file.read()                      # True if it says something else than last time; one lstat where it does not
file.data, file.problem          # an object, empty where there is none; why, in words
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from holdfast.base.files import read_bounded

_MOST_JSON = 4 << 20


class JsonFile:
    """A file that is replaced whole: parsed again only when it is another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {}
        self.problem: str | None = None
        self._stamp: object = None

    def read(self) -> bool:
        """True if it says something else now."""
        try:
            seen = os.lstat(self.path)
        except FileNotFoundError:
            return self._say({}, None, None)
        except OSError as error:
            return self._say({}, str(error.strerror or error), None)
        stamp = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if stamp == self._stamp:
            return False
        try:
            data = json.loads(read_bounded(self.path, _MOST_JSON))
        except OSError as error:
            return self._say({}, str(error.strerror or error), stamp)
        except (ValueError, RecursionError):
            return self._say({}, "not JSON", stamp)
        return self._say(data if isinstance(data, dict) else {}, None if isinstance(data, dict) else "no object", stamp)

    def _say(self, data: dict[str, Any], problem: str | None, stamp: object) -> bool:
        changed = data != self.data or problem != self.problem
        self.data, self.problem, self._stamp = data, problem, stamp
        return changed


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object from a file that may be anybody's; nothing for anything else."""
    try:
        data = json.loads(read_bounded(path, _MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def names_in(folder: Path, most: int = 10_000) -> list[str]:
    """What is in a folder of the run; nothing if it is a link to elsewhere."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) >= most:
                    break
    return sorted(found)
