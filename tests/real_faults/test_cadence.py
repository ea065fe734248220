"""Commits as often as the default has it: kills anywhere between two of them leave the same bits and the same log."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import Run, kill_worker
from tests.waiting import wait_until

AUTO = {"snapshot.every": "auto"}
STEPS = 24


def logged(run: Run) -> list[dict[str, Any]]:
    """What is in the file, line by line, without the time."""
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def assert_same(run: Run, wanted: Run) -> None:
    assert run.outcome.state == "FINISHED", run.story()
    assert run.state() == wanted.state(), run.story()
    assert logged(run) == logged(wanted)
    receipt, witness = run.receipt, run.witness()
    assert (receipt["steps"], receipt["steps_lost"]) == (STEPS, 0)
    assert (receipt["samples_skipped"], receipt["samples_repeated"]) == (0, 0)
    assert set(witness) == set(range(1, STEPS + 1))
    # Every step that was begun is counted; one that was killed on its way to the loss has left no line.
    assert 0 <= receipt["steps_repeated"] - (sum(witness.values()) - STEPS) <= sum(receipt["faults"].values())


@pytest.mark.all
def test_kills_at_planned_steps(drive: Drive, reference: Drive) -> None:
    """Two at one step, in each part of a step, and out of memory between two commits."""
    supervisors: list[Supervisor] = []
    faults = "sigkill@5,sigkill@5:backward,oom@11,segfault@13:optimizer,sigkill@22"
    run = drive(faults=faults, settings=AUTO, meanwhile=supervisors.append)
    assert_same(run, reference())
    assert run.receipt["cadence"]["rule"] in ("lose", "cost", "faults")
    assert len(run.faults()) == 5 and run.receipt["recoveries"] >= 1, run.story()  # a crisis may hold several
    assert supervisors[0]._recovery._losses()["workers_lost"] == len(run.of("worker")) - 1, run.story()


def test_kills_at_random_moments(drive: Drive, reference: Drive) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    kills: list[int] = []

    def meanwhile(supervisor: Supervisor) -> None:
        for _ in range(3):
            wait_until(lambda: supervisor.outcome is not None or _begun(supervisor) > len(kills))
            time.sleep(chance.uniform(0.0, 0.3))
            if supervisor.outcome is not None or not kill_worker(supervisor):
                return
            kills.append(supervisor.generation)
            wait_until(lambda: supervisor.outcome is not None or supervisor.generation > kills[-1])

    def _begun(supervisor: Supervisor) -> int:
        worker = supervisor.worker
        return supervisor.generation if worker is not None and worker.board.read().attempts else 0

    run = drive(meanwhile=meanwhile, settings=AUTO, pause=0.02)
    print("seed", seed)
    assert_same(run, reference())
    assert run.receipt["steps_repeated"] > 0 or not kills
