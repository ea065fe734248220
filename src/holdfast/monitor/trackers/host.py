"""The process that has a run's trackers written: a child for each of them, started again if it is killed.

    python -m holdfast.monitor.trackers.host FOLDER         # the settings track.* come as JSON on stdin

`holdfast train`, `run`, `launch` and `resume` start it and do not wait for it. It outlives them, to send the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from holdfast.base import interpreter
from holdfast.monitor.devices import behave
from holdfast.monitor.trackers.tracker import Target

PAUSES = (1.0, 5.0, 30.0, 120.0)
"""Seconds before a tracker's process that died is started again."""
MOST = 50
"""Deaths of one tracker's process after which it is left alone."""


class Child:
    """The process of one tracker."""

    def __init__(self, folder: Path, name: str, target: Target) -> None:
        self.folder, self.name, self.target = folder, name, target
        self.done = False
        self._deaths = 0
        self._start_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Start it, or see whether it has ended. It ends by itself with 0 or 1; everything else is a death."""
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self._start()
            return
        code = self._process.poll()
        if code is None:
            return
        self._process = None
        self._deaths += 1
        self.done = code in (0, 1) or self._deaths >= MOST
        if not self.done:
            self._start_at = time.monotonic() + PAUSES[min(self._deaths, len(PAUSES)) - 1]
            print(f"{self.name}: its process ended with {code} and is started again", flush=True)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            interpreter.module("holdfast.monitor.trackers.delivery", str(self.folder), self.name),
            stdin=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(self.target.to_json()).encode())
            self._process.stdin.close()
        except BrokenPipeError:  # it has died already, and the next look sees that
            pass


def main(argv: list[str] | None = None) -> int:
    behave()
    words = sys.argv[1:] if argv is None else argv
    target = Target.from_json(json.loads(sys.stdin.read() or "{}"))
    children = [Child(Path(words[0]), name, target) for name in target.to]
    while not all(child.done for child in children):
        for child in children:
            if not child.done:
                child.look()
        time.sleep(0.5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
