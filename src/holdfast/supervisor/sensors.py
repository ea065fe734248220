"""The sensors of a run: a child that reads temperatures, power, load and memory, because a sick driver hangs who asks.

    sensing = Sensing(run_folder)
    sensing.start()                     # a small process without torch; see holdfast.monitor.devices
    sensing.poll()                      # the newest reading, or None; never waits

Nothing depends on the child: if it ends it is started again later, and if it is silent it is ended. Every ten
seconds a reading is kept in readings.jsonl, so that temperatures can be looked at after the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import Any

from holdfast.base import interpreter
from holdfast.run.folder import RunFolder

EVERY = 2.0
"""Seconds between two readings."""
KEEP_EVERY = 10.0
"""Seconds between two readings that are kept."""
STALE = 15.0
"""Seconds after which a reading is not believed, and a silent child is ended."""
AGAIN_AFTER = 60.0
"""Seconds before a child that failed is started again."""
MOST = 1 << 16


class Sensing:
    """The child and what it said last."""

    def __init__(self, run: RunFolder, every: float = EVERY) -> None:
        self._run = run
        self._every = every
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._newest: dict[str, Any] | None = None
        self._heard = 0.0
        self._kept = 0.0
        self._start_at: float | None = None
        """When the next child may be started; None while one runs."""
        self.energy_j: dict[str, float] = {}
        """By device, where its power can be read."""

    def start(self) -> None:
        self._start_at = None
        if not hasattr(os, "set_blocking"):  # Windows before Python 3.12: without it, listening would be waiting
            return
        words = interpreter.module("holdfast.monitor.devices", "--every", str(self._every))
        words += ["--disk", str(self._run.path), "--parent", str(os.getpid())]
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)
        self._heard = time.monotonic()

    def poll(self) -> dict[str, Any] | None:
        """The newest reading that is not old."""
        now = time.monotonic()
        if self._child is None:
            if self._start_at is not None and now >= self._start_at:
                self.start()
            return None
        for line in self._lines():
            self._take(line, now)
        if self._child.poll() is not None or now - self._heard > STALE:
            self.close()
            self._start_at = now + AGAIN_AFTER
        return self._newest if now - self._heard <= STALE else None

    def _lines(self) -> list[bytes]:
        assert self._child is not None and self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._rest += self._child.stdout.read(MOST) or b""
        *lines, self._rest = self._rest.split(b"\n")
        return lines

    def _take(self, line: bytes, now: float) -> None:
        try:
            reading = json.loads(line)
        except ValueError:
            return
        if not isinstance(reading, dict):
            return
        if self._newest is not None:
            self._add_energy(reading, now - self._heard)
        self._newest, self._heard = reading, now
        if now - self._kept >= KEEP_EVERY:
            self._kept = now
            self._run.append_reading(reading)

    def _add_energy(self, reading: dict[str, Any], seconds: float) -> None:
        for row in reading.get("devices", ()):
            watts = row.get("power_w")
            if isinstance(watts, (int, float)):
                name = str(row.get("device"))
                self.energy_j[name] = self.energy_j.get(name, 0.0) + watts * seconds

    def close(self) -> None:
        """End the child; one that hangs in a driver is left to the kernel."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
        if child.stdout is not None:
            child.stdout.close()
