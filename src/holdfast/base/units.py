"""Durations and byte sizes as people write them, and back.

    parse_duration("1h30m")    5400.0      parse_bytes("4GB")      4_000_000_000
    parse_duration("250ms")    0.25        parse_bytes("512MiB")   536_870_912
    write_duration(5400)       "1h 30m"    write_bytes(2**29)      "512 MiB"

What `write_*` gives is exact and can be parsed again: it is for settings. Rounded text for progress and
tables lives in `console/output.py`. Inside Python a duration is seconds (float) and a size is bytes (int).
"""

from __future__ import annotations

import re

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d)\s*")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_DECIMAL_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_duration(text: str) -> float:
    """Seconds in "90s", "5m", "1h 30m", "250ms" or a plain number of seconds; else ValueError."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"not a duration: {text!r}")
    parts = _DURATION_PART.findall(text)
    sizes = [_DURATION_UNITS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):  # "30m1h" and "5s5s" are slips of the hand, not durations
        raise ValueError(f"not a duration: {text!r}")
    # Whole milliseconds, so that 0.1 + 0.2 does not show in a setting.
    return round(sum(float(number) * size for (number, _), size in zip(parts, sizes, strict=True)), 6)


def write_duration(seconds: float) -> str:
    """The shortest exact text: "5 s", "90 s", "30m", "1h 30m", "250 ms"."""
    if 0 < seconds < 1 and (seconds * 1000).is_integer():
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120 or not float(seconds).is_integer():
        return f"{seconds:g} s" if float(f"{seconds:g}") == seconds else f"{seconds!r} s"
    rest = int(seconds)
    words = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count}{unit}")
    return " ".join(words)


def parse_bytes(text: str) -> int:
    """Bytes in "4GB" (10^9), "512MiB" (2^20) or a plain number of bytes; else ValueError."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    number, unit = match[1], match[2].upper()
    scale = 1 if not unit else _DECIMAL_UNITS.get(unit) or _BINARY_UNITS.get(unit)
    if scale is None:
        raise ValueError(f"not a size: {text!r}")
    return int(number) * scale if number.isdigit() else round(float(number) * scale)


def write_bytes(size: int) -> str:
    """The shortest exact text: "4 GB", "512 MiB", "1500 B"."""
    binary = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    decimal = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
    exact = [(size // scale, unit) for unit, scale in (*binary, *decimal) if size and size % scale == 0]
    count, unit = min(exact, default=(size, "B"))
    return f"{count} {unit}"
