"""Numbers and tables as people read them: in the terminal, the web page and the report alike.

    duration(11400)      "3h 10m"       count(3862)      "3 862"       percent(0.014)    "1.4 %"
    duration(19)         "19 s"         size(24e9)       "24.0 GB"     metric(0.69314)   "0.6931"
    sparkline([3, 2, 1])    "█▅▁"

Rounded on purpose; what can be parsed again is in `units`. Unknown (None) is `-`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence

UNKNOWN = "-"
BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """ "45 ms", "0.8 s", "19 s", "3m 08s", "3h 10m", "2d 03h". Rounded: for settings see `units`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if 0 < seconds < 0.0995:
        return f"{sign}{seconds * 1000:.0f} ms" if seconds >= 0.0005 else f"{sign}0 s"
    if seconds < 9.95 and round(seconds, 1) != round(seconds):
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{sign}{whole} s"
    if whole < 3600:
        return f"{sign}{whole // 60}m {whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{sign}{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{sign}{hours // 24}d {hours % 24:02d}h"


def count(number: int | None) -> str:
    """Thousands apart: "3 862", "14 712", "112 000"."""
    return UNKNOWN if number is None else f"{number:,}".replace(",", " ")


def counted(number: int, word: str, words: str | None = None) -> str:
    """ "1 fault", "2 faults", "3 862 steps"; `words` where adding an s is wrong."""
    return f"{count(number)} {word if number == 1 else words or word + 's'}"


def size(number: float | None) -> str:
    """Bytes in powers of ten: "512 B", "6.6 MB", "24.0 GB", "412 GB"."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    value, units = float(number), ("kB", "MB", "GB", "TB", "PB")
    if abs(value) < 1000:
        return f"{value:.0f} B"
    for unit in units:
        value /= 1000
        if abs(value) < 999.5 or unit == units[-1]:
            break
    return f"{value:.1f} {unit}" if abs(value) < 99.95 else f"{value:.0f} {unit}"


def percent(share: float | None) -> str:
    """0.014 is "1.4 %", 0.41 is "41 %"; what is not quite all or nothing does not look like it."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = share * 100
    if 0 < abs(value) < 0.05:
        return "<0.1 %" if value > 0 else ">-0.1 %"
    if 99.5 <= value < 100:
        return "99 %"
    return f"{value:.1f} %" if abs(value) < 9.95 and value else f"{value:.0f} %"


def metric(value: float | None) -> str:
    """A loss or a score: four decimals, or an exponent where those would hide it; "nan" and "inf" stay."""
    if value is None:
        return UNKNOWN
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4f}"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def sparkline(values: Sequence[float | None], width: int = 20) -> str:
    """At most `width` blocks from the lowest to the highest value; each is the mean of its share of the
    values, and a blank where none of them is known."""
    means = [_mean(part) for part in _shares(values, width)]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(" " if mean is None else _block(mean, low, high) for mean in means)


def table(
    rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), right: Iterable[int] = (), gap: int = 2
) -> list[str]:
    """Lines of aligned columns, without blanks at their ends; `right` names columns set to the right."""
    everything = [row for row in (header, *rows) if row]
    columns = max((len(row) for row in everything), default=0)
    widths = [max(len(row[i]) for row in everything if i < len(row)) for i in range(columns)]
    to_the_right = frozenset(right)
    lines = []
    for row in everything:
        padded = zip(row, widths, strict=False)
        cells = [
            cell.rjust(width) if i in to_the_right else cell.ljust(width) for i, (cell, width) in enumerate(padded)
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def shorten(text: str, home: str | None = None) -> str:
    """Paths below the home folder with `~`: shorter, and a name less in what people paste."""
    home = (os.path.expanduser("~") if home is None else home).rstrip("/\\")
    if len(home) < 2:  # "/" is no one's home, and "" is unknown
        return text
    # Whole path parts only: /data/home/ann is not below /home/ann, nor is /home/anna.
    return re.sub(rf"(?<![\w./\\-]){re.escape(home)}(?![\w.-])", "~", text)


def _shares(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    parts = min(width, len(values))
    return [values[i * len(values) // parts : (i + 1) * len(values) // parts] for i in range(parts)]


def _block(value: float, low: float, high: float) -> str:
    # Halves, because the distance between two huge numbers may be more than a float can hold.
    span = high / 2 - low / 2
    return BLOCKS[round((value / 2 - low / 2) / span * (len(BLOCKS) - 1)) if span else 0]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(value / len(known) for value in known) if known else None
