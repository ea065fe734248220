"""Silence: noticed in time, its stacks kept, the worker replaced. And the slow but healthy left alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.record import evidence
from holdfast.record.evidence import stacks
from holdfast.run.events import Event
from holdfast.supervisor.supervisor import Supervisor
from holdfast.supervisor.waits.syscalls import NAMES
from holdfast.supervisor.worker_watch import DEADLOCK
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, SOON, Run, alive, assert_exact
from tests.waiting import wait_until

SLOW = JOBS / "slow.py"
HANGS = ("hang", "hang_c", "hang_gil", "sigstop")
SLACK = 60.0
"""Seconds a detection may come late on a busy machine; 0.1 to 0.3 were seen."""


def fired(run: Run, number: int) -> float:
    """When the chaos kit let fault `number` loose."""
    return float((run.folder / "chaos" / str(number)).read_text().split()[1])


def seconds(event: Event) -> float:
    when = event.seconds()
    assert when is not None
    return when


def test_hangs_are_detected_and_their_stacks_kept(
    drive: Drive, reference: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python, in C with and without the interpreter's lock, and by SIGSTOP."""
    for wait in ("_STACK_WAIT", "_NATIVE_WAIT"):  # on a busy machine py-spy takes longer than a user would wait
        monkeypatch.setattr(stacks, wait, 100.0)
    phases = ("forward", "backward", "optimizer", "backward")
    plan = ",".join(f"{hang}@{5 + 4 * at}:{phases[at]}" for at, hang in enumerate(HANGS))
    run = drive(faults=plan, settings=SOON)
    assert_exact(run, reference(), faults=len(HANGS))
    assert run.faults() == ["hang"] * len(HANGS)
    assert run.actions() == ["replace"] * len(HANGS)
    for at, (hang, event) in enumerate(zip(HANGS, run.of("fault"), strict=True)):
        assert event.data["phase"] == phases[at]
        check_detection(run, at, event)
        check_stacks(run.evidence(at + 1), hang)


def check_detection(run: Run, at: int, event: Event) -> None:
    """Within max(floor, 4 x the slowest recent step of that phase); a deadlock is seen as soon as anybody looks."""
    record = json.loads((run.evidence(at + 1) / "fault.json").read_text())
    slowest = record["board"]["times"][event.data["phase"]]["slowest_s"]
    if "deadlock" in record["fault"]["evidence"]:
        assert HANGS[at] != "sigstop", "whoever is halted can be woken"
        assert record["fault"]["evidence"]["silence_s"] >= 4 * slowest
        return
    limit = record["fault"]["evidence"]["limit_s"]
    assert limit == pytest.approx(max(1.0, 4 * slowest), rel=0.1)
    assert limit - 0.2 <= record["fault"]["evidence"]["silence_s"] <= limit + SLACK
    assert seconds(event) - fired(run, at) <= limit + SLACK


@pytest.mark.skipif(sys.platform != "linux" or not NAMES, reason="the waits of threads are only seen on Linux")
@pytest.mark.parametrize("hang", ["hang", "hang_c", "hang_gil"])
def test_a_deadlock_in_a_step_needs_no_limit(drive: Drive, reference: Drive, hang: str) -> None:
    """The limits are longer than any test may take."""
    patient = {"watchdog.floor": "2h", "watchdog.first_step": "2h"}
    run = drive(faults=f"{hang}@5:backward", settings=patient)
    assert_exact(run, reference(), faults=1)
    fault = json.loads((run.evidence(1) / "fault.json").read_text())["fault"]
    assert fault["kind"] == "hang"
    assert fault["evidence"]["deadlock"] == DEADLOCK
    assert "limit_s" not in fault["evidence"]
    assert fault["message"].endswith(f"s in backward: {DEADLOCK}")


def check_stacks(folder: Path, hang: str) -> None:
    spy = evidence.py_spy() is not None
    python = (folder / "stacks-python.txt").read_text() if hang != "sigstop" or spy else ""
    if python:
        assert f"_{hang}" in python, python
        assert "job.py" in python, python  # and whose step it was
    if spy and hang != "sigstop":  # a stopped process cannot be paused, which native stacks need
        assert f"_{hang}" in (folder / "stacks-native.txt").read_text()
    state = json.loads((folder / "fault.json").read_text())["fault"]["evidence"]["process_state"]
    assert state in ("T" if hang == "sigstop" else "SR"), "asleep, or just waking up to sleep again"


@pytest.mark.all
def test_hang_in_the_data_and_in_the_evaluation(drive: Drive, reference: Drive) -> None:
    run = drive(faults="hang@11:data,hang@16:evaluate", settings={**SOON, "watchdog.evaluate": "1s"})
    assert_exact(run, reference(), faults=2)
    assert [event.data["phase"] for event in run.of("fault")] == ["data", "evaluate"]


@pytest.mark.all
def test_the_second_hang_at_one_step_moves_to_the_next_rung(drive: Drive, reference: Drive) -> None:
    run = drive(faults="sigstop@5,sigstop@5", device="pretend:0", settings=SOON)
    assert_exact(run, reference(), faults=2)
    assert run.actions() == ["replace", "next_rung"]
    assert [event.data["after"] for event in run.of("moved")] == ["cpu"]
    first, second = (run.fault(number)["evidence"]["limit_s"] for number in (1, 2))
    assert second == pytest.approx(4 * first)  # had it only been slow, it would have passed now


@pytest.mark.long
def test_a_step_that_was_only_slow_passes_the_second_time(drive: Drive, reference: Drive) -> None:
    """One false alarm, and no harm done: nothing lost, still on its device."""
    settings = {"watchdog.floor": "1s", "run.stacks": "false"}  # asking for them may take longer than the step
    run = drive(SLOW, step=12, step_s=3.0, device="pretend:0", settings=settings)
    assert_exact(run, reference(SLOW), faults=1)
    assert run.actions() == ["replace"]
    assert not run.of("moved")


@pytest.mark.all
def test_a_worker_that_goes_on_while_it_is_asked_for_its_stacks_is_not_ended(
    drive: Drive, reference: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine that takes seconds: the step that was slow is done by then, perhaps the whole run."""
    asked: list[int] = []

    def slowly(pid: int, *_: object, **__: object) -> dict[str, str]:
        asked.append(pid)
        assert wait_until(lambda: not alive({pid}))
        return {}

    monkeypatch.setattr(evidence, "ask_for_stacks", slowly)
    run = drive(SLOW, step=12, step_s=3.0, device="pretend:0", settings={"watchdog.floor": "1s"})
    assert len(asked) == 1
    assert_exact(run, reference(SLOW), faults=0)


@pytest.mark.all
def test_slow_but_healthy_raises_no_alarm(drive: Drive, reference: Drive) -> None:
    """Set-up, first step and evaluation many times as long as the shortest hang; steps that differ by ten."""
    settings = {
        "watchdog.floor": "0.4s",
        "watchdog.loop": "0.4s",
        "watchdog.setup": "1s",  # for each sign of life
        "watchdog.first_step": "8s",
        "watchdog.evaluate": "8s",
    }
    run = drive(SLOW, setup=2.0, first=2.0, evaluation=1.5, uneven="true", settings=settings)
    assert_exact(run, reference(SLOW), faults=0)


@pytest.mark.long
def test_whoever_waits_for_something_outside_in_a_phase_of_unknown_length_is_left_alone(drive: Drive) -> None:
    """A first step, an evaluation and code after the last batch that sleep for longer than a hang may last."""
    settings = {"watchdog.first_step": "3s", "watchdog.evaluate": "1.5s", "watchdog.loop": "1.5s"}
    run = drive(SLOW, epochs=1, first=6.0, evaluation=4.0, around=4.0, settings=settings)
    assert (run.outcome.state, run.faults()) == ("FINISHED", []), run.of("fault")
    texts = [str(event.data["text"]) for event in run.of("silent")]
    assert texts and all("it sleeps; holdfast waits" in text for text in texts), texts
    assert {word for text in texts for word in ("forward", "evaluate") if f" in {word};" in text} == {
        "forward",
        "evaluate",
    }, texts


@pytest.mark.long
def test_work_around_the_batches_is_not_a_snapshot_that_hangs(drive: Drive, reference: Drive) -> None:
    """Before the first batch of an epoch, and after the last epoch, a script may be busy with work of its own."""
    settings = {"watchdog.floor": "0.5s", "watchdog.loop": "8s", "watchdog.evaluate": "8s"}
    run = drive(SLOW, epochs=5, around=1.5, settings=settings)
    assert_exact(run, reference(SLOW, epochs=5), faults=0)


@pytest.mark.all
def test_slow_but_healthy_after_a_kill(drive: Drive, reference: Drive) -> None:
    """A new worker's first steps are judged by what the old one has taught, and not as first steps of all."""
    settings = {"watchdog.floor": "0.4s", "watchdog.first_step": "8s"}
    run = drive(SLOW, uneven="true", faults="sigkill@6,sigkill@18", settings=settings)
    assert_exact(run, reference(SLOW), faults=2)


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A group whose processes can be frozen so hard that not even SIGKILL ends them, or a skip that says why not."""
    group = Path("/sys/fs/cgroup/freezer") / f"holdfast-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    assert wait_until(lambda: not (group / "cgroup.procs").read_text().strip())
    group.rmdir()


@pytest.mark.all
def test_a_worker_that_cannot_be_killed_is_abandoned(drive: Drive, reference: Drive, freezer: Path) -> None:
    """As one in a driver's endless wait: the run goes on without it, from a copy of the state it cannot reach."""

    def freeze(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.accounts.steps >= 5)
        assert supervisor.worker is not None
        arenas = list(supervisor.memory.arenas)
        (freezer / "cgroup.procs").write_text(str(supervisor.worker.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        assert wait_until(lambda: supervisor.accounts.recoveries == 1)
        assert not set(map(id, arenas)) & set(map(id, supervisor.memory.arenas))
        (freezer / "freezer.state").write_text("THAWED")

    run = drive(pause=0.1, meanwhile=freeze, settings={**SOON, "watchdog.kill_grace": "0.5s"})
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["hang"]
    assert len(run.of("abandoned")) == 1
