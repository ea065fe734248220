"""The figure of the first promise: sixty faults in one run (fifteen in `make test`), and undisturbed weights."""

from __future__ import annotations

import random
import threading

import pytest

from holdfast.supervisor.supervisor import Supervisor
from holdfast.testing import FaultPlan
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import assert_exact, kill_worker


class Killer:
    """Kills the worker from outside, at any moment of its life: in set-up, in a copy, between two epochs."""

    def __init__(self, seed: int, kills: int) -> None:
        self.source = random.Random(seed)
        self.planned = kills
        self.kills = 0

    def __call__(self, supervisor: Supervisor) -> None:
        pause = threading.Event()
        since = {"step": 0, "kills": 0}
        while self.kills < self.planned and supervisor.outcome is None:
            pause.wait(self.source.uniform(0.0, 0.3))
            if supervisor.accounts.steps > since["step"]:
                since = {"step": supervisor.accounts.steps, "kills": 0}
            worker = supervisor.worker
            # Three in a row, then one step is let through: ten without one would be given up, and rightly so.
            if since["kills"] < 3 and worker is not None and not worker.gone and kill_worker(supervisor):
                self.kills += 1
                since["kills"] += 1


@pytest.mark.parametrize(
    ("planned", "workers"), [(15, 2), *(pytest.param(60, each, marks=pytest.mark.long) for each in (0, 2))]
)
def test_random_faults(drive: Drive, reference: Drive, planned: int, workers: int) -> None:
    epochs = max(6, 5 * planned // 12)
    plan = FaultPlan.random(planned, steps=8 * epochs, seed=7 + workers)
    killer = Killer(seed=11 + workers, kills=planned // 5)
    run = drive(faults=plan, epochs=epochs, workers=workers, meanwhile=killer)
    assert len(list((run.folder / "chaos").iterdir())) == planned
    faults = sum(run.receipt["faults"].values())
    assert planned <= faults <= planned + killer.kills  # two may meet: then they are one
    assert_exact(run, reference(epochs=epochs), faults=faults)
