"""Starting processes: workers from the nursery or by spawn, and the keeper. The supervisor's hands.

launcher = NurseryLauncher(…)                  # where fork is safe, else SpawnLauncher(env, folder)
worker = launcher.start(config, arenas)        # a WorkerProcess: channel, board, pid, exit code
launcher.poll()                                # events of the nursery; call it when its channel is readable
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.base import child_process, compile_cache, interpreter, processes
from holdfast.base.board import Board
from holdfast.base.broken_torch import broken_torch, no_torch
from holdfast.base.channel import CONNECT_TIMEOUT, Channel, Closed
from holdfast.base.errors import InternalError
from holdfast.base.folders import Folder
from holdfast.run.messages import Broken, Exited, Fork, Forked, Message, Note, Ready, Second, Unsafe, Warm, received
from holdfast.run.worker_config import WorkerConfig
from holdfast.state.slots import Arena
from holdfast.supervisor.supervised_process import SupervisedProcess


@dataclass(kw_only=True)
class WorkerProcess(SupervisedProcess):
    """One generation of the worker."""

    board: Board
    channel: Channel
    deaf: bool = False
    """It has closed its end of the channel."""
    gone: bool = False
    """Known to have ended, though its exit code may still be on the way."""
    told: bool = False
    """All that can be known of its end is: an exit code of None is one that nobody knows."""
    popen: subprocess.Popen[bytes] | None = None

    @property
    def spawned(self) -> bool:
        """Started over loopback, where no descriptor can be passed: it opens its slots by path."""
        return self.popen is not None

    def answer(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """It waits for this, unless it has died meanwhile: that is noticed elsewhere."""
        with contextlib.suppress(Closed):
            self.channel.send(message, fds)

    def close(self) -> None:
        self.channel.close()
        self.board.close()
        super().close()


class Launcher(Protocol):
    """How workers come to life."""

    def start(self, config: WorkerConfig, arenas: list[Arena]) -> WorkerProcess: ...
    def poll(self) -> list[str]: ...
    def warm(self) -> None: ...
    def close(self) -> None: ...
    @property
    def channels(self) -> list[Channel]: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def ready(self) -> float | None:
        """Since when, by the monotonic clock, a worker can be had at once; None while torch is being imported."""
        ...


class NurseryDied(Exception):
    """The nursery is gone, and its worker with it."""


class CannotFork(Exception):
    """The nursery found that forking is not safe here; workers must be spawned."""


class NurseryLauncher:
    """Workers forked from a process that has torch already."""

    def __init__(self, env: Mapping[str, str], preload: list[str], *, of: NurseryLauncher | None = None) -> None:
        """`of`: a nursery that is to fork this one, instead of a process that imports torch."""
        self.torch: str | None = None
        self.ready: float | None = None
        self.env = dict(env)
        self.took_s: float | None = None
        """Seconds that the import of torch took."""
        self.workers: dict[int, WorkerProcess] = {}
        self.warmed = False
        """Whether it was told to import what the script needs."""
        self._forking: list[WorkerProcess] = []
        self._pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if of is not None:
            self.channel, theirs = Channel.pair()
            try:
                of.channel.send(Second().to_json(), [theirs.fileno()])
            except Closed:  # this one is never ready then, and its channel is closed
                pass
            finally:
                theirs.close()
            return
        self._process, self.channel = child_process.start(
            "holdfast.worker.nursery",
            child_process.FD,
            str(os.getpid()),
            *preload,
            env={**compile_cache.variables(), **env},
        )
        self._pid = self._process.pid

    def second(self) -> NurseryLauncher:
        """A fork of this nursery, which survives it. Ready in milliseconds, once this one has done what it was told."""
        return NurseryLauncher(self.env, [], of=self)

    @property
    def forked(self) -> bool:
        """Whether it is a fork of another nursery."""
        return self._process is None

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def channels(self) -> list[Channel]:
        return [self.channel]

    def start(self, config: WorkerConfig, arenas: list[Arena]) -> WorkerProcess:
        board = Board.create(generation=config.generation)
        ours, theirs = Channel.pair()
        worker = WorkerProcess(generation=config.generation, board=board, channel=ours)
        config = replace(config, arenas=tuple(arena.at(by_path=False) for arena in arenas))
        fds = [theirs.fileno(), board.fd, *(fd for arena in arenas for fd in arena.fds)]
        try:
            self.channel.send(Fork(config.to_json()).to_json(), fds)
        except Closed as error:
            raise NurseryDied(str(error)) from None
        finally:
            theirs.close()
        self._forking.append(worker)
        return worker

    def warm(self) -> None:
        self.warmed = True
        with contextlib.suppress(Closed):
            self.channel.send(Warm().to_json())

    def stillborn(self) -> int | None:
        """Its exit code, if it has ended without ever having torch ready."""
        if self.ready is not None or self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):  # its end of the channel is closed, so it is about to end
            return self._process.wait(2.0)
        return None

    def poll(self) -> list[str]:
        """Take the nursery's news; returns notes. Raises NurseryDied when it is gone."""
        notes: list[str] = []
        try:
            for message in self.channel.pending():
                notes += self._hear(received(message))
        except Closed as error:
            raise NurseryDied(str(error)) from None
        return notes

    def _hear(self, message: Message | None) -> list[str]:
        if isinstance(message, Forked) and not self._forking:
            self._pid = message.pid  # a nursery that was forked says who it is
        elif isinstance(message, Forked):
            worker = self._forking.pop(0)
            worker.identify(message.pid)
            self.workers[worker.pid] = worker
        elif isinstance(message, Exited):
            ended = self.workers.pop(message.pid, None)
            if ended is not None:
                ended.exit_code = ended.exit_code if message.code is None else message.code
                ended.gone = ended.told = True
        elif isinstance(message, Ready):
            self.torch, self.took_s, self.ready = message.torch, message.seconds, time.monotonic()
        elif isinstance(message, Broken):
            raise broken_torch(message.error)
        elif isinstance(message, Unsafe):
            raise CannotFork(message.why)
        elif isinstance(message, Note):
            return [message.text]
        return []

    def close(self) -> None:
        self.channel.close()
        if self._process is not None:
            child_process.wait_or_kill(self._process)
        elif self._pid is not None and not processes.wait_for_end(self._pid, child_process.LEAVE):
            processes.send(self._pid, processes.KILL)


class SpawnLauncher:
    """Workers as fresh interpreters over loopback and plain files: slower, and everywhere."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self.env = env
        self.folder = folder
        self.torch: str | None = None
        self.ready: float | None = time.monotonic()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._workers: list[WorkerProcess] = []

    @property
    def pid(self) -> int | None:
        return None

    @property
    def channels(self) -> list[Channel]:
        return []

    def start(self, config: WorkerConfig, arenas: list[Arena]) -> WorkerProcess:
        generation = config.generation
        Folder.at(self.folder, inner=1, make=True).close()
        board = Board.create(generation=generation, path=self.folder / f"board-{generation}")
        config = replace(config, board=str(board.path), arenas=tuple(arena.at(by_path=True) for arena in arenas))
        popen, channel = spawn(
            ["holdfast.worker.worker"],
            self._server,
            {
                **compile_cache.variables(),
                **self.env,
                "HOLDFAST_SUPERVISOR": str(os.getpid()),
                "HOLDFAST_PORTABLE": "1",  # its loaders, too
            },
        )
        channel.send(config.to_json())
        worker = WorkerProcess(generation=generation, board=board, channel=channel, popen=popen)
        worker.identify(popen.pid)
        self._workers.append(worker)
        return worker

    def warm(self) -> None:
        return None

    def poll(self) -> list[str]:
        for worker in self._workers:
            if worker.popen is not None and worker.exit_code is None:
                worker.exit_code = worker.popen.poll()
                worker.gone = worker.told = worker.exit_code is not None
        return []

    def close(self) -> None:
        self._server.close()
        for worker in self._workers:
            if worker.popen is not None and worker.popen.poll() is None:
                child_process.wait_or_kill(worker.popen, 0.0)


def start_keeper(
    run: Path, keep: int, lock_fd: int | None, *, portable: bool
) -> tuple[subprocess.Popen[bytes], Channel]:
    """The keeper, holding the run's lock beside us."""
    kept = [] if lock_fd is None else [lock_fd]
    if portable:
        command = ["holdfast.supervisor.keeper", "port:{port}", str(run), str(keep)]
        with socket.create_server(("127.0.0.1", 0)) as server:
            return spawn(command, server, {}, keep_open=kept)
    return child_process.start("holdfast.supervisor.keeper", child_process.FD, str(run), str(keep), keep_open=kept)


def spawn(
    command: list[str], server: socket.socket, env: Mapping[str, str], keep_open: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], Channel]:
    """A fresh interpreter that calls back over loopback and proves itself with a token."""
    token = secrets.token_hex(16)
    port = server.getsockname()[1]
    popen = subprocess.Popen(
        interpreter.module(*(word.replace("{port}", str(port)) for word in command)),
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env, "HOLDFAST_PORT": str(port), "HOLDFAST_TOKEN": token},
        pass_fds=() if sys.platform == "win32" else tuple(keep_open),
        **processes.own_session(),
    )
    server.settimeout(0.2)
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while time.monotonic() < deadline and popen.poll() is None:
        try:
            sock, _address = server.accept()
        except TimeoutError:
            continue
        channel = Channel(sock)
        with contextlib.suppress(Closed, TimeoutError, json.JSONDecodeError):
            greeting, _ = channel.receive(5.0)
            if hmac.compare_digest(str(greeting.get("token")), token):
                return popen, channel
        channel.close()
    popen.kill()
    code = popen.wait()
    if processes.address_space_limit() is not None:
        raise no_torch(code)
    raise InternalError(f"{command[0]} did not start", cause=f"exit code {code}")
