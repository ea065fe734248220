"""New ranks in a moment: a process that has torch forks them. No torch here.

    forker = Forker(preload=["torchvision"])     # the nursery of an agent of ours (agent.py)
    forker.fork(rank); forker.news()             # its answers: who was forked, who has ended

    nest = Nest(job, preload=["torchvision"])    # holdfast launch with torchrun below it
    nest.serve()                                 # ten times a second: who asks, who has ended, who is wanted no more
    code = ask(job, words)                       # a process of the agent: waits for its rank, and ends as it did

torchrun starts a fresh interpreter for each rank, which needs seconds to import torch, and after a fault all of them
do so again. Here that interpreter imports nothing: it asks for a fork of the nursery (worker/nursery.py) and waits.
When it is ended, so is its rank. Where forking is not safe it becomes the rank itself.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import child_process, processes
from holdfast.base.channel import Channel, Closed
from holdfast.base.dataclass_json import read_strictly
from holdfast.distributed.job import Job
from holdfast.run.messages import (
    Broken,
    Exited,
    Fork,
    Forked,
    Message,
    RankEnded,
    RankWanted,
    Ready,
    Unsafe,
    Warm,
    heard,
    received,
)
from holdfast.worker.nursery import Nursery

NESTED = "HOLDFAST_NESTED"
"""In the environment of a rank that was forked: the process it was forked from."""
_SOCKET = "nest"


@dataclass(slots=True)
class Guest:
    """One process of the agent's, and the rank that was forked for it."""

    channel: Channel
    asked: RankWanted | None = None
    pid: int = 0


class Forker:
    """The nursery of ranks, and what it says. One that dies is started again."""

    def __init__(self, preload: Sequence[str]) -> None:
        self.preload = list(preload)
        self.ready = False
        self.stillborn = 0
        """Nurseries in a row that ended before torch was there."""
        self.why = ""
        """What the last of them said about that."""
        self._begin()

    @staticmethod
    def possible() -> bool:
        return not processes.portable() and hasattr(socket, "AF_UNIX")

    def _begin(self) -> None:
        self.ready = False
        self._process, self._channel = child_process.start(
            "holdfast.distributed.rank_nursery", child_process.FD, str(os.getpid()), *self.preload
        )
        if self.preload:
            self._channel.send(Warm().to_json())

    def fileno(self) -> int:
        return self._channel.fileno()

    def fork(self, rank: RankWanted) -> None:
        """Ask for a rank: `forked` or `unsafe` is the answer. The nursery takes one request at a time."""
        with contextlib.suppress(Closed):
            self._channel.send(Fork(rank.to_json()).to_json())

    def news(self) -> Iterator[Message | None]:
        """What the nursery has said since the last call; None where it is another one from here on."""
        try:
            for message in filter(None, map(received, self._channel.pending())):
                self.ready = self.ready or isinstance(message, Ready)
                self.why = message.error if isinstance(message, Broken) else self.why
                yield message
        except Closed:
            self.stillborn = 0 if self.ready else self.stillborn + 1
            self._channel.close()
            self._process.wait()
            self._begin()
            yield None

    def close(self) -> None:
        self._channel.close()
        child_process.wait_or_kill(self._process)


class Nest:
    """The launcher's side, where torchrun starts the ranks."""

    def __init__(self, job: Job, preload: Sequence[str]) -> None:
        self.job = job
        self._server = _unix_socket()
        self._server.bind(str(job.path / _SOCKET))
        self._server.listen(64)
        self._server.setblocking(False)
        self._guests: list[Guest] = []
        self._forking: list[Guest] = []
        self._forker = Forker(preload)

    @property
    def pids(self) -> list[int]:
        return [guest.pid for guest in self._guests if guest.pid]

    def serve(self) -> None:
        """Hear everybody, wait for nobody."""
        while True:
            try:
                accepted, _ = self._server.accept()
            except (BlockingIOError, InterruptedError):
                break
            accepted.setblocking(True)
            self._guests.append(Guest(Channel(accepted)))
        for message in self._forker.news():
            self._hear(message)
        for guest in list(self._guests):
            self._attend(guest)

    def _hear(self, message: Message | None) -> None:
        if message is None:
            self._nursery_died()
        elif isinstance(message, Forked):
            guest = self._forking.pop(0)
            guest.pid = message.pid
            if guest not in self._guests:  # wanted no more before it was there
                processes.send_group(guest.pid, processes.KILL)
        elif isinstance(message, Unsafe) and self._forking:  # without torch it ends, and its guests hear of that
            guest = self._forking.pop(0)
            self._answer(guest, None)
        elif isinstance(message, Exited):
            for guest in [each for each in self._guests if each.pid == message.pid]:
                self.job.note(f"exit-{guest.pid}", {"code": message.known_code})
                self._answer(guest, message.known_code)

    def _attend(self, guest: Guest) -> None:
        try:
            for message in heard(guest.channel.pending()):
                guest.asked = message if isinstance(message, RankWanted) else guest.asked
        except Closed:  # the agent has ended it, or somebody has: its rank goes too
            self._guests.remove(guest)
            guest.channel.close()
            if guest.pid:
                processes.send_group(guest.pid, processes.KILL)
            return
        if guest.asked is not None and self._forker.ready and not guest.pid and not self._forking:
            self._forking.append(guest)  # one at a time: the nursery reads one message each time it looks
            self._forker.fork(guest.asked)

    def _answer(self, guest: Guest, code: int | None) -> None:
        with contextlib.suppress(Closed):
            guest.channel.send(RankEnded(code).to_json())
        guest.channel.close()
        if guest in self._guests:
            self._guests.remove(guest)

    def _nursery_died(self) -> None:
        """Its ranks have ended with it; new ones come from a new one."""
        for guest in list(self._guests):
            self._answer(guest, -int(processes.KILL) if guest.pid else None)
        self._forking.clear()

    def close(self) -> None:
        self._server.close()
        for guest in self._guests:  # all had their time to save: one that is left waits in an exchange for ever
            guest.channel.close()
            if guest.pid:
                processes.send_group(guest.pid, processes.KILL)
        self._forker.close()


_FOR_RANKS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGINT))
"""Signals that ask ranks to stop, and not the process that forks them. Slurm sends SIGTERM to every process of a job:
ranks whose nursery is gone would start again instead of saving. The nursery ends when its channel is closed."""


class RankNursery(Nursery):
    """Forks ranks instead of workers."""

    first = (
        *Nursery.first,
        "torch.distributed",
        "holdfast.distributed.group",
        "holdfast.distributed.rank",
        "holdfast.distributed.rank_link",
        "holdfast.__main__",
        "holdfast.cli.train",
    )

    def _import_torch(self) -> None:
        super()._import_torch()
        importlib.import_module("holdfast.distributed.script_calls").install()  # before modules of the user's choice

    def _live(self, config: dict[str, Any], fds: list[int]) -> int:
        main: Any = importlib.import_module("holdfast.__main__").main  # what a fresh interpreter would run
        if sys.platform != "win32":
            os.setpgid(0, 0)
        for number in _FOR_RANKS:
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        rank = read_strictly(RankWanted, config)
        os.environ.update({**rank.env, NESTED: str(os.getppid())})
        os.chdir(rank.cwd)
        return int(main(list(rank.words)))


def _unix_socket() -> socket.socket:
    if sys.platform == "win32":
        raise NotImplementedError("this needs POSIX")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def ask(job: Path, words: Sequence[str]) -> int | None:
    """Have this rank forked and wait for its end; its exit code, or None if there is nobody to ask."""
    if sys.platform == "win32" or NESTED in os.environ or not (job / _SOCKET).exists():
        return None
    sock = _unix_socket()
    try:
        sock.connect(str(job / _SOCKET))
        channel = Channel(sock)
        channel.send(RankWanted(tuple(words), dict(os.environ), os.getcwd()).to_json())
        answer, _ = channel.receive()
    except (OSError, Closed):
        return 1  # whoever forked it is gone, and so is the rank
    return read_strictly(RankEnded, answer).code


if __name__ == "__main__":
    processes.die_with_parent(int(sys.argv[2]))
    for each in _FOR_RANKS:
        signal.signal(each, signal.SIG_IGN)
    os._exit(RankNursery(Channel.from_fd(int(sys.argv[1])), sys.argv[3:]).serve())
