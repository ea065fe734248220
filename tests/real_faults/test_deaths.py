"""The worker's death in every form: a new one goes on from the last committed step, to the same bits."""

from __future__ import annotations

import signal

import pytest

from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, assert_exact, kill_worker
from tests.real_faults.jobs import job
from tests.waiting import wait_until

ONCE = JOBS / "once.py"
PRETEND = "pretend:0"


def test_the_job_is_deterministic_and_sees_each_sample_once_an_epoch(drive: Drive, reference: Drive) -> None:
    """What the other tests stand on."""
    assert_exact(drive(), reference(), faults=0)
    seen = reference().diary()["samples"]
    epochs = [seen[start : start + job.SAMPLES] for start in range(0, len(seen), job.SAMPLES)]
    assert len(epochs) == 3
    assert all(sorted(epoch) == list(range(job.SAMPLES)) for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fault", "kind", "how"),
    [
        ("segfault", "crash", "SIGSEGV"),
        ("abort", "crash", "SIGABRT"),
        ("sigkill", "killed", "SIGKILL"),
        ("exit", "exit", "exit status 3"),
    ],
)
def test_the_worker_ends_without_a_word(drive: Drive, reference: Drive, fault: str, kind: str, how: str) -> None:
    run = drive(faults=f"{fault}@5:forward,{fault}@13:optimizer")
    assert_exact(run, reference(), faults=2)
    assert run.faults() == [kind, kind]
    assert run.actions() == ["replace", "replace"]
    assert len(run.of("worker")) == 3
    evidence = run.fault()["evidence"]
    assert how in (evidence.get("signal"), evidence.get("status"))
    if kind == "crash":  # its last breath was a stack
        assert f"in _{fault}" in (run.evidence() / "stacks-python.txt").read_text()


def test_ended_from_outside_by_somebody_who_asks_nicely(drive: Drive, reference: Drive) -> None:
    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        assert kill_worker(supervisor, signal.SIGTERM)

    run = drive(pause=0.05, meanwhile=meanwhile)
    assert_exact(run, reference(), faults=1)
    assert run.fault()["evidence"]["signal"] == "SIGTERM"


@pytest.mark.sample(4)
@pytest.mark.parametrize("phase", ["data", "to-device", "forward", "backward", "optimizer", "snapshot", "evaluate"])
def test_killed_in_each_phase(drive: Drive, reference: Drive, phase: str) -> None:
    """At the very first step, at the last of an epoch, at the last of all; and in the evaluations after them."""
    run = drive(faults=f"sigkill@1:{phase},sigkill@16:{phase},sigkill@24:{phase}")
    assert_exact(run, reference(), faults=3)
    assert run.receipt["recoveries"] == len(run.of("recovered")) == 3, run.story()


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", ["device_assert", "illegal_address"])
def test_a_sticky_device_error_replaces_the_worker(drive: Drive, reference: Drive, fault: str) -> None:
    run = drive(faults=f"{fault}@5:forward,{fault}@9:backward,{fault}@13:optimizer", device=PRETEND)
    assert_exact(run, reference(device=PRETEND), faults=3)
    assert run.faults() == ["device_lost"] * 3
    assert run.actions() == ["replace"] * 3
    assert len(run.of("worker")) == 4


def test_the_second_time_at_the_same_step_moves_to_the_next_rung(drive: Drive, reference: Drive) -> None:
    run = drive(faults="device_assert@5,segfault@5", device=PRETEND)
    assert_exact(run, reference(), faults=2)
    assert run.actions() == ["replace", "next_rung"]
    (moved,) = run.of("moved")
    assert (moved.data["before"], moved.data["after"]) == ("pretend:0", "cpu")
    assert moved.data["step"] == 4
    assert [event.data["device"] for event in run.of("worker")] == [PRETEND, PRETEND, "cpu"]


def test_nothing_left_to_try_gives_up_and_can_be_resumed(drive: Drive, reference: Drive) -> None:
    run = drive(faults="segfault@5,abort@5,exit@5,segfault@5,segfault@5")
    assert (run.outcome.state, run.outcome.exit_code) == ("GAVE_UP", 4), run.story()
    assert run.actions() == ["replace"] * 3 + ["give_up"]
    assert run.receipt["survived"] is False
    assert "step 4 in" in str(run.outcome.error.saved) and "verified" in str(run.outcome.error.saved)
    again = drive(resume=run.folder)
    assert_exact(again, reference(), faults=4)


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("at", ["setup", "start", "epoch", "end"])
def test_killed_where_no_step_is(drive: Drive, reference: Drive, at: str) -> None:
    """Before the first commit, between two epochs, after everything is done."""
    run = drive(ONCE, at=at)
    assert_exact(run, reference(ONCE), faults=1)
    # The last batch of an epoch is committed with what follows it, so it is done once more.
    assert run.receipt["steps_repeated"] == (1 if at == "epoch" else 0)


def test_killed_again_and_again_before_the_first_step(drive: Drive) -> None:
    run = drive(ONCE, at="start", always="true", settings={"retry.without_progress": "3"})
    assert (run.outcome.state, run.outcome.exit_code) == ("GAVE_UP", 4), run.story()
    assert run.actions() == ["replace"] * 3 + ["give_up"]
