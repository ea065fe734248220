"""What a server has counted, in memory that other processes can see too.

    books = Books(np.zeros(WIDTH))
    books.answered(200, 0.003)
    Books.told([books, of_another_process])       # lines for Prometheus

Each process writes to its own books alone; whoever is asked adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.optimize.measure import percentile
from holdfast.serving.messages import REASONS

RECENT = 4096
"""Requests whose latency /metrics speaks of."""
_STATUSES = sorted(REASONS)
_PLACE = {status: place for place, status in enumerate(_STATUSES)}
_OPENED, _CLOSED, _TURNED_AWAY, _TIMED = range(len(_STATUSES), len(_STATUSES) + 4)
_TIMES = len(_STATUSES) + 4
WIDTH = _TIMES + RECENT
"""Numbers (float64) that the books of one process take."""


class Books:
    """The counts of one process."""

    def __init__(self, row: NDArray[np.float64]) -> None:
        self._row = row

    def answered(self, status: int, seconds: float | None = None) -> None:
        row = self._row
        row[_PLACE[status]] += 1
        if seconds is not None:
            row[_TIMES + int(row[_TIMED]) % RECENT] = seconds
            row[_TIMED] += 1

    def opened(self) -> None:
        self._row[_OPENED] += 1

    def closed(self) -> None:
        self._row[_CLOSED] += 1

    def turned_away(self) -> None:
        self._row[_TURNED_AWAY] += 1

    @property
    def begun(self) -> int:
        """Connections there have been."""
        return int(self._row[_OPENED])

    @property
    def ended(self) -> int:
        """Connections that are over."""
        return int(self._row[_CLOSED])

    def begin(self) -> None:
        """Of a process that follows one that died, whose connections died with it."""
        self._row[_OPENED] = self._row[_CLOSED] = 0

    @staticmethod
    def told(all_of_them: Sequence[Books]) -> list[str]:
        """Their sums, for Prometheus."""
        total = np.sum([each._row[:_TIMES] for each in all_of_them], axis=0)
        recent = [
            float(spent) for each in all_of_them for spent in each._row[_TIMES:][: min(RECENT, int(each._row[_TIMED]))]
        ]
        lines = ["# TYPE holdfast_serve_requests_total counter"]
        lines += [
            f'holdfast_serve_requests_total{{status="{status}"}} {int(total[place])}'
            for place, status in enumerate(_STATUSES)
            if total[place]
        ]
        if recent:
            lines.append("# TYPE holdfast_serve_latency_seconds summary")
            lines += [
                f'holdfast_serve_latency_seconds{{quantile="{q}"}} {percentile(recent, q):.6f}'
                for q in (0.5, 0.95, 0.99)
            ]
        lines += sample("connections", "gauge", int(total[_OPENED] - total[_CLOSED]))
        return lines + sample("connections_turned_away_total", "counter", int(total[_TURNED_AWAY]))


def sample(name: str, kind: str, value: float) -> list[str]:
    return [f"# TYPE holdfast_serve_{name} {kind}", f"holdfast_serve_{name} {value}"]
