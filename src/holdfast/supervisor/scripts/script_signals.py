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

from holdfast.supervisor.signal_queue import SignalQueue

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT", "SIGTSTP", "SIGBREAK")
STOPPING = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK") if hasattr(signal, name)
)
"""After one of these the end of the script is what somebody wanted."""


class Signals(SignalQueue):
    """What has come and was not passed on yet."""

    def wanted(self) -> list[int]:
        wanted = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]

    def heard(self) -> list[int]:
        """What has come since the last look, in order."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while self.wake.recv(4096):
                pass
        numbers, self._numbers = self._numbers, []
        return numbers
