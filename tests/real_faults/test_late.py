"""A device whose copies arrive late: what is not finite is noticed while the next step fails, in another process."""

from __future__ import annotations

from holdfast.injection import late
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS

LATE = JOBS / "late.py"
DEVICE = f"{late.NAME}:0"


def test_a_step_that_is_not_finite_and_an_error_right_after_it(drive: Drive) -> None:
    """The step before was refused: it is computed again, and the error after it was its doing."""
    run = drive(LATE, device=DEVICE)
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["faults"] == {"non_finite": 1} and run.receipt["steps"] == 12, run.story()


def test_an_error_that_has_nothing_to_do_with_it_is_the_scripts(drive: Drive) -> None:
    run = drive(LATE, device=DEVICE, bug=True)
    assert run.outcome.state == "FAILED", run.story()
    assert run.outcome.error is not None
    assert "KeyError" in run.outcome.error.message and "holdfast failed" not in run.outcome.error.message
    assert run.receipt["faults"] == {"non_finite": 1, "user_error": 1}, run.story()
