"""A process that ends as a test wants it to."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def ended(code: str) -> subprocess.CompletedProcess[str]:
    """A real process that ends by `code`."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
