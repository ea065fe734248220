"""The `holdfast` command as people run it: through a pipe or in a terminal, with a script of their own."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.cli.main import main

SCRIPT = '''\
"""A small job that is the same every time."""

import time

import torch
from torch import nn

import holdfast


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return x, (x.sum() > 0).float()


def train(session, lr=0.05, epochs=3, nap=0.0, fail_at=-1):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    data = holdfast.Loader(Points(), batch_size=8, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    print("hello from the script")

    def loss_of(batch):
        return nn.functional.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])

    for epoch in session.epochs(epochs):
        for batch in session.batches(data):
            if session.step_count == fail_at:
                raise ValueError("the script's own mistake")
            loss = session.step(loss_of, batch)
            time.sleep(nap)
        with session.evaluating():
            session.log(train_loss=loss, valid_loss=sum(loss_of(batch) for batch in data) / 8)
'''

_PIECES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>78]|(\r)|(\n)|([^\x1b\r\n]+)")


def drawn(raw: str) -> str:
    """What a terminal without a bottom shows: lines drawn over and erased as the codes say."""
    lines, row, column = [""], 0, 0
    for number, code, back, down, text in _PIECES.findall(raw):
        if code == "A":
            row = max(0, row - int(number or 1))
        elif code == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif back:
            column = 0
        elif down:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            before = lines[row].ljust(column)
            lines[row] = before[:column] + text + before[column + len(text) :]
            column += len(text)
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        data = json.loads(self.out)
        assert isinstance(data, dict)
        return data


def environment(**more: str) -> dict[str, str]:
    """What a login gives, and nothing of the machine's own settings."""
    names = ("PATH", "SYSTEMROOT", "PYTHONPATH", "HOLDFAST_STATE", "XDG_CACHE_HOME")
    keep = {name: os.environ[name] for name in names if name in os.environ}
    home = {"HOME": os.environ.get("HOLDFAST_TEST_HOME", "/nonexistent")}
    return {**keep, **home, "LC_ALL": "C.UTF-8", "TERM": "xterm", **more}


def holdfast(*words: str, cwd: Path, timeout: float = 240, **env: str) -> Done:
    """`holdfast …` with its output in pipes."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=timeout,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def said(*words: str, cwd: Path, **env: str) -> Done:
    """`holdfast …` in this process: for what a command reads and says. A process of its own imports first."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment(**env), clear=True),
        _in_folder(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_folder(cwd: Path, name: str | None = None) -> Path:
    """The folder of a run, or of the only run there is."""
    found = [path.parent for path in (cwd / "runs").glob("*/run.json") if not name or name in path.parent.name]
    assert len(found) == 1, found
    return found[0]


class Terminal:
    """`holdfast …` with a terminal of its own, which can be typed into and closed."""

    def __init__(self, *words: str, cwd: Path, columns: int = 80, rows: int = 24, **env: str) -> None:
        self.raw = ""
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode  # a sign may come in two parts
        self._code: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # the child: nothing of pytest's may run here
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.chdir(cwd)
                os.execve(sys.executable, [sys.executable, "-m", "holdfast", *words], environment(**env))
            finally:
                os._exit(127)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def text(self) -> str:
        """All lines that were written, as they look now."""
        return drawn(self.raw)

    def read(self, seconds: float = 0.1) -> bool:
        """Take what is there; False at the end."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:
            if error.errno == errno.EIO:  # the other side is closed
                return False
            raise
        self.raw += self._decode(data)
        return bool(data)

    def wait_for(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text)):
            assert time.monotonic() < deadline and self.read(), f"no {pattern!r} in:\n{self.text}"
        return match

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def close(self) -> None:
        """The window is closed: the kernel sends SIGHUP to what runs in it."""
        os.close(self.fd)
        self.fd = -1

    def wait(self, seconds: float = 120) -> int:
        """The exit code, with everything read until then."""
        deadline = time.monotonic() + seconds
        while self._code is None:
            if self.fd >= 0:
                self.read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._code = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"still running:\n{self.text}"
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                while self.read(0.1) and select.select([self.fd], [], [], 0.1)[0]:
                    pass
        return self._code

    def end(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()
        if self.fd >= 0:
            self.close()
