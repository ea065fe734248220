"""A command that may hang, in a process of its own: asked now, looked at later, never waited for.

    reader = Reader(["nvidia-smi", "-q", "-x"])
    reader.answer()          # None while it works; then an Answer, at the latest when its patience is over

It is killed when it takes too long. One that cannot be killed (a sick driver keeps it in the kernel) is left alone:
that it did not answer is evidence as well.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import IO

from holdfast.base import processes

PATIENCE = 10.0
_MOST = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, or why it is not to be used."""

    text: str = ""
    why: str | None = None


class Reader:
    """One command. Its output goes to a file without a name, so that nobody has to drain a pipe."""

    def __init__(self, command: list[str], patience: float = PATIENCE) -> None:
        self.name = os.path.basename(command[0])
        self._answer: Answer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._error: IO[bytes] | None = None
        self._patience = patience
        self._deadline = time.monotonic() + patience
        try:
            self._out, self._error = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._error,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        except OSError as error:
            self._finish(Answer(why="not installed" if isinstance(error, FileNotFoundError) else str(error.strerror)))

    @property
    def pid(self) -> int | None:
        """The child, as long as it works."""
        return self._process.pid if self._process is not None and self._answer is None else None

    def answer(self) -> Answer | None:
        """Returns at once."""
        if self._answer is None and self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._finish(self._read(code))
            elif time.monotonic() > self._deadline:
                self.kill(f"gave no answer within {self._patience:.0f} s")
        return self._answer

    def kill(self, why: str) -> None:
        """Not waited for: whoever is stuck in the kernel does not go."""
        if self._answer is not None:
            return
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.send_signal(processes.KILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        self._finish(Answer(why=why))

    def _read(self, code: int) -> Answer:
        assert self._out is not None and self._error is not None
        text, said = (_text(file) for file in (self._out, self._error))
        if code == 0 and text.strip():
            return Answer(text)
        lines = [line.strip() for line in f"{said}\n{text}".splitlines() if line.strip()]
        return Answer(why=lines[0][:200] if lines else f"it said nothing (exit status {code})")

    def _finish(self, answer: Answer) -> None:
        self._answer = answer
        for file in (self._out, self._error):
            if file is not None:
                file.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST).decode(errors="replace")
