"""What the fault tests share: a warm nursery, undisturbed runs to compare with, and a look at what is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.supervisor.process_start import NurseryLauncher
from tests import warm
from tests.real_faults import driving
from tests.real_faults.driving import Run
from tests.waiting import wait_until

Drive = Callable[..., Run]


@pytest.fixture(scope="session")
def nursery() -> NurseryLauncher:
    """torch, imported once for all runs of this session."""
    if processes.portable():
        pytest.skip("no fork here")
    return warm.nursery()


@pytest.fixture
def drive(tmp_path: Path, nursery: NurseryLauncher) -> Drive:
    """Run a job under a supervisor of its own, with workers of the shared nursery."""
    return partial(driving.drive, tmp_path, nursery=nursery)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, nursery: NurseryLauncher) -> Drive:
    """The same job undisturbed, run once for each set of arguments."""
    done: dict[str, Run] = {}

    def find(script: Path = driving.JOB, **arguments: object) -> Run:
        key = f"{script.name} {sorted(arguments.items())}"
        if key not in done:
            runs = tmp_path_factory.mktemp("reference")
            done[key] = driving.drive(runs, script, nursery=nursery, **arguments)
            assert done[key].outcome.state == "FINISHED", done[key].story()
            assert done[key].receipt["steps_repeated"] == 0
        return done[key]

    return find


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test, whatever it did to whom: only the shared nursery is still there, and it is empty."""
    if "nursery" in request.fixturenames:
        request.getfixturevalue("nursery")
    before = driving.descendants(os.getpid())
    yield

    def left() -> set[int]:
        found = driving.descendants(os.getpid()) - before
        if found and not driving.alive(found):  # a command that took too long is killed, and reaped by the next one
            subprocess.run(["true"], check=True)
        return found

    assert wait_until(lambda: not left()), left()
