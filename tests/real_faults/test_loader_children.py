"""Loader children that are killed or stuck: respawned inside the worker, and every sample still comes once."""

from __future__ import annotations

import pytest

from tests.real_faults.conftest import Drive
from tests.real_faults.driving import SOON, assert_exact

QUICK_LOADER = {"loader.stuck_floor": "1s"}


@pytest.mark.all
def test_killed_and_stuck_children_are_respawned(drive: Drive, reference: Drive) -> None:
    """Each is noticed when a batch of that child is due: an epoch is read ahead, so in the next one at the latest."""
    run = drive(faults="loader_kill@4,loader_stop@12", workers=2, settings=QUICK_LOADER)
    assert_exact(run, reference(), faults=2)  # the same bits as without loader children
    assert run.faults() == ["loader_died", "loader_stuck"]
    assert run.receipt["steps_repeated"] == 0
    assert len(run.of("worker")) == 1
    assert run.fault(1)["evidence"]["signal"] == "SIGKILL"
    assert run.fault(2)["evidence"]["waited_s"] <= 10.0
    assert len(run.of("recovered")) == 2


def test_a_worker_with_loader_children_is_replaced(drive: Drive, reference: Drive) -> None:
    """Its children end with it, however it ends; the next worker starts its own."""
    run = drive(faults="sigkill@4:data,hang@10,segfault@15:forward", workers=2, settings=SOON)
    assert_exact(run, reference(), faults=3)
