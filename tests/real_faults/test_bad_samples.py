"""Runs with a sample that raises, kills or hangs: blamed on the data and named, or left out and counted.

Real processes: the sample segfaults, exits or sleeps in a loader process, or in the worker where there are none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ScriptFailed
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, Command, Run

POISON = JOBS / "poison.py"
SOURCE = "sub-NDAR013/eeg/sub-NDAR013_task-RestingState_eeg.set"
SOON = {"watchdog.floor": "1s", "watchdog.first_step": "8s", "loader.stuck_floor": "0.3s"}
ENDS = {
    "segfault": "ended the process that reads it (SIGSEGV)",
    "exit": "ended the process that reads it (exit status 9)",
    "hang": "hung the process that reads it",
}


def seen(run: Run) -> list[int]:
    """The samples that were trained on, in order."""
    return list(run.diary()["samples"])


def same_bits(run: Run, other: Run) -> bool:
    """All that was trained, and where; but for the words about why a sample is missing."""
    states = [json.loads(json.dumps(each.state())) for each in (run, other)]
    for state in states:
        state["meta"]["session"].pop("quarantined")
        state["meta"]["state"]["data"]["quarantined"] = [
            row[:3] for row in state["meta"]["state"]["data"]["quarantined"]
        ]
    return bool(states[0] == states[1])


@pytest.fixture(scope="module")
def without(reference: Drive) -> Run:
    """Two epochs in which sample 13 was left out from the start."""
    return reference(POISON, how="none", without=True, epochs=2, workers=0)


# Left out.


@pytest.mark.sample(6)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["segfault", "exit", "hang"])
def test_a_poison_sample_is_left_out_and_counted(drive: Drive, without: Run, how: str, workers: int) -> None:
    run = drive(POISON, how=how, workers=workers, epochs=2, settings=SOON)
    assert run.outcome.state == "FINISHED", run.story()
    receipt = run.receipt
    assert (receipt["samples_quarantined"], receipt["samples_skipped"], receipt["samples_repeated"]) == (1, 0, 0)
    (held,) = receipt["quarantined"]
    assert (held["loader"], held["index"], held["source"]) == ("data", 13, SOURCE)
    assert held["why"].startswith(ENDS[how])
    assert (receipt["steps"], receipt["steps_lost"]) == (16, 0)
    assert [index for index in range(64) if index != 13] * 2 == seen(run)
    assert same_bits(run, without), run.story()
    (told,) = run.of("quarantined")
    assert (told.data["index"], told.data["source"], told.data["batch"]) == (13, SOURCE, 1)
    faults = run.faults()
    if workers:
        assert set(faults) <= {"loader_died", "loader_stuck"} and 2 <= len(faults) <= 4
        assert len(run.of("worker")) == 1
    else:  # it took one worker with it, and never another
        assert faults == [{"segfault": "crash", "exit": "exit", "hang": "hang"}[how]]
        assert len(run.of("worker")) == 2
    blames = [event.data["blame"] for event in run.of("verdict")]
    assert blames[-1] == "data" and set(blames) <= {"data", "unknown"}  # it may have died first over the batch before
    assert not list(run.folder.glob("reading-*"))


def test_the_device_is_not_blamed_for_a_sample_that_kills(drive: Drive) -> None:
    run = drive(POISON, how="segfault", workers=0, device="pretend:0", settings=SOON)
    assert run.outcome.state == "FINISHED", run.story()
    assert run.faults() == ["crash"]
    (verdict,) = run.of("verdict")
    assert verdict.data["blame"] == "data" and "sample 13" in verdict.data["sentence"], run.story()
    assert not run.of("moved")  # it stayed on its device


@pytest.mark.all
def test_nobody_blames_the_device_for_what_happens_over_the_data(drive: Drive) -> None:
    """Loader processes that are killed and stopped, and a worker that crashes over data that can be read."""
    settings = {**SOON, "loader.stuck_floor": "1s"}
    run = drive(faults="loader_kill@4,loader_stop@12", workers=2, device="pretend:0", settings=settings)
    assert run.outcome.state == "FINISHED", run.story()
    blamed = [event.data["blame"] for event in run.of("verdict")]
    assert blamed[0] == "outside" and blamed[1:] in (["outside"], ["unknown"]), (
        "a stop may be over when it is looked at"
    )
    run = drive(faults="segfault@4:data", device="pretend:0")
    assert [event.data["blame"] for event in run.of("verdict")] == ["unknown"], run.story()
    assert run.receipt["samples_quarantined"] == 0


def test_a_worker_that_dies_after_the_discovery_makes_it_again(drive: Drive, without: Run) -> None:
    """Killed before the batch without the sample was committed: the next worker knows the suspect."""
    run = drive(POISON, how="exit", workers=0, epochs=2, faults="sigkill@2:forward", settings=SOON)
    assert run.outcome.state == "FINISHED", run.story()
    assert run.faults() == ["exit", "killed"]
    assert same_bits(run, without)


def test_a_resumed_run_does_not_die_of_it_again(drive: Drive, without: Run) -> None:
    first = drive(POISON, how="exit", workers=0, epochs=1, settings=SOON)
    assert first.outcome.state == "FINISHED", first.story()
    run = drive(POISON, how="exit", workers=0, epochs=2, resume=first.folder, settings=SOON)
    assert run.outcome.state == "FINISHED", run.story()
    assert not run.of("fault") and not run.of("quarantined")
    assert run.receipt["samples_quarantined"] == 1
    assert same_bits(run, without)


def test_samples_that_raise_are_left_out_where_that_is_allowed(drive: Drive, without: Run) -> None:
    run = drive(POISON, how="events", workers=2, epochs=2, settings={"data.skip_bad": "true"})
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["quarantined"][0]["why"] == "raised ValueError: arange: cannot compute length"
    assert run.receipt["faults"] == {}
    assert same_bits(run, without)


# Named.


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", ["cpu", "pretend:0"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_event_table_with_missing_numbers_is_blamed_on_the_data(drive: Drive, workers: int, device: str) -> None:
    """A user's own story: `arange: cannot compute length`, somewhere in 3 000 recordings."""
    run = drive(POISON, how="events", workers=workers, device=device)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    error = run.outcome.error
    assert isinstance(error, ScriptFailed)
    assert error.message == (
        f"the data are at fault: sample 13 ({SOURCE}) raised ValueError: arange: cannot compute length"
    )
    assert error.cause == "7 of 7 other samples can be read"
    assert "train without such samples: `data.skip_bad=true`" in error.hints
    assert any(SOURCE in hint for hint in error.hints)
    assert any("holdfast explain F019" in hint for hint in error.hints)
    assert str(error.saved).startswith("step 1 in ")
    blame = error.to_json()["blame"]
    assert isinstance(blame, dict)
    assert (blame["blame"], blame["samples"]) == ("data", [{"index": 13, "source": SOURCE}])
    assert blame["error"] == "ValueError: arange: cannot compute length"
    assert (blame["others_tried"], blame["others_ok"]) == (7, 7)
    assert run.receipt["faults"] == {"bad_data": 1}
    assert len(run.of("worker")) == 1  # never tried again, never elsewhere
    assert [event.data["blame"] for event in run.of("verdict")] == ["data"]
    words = (run.evidence() / "stderr.txt").read_text()
    assert "arange: cannot compute length" in words and "dataset[13]" in words


@pytest.mark.sample(4)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("how", "words"), [("huge", "Unable to allocate"), ("short", "EOFError: Ran out of input")])
def test_what_sounds_like_the_machine_is_the_sample_if_the_others_can_be_read(
    drive: Drive, how: str, words: str, workers: int
) -> None:
    """A shortage of memory, the end of a connection: alone, such an error would be met with new workers."""
    run = drive(POISON, how=how, workers=workers)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    assert run.receipt["faults"] == {"bad_data": 1}, run.story()
    assert isinstance(run.outcome.error, ScriptFailed)
    assert f"sample 13 ({SOURCE}) raised " in run.outcome.error.message and words in run.outcome.error.message


def test_code_that_fails_for_every_sample_is_the_scripts_own(drive: Drive) -> None:
    for workers in (0, 2):
        run = drive(POISON, how="all", workers=workers)
        assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
        error = run.outcome.error
        assert isinstance(error, ScriptFailed)
        assert error.message == "poison.py raised KeyError: 'no sample has a label'"
        assert "not one of 15 samples can be read" in str(error.cause)
        assert error.blame is not None and error.blame["blame"] == "code"
        assert run.receipt["faults"] == {"user_error": 1}
        words = (run.folder / "traceback.txt").read_text()
        assert "no sample has a label" in words and "dataset[0]" in words


@pytest.mark.all
@pytest.mark.sample(3)
@pytest.mark.parametrize(("workers", "slow"), [(0, 0.0), (2, 0.0), (2, 1.0)])
def test_without_quarantine_the_run_fails_and_names_the_sample(drive: Drive, workers: int, slow: float) -> None:
    """Also where the sample is met ahead of its turn, while the loop waits for the batch before."""
    # Nothing hangs here, and on a busy machine a reader may well be slow for 0.3 s.
    settings = {"data.quarantine": "false", **SOON, "loader.stuck_floor": "30s"}
    run = drive(POISON, how="segfault", workers=workers, slow=slow, settings=settings)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    error = run.outcome.error
    assert isinstance(error, ScriptFailed)
    assert error.message == f"the data are at fault: sample 13 ({SOURCE}) {ENDS['segfault']}"
    assert len(run.of("worker")) == (1 if workers else 2)
    assert [event.data["blame"] for event in run.of("verdict")] == ["data"]  # of the first death, and no other
    assert run.receipt["samples_quarantined"] == 0


# Scores.


@pytest.mark.sample(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_score_that_would_miss_a_sample_is_refused(drive: Drive, workers: int) -> None:
    run = drive(POISON, how="segfault", workers=workers, score="strict", settings=SOON)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    error = run.outcome.error
    assert isinstance(error, ScriptFailed)
    assert error.message == f"the data are at fault: sample 13 ({SOURCE}) {ENDS['segfault']}"
    assert any("allow_missing=True" in hint for hint in error.hints)
    assert not run.of("log")


@pytest.mark.sample(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_score_that_may_miss_samples_says_so(drive: Drive, workers: int) -> None:
    run = drive(POISON, how="exit", workers=workers, epochs=2, score="missing", settings=SOON)
    assert run.outcome.state == "FINISHED", run.story()
    logged = [event.data["values"] for event in run.of("log")]
    assert logged == [{"valid_seen": 63.0, "valid_missing": 1.0}] * 2
    assert [event.data["samples"] for event in run.of("missing")] == [[13], [13]]


# The command line.


@pytest.mark.long
def test_the_command_line_says_whose_fault_it_is(tmp_path: Path) -> None:
    with Command(tmp_path, "train", POISON, "how=events", "--json") as command:
        out, err = command.process.communicate(timeout=100)
        assert command.process.returncode == 1
    result: dict[str, Any] = json.loads(out)
    assert result["exit_code"] == 1
    assert result["error"]["blame"]["samples"] == [{"index": 13, "source": SOURCE}]
    assert f"error: the data are at fault: sample 13 ({SOURCE}) raised ValueError: arange: cannot" in err.decode()
