"""The figure of the first promise: sixty faults in one run, and the weights of an undisturbed one, bit for bit."""

from __future__ import annotations

import random
import threading

import pytest

from holdfast.supervisor.supervisor import Supervisor
from holdfast.testing import FaultPlan
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import assert_exact, kill_worker

EPOCHS, PLANNED, FROM_OUTSIDE = 25, 60, 12


class Killer:
    """Kills the worker from outside, at any moment of its life: in set-up, in a copy, between two epochs."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.kills = 0

    def __call__(self, supervisor: Supervisor) -> None:
        pause = threading.Event()
        since = {"step": 0, "kills": 0}
        while self.kills < FROM_OUTSIDE and supervisor.outcome is None:
            pause.wait(self.source.uniform(0.0, 0.3))
            if supervisor.accounts.steps > since["step"]:
                since = {"step": supervisor.accounts.steps, "kills": 0}
            worker = supervisor.worker
            # Three in a row, then one step is let through: ten without one would be given up, and rightly so.
            if since["kills"] < 3 and worker is not None and not worker.gone and kill_worker(supervisor):
                self.kills += 1
                since["kills"] += 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.sample(3)
def test_sixty_random_faults(drive: Drive, reference: Drive, workers: int) -> None:
    plan = FaultPlan.random(PLANNED, steps=8 * EPOCHS, seed=7 + workers)
    killer = Killer(seed=11 + workers)
    run = drive(faults=plan, epochs=EPOCHS, workers=workers, meanwhile=killer)
    assert len(list((run.folder / "chaos").iterdir())) == PLANNED
    faults = sum(run.receipt["faults"].values())
    assert PLANNED <= faults <= PLANNED + killer.kills  # two may meet: then they are one
    assert_exact(run, reference(epochs=EPOCHS), faults=faults)
