"""Where this user's own files are: the ledger, plans, and the key that seals runs. Nobody else writes there.

state_folder()                                       # HOLDFAST_STATE, or the place the system has for such files
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "HOLDFAST_STATE"


def state_folder(env: Mapping[str, str] | None = None) -> Path:
    """Where this user's ledger is: `HOLDFAST_STATE`, or the place the system has for such files."""
    env = os.environ if env is None else env
    if env.get(VARIABLE):
        return Path(env[VARIABLE]).absolute()
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local", "holdfast")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "holdfast"
    xdg = env.get("XDG_STATE_HOME", "")  # its specification says to ignore a relative path
    return (Path(xdg) if os.path.isabs(xdg) else home / ".local" / "state") / "holdfast"
