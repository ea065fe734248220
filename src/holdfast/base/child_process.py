"""A child that talks to us over a channel, and its end.

process, channel = start("holdfast.worker.nursery", FD, str(os.getpid()))   # FD: its end of the channel
channel.close()                                                             # it ends by itself now,
wait_or_kill(process)                                                       # or is ended
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from holdfast.base import interpreter
from holdfast.base.channel import Channel

FD = "{fd}"
"""Stands for the descriptor of its end of the channel among the words of a command."""
LEAVE = 2.0
"""Seconds a process has to end by itself, and again after SIGKILL."""


def start(
    module: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
    output: int | None = None,
) -> tuple[subprocess.Popen[bytes], Channel]:
    """`python -m MODULE WORDS` in a session of its own, with no input; the word FD is the channel's descriptor."""
    ours, theirs = Channel.pair()
    try:
        process = subprocess.Popen(
            interpreter.module(module, *(str(theirs.fileno()) if word == FD else word for word in words)),
            pass_fds=[theirs.fileno(), *keep_open],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    finally:
        theirs.close()
    return process, ours


def wait_or_kill(process: subprocess.Popen[bytes], patience: float = LEAVE) -> None:
    """It is about to end, and is ended if it does not. One that cannot be killed is left behind: on a
    dead network disk a process never goes."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
        return
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE)
