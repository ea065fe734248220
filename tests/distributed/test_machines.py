"""What can go wrong between machines: namespaces of this kernel, joined by cables that can be cut (machines.py)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.distributed import machines as made
from tests.distributed.launched import alone
from tests.distributed.machines import Machines
from tests.distributed.several import Several

pytestmark = [
    pytest.mark.skipif(bool(made.missing()), reason=made.missing()),
    pytest.mark.timeout(600),
]
WHOLE = {epoch: Counter(range(60)) for epoch in range(6)}


def _whole(launch: Several, tmp_path: Path) -> dict[str, object]:
    """Every sample once in every epoch, no step lost, and the weights of one process; the receipt."""
    receipt: dict[str, object] = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["steps_lost"] == 0
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert launch.samples() == WHOLE
    for name, values in alone(tmp_path / "alone").items():
        assert (launch.weights()[name] - values).abs().max() < 1e-6, name
    return receipt


def test_a_rank_of_another_machine_is_killed(tmp_path: Path) -> None:
    with Machines(2, share=[tmp_path]) as machines, Several(machines, tmp_path, 2, wait="8 16") as launch:
        launch.until(lambda: launch.waits_for(8, 2))
        before = launch.pids()
        launch.kill(1)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 2))
        after = launch.pids()
        assert after[0] == before[0] and after[1] != before[1], "the other rank keeps its process"
        launch.go(16)
        receipt = _whole(launch, tmp_path)
    assert receipt["faults"] == {"killed": 1}


@pytest.mark.all
def test_a_machine_is_away_for_a_while(tmp_path: Path) -> None:
    """Its cable is cut until the others have gone on without it; it joins them again when the cable is mended."""
    with (
        Machines(2, share=[tmp_path]) as machines,
        Several(machines, tmp_path, 2, "--min-ranks", "2", nproc=2, wait="8 16 24") as launch,
    ):
        launch.until(lambda: launch.waits_for(8, 4))
        before = launch.pids()
        machines.cut(1)
        launch.go(8)
        launch.until(lambda: launch.waits_for(16, 2))
        machines.mend(1)
        launch.until(lambda: "connected again" in launch.said(1))
        launch.until(lambda: launch.is_invited())
        launch.go(16)
        launch.until(lambda: launch.waits_for(24, 4))
        after = launch.pids()
        assert {seat: after[seat] for seat in (0, 1)} == {seat: before[seat] for seat in (0, 1)}
        launch.go(24)
        _whole(launch, tmp_path)
        notes = launch.notes()
    assert "the first machine is lost: no answer for" in launch.said(1)
    assert any(note.startswith("machine 1 (m1) is lost: no answer for") for note in notes)
    assert "rank 2 is back: 4 of 4 ranks train" in notes
