"""Signals on their way to the script: what is sent to us is sent on, each kind as a shell or a terminal would.

    signals = Signals()
    with signals.listening():
        select.select([signals.wake], [], [], patience)
        for number in signals.heard(): script.send(number)

A signal that was ignored when we were started (nohup) stays ignored, for us and for the script.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

from holdfast.base.processes import remember_children

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT", "SIGTSTP", "SIGBREAK")
STOPPING = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK") if hasattr(signal, name)
)
"""After one of these the end of the script is what somebody wanted."""


class Signals:
    """What has come and was not passed on yet."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self.wake, self._waker = socket.socketpair()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        remember_children()
        self.wake.setblocking(False)
        self._waker.setblocking(False)

        def note(number: int, _frame: FrameType | None) -> None:
            self._numbers.append(number)

        wanted = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        wanted = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in wanted}
        wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def heard(self) -> list[int]:
        """What has come since the last look, in order."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while self.wake.recv(4096):
                pass
        numbers, self._numbers = self._numbers, []
        return numbers

    def close(self) -> None:
        self.wake.close()
        self._waker.close()
