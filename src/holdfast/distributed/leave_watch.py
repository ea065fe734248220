"""A rank leaves its group when the agent says so: where a whole machine is gone, no connection to it breaks by itself.

    watch = LeaveWatch(job, number, lambda: sockets, launcher=pid)   # a thread that ends those connections in time
    watch.end()

The main thread may be inside of an exchange that waits for the machine that is gone. The end of its connections ends
the exchange with an error, as the death of a rank on the same machine does. So may it be when the agent of this machine
is killed, and then no handler of a signal runs: on a machine that is not the first, this process ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from holdfast.distributed import roster
from holdfast.distributed.connections import hang_up
from holdfast.distributed.job import Job
from holdfast.distributed.place import START_AGAIN

_LOOK = 0.05
_AGAIN = 1.0


class LeaveWatch:
    """Of the group of one roster."""

    def __init__(
        self, job: Job, number: int, sockets: Callable[[], Iterable[tuple[int, int]]], *, launcher: int = 0
    ) -> None:
        """With a `launcher` this process ends at once when that one is gone."""
        self._job = job
        self._launcher = launcher
        self._number = number
        self._sockets = sockets
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="holdfast-leave-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            if self._launcher and not roster.runs(self._launcher):
                os._exit(START_AGAIN)
            if roster.is_left(self._job, self._number):
                hang_up(self._sockets())
                self._over.wait(_AGAIN)  # a connection may have been on its way while the group was built

    def end(self) -> None:
        self._over.set()
        self._thread.join()
