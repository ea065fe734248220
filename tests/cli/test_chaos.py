"""`holdfast chaos --at-once`: the reference trains beside the run with faults, and each is taken for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from .driving import SCRIPT, holdfast


@pytest.mark.long  # CI: `make demo` does it; a killed supervisor is in tests/real_faults/test_processes.py
def test_a_reference_beside_a_run_whose_supervisor_is_killed(tmp_path: Path) -> None:
    """The killed supervisor's run is resumed, and not the reference, which is under way in the same folder."""
    (tmp_path / "job.py").write_text(SCRIPT)
    done = holdfast(
        "chaos", "job.py", "nap=0.05", "--at-once", "--faults", "sigkill@4,supervisor_kill@9", "--json", cwd=tmp_path
    )
    assert done.code == 0, done.err
    receipt = done.json["receipt"]
    assert (receipt["faults_injected"], receipt["survived"], receipt["weights_equal"]) == (2, True, True)
    assert receipt["logged_equal"] is True and receipt["steps"] == 24
    assert "a reference run, and beside it a run with 2 faults: 1 sigkill, 1 supervisor_kill\n" in done.err
    runs = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/run.json"))
    assert len(runs) == 2 and Path(done.json["folder"]).name in runs
    (other,) = set(runs) - {Path(done.json["folder"]).name}
    assert f"run={other.split('-', 3)[-1]} " not in done.err, "the reference says nothing"


def test_random_faults_cannot_be_drawn_over_a_reference_that_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    done = holdfast("chaos", "job.py", "--at-once", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: --at-once needs --faults\n"
        "  cause: random faults are drawn over the steps of the reference, which is not done yet\n"
        "\nFor more information, try `holdfast chaos --help`\n"
    )
