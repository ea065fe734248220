"""What the system counts: memory kills, throttling, errors on the bus and in memory. Files only, under a millisecond.

    before = read()                          # when the worker begins
    after = read()                           # when it is gone
    rose(before, after)                      # {"memory.oom_kill": 1, "pci.0000:65:00.0.fatal": 2}

`counts` only ever grow, so what they grew by belongs to the time between. `levels` are how it is now.
Nothing here asks a driver: a sick one would hang whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.run import machine

ROOT = Path("/")
_GRAPHICS, _ACCELERATOR = "0x03", "0x12"

_COUNTS = {
    "memory.events": {"oom": "memory.oom", "oom_kill": "memory.oom_kill", "max": "memory.at_limit"},
    "memory.oom_control": {"oom_kill": "memory.oom_kill"},
    "cpu.stat": {
        "nr_throttled": "cpu.throttled",
        "throttled_usec": "cpu.throttled_us",
        "throttled_time": "cpu.throttled_ns",
    },
    "pids.events": {"max": "pids.refused"},
}
"""File, word in it, our name: control groups of version 2 and 1."""
_LEVELS = {
    "memory.current": "memory.current_bytes",
    "memory.usage_in_bytes": "memory.current_bytes",
    "memory.peak": "memory.peak_bytes",
    "memory.max_usage_in_bytes": "memory.peak_bytes",
    "memory.max": "memory.limit_bytes",
    "memory.limit_in_bytes": "memory.limit_bytes",
    "memory.failcnt": "memory.refused",
    "pids.current": "pids.current",
    "pids.max": "pids.limit",
}


def read(root: Path = ROOT) -> dict[str, Any]:
    """Everything that can be read here; what is missing is left out."""
    return {
        "counts": {**_group_counts(root), **_bus_errors(root), **_memory_errors(root)},
        "levels": {**_group_levels(root), **_machine_memory(root)},
        "pressure": _pressure(root),
    }


@cache
def _group_files(root: Path) -> dict[str, Path]:
    """Of each file, the one in the nearest group that has it; our groups stay the same."""
    groups = [folder for folder in machine.cgroups(root) if folder.is_dir()]
    found = {}
    for name in (*_COUNTS, *_LEVELS):
        nearest = next((folder / name for folder in groups if _text(folder / name)), None)
        if nearest is not None:
            found[name] = nearest
    return found


@cache
def _cards(root: Path) -> tuple[Path, ...]:
    """Graphics cards and accelerators on the bus."""
    folders = _folders(root / "sys/bus/pci/devices")
    return tuple(folder for folder in folders if _text(folder / "class").startswith((_GRAPHICS, _ACCELERATOR)))


def rose(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """By how much each count grew. One that was not there before is left out: its growth is unknown."""
    old, new = before.get("counts") or {}, after.get("counts") or {}
    return {name: value - old[name] for name, value in new.items() if name in old and value > old[name]}


def _group_counts(root: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, words in _COUNTS.items():
        for line in _text(_group_files(root).get(name)).splitlines():
            word, _, value = line.partition(" ")
            if word in words and value.isdigit():
                counts.setdefault(words[word], int(value))
    return counts


def _group_levels(root: Path) -> dict[str, int]:
    levels: dict[str, int] = {}
    for name, ours in _LEVELS.items():
        value = _text(_group_files(root).get(name)).strip()
        if value.isdigit() and int(value) < 2**60:  # version 1 says "no limit" by the largest multiple of a page
            levels.setdefault(ours, int(value))
    return levels


def _machine_memory(root: Path) -> dict[str, int]:
    facts = machine.memory(root)
    names = ("total_bytes", "available_bytes", "swap_bytes", "shm_free_bytes")
    return {f"machine.{name}": value for name in names if (value := facts[name]) is not None}


def _bus_errors(root: Path) -> dict[str, int]:
    """PCIe errors of graphics cards and accelerators, as the kernel counted them since boot."""
    counts = {}
    for folder in _cards(root):
        for kind in ("correctable", "nonfatal", "fatal"):
            total = re.search(r"^TOTAL_ERR_\w+ (\d+)$", _text(folder / f"aer_dev_{kind}"), re.MULTILINE)
            if total:
                counts[f"pci.{folder.name}.{kind}"] = int(total[1])
    return counts


def _memory_errors(root: Path) -> dict[str, int]:
    """Errors of main memory, where its controller reports them."""
    counts = {}
    for folder in _folders(root / "sys/devices/system/edac/mc"):
        for kind, name in (("ce_count", "corrected"), ("ue_count", "uncorrected")):
            value = _text(folder / kind).strip()
            if value.isdigit():
                counts[f"edac.{folder.name}.{name}"] = int(value)
    return counts


def _pressure(root: Path) -> dict[str, dict[str, float]]:
    """The share of time in which work had to wait, in percent over 10 s, 60 s and 5 min; `full`: all of it had to."""
    found = {}
    for resource in ("memory", "io", "cpu"):
        for line in _text(root / "proc/pressure" / resource).splitlines():
            name, _, rest = line.partition(" ")
            values = dict(re.findall(r"(avg\d+)=([\d.]+)", rest))
            if values:
                found[f"{resource}.{name}"] = {key: float(value) for key, value in values.items()}
    return found


def _folders(path: Path) -> Iterator[Path]:
    try:
        yield from sorted(path.iterdir())
    except OSError:
        return


def _text(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
