"""`holdfast …` in this process, with workers of the one nursery that all tests of this process share.

    done = warm.holdfast("train", "job.py", "epochs=4", cwd=folder)      # as tests.cli.driving.holdfast

For tests that need a run and are not about its command: `holdfast train` as a process imports torch again, which takes
ten times as long as the run. What is real: supervisor, keeper, workers, their processes and all files.
"""

from __future__ import annotations

import atexit
import functools
import os
from pathlib import Path
from unittest import mock

from holdfast.supervisor.process_start import Launcher, NurseryLauncher
from holdfast.supervisor.supervisor import Supervisor
from tests.cli.driving import Done, said
from tests.real_faults.driving import Borrowed


@functools.cache
def nursery() -> NurseryLauncher:
    """torch, imported once for all runs of this process. It ends with the process."""
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]  # jobs import from tests
    made = NurseryLauncher({"PYTHONPATH": os.pathsep.join(path)}, [])
    atexit.register(made.close)
    return made


def holdfast(*words: str, cwd: Path, **env: str) -> Done:
    """`holdfast …` with its output in pipes. The nursery is in another folder: runs have whole paths."""
    nursery()  # with the environment of all tests, not of this one
    env = {"HOLDFAST_RUN_FOLDER": str(cwd / "runs"), **env}
    with mock.patch.object(Supervisor, "_make_launcher", _launcher):
        return said(*words, cwd=cwd, **env)


_own = Supervisor._make_launcher


def _launcher(supervisor: Supervisor) -> Launcher:
    if supervisor.plan.rungs[supervisor.rung].env:
        return _own(supervisor)
    return Borrowed(nursery())
