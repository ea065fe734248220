"""Processes for probes: forked from one that has torch already, or fresh where that is not possible. No torch here.

    with Host(env={"HSA_ENABLE_SDMA": "0"}) as host:        # imports torch in a child, meanwhile we do other things
        child = host.start(config)                          # holdfast.probes.child, in a group of its own
        child.code                                          # None while it runs; host.poll() looks

Variables that libraries read when they are loaded have to be there before torch is: a host has one environment, and
another environment needs another host. Several threads may use one host, each for a device of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import child_process, interpreter, processes
from holdfast.base.broken_torch import broken_torch
from holdfast.base.channel import Channel, Closed
from holdfast.base.files import write_json
from holdfast.run.messages import Broken, Exited, Fork, Forked, Message, Ready, Unsafe, received

_MODULE = "holdfast.probes.child"
LEAVE = "leave"


@dataclass(slots=True)
class Child:
    """A process that probes."""

    pid: int = 0
    """Zero until it is known."""
    code: int | None = None
    lost: bool = False
    """It ended with the process it was forked from: that says nothing about the device."""
    popen: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class Shared:
    """A process that does one probe after the other, as long as nothing goes wrong in it."""

    child: Child
    folder: Path
    turns: int = 0


class Host:
    """Starts children with one environment."""

    module = _MODULE
    """What a child is: `python -m MODULE serve FD PARENT` forks them, `one CONFIG PARENT` is one."""

    def __init__(self, env: Mapping[str, str] | None = None, *, fork: bool | None = None) -> None:
        self.env = dict(env or {})
        self.torch: str | None = None
        self.note = ""
        """Why children are fresh processes, if they are."""
        self.caches = Path(tempfile.mkdtemp(prefix="holdfast-kernels-"))
        """Kernels that its children compile: neither the user's nor those of another environment, good or bad."""
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._forking: list[Child] = []
        self._running: dict[int, Child] = {}
        self._count = 0
        self._shared: dict[str, Shared] = {}
        """By device."""
        self._broken = ""
        """Why torch cannot be imported."""
        self._closed = False
        self._lock = threading.RLock()
        """Held for messages to and from the process that forks, and for everything that is noted about children."""
        if fork is None:
            fork = not processes.portable()
        if fork:
            self._serve()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _serve(self) -> None:
        quiet = subprocess.DEVNULL  # what a probe says goes to its own folder
        self._server, self._channel = child_process.start(
            self.module, "serve", child_process.FD, str(os.getpid()), env=self.env, output=quiet
        )

    def start(self, config: dict[str, Any]) -> Child:
        """A probe begins, as soon as torch is imported."""
        child = Child()
        config = {**config, "caches": str(self.caches)}
        with self._lock:
            self._check_open()
            self._count += 1
            if self._channel is not None:
                try:
                    self._channel.send(Fork({**config, "generation": self._count}).to_json())
                except Closed:
                    self._without_server("the process they were forked from has ended")
                else:
                    self._forking.append(child)
                    return child
            self._spawn(child, config)
        return child

    def _check_open(self) -> None:
        if self._broken:
            raise broken_torch(self._broken)
        if self._closed:
            raise Closed("the host of the probes was closed")

    def share(self, config: dict[str, Any]) -> Child:
        """The same in the process that did the last one, if it is still there; otherwise in one that will stay.

        To open a device takes longer than most probes do.
        """
        self.poll()
        device = str(config["device"])
        with self._lock:
            shared = self._shared.get(device)
            if shared is not None and shared.child.code is None:
                shared.turns += 1
                write_json(shared.folder / f"next-{shared.turns}.json", {**config, "caches": str(self.caches)})
                return shared.child
            self.part(device)
            folder = self.caches / f"shared-{self._count}"
            folder.mkdir(parents=True)
            self._shared[device] = Shared(self.start({**config, "stay": str(folder)}), folder)
            return self._shared[device].child

    def part(self, device: str | None = None) -> None:
        """Send the process that stays away; without a device, all of them."""
        with self._lock:
            for each in [device] if device is not None else list(self._shared):
                shared = self._shared.pop(each, None)
                if shared is not None:
                    with contextlib.suppress(OSError):
                        (shared.folder / LEAVE).touch()

    def _spawn(self, child: Child, config: dict[str, Any]) -> None:
        path = Path(config["folder"]) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        child.popen = subprocess.Popen(
            interpreter.module(self.module, "one", str(path), str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self.env},
            **processes.own_session(),
        )
        child.pid = child.popen.pid
        self._running[child.pid] = child

    def poll(self) -> None:
        """Learn who has ended."""
        with self._lock:
            if self._channel is not None:
                try:
                    for message in self._channel.pending():
                        self._hear(received(message))
                except Closed:
                    self._without_server("the process they were forked from has ended")
            if self._broken:
                self._check_open()
            for pid, child in list(self._running.items()):
                if child.popen is not None and (code := child.popen.poll()) is not None:
                    child.code = code
                    del self._running[pid]

    def _hear(self, message: Message | None) -> None:
        if isinstance(message, Forked) and self._forking:
            child = self._forking.pop(0)
            child.pid = message.pid
            self._running[child.pid] = child
        elif isinstance(message, Exited):
            ended = self._running.pop(message.pid, None)
            if ended is not None:
                ended.code = -1 if message.code is None else message.code
        elif isinstance(message, Ready):
            self.torch = message.torch
        elif isinstance(message, Unsafe):
            self._without_server(message.why)
        elif isinstance(message, Broken):
            self.close()
            self._broken = message.error
            self._check_open()

    def _without_server(self, why: str) -> None:
        """From now on children are fresh interpreters. What was under way is to be done again."""
        self.note = why
        for child in (*self._forking, *(each for each in self._running.values() if each.popen is None)):
            child.lost, child.code = True, -1
        self._forking.clear()
        self._running = {pid: child for pid, child in self._running.items() if child.popen is not None}
        self._close_server()

    def _close_server(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._server is not None:
            child_process.wait_or_kill(self._server)
            self._server = None

    def end(self, child: Child, patience: float) -> bool:
        """Kill a child and all it has started; False if it is still there after `patience` seconds."""
        deadline = time.monotonic() + patience
        while child.code is None and not child.pid and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.005)
        if child.pid:
            processes.send_group(child.pid, processes.KILL)
        while child.code is None and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.005)
        return child.code is not None

    def close(self) -> None:
        """End everything that is still running."""
        with self._lock:
            self._closed = True
        for child in list(self._running.values()):
            self.end(child, 1.0)
        self._close_server()
        shutil.rmtree(self.caches, ignore_errors=True)
