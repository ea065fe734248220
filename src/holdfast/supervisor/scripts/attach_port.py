"""Where a script that wants to attach itself knocks: a port of 127.0.0.1 and a word, both in its environment.

port = AttachPort()
env = port.environment(env)                 # HOLDFAST_ATTACH=PORT:TOKEN
channel = port.answer()                     # a Channel to a script that knew the word; None while nobody knocks
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.base.channel import Channel

GREETING = 10.0
"""Seconds somebody who knocks has to say the word: a script on a busy machine may be halted just then."""


class AttachPort:
    """One for a run: its processes come and go, the word stays."""

    def __init__(self) -> None:
        self.server: socket.socket | None = None
        self._token = os.urandom(16).hex()

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        if self.server is None:
            self.server = socket.create_server(("127.0.0.1", 0))
            self.server.setblocking(False)
        return {**env, "HOLDFAST_ATTACH": f"{self.server.getsockname()[1]}:{self._token}"}

    def answer(self) -> Channel | None:
        if self.server is None:
            return None
        try:
            sock, _ = self.server.accept()
        except OSError:
            return None
        import hmac  # a script that attaches itself has time; one that does not starts sooner

        from holdfast.base.channel import Channel, Closed

        channel = Channel(sock)
        try:
            greeting, _ = channel.receive(GREETING)
            known = hmac.compare_digest(str(greeting.get("token")), self._token)
        except (Closed, OSError, ValueError):
            known = False
        if known:
            return channel
        channel.close()
        return None

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
