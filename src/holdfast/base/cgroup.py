"""The memory cgroup this process is in: how often the kernel killed for its sake, and whose limit it was.

    before = kills()                     # of the own cgroup, version 2 or 1; of the machine where there is none
    limit = exhausted()                  # Limit("/user.slice/job", 2 << 30): the nearest one at its limit, or None
    limit.words                          # "the cgroup /user.slice/job (its limit is 2.15 GB)"

A container shows its own cgroup as the root, so the path may be `/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.human import size

UNLIMITED = 1 << 60
"""Version 1 has no word for none: it says a number no machine has."""
MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Limit:
    """A cgroup that had no memory left."""

    path: str
    bytes: int

    @property
    def words(self) -> str:
        return f"the cgroup {self.path} (its limit is {size(self.bytes)})"


def folders(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> list[Path]:
    """This process's memory cgroup, version 2 or 1, the nearest first."""
    return [place / relative for place, relative in _places(membership, mount)]


def _places(membership: Path, mount: Path) -> list[tuple[Path, str]]:
    """(where the hierarchy is mounted, the path in it)."""
    found: list[tuple[Path, str]] = []
    with contextlib.suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            relative = path.lstrip("/")
            if controllers == "":
                found += [(mount, relative), (mount / "unified", relative)]
            elif "memory" in controllers.split(","):
                found.append((mount / "memory", relative))
    return found


def kills(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int:
    """How often the kernel killed a process of our memory cgroup, or of this machine, for memory."""
    for folder in folders(membership, mount):
        for name in ("memory.events", "memory.oom_control"):
            counted = _value(folder / name, "oom_kill")
            if counted is not None:
                return counted
    return _value(Path("/proc/vmstat"), "oom_kill") or 0


def exhausted(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> Limit | None:
    """The nearest cgroup around this process that has a limit and has reached it; None if it was the machine."""
    for place, relative in _places(membership, mount):
        for folder in _upwards(place, relative):
            limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
            hits = _value(folder / "memory.events", "oom") or _number(folder / "memory.failcnt")
            if limit is not None and 0 < limit < UNLIMITED and hits:
                return Limit("/" + str(folder.relative_to(place)).removeprefix("."), limit)
    return None


def _upwards(place: Path, relative: str) -> Iterator[Path]:
    folder = place / relative
    yield folder
    while folder != place and place in folder.parents:
        folder = folder.parent
        yield folder


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _value(path: Path, key: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            word, _, value = line.partition(" ")
            if word == key:
                return int(value)
    return None
