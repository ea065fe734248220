"""`holdfast watch` in a terminal of a machine that has no textual: a live picture all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.run.folder import write_json
from tests.monitor.folders import make_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
CODE = """
import sys
sys.modules["textual"] = None
from holdfast.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_live_view_needs_no_extra(tmp_path: Path) -> None:
    import pty

    run = make_run(tmp_path)
    master, slave = pty.openpty()
    words = ["watch", str(run.path), "--every", "0.2"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, *words], stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
    )
    os.close(slave)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen and time.monotonic() < deadline:
            try:
                seen += os.read(master, 4096)
            except OSError:
                break
        assert text in seen, seen.decode(errors="replace")

    read_until(b"pip install 'holdfast[monitor]'")
    assert b"calm-heron" in seen and b"Traceback" not in seen
    seen = b""
    beat = {"time": "2026-11-15T10:14:04.000Z", "device": "cpu", "step": 4321, "steps_total": 6000, "epoch": 43}
    write_json(run.path / "beat.json", {**beat, "epochs": 60, "batches": 100})
    read_until(b"44/60")  # what is new is drawn
    child.send_signal(signal.SIGINT)
    read_until(b"\x1b[?1049l")
    assert child.wait(100) == 0
    os.close(master)
