"""A bar for work that takes long: drawn over in a terminal, a line a minute everywhere else.

with Bar(output, "preparing") as bar:
    bar.update(3, 12, "sub-…_task-RestingState")        # done, total, what is going on
    bar.update(3_000_000, 12_000_000, unit=size)        # 3.0 MB/12.0 MB  1.2 MB/s  8 s left
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from holdfast.console.output import Output, count, duration, percent

_EVERY, _EVERY_PLAIN = 0.1, 60.0


class Bar:
    """Progress on stderr; silent with -q and --no-progress."""

    def __init__(self, output: Output, label: str) -> None:
        self._screen, self._label = output.err, label
        self._on = output.progress and not output.quiet
        self._began = self._last = time.monotonic()
        self._first: int | None = None
        self._drawn = False

    def update(self, done: int, total: int, what: str = "", unit: Callable[[int], str] = count) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        every = _EVERY if self._screen.tty else _EVERY_PLAIN
        if not self._on or (now - self._last < every and done < total) or (done >= total and not self._screen.tty):
            return
        self._last = now
        passed, made = now - self._began, done - self._first
        rate = made / passed if passed > 0 else 0.0
        words = [f"{unit(done)}/{unit(total)}"]
        if rate > 0:
            words += [f"{unit(round(rate))}/s" if rate >= 1 else f"{duration(1 / rate)} each"]
            words += [f"{duration((total - done) / rate)} left"]
        share = min(1.0, done / total) if total else 0.0
        self._draw(share, "  ".join(words), what)

    def _draw(self, share: float, words: str, what: str) -> None:
        if not self._screen.tty:
            self._screen.write(f"{self._label} {percent(share)}  {words}  {what}".rstrip())
            return
        room = min(40, self._screen.width - len(self._label) - len(words) - 12)
        full = int(share * max(0, room))
        bar = "━" * full + "─" * (room - full) if room >= 8 else ""
        self._screen.redraw(f" {self._label} {bar}  {percent(share):>5}  {words}  {what}")
        self._drawn = True

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._drawn:
            self._screen.wipe()
