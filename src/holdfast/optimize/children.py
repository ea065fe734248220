"""Child processes that build and run candidates: asked one thing at a time, each with a deadline.

    with Child.start(work, cache=work, threads=2) as child:
        child.ask({"do": "load", "about": about}, deadline_s=60)      # {"cold_s": 0.4, …}
        child.ask({"do": "time", "batch": 1, "count": 20}, 30)        # Failed: "it was killed by SIGSEGV"

Whatever a child does is a result: an answer, an error in words, a crash, a hang. One that cannot be killed is left
behind, and said. No torch here.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.base import interpreter, processes

KILL_GRACE = 10.0
_LAST_WORDS = 4000


class Failed(Exception):
    """A child did not do what it was asked. `kind` is error, crash or hang."""

    def __init__(self, kind: str, why: str, more: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.kind, self.why, self.more = kind, why, more or {}


class Child:
    """A process of our own, in a group of its own."""

    def __init__(self, popen: subprocess.Popen[str], errors: Any) -> None:
        self.pid, self._popen, self._errors = popen.pid, popen, errors
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def start(cls, work: Path, *, cache: Path, threads: int = 1, module: str = "holdfast.optimize.worker") -> Child:
        """Start it and return at once. `cache` is for compiled kernels, which torch unpickles: it is nobody else's."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        count = str(threads)
        environment = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count),
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait actively slow down whoever is measured next
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        popen = subprocess.Popen(
            interpreter.module(module, str(work), str(os.getpid())),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            **processes.own_session(),
        )  # fmt: skip
        return cls(popen, errors)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._popen.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def ask(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Its answer; Failed if there is none."""
        assert self._popen.stdin is not None
        until = time.monotonic() + deadline_s
        try:
            self._popen.stdin.write(json.dumps(command) + "\n")
            self._popen.stdin.flush()
        except (OSError, ValueError):
            raise self._ended() from None
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise self._hung(deadline_s) from None
            if line is None:
                raise self._ended()
            said = _object(line)
            if said is None:  # something of a library that got through
                continue
            if "error" in said:
                raise Failed("error", str(said["error"])[:1000], said)
            return said

    def close(self) -> None:
        """End it and all that it started, whatever it is doing."""
        with contextlib.suppress(OSError, ValueError):
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        if self._popen.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(0.2)
        processes.send_group(self.pid, processes.KILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(KILL_GRACE)
        with contextlib.suppress(OSError, ValueError):
            self._errors.close()

    def rss(self) -> int | None:
        """Bytes of memory it holds now, where the system says."""
        seen = processes.inspect(self.pid)
        return None if seen is None else seen.rss_bytes

    def _hung(self, deadline_s: float) -> Failed:
        processes.send_group(self.pid, processes.KILL)
        try:
            self._popen.wait(KILL_GRACE)
        except subprocess.TimeoutExpired:
            return Failed("hang", f"it gave no answer in {deadline_s:.0f} s, and process {self.pid} cannot be killed")
        return Failed("hang", f"it gave no answer in {deadline_s:.0f} s and was ended")

    def _ended(self) -> Failed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(KILL_GRACE)
        code = self._popen.poll()
        last = self._last_words()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return Failed("crash", f"it was killed by {signal.Signals(-code).name}{last}")
        return Failed("crash", f"its process ended with code {code}{last}")

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - _LAST_WORDS))
            lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
            return f": {lines[-1].strip()[:200]}" if lines else ""
        return ""


def _object(line: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(line)
        if isinstance(said, dict):
            return said
    return None
