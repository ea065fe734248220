"""Signals as entries in a list, heard by a supervisor's loop when it comes round. No torch here.

signals = Signals(TO_TRAINING, ignored=("SIGHUP",))
with signals.listening():
    select.select([signals.wake], [], [], patience)       # a signal ends the wait at once
    for number in signals.heard(): ...

`holdfast run` listens to more of them, and sends each on to the script.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Collection, Iterator
from types import FrameType

from holdfast.base.processes import remember_children

TO_TRAINING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
TO_SCRIPTS = (*TO_TRAINING, "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT", "SIGTSTP")
URGENT = (signal.SIGINT, signal.SIGTERM)
"""Those that mean "now" when they come a second time. A terminal that closes may say so twice: kernel and shell."""


def numbers(names: Collection[str]) -> list[int]:
    """Of those that this system has."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


STOPPING = frozenset(numbers((*TO_TRAINING, "SIGQUIT")))
"""After one of these the end of a script is what somebody wanted."""


class Signals:
    """What has come and was not heard yet, in order, and a socket that ends a wait. Empty is false."""

    def __init__(self, names: Collection[str], *, ignored: Collection[str]) -> None:
        """`ignored`: those that stay ignored if they were when we were started, as nohup and a detached start do."""
        self._numbers: list[int] = []
        self._names, self._ignored = names, ignored
        self.wake, self._waker = socket.socketpair()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Signals become entries in a list; the wake-up socket ends the wait at once."""
        remember_children()
        self.wake.setblocking(False)
        self._waker.setblocking(False)

        def note(number: int, _frame: FrameType | None) -> None:
            self._numbers.append(number)

        ignored = {each for each in numbers(self._ignored) if signal.getsignal(each) is signal.SIG_IGN}
        before = {each: signal.signal(each, note) for each in numbers(self._names) if each not in ignored}
        wake_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wake_before)
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        self.wake.close()
        self._waker.close()

    def __len__(self) -> int:
        return len(self._numbers)

    def heard(self) -> Iterator[int]:
        """One by one, as they came; those that come meanwhile too."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while self.wake.recv(4096):
                pass
        while self._numbers:
            yield self._numbers.pop(0)

    @property
    def urgent(self) -> int:
        """How many of those not heard yet are urgent."""
        return sum(number in URGENT for number in self._numbers)

    @property
    def newest(self) -> int:
        return self._numbers[-1]
