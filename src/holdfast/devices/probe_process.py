"""Starting a probe and waiting for its word, without waiting: whoever supervises a run has other things to do.

    probe = ProbeProcess.start("cuda:0", deadline_s=120.0)       # a child of its own, in a process group of its own
    result = probe.poll()                                 # None while it works
    result.ok, result.why, result.seconds                 # False, "it was killed by SIGSEGV", 4.2
    probe.close()                                         # never mind

    run_probe("cuda:0", deadline_s=120.0)                 # the same for those who can wait

Whatever the child does is a result: it says yes, says no, dies, hangs, or cannot be killed. The one that cannot be
killed is left behind; `abandoned` says so, because it may hold the device. No torch here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from holdfast.base import interpreter, processes

KILL_GRACE = 10.0
"""Seconds a probe has to vanish after SIGKILL before it is left behind."""
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found."""

    ok: bool
    why: str = ""
    """What failed, in words that can follow "the probe failed:"."""
    seconds: float = 0.0
    """From its start to its end, the import of torch included."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    """{name, ok, error, bound, seconds} of each check that was done."""
    abandoned: int | None = None
    """The process that could not be killed."""


class ProbeProcess:
    """A probe under way."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        out: IO[bytes],
        err: IO[bytes],
        deadline_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.pid = child.pid
        self._child = child
        self._out, self._err = out, err
        self._clock = clock
        self._began = clock()
        self._deadline = self._began + deadline_s
        self._killed: float | None = None
        self._result: ProbeResult | None = None

    @classmethod
    def start(
        cls,
        device: str,
        deadline_s: float = 120.0,
        env: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> ProbeProcess:
        """Start it and return at once. `env` comes on top of this process's own: the remedies of a rung."""
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - read when the child has ended
        child = subprocess.Popen(
            interpreter.module(
                "holdfast.probes.short_training", "--device", device, "--parent", str(os.getpid()), "--json"
            ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(env or {})},
            **processes.own_session(),
        )
        return cls(child, out, err, deadline_s, clock)

    def poll(self) -> ProbeResult | None:
        """The result, once there is one. Kills what takes too long."""
        if self._result is not None:
            return self._result
        code, now = self._child.poll(), self._clock()
        if code is not None:
            processes.send_group(self.pid, processes.KILL)  # what it may have started
            self._finish(self._heard(code, now - self._began))
        elif self._killed is not None and now >= self._killed + KILL_GRACE:
            why = f"it hung, and process {self.pid} cannot be killed: it may hold the device until a reboot"
            self._finish(ProbeResult(False, why, now - self._began, abandoned=self.pid))
        elif self._killed is None and now >= self._deadline:
            processes.send_group(self.pid, processes.KILL)
            self._killed = now
        return self._result

    def close(self) -> None:
        """End it, whatever it is doing; waits only as long as a process takes to die."""
        if self._result is None:
            processes.send_group(self.pid, processes.KILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
            self._finish(ProbeResult(False, "it was cancelled", self._clock() - self._began))

    def _finish(self, result: ProbeResult) -> None:
        self._result = result
        self._out.close()
        self._err.close()

    def _heard(self, code: int, seconds: float) -> ProbeResult:
        """What it said; its exit status where it said nothing."""
        if self._killed is not None:
            limit = self._deadline - self._began
            return ProbeResult(False, f"it gave no answer in {limit:.0f} s", seconds)
        said = _object(_read(self._out))
        if said is None:
            return ProbeResult(False, _ended(code, _read(self._err)), seconds)
        checks = said.get("checks")
        return ProbeResult(
            ok=said.get("ok") is True and code == 0,
            why=str(said.get("why") or ""),
            seconds=seconds,
            checks=[check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else [],
        )


def run_probe(device: str, deadline_s: float = 120.0, env: Mapping[str, str] | None = None) -> ProbeResult:
    """A probe from its start to its result."""
    probe = ProbeProcess.start(device, deadline_s, env)
    try:
        while (result := probe.poll()) is None:
            time.sleep(0.02)
        return result
    finally:
        probe.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST).decode(errors="replace")


def _object(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object: a library may print before it."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            if isinstance(said, dict):
                return said
    return None


def _ended(code: int, words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-code).name}{last}"
    return f"it ended with code {code}{last}"
