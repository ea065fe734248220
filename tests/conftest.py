"""What every test shares: a ledger of its own, so that none meets another's faults or touches the user's."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

_numbers = itertools.count(1)
_states = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    _hear_signals()
    config.stash[_states] = Path(tempfile.mkdtemp(prefix="holdfast-test-state-"))
    _set_state(config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    _set_state(item.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_states], ignore_errors=True)


def _hear_signals() -> None:
    """Started by nohup or as a job in the background, we would hand on to every child that it ignores some signals."""
    for name, default in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


def _set_state(config: pytest.Config) -> None:
    """A folder that nothing has used yet. It is an environment variable, so that processes have it as well."""
    os.environ["HOLDFAST_STATE"] = str(config.stash[_states] / str(next(_numbers)))
