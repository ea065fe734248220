"""Loader children that are killed or stuck: respawned inside the worker, and every sample still comes once."""

from __future__ import annotations

from tests.faults.conftest import Drive
from tests.faults.driving import JOBS, SOON, assert_exact

POISON = JOBS / "poison.py"
QUICK_LOADER = {"loader.stuck_floor": "1s"}


def test_killed_and_stuck_children_are_respawned(drive: Drive, reference: Drive) -> None:
    run = drive(faults="loader_kill@4,loader_stop@11,loader_kill@16", workers=2, settings=QUICK_LOADER)
    assert_exact(run, reference(), faults=3)  # the same bits as without loader children
    assert run.faults() == ["loader_died", "loader_stuck", "loader_died"]
    assert run.receipt["steps_repeated"] == 0
    assert len(run.of("worker")) == 1
    assert run.fault(1)["evidence"]["signal"] == "SIGKILL"
    assert run.fault(2)["evidence"]["waited_s"] <= 10.0
    assert len(run.of("recovered")) == 3


def test_a_worker_with_loader_children_is_replaced(drive: Drive, reference: Drive) -> None:
    """Its children end with it, however it ends; the next worker starts its own."""
    run = drive(faults="sigkill@4:data,hang@10,segfault@15:forward", workers=2, settings=SOON)
    assert_exact(run, reference(), faults=3)


def test_a_sample_that_always_ends_its_child_is_named(drive: Drive) -> None:
    """Not endlessly respawned: one new worker tries once more, then the run fails and says which sample it is."""
    run = drive(POISON, how="exit")
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    error = run.outcome.error
    assert error.cause == "batch 1 of epoch 0 could not be loaded in 4 tries: sample 13"
    assert str(error.saved).startswith("step 1 in ") and error.hints
    assert len(run.of("worker")) == 2
    assert run.checkpoint().step == 1  # batch 0 is done, sample 13 is in batch 1


def test_a_datasets_own_error_is_the_scripts_own(drive: Drive) -> None:
    for workers in (0, 2):
        run = drive(POISON, how="raise", workers=workers)
        assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
        assert run.receipt["faults"] == {"user_error": 1}
        words = (run.folder / "traceback.txt").read_text()
        assert "sample 13 has no label" in words
        assert "dataset[13]" in words  # which sample it was, where Python has notes
