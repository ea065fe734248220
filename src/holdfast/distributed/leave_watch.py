"""A rank leaves its group when the agent says so: where a whole machine is gone, no connection to it breaks by itself.

    watch = LeaveWatch(job, number, lambda: sockets)      # a thread that ends those connections when the time has come
    watch.end()

The main thread may be inside of an exchange that waits for the machine that is gone. The end of its connections ends
the exchange with an error, as the death of a rank on the same machine does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from holdfast.distributed import roster
from holdfast.distributed.connections import hang_up
from holdfast.distributed.job import Job

_LOOK = 0.05


class LeaveWatch:
    """Of the group of one roster."""

    def __init__(self, job: Job, number: int, sockets: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self._job = job
        self._number = number
        self._sockets = sockets
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="holdfast-leave-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            if roster.is_left(self._job, self._number):
                hang_up(self._sockets())
                return

    def end(self) -> None:
        self._over.set()
        self._thread.join()
