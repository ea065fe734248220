"""`best.safetensors` holds the weights of the best epoch, however fast training goes on meanwhile, whoever dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, Command, Run, alive
from tests.waiting import wait_until

BEST = JOBS / "best.py"


def _assert_best(run: Run, value: float) -> None:
    """The file holds the weights the script kept at its best value, and says so; every epoch is told once."""
    assert run.outcome.state == "FINISHED", run.story()
    with safe_open(run.folder / "best.safetensors", "numpy") as file:
        said = json.loads(file.metadata()["best"])
        assert file.get_tensor("weight").tobytes() == (run.folder / "mine.bin").read_bytes()
    assert (said["name"], said["value"]) == ("valid_loss", value)
    told = [event.data["epoch"] for event in run.of("epoch")]
    assert told == list(range(len(told)))


def test_the_best_weights_are_those_of_the_best_epoch(drive: Drive) -> None:
    run = drive(BEST)
    _assert_best(run, 0.2)
    best = (run.folder / "mine.bin").read_bytes()
    assert load_file(run.folder / "final.safetensors")["weight"].tobytes() != best


@pytest.mark.all
def test_also_when_the_worker_dies_right_after_it(drive: Drive) -> None:
    _assert_best(drive(BEST, faults="sigkill@265:forward,sigkill@266:forward"), 0.2)


@pytest.mark.all
def test_also_when_the_worker_dies_before_it_can_say_that_the_epoch_is_over(drive: Drive, reference: Drive) -> None:
    """The next epoch is worse: its weights must not pass for the best ones."""
    run = drive(BEST, epochs=6, dies=4)
    _assert_best(run, 2.0)
    assert run.receipt["faults"] == {"killed": 1}
    losses = [event.data["loss"] for event in run.of("epoch")]
    assert losses == [event.data["loss"] for event in reference(BEST, epochs=6).of("epoch")]


def test_also_when_the_worker_dies_right_after_its_value(drive: Drive) -> None:
    """An epoch is one batch: what is restored is the end of the epoch before, and its weights are not the best."""
    run = drive(BEST, epochs=8, batch_size=96, dies=6, after="log")
    _assert_best(run, 1.0)
    (recovered,) = run.of("recovered")
    # The supervisor may look a step later; what must not count is step 6, which was done before.
    assert recovered.data["step"] >= 7, "the end of the epoch before is told again, but no step is done by that"


def test_also_when_it_was_the_last_epoch(drive: Drive) -> None:
    _assert_best(drive(BEST, epochs=5, dies=4), 2.0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("after", [{}, {"dies": 120, "after": "weights"}, {"dies": 4, "after": "epoch"}])
def test_also_when_the_loop_is_left_after_it(drive: Drive, after: dict[str, Any]) -> None:
    """And when the worker dies before it can offer its weights, or say that the epoch is over."""
    run = drive(BEST, leave=4, **after)
    _assert_best(run, 2.0)
    assert run.receipt["steps"] == 120 and sum(run.receipt["faults"].values()) == bool(after), run.story()


@pytest.mark.parametrize("after", [{}, {"dies": 9, "after": "weights"}])
def test_also_without_epochs(drive: Drive, after: dict[str, Any]) -> None:
    """The ninth value is the best of ten; the worker dies before it can offer the weights of it."""
    run = drive(BEST, steps=10, **after)
    _assert_best(run, 0.5)
    assert run.receipt["steps"] == 10 and sum(run.receipt["faults"].values()) == bool(after), run.story()


def _killed_and_resumed(command: Command) -> Run:
    command.process.wait(100)
    assert wait_until(lambda: not alive(command.family)), "its keeper saves after it"
    with Command(command.runs, "resume", command.folder, "--json") as again:
        assert again.end() == 0, again.words()
    return again.run()


@pytest.mark.long
def test_also_when_the_supervisor_dies_with_it(tmp_path: Path) -> None:
    """Nobody has heard of the end of the epoch, perhaps not of its value either: the state that is resumed has both."""
    with Command(tmp_path, "train", BEST, "epochs=6", "dies=4", "who=both", "--device", "cpu") as command:
        assert wait_until(lambda: command.note_family() and command.process.poll() is not None)
        run = _killed_and_resumed(command)
    _assert_best(run, 2.0)
    assert run.receipt["faults"] == {"supervisor_died": 1}


@pytest.mark.long
def test_a_resumed_run_does_not_replace_them_by_worse_ones(tmp_path: Path) -> None:
    """A killed supervisor has written nothing down: the file itself says what it holds."""
    with Command(tmp_path, "train", BEST, "epochs=6", "pause=0.02", "--device", "cpu") as command:
        assert wait_until(lambda: len(_told(tmp_path)) > 4 or command.process.poll() is not None)
        command.note_family()
        command.process.kill()
        run = _killed_and_resumed(command)
    assert run.receipt["faults"] == {"supervisor_died": 1}, run.story()
    _assert_best(run, 2.0)


def _told(runs: Path) -> list[str]:
    return [
        line for path in runs.glob("*/journal.jsonl") for line in path.read_text().splitlines() if '"epoch", ' in line
    ]
