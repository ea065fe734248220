"""The script's stdin, stdout and stderr, passed on byte for byte.

    streams = Streams.open(log)                 # a terminal for each stream that is one here, else a pipe
    child = launch(command, streams)            # it gets streams.stdin, .stdout, .stderr
    streams.started()
    while ...:
        select(*streams.wants()); streams.pump(readable, writable)
    streams.finish()                            # what was still on its way
    streams.close()                             # the terminal as it was

A stream that is no terminal here is none there: stdin is handed over as it is, stdout and stderr through a pipe. Where
one is a terminal, the script gets a terminal of its own (a pty), and ours is set to raw: keys, Ctrl-C and the size of
the window are its own business. Bytes are never decoded, reordered within a stream, or dropped. A reader that is slow
makes the script wait, and one that is gone ends its stream: as it would be without us.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from holdfast.supervisor.scripts.exact_output import Gate
from holdfast.supervisor.scripts.script_record import Record

CHUNK = 1 << 16
PIECE = 4096
"""Bytes that a pipe which is ready takes without making us wait."""
_CTRL_C, _CTRL_Z = b"\x03", b"\x1a"


@dataclass(slots=True)
class Way:
    """One stream on its way from the script to us."""

    source: int
    """Where we read: the end of a pipe, or the pty's master."""
    target: int
    """Where it goes: our own stdout or stderr."""
    piece: int = PIECE
    waiting: bytes = b""
    ended: bool = False
    at_line_start: bool = True


@dataclass(slots=True)
class Streams:
    """The script's three streams."""

    record: Record
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    """What the child gets; None is inherited."""
    slave: int | None = None
    """The terminal the script controls, where it has one."""
    last_output: float = field(default_factory=time.monotonic)
    interrupted: bool = False
    """Ctrl-C was typed: an end by SIGINT is what somebody wanted."""
    suspend: bool = False
    """Ctrl-Z was typed. The kernel would not stop a script that leads its own session: we have to."""
    gate: Gate | None = None
    """Decides what is shown, where a script prints again what it printed before (`--exact`)."""
    _ways: list[Way] = field(default_factory=list)
    _master: int | None = None
    _keys: bytes = b""
    _typing: bool = False
    _before: Any = None
    _give: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, record: Record) -> Streams:
        """Terminals and pipes for the next process. The terminal we sit at is left alone until `started`."""
        streams = cls(record)
        terminals = [sys.platform != "win32" and _is_terminal(number) for number in (0, 1, 2)]
        if any(terminals):
            streams._open_terminal(terminals)
        for number, name in ((1, "stdout"), (2, "stderr")):
            if terminals[number]:
                setattr(streams, name, streams.slave)
            else:
                read, write = os.pipe()
                os.set_inheritable(write, True)
                streams._give.append(write)
                setattr(streams, name, write)
                streams._ways.append(Way(read, number, piece=_piece(number)))
        return streams

    def _open_terminal(self, terminals: list[bool]) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        import pty
        import termios

        self._master, self.slave = pty.openpty()
        self._give.append(self.slave)
        model = next(number for number in (0, 1, 2) if terminals[number])
        with contextlib.suppress(termios.error, OSError):
            mode = termios.tcgetattr(model)
            if not terminals[0]:  # ours is not set to raw and makes line ends itself: twice would be once too often
                mode[1] &= ~termios.OPOST
            termios.tcsetattr(self.slave, termios.TCSANOW, mode)
        self.resize(model)
        if terminals[0]:
            self.stdin = self.slave
            self._typing = True
        shown = 1 if terminals[1] else 2
        if terminals[1] or terminals[2]:
            self._ways.append(Way(self._master, shown))

    # -- the terminal we sit at ----------------------------------------------------------------------------

    def started(self) -> None:
        """The script has its ends: ours are closed, and keys go to it as they are typed."""
        for fd in self._give:
            os.close(fd)
        self._give = []
        if self._typing:
            self.make_raw()

    def make_raw(self) -> None:
        """Every key is the script's. Not if we are in the background: touching the terminal would stop us."""
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        import termios
        import tty

        if not _in_foreground():
            self._typing = False
            return
        with contextlib.suppress(termios.error):
            self._before = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSANOW)

    def make_cooked(self) -> None:
        """The terminal as it was."""
        if self._before is not None and sys.platform != "win32":
            import termios

            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._before)
            self._before = None

    @property
    def raw(self) -> bool:
        """Lines of ours need a carriage return."""
        return self._before is not None

    def resize(self, model: int = 1) -> None:
        """The window has another size: so has the script's."""
        if self._master is None or sys.platform == "win32":
            return
        import fcntl
        import termios

        for number in (model, 1, 0, 2):
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(number, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
                return

    # -- moving bytes --------------------------------------------------------------------------------------

    def wants(self) -> tuple[list[int], list[int]]:
        """What to wait for: sources that may say more, targets that have to take something."""
        readable = [way.source for way in self._ways if not way.ended and not way.waiting]
        writable = [way.target for way in self._ways if way.waiting]
        if self._typing and not self._keys:
            readable.append(0)
        if self._keys and self._master is not None:
            writable.append(self._master)
        return readable, writable

    @property
    def blocked(self) -> bool:
        """Whoever reads our output does not: the script may have to wait, and is not to blame."""
        return any(way.waiting for way in self._ways)

    def pump(self, readable: Collection[Any], writable: Collection[Any]) -> None:
        for way in self._ways:
            if way.waiting and way.target in writable:
                self._write(way)
            if not way.ended and not way.waiting and way.source in readable:
                self._read(way)
        if self._typing and 0 in readable:
            self._type()
        if self._keys and self._master in writable:
            self._press()

    def take_all(self, most: int = 1 << 24) -> None:
        """Read everything that was written until now, so that the gate has seen it. A reader of ours that is slow
        ends this: then what is still on its way counts as written later."""
        while most > 0:
            readable = [way.source for way in self._ways if not way.ended and not way.waiting]
            ready, takes, _ = select.select(readable, [way.target for way in self._ways if way.waiting], [], 0)
            if not ready and not takes:
                return
            self.pump(ready, takes)
            most -= PIECE

    def show(self, target: int, data: bytes) -> None:
        """Write this to one of our streams now."""
        self.record.write(data)
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                select.select([], [target], [], 1.0)
            except OSError:
                return

    def _read(self, way: Way) -> None:
        try:
            data = os.read(way.source, CHUNK)
        except OSError:  # EIO: the last one who had the terminal open has closed it
            data = b""
        if not data:
            self._end(way)
            return
        self.last_output = time.monotonic()
        if self.gate is not None:
            shown = self.gate.passes(way.target, data)
            if not shown:
                self.record.hidden(data)
                return
            data = shown
        self.record.write(data)
        way.at_line_start = data.endswith((b"\n", b"\r"))
        way.waiting = data
        if select.select([], [way.target], [], 0)[1]:
            self._write(way)

    def _write(self, way: Way) -> None:
        try:
            written = os.write(way.target, way.waiting[: way.piece])
            way.waiting = way.waiting[written:]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more: then the script is to notice it as well
            way.waiting = b""
            self._end(way)

    def _end(self, way: Way) -> None:
        way.ended = True
        if way.source != self._master:
            os.close(way.source)

    def _type(self) -> None:
        try:
            keys = os.read(0, 1024)
        except OSError:
            keys = b""
        if not keys:
            self._typing = False
            return
        if (_CTRL_C in keys or _CTRL_Z in keys) and self._makes_signals():
            self.interrupted = self.interrupted or _CTRL_C in keys
            self.suspend = _CTRL_Z in keys
            keys = keys.replace(_CTRL_Z, b"")
        self._keys = keys

    def _makes_signals(self) -> bool:
        """Does the script's terminal turn Ctrl-C into a signal? An editor reads it as a key."""
        if sys.platform == "win32":
            raise NotImplementedError("this needs POSIX")
        import termios

        assert self._master is not None
        with contextlib.suppress(termios.error, OSError):
            return bool(termios.tcgetattr(self._master)[3] & termios.ISIG)
        return False

    def _press(self) -> None:
        assert self._master is not None
        try:
            written = os.write(self._master, self._keys)
            self._keys = self._keys[written:]
        except OSError:
            self._keys = b""

    def would_cut(self, target: int) -> bool:
        """Would a line of ours on this stream cut one of the script's in two? On a terminal all streams meet."""
        terminal = _is_terminal(target)
        ways = [way for way in self._ways if way.target == target or (terminal and _is_terminal(way.target))]
        cut = [way for way in ways if not way.at_line_start]
        for way in cut:
            way.at_line_start = True
        return bool(cut)

    # -- the end -------------------------------------------------------------------------------------------

    @property
    def open_sources(self) -> bool:
        return any(not way.ended or way.waiting for way in self._ways)

    def finish(self, patience: float = 0.5) -> None:
        """The script is gone: pass on what it had written. Others may hold its pipe open: they are not waited for."""
        deadline = time.monotonic() + patience
        while self.open_sources:
            readable, writable = self.wants()
            readable = [fd for fd in readable if fd != 0 or 0 in {way.source for way in self._ways}]
            waiting = any(way.waiting for way in self._ways)
            quiet = 0.02 if not waiting else max(0.0, deadline - time.monotonic())
            ready = select.select(readable, writable, [], quiet)
            if not ready[0] and not ready[1]:
                if not waiting or time.monotonic() > deadline:
                    break
                continue
            self.pump(ready[0], ready[1])
            deadline = time.monotonic() + patience  # it moves: a slow reader may take its time

    def close(self) -> None:
        self.make_cooked()
        for way in self._ways:
            if not way.ended and way.source != self._master:
                os.close(way.source)
            way.ended = True
        for fd in [*self._give, *([self._master] if self._master is not None else [])]:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._give, self._master = [], None


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _in_foreground() -> bool:
    if sys.platform == "win32":
        raise NotImplementedError("this needs POSIX")
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _piece(number: int) -> int:
    """A file takes any amount at once; a pipe that is ready takes a page."""
    try:
        return CHUNK if stat.S_ISREG(os.fstat(number).st_mode) else PIECE
    except OSError:
        return PIECE


def controlling(slave: int | None) -> None:
    """In the child, before it becomes the script: the pty is the terminal it controls."""
    if slave is not None and sys.platform != "win32":
        import fcntl
        import termios

        with contextlib.suppress(OSError):
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
