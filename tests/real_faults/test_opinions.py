"""What the CPU makes of a failed step is found out beside the run: real crashes, processes that wait for each other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.driving import JOBS, Run
from tests.waiting import wait_until

JOB = JOBS / "opinion.py"
LONG = {"blame.budget": "100s"}
"""The job decides when the CPU is done."""
Drive = Callable[..., Run]


def order(run: Run, *kinds: str) -> list[str]:
    return [event.kind for event in run.events if event.kind in kinds]


def sentences(run: Run) -> list[str]:
    return [str(event.data["sentence"]) for event in run.of("verdict")]


ONCE = "the device is at fault, once: the same step passed in a new worker, and the CPU computes it"


def test_the_next_worker_does_not_wait_for_the_cpu(drive: Drive) -> None:
    """The CPU is done only after the worker has trained eight steps more: it would wait for ever if that waited."""
    run = drive(JOB, device="pretend:0", settings=LONG, waits="passed-13")
    assert run.outcome.state == "FINISHED" and run.faults() == ["crash"], run.story()
    assert order(run, "fault", "recovered", "replayed", "verdict") == ["fault", "recovered", "replayed", "verdict"]
    assert sentences(run) == [ONCE], run.story()
    assert ONCE in (run.evidence() / "README.txt").read_text()


def test_the_bits_are_those_of_a_quiet_run(drive: Drive) -> None:
    run, quiet = drive(JOB, device="pretend:0"), drive(JOB, device="pretend:0", times=0)
    assert (run.faults(), quiet.faults()) == (["crash"], [])
    assert run.receipt["weights_sha256"] == quiet.receipt["weights_sha256"], run.story()
    assert (run.receipt["steps_lost"], run.receipt["steps_undone"]) == (0, 0)


def test_the_end_of_the_run_waits_for_the_cpu_and_says_so(drive: Drive) -> None:
    run = drive(JOB, device="pretend:0", settings=LONG, waits="trained")
    assert run.outcome.state == "FINISHED" and sentences(run) == [ONCE], run.story()
    assert any("training is over" in str(event.data.get("text")) for event in run.of("note")), run.story()


def test_a_step_that_fails_again_waits_for_the_cpu(drive: Drive) -> None:
    """The CPU is done only after the second failure: what the ladder does about that depends on the CPU."""
    settings = {**LONG, "probation.enabled": "false"}
    run = drive(JOB, device="pretend:0", settings=settings, times=2, waits="failed-2")
    assert run.outcome.state == "FINISHED" and run.faults() == ["crash", "crash"], run.story()
    assert order(run, "fault", "replayed", "moved") == ["fault", "replayed", "fault", "moved"], run.story()
    assert [(event.data["blame"], event.data["repeatable"]) for event in run.of("verdict")] == [("device", True)]


@pytest.mark.all
@pytest.mark.parametrize("skip", [True, False])
def test_a_fault_of_the_data_that_is_known_late_is_undone(drive: Drive, skip: bool) -> None:
    """The device computes the step the second time, and the run is past it when the CPU objects to a sample."""
    settings = {**LONG, "data.skip_bad": str(skip).lower()}
    run = drive(JOB, device="pretend:0", settings=settings, label=True, waits="passed-16")
    assert run.of("verdict")[0].data["blame"] == "data", run.story()
    assert "sample 37" in sentences(run)[0]
    assert len(run.of("undone")) == 1 and run.of("moved") == [], run.story()
    if not skip:
        assert run.outcome.state == "FAILED" and "sample 37" in str(run.outcome.error), run.story()
        return
    quiet = drive(JOB, settings=settings, label=True)
    assert (run.outcome.state, run.receipt["samples_quarantined"]) == ("FINISHED", 1), run.story()
    assert run.receipt["weights_sha256"] == quiet.receipt["weights_sha256"], run.story()


def test_a_process_that_is_killed_has_no_opinion_and_another_is_asked(drive: Drive) -> None:
    killed: list[int] = []

    def kill(supervisor: Supervisor) -> None:
        inquest = supervisor._recovery.inquest
        assert wait_until(lambda: any(opinion.process.pid for opinion in inquest.pending), 100.0)
        killed.append(inquest.pending[0].process.pid)
        os.kill(killed[0], signal.SIGKILL)
        (supervisor.run_folder.path / "killed").touch()

    run = drive(JOB, device="pretend:0", settings=LONG, waits="killed", meanwhile=kill)
    assert killed and run.outcome.state == "FINISHED", run.story()
    assert sentences(run) == [ONCE], run.story()


def test_a_run_that_is_stopped_while_a_fault_waits_for_the_cpu_tells_of_that_fault(drive: Drive) -> None:
    def stop(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor._recovery._postponed is not None, 100.0)
        os.kill(os.getpid(), signal.SIGTERM)  # a real one, to the process the supervisor is in

    settings = {**LONG, "probation.enabled": "false"}
    run = drive(JOB, device="pretend:0", settings=settings, times=2, waits="never", meanwhile=stop)
    assert run.outcome.state == "STOPPED" and run.faults() == ["crash", "crash"], run.story()
    assert {event.data["blame"] for event in run.of("verdict")} == {"unknown"}, run.story()
    assert sum(run.receipt["faults"].values()) == 2, run.receipt
