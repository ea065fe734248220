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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.base import compile_cache, interpreter, processes
from holdfast.base.board import Board
from holdfast.base.broken_torch import broken_torch, no_torch
from holdfast.base.channel import CONNECT_TIMEOUT, Channel, Closed
from holdfast.base.errors import InternalError
from holdfast.base.folders import Folder
from holdfast.run.messages import Broken, Exited, Fork, Forked, Message, Note, Ready, Second, Unsafe, Warm, received
from holdfast.state.slots import Arena

"""How the loader of shared libraries, and Python, say that there is no address space left."""


@dataclass(slots=True)
class WorkerProcess:
    """One generation of the worker, seen from outside."""

    generation: int
    board: Board
    channel: Channel
    pid: int = 0
    pidfd: int | None = None
    exit_code: int | None = None
    deaf: bool = False
    """It has closed its end of the channel."""
    gone: bool = False
    """Known to have ended, though its exit code may still be on the way."""
    told: bool = False
    """All that can be known of its end is: an exit code of None is one that nobody knows."""
    started: float = field(default_factory=time.monotonic)
    popen: subprocess.Popen[bytes] | None = None

    @property
    def spawned(self) -> bool:
        """Started over loopback, where no descriptor can be passed: it opens its slots by path."""
        return self.popen is not None

    def identify(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = processes.open_pidfd(pid)

    def answer(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """It waits for this, unless it has died meanwhile: that is noticed elsewhere."""
        with contextlib.suppress(Closed):
            self.channel.send(message, fds)

    def close(self) -> None:
        self.channel.close()
        self.board.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Launcher(Protocol):
    """How workers come to life."""

    def start(self, config: dict[str, Any], arenas: list[Arena]) -> WorkerProcess: ...
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
        ours, theirs = Channel.pair()
        self.channel = ours
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
            try:
                of.channel.send(Second().to_json(), [theirs.fileno()])
            except Closed:  # this one is never ready then, and its channel is closed
                pass
            finally:
                theirs.close()
            return
        os.set_inheritable(theirs.fileno(), True)
        self._process = subprocess.Popen(
            interpreter.module("holdfast.worker.nursery", str(theirs.fileno()), str(os.getpid()), *preload),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **compile_cache.variables(), **env},
        )
        self._pid = self._process.pid
        theirs.close()

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

    def start(self, config: dict[str, Any], arenas: list[Arena]) -> WorkerProcess:
        board = Board.create(generation=int(config["generation"]))
        ours, theirs = Channel.pair()
        worker = WorkerProcess(int(config["generation"]), board, ours)
        config["arenas"] = [{"slots": len(arena.slots), "where": arena.where} for arena in arenas]
        fds = [theirs.fileno(), board.fd, *(fd for arena in arenas for fd in arena.fds)]
        try:
            self.channel.send(Fork(config).to_json(), fds)
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
        if self._process is None:
            if self._pid is not None and not processes.wait_for_end(self._pid, 2.0):
                processes.send(self._pid, processes.KILL)
            return
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that cannot be killed is left behind
                self._process.wait(2.0)


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

    def start(self, config: dict[str, Any], arenas: list[Arena]) -> WorkerProcess:
        generation = int(config["generation"])
        Folder.at(self.folder, inner=1, make=True).close()
        board = Board.create(generation=generation, path=self.folder / f"board-{generation}")
        config["board"] = str(board.path)
        config["arenas"] = [{"paths": slot_paths(arena)} for arena in arenas]
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
        channel.send(config)
        worker = WorkerProcess(generation, board, channel, popen=popen)
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
                worker.popen.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # one that cannot be killed is left behind
                    worker.popen.wait(2.0)


def slot_paths(arena: Arena) -> list[str]:
    """Where another process can open the slots: their files, or ours through /proc where they have none."""
    return [str(slot.path or f"/proc/{os.getpid()}/fd/{slot.fd}") for slot in arena.slots]


def start_keeper(
    run: Path, keep: int, lock_fd: int | None, *, portable: bool
) -> tuple[subprocess.Popen[bytes], Channel]:
    """The keeper, holding the run's lock beside us."""
    if portable:
        command = ["holdfast.supervisor.keeper", "port:{port}", str(run), str(keep)]
        with socket.create_server(("127.0.0.1", 0)) as server:
            return spawn(command, server, {}, keep_open=[] if lock_fd is None else [lock_fd])
    ours, theirs = Channel.pair()
    fds = [theirs.fileno()] + ([lock_fd] if lock_fd is not None else [])
    popen = subprocess.Popen(
        interpreter.module("holdfast.supervisor.keeper", str(theirs.fileno()), str(run), str(keep)),
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    return popen, ours


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
