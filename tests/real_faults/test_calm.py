"""While a worker trains and nothing happens, its supervisor sleeps: each look takes time from the training."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast.supervisor.supervisor import CALM, TICK, Supervisor
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import kill_worker
from tests.waiting import wait_until

SECONDS = 3.0


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """When each look began."""
    found: list[float] = []
    real = Supervisor.turn

    def turn(self: Supervisor) -> None:
        real(self)
        found.append(time.monotonic())

    monkeypatch.setattr(Supervisor, "turn", turn)
    yield found


def test_looks_are_rare_while_a_run_is_calm_and_a_death_wakes_it(drive: Drive, turns: list[float]) -> None:
    noticed: list[float] = []

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor._calm, 60.0), "it never came to rest"
        since = time.monotonic()
        assert wait_until(lambda: time.monotonic() - since >= SECONDS, 60.0)
        looks = [each for each in turns if each > since]
        assert len(looks) < 0.6 * SECONDS / TICK, f"{len(looks)} looks in {SECONDS} s"
        killed = time.monotonic()
        assert kill_worker(supervisor)
        assert wait_until(lambda: supervisor._crisis is not None or supervisor.outcome is not None, 60.0)
        noticed.append(time.monotonic() - killed)

    # Steps of 0.2 s that log nothing and save nothing: all that happens is training.
    run = drive(pause=0.2, settings={"checkpoint.every": "60s"}, meanwhile=meanwhile)
    assert run.outcome.state == "FINISHED" and run.faults() == ["killed"], run.story()
    assert noticed and CALM > TICK
