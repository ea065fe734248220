"""The nursery: torch imported once, no device ever touched, one thread; it forks workers in milliseconds.

    python -m holdfast.worker.nursery FD PARENT       started by the supervisor

A fresh interpreter needs seconds to import torch; a fork of this process needs none. That only works while
forking is safe, so before every fork the nursery checks itself: one thread, no accelerator file open.

A second nursery is a fork as well. It waits for the end of the first one, which it survives: the supervisor then has
its next worker at once, and not when torch is imported again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

from holdfast.base import processes
from holdfast.base.channel import Channel, Closed
from holdfast.run.messages import Broken, Exited, Fork, Forked, Message, Note, Ready, Second, Unsafe, Warm, received

_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Libraries that start their threads at import; a fork would lose those threads and keep their locks.

OpenMP starts its threads at the first sum, so `OMP_NUM_THREADS` is left alone: libgomp that finds a 1 there when it is
loaded takes the machine for one with one CPU, and its threads never wait actively again (0.7 ms for each step of a
small network on two cores)."""
_FIRST = (
    "numpy",
    "torch",
    "torch.utils.data",
    "torch._dynamo",
    "torch.optim.swa_utils",
    "holdfast.worker.worker",
)
"""`torch._dynamo` too: the first optimizer, or `use_deterministic_algorithms`, imports its 800 modules anyway."""


def main(argv: list[str]) -> int:
    fd, parent = int(argv[0]), int(argv[1])
    processes.die_with_parent(parent)
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)
    return Nursery(Channel.from_fd(fd), argv[2:]).serve()


class Nursery:
    """Forks a worker for each `fork` message and reports how each one ended."""

    first: tuple[str, ...] = _FIRST

    def __init__(self, channel: Channel, preload: list[str]) -> None:
        self.channel = channel
        self.preload = preload
        self.children: set[int] = set()
        self.seconds: set[int] = set()
        """Nurseries that were forked from this one. They have a channel of their own."""
        self.took_s = 0.0
        """Seconds that the import of torch took."""
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def serve(self) -> int:
        try:
            self._import_torch()
        except Closed:
            return 0
        return self._listen()

    def _listen(self) -> int:
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        try:
            signal.signal(signal.SIGCHLD, lambda *_: None)
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            while True:
                ready, _, _ = select.select([self.channel.fileno(), self._wake_read], [], [])
                if self._wake_read in ready:
                    os.read(self._wake_read, 4096)
                self._reap()
                # One read may bring several messages: those are in the channel, and select knows nothing of them.
                while self.channel.fileno() in ready and self.channel.has_news():
                    data, fds = self.channel.receive()
                    message = received(data)
                    if isinstance(message, Fork):
                        self._fork(message.config, fds)
                    elif isinstance(message, Warm):
                        self._preload()
                    elif isinstance(message, Second):
                        self._fork_second(fds)
        except Closed:
            return 0  # the supervisor is gone; the kernel ends our children with us

    def _say(self, message: Message) -> None:
        self.channel.send(message.to_json())

    def _import_torch(self) -> None:
        began = time.monotonic()
        wanted = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        gc.disable()  # all that is imported stays: looking through it again and again takes a tenth of the import
        try:
            for name in self.first:
                importlib.import_module(name)
        except (ImportError, OSError, MemoryError) as error:  # a library that cannot be mapped is an OSError of ctypes
            self._say(Broken(f"{type(error).__name__}: {error}"))
            raise SystemExit(1) from None
        finally:
            for name, value in wanted.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        import torch

        # A worker that is out of memory collects garbage; without this it would look through all of torch each time.
        gc.enable()
        gc.collect()
        gc.freeze()
        self.took_s = time.monotonic() - began
        self._say(Ready(str(torch.__version__), self.took_s))

    def _preload(self) -> None:
        """Modules the next worker of this script will need; one that fails here will say so in the worker."""
        for name in self.preload:
            try:
                importlib.import_module(name)
            except Exception as error:  # a module of the user's own choice may raise anything
                self._say(Note(f"could not preload {name}: {type(error).__name__}"))

    def _fork(self, config: dict[str, Any], fds: list[int]) -> None:
        """One worker: the channel, the board and the slots come as descriptors, the rest as JSON."""
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        unsafe = self.unsafe()
        if unsafe:
            self._say(Unsafe(unsafe))
            for fd in fds:
                os.close(fd)
            return
        pid = os.fork()
        if pid == 0:
            self._become_worker(config, fds)
        for fd in fds:
            os.close(fd)
        self.children.add(pid)
        self._say(Forked(pid))

    def _fork_second(self, fds: list[int]) -> None:
        """Another nursery, in a session of its own: what ends this one must not end that one. It ends when the
        supervisor closes the channel it is given. Where forking is not safe the channel is closed at once."""
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        safe = self.unsafe() is None
        pid = os.fork() if safe else None
        if pid != 0:
            for fd in fds:
                os.close(fd)
            if pid is not None:
                self.seconds.add(pid)
            return
        code = 70
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            os.close(self._wake_read)
            os.close(self._wake_write)
            self.channel.close()  # or the supervisor would not see the end of the first one
            import torch

            second = type(self)(Channel.from_fd(fds[0]), self.preload)
            second.took_s = self.took_s
            second._say(Forked(os.getpid()))
            second._say(Ready(str(torch.__version__), second.took_s))
            code = second._listen()
        except Closed:  # the supervisor does not want it any more
            code = 0
        except BaseException:  # the edge of the process: whatever it is, it must not run the first one's code
            traceback.print_exc()
        finally:
            _flush()
            os._exit(code)

    def unsafe(self) -> str | None:
        """Why this process must not fork, or None."""
        threads = processes.thread_count()
        if threads is not None and threads > 1:
            return f"{threads} threads are running"
        held = processes.device_files()
        if held:
            return f"{held[0]} is open"
        return None

    def _become_worker(self, config: dict[str, Any], fds: list[int]) -> None:
        """In the child: never returns, whatever happens."""
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        code = 70
        try:
            parent = os.getppid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._wake_read)
            os.close(self._wake_write)
            self.channel.close()
            processes.die_with_parent(parent)
            code = self._live(config, fds)
        except BaseException:  # the edge of the process: whatever it is, it must not run the nursery's code
            traceback.print_exc()
        finally:
            _flush()
            os._exit(code)

    def _live(self, config: dict[str, Any], fds: list[int]) -> int:
        """What the child is there for; returns its exit code."""
        from holdfast.worker import worker

        given = worker.open_forked(config, fds)
        if "opinion" in config:
            from holdfast.worker.opinion import form_opinion

            return form_opinion(config, *given)
        return worker.live(config, *given)

    def _reap(self) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        for pid in list(self.seconds):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self.seconds.discard(pid)
        for pid in list(self.children):
            code: int | None = None
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if done else None
            except ChildProcessError:  # somebody else has taken its status: nobody knows it now
                done = pid
            if done:
                self.children.discard(pid)
                self._say(Exited(pid, code))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    nursery_code = main(sys.argv[1:])
    _flush()
    os._exit(nursery_code)  # nothing here is worth the second or two that Python takes to unload torch
