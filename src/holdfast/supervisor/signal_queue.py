"""Signals as entries in a list, heard by the supervisor's loop when it comes round. No torch here.

signals = Signals()
with signals.listening():
    select.select([signals.wake], [], [], patience)       # a signal ends the wait at once
    signals.calm()
    for number in signals.heard(): ...
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

from holdfast.base.processes import remember_children

_WANTED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
URGENT = (signal.SIGINT, signal.SIGTERM)
"""Those that mean "now" when they come a second time. A terminal that closes may say so twice: kernel and shell."""


class SignalQueue:
    """Signals that have come, in order, and a socket that ends a wait when one comes."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self.wake, self._waker = socket.socketpair()

    def wanted(self) -> list[int]:
        """The signals to listen to, as they are when listening begins."""
        raise NotImplementedError

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Signals become entries in a list; the wake-up socket ends the wait at once."""
        remember_children()
        self.wake.setblocking(False)
        self._waker.setblocking(False)

        def note(number: int, _frame: FrameType | None) -> None:
            self._numbers.append(number)

        before = {number: signal.signal(number, note) for number in self.wanted()}
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


class Signals(SignalQueue):
    """What has come and was not heard yet. Empty is false."""

    def wanted(self) -> list[int]:
        ignored = getattr(signal, "SIGHUP", None)  # as nohup and a detached start leave it
        return [each for each in _WANTED if each != ignored or signal.getsignal(each) is not signal.SIG_IGN]

    def __len__(self) -> int:
        return len(self._numbers)

    def calm(self) -> None:
        """The wait is over: empty the wake-up socket."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)

    def heard(self) -> Iterator[int]:
        """One by one, as they came; those that come meanwhile too."""
        while self._numbers:
            yield self._numbers.pop(0)

    @property
    def urgent(self) -> int:
        """How many of those not heard yet are urgent."""
        return sum(number in URGENT for number in self._numbers)

    @property
    def newest(self) -> int:
        return self._numbers[-1]
