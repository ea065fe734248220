"""What processes leave outside of the run folder when they are killed, and who removes it. No torch.

    scratch = Scratch.create()       # supervisor: a folder under the system's temporary one
    scratch.adopt()                  # worker: the sockets of multiprocessing go there
    note_child()                     # loader child: my shared memory is to be removed should I not do it
    scratch.sweep()                  # supervisor, after a death
    scratch.remove()                 # at the end of the run; the keeper does it for a supervisor that was killed

A loader child hands tensors over through a socket in a temporary folder and through shared memory that has a
name for a moment. Killed at the wrong moment it leaves both, and nobody would ever remove them.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.base import processes

SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _CHILD = "holdfast-", "child-"
_PATIENCE = 2.0
"""Seconds a process that was killed may take to be gone."""


class Scratch:
    """The folder of one run. Its path is short: the address of a socket holds about a hundred bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls) -> Scratch:
        return cls(Path(tempfile.mkdtemp(prefix=_PREFIX)))

    def adopt(self) -> None:
        """Let this process and its children use it instead of folders of their own."""
        if self.path.is_dir():
            _config()["tempdir"] = str(self.path)
            note_child()

    def sweep(self, *, patience: float = 0.0) -> None:
        """A worker is gone, and what it had started is killed: nothing in here is needed any more."""
        deadline = time.monotonic() + patience
        for marker in self.path.glob(f"{_CHILD}*"):
            pid = marker.name.removeprefix(_CHILD)
            while _runs(pid) and time.monotonic() < deadline:
                time.sleep(0.005)
            if not _runs(pid):
                for left in SHARED_MEMORY.glob(f"torch_{pid}_*"):
                    left.unlink(missing_ok=True)
                for looks in SHARED_MEMORY.glob(f"holdfast-look-{pid}-*"):
                    shutil.rmtree(looks, ignore_errors=True)
                marker.unlink(missing_ok=True)
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            if not entry.name.startswith(_CHILD) and not entry.is_dir():
                entry.unlink(missing_ok=True)

    def remove(self) -> None:
        self.sweep(patience=_PATIENCE)
        shutil.rmtree(self.path, ignore_errors=True)


def note_child() -> None:
    """Leave this process's number in the scratch folder, if there is one."""
    folder = _config().get("tempdir")
    if folder and Path(folder).name.startswith(_PREFIX):
        with contextlib.suppress(OSError):
            (Path(folder) / f"{_CHILD}{os.getpid()}").touch()


def _config() -> dict[str, Any]:
    """Where multiprocessing keeps the name of its temporary folder; children inherit it, forked or spawned."""
    return multiprocessing.process.current_process()._config  # type: ignore[attr-defined,no-any-return]


def _runs(pid: str) -> bool:
    if not pid.isdigit() or not processes.exists(int(pid)):
        return False
    info = processes.inspect(int(pid))
    return info is None or info.state not in "ZX"
