"""Ladder, blame and sentinel for ranks of several machines: each machine judges its own, and the journal names it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices.ledger import Ledger
from holdfast.distributed import rank_devices
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from tests.distributed import machines as made
from tests.distributed.launched import alone
from tests.distributed.machines import Machines
from tests.distributed.several import Several
from tests.distributed.test_rank_ladder import SOON

pytestmark = pytest.mark.timeout(900)
on_machines = pytest.mark.skipif(bool(made.missing()), reason=made.missing())
PRETEND = ("--device", "pretend")


class IllSeveral(Several):
    """A launch on pretended devices of two machines; the second has these ailments."""

    def __init__(
        self,
        machines: Machines,
        folder: Path,
        *ill: Ailment,
        words: Sequence[str] = PRETEND,
        nproc: int = 2,
        **job: Any,
    ) -> None:
        super().__init__(machines, folder, 2, *words, nproc=nproc, start=False, **job)
        self.ailments = [
            ailments.write(folder / f"ailments-{number}" / "pretend.json", listed)
            for number, listed in enumerate(((), ill))
        ]

    def begin(self, **env: str) -> None:
        for number, path in enumerate(self.ailments):
            self.start(number, **{ailments.VARIABLE: str(path), **env})

    def ledger(self, number: int) -> Ledger:
        return Ledger(self.home(number) / "state")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.run.events() if event.kind == kind]

    def has_said(self, text: str) -> bool:
        return any(text in str(event.data.get("text")) for event in self.run.events())

    def is_told(self, seat: int, device: str) -> bool:
        """Whether the next process of this seat of machine 1, or the one that is there, is to be on this device."""
        job = self.job(1)
        told = None if job is None else rank_devices.told(job, seat)
        return told is not None and told.device == device

    def check(self, **job: Any) -> None:
        """Every sample once, no step lost, and the weights of the same job in one process."""
        ended = self.finish()
        receipt = ended["receipt"]
        assert ended["state"] == "FINISHED" and receipt["steps"] == 30, ended
        assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
        assert self.samples() == {epoch: Counter(range(60)) for epoch in range(6)}
        for name, values in alone(self.folder / "alone", **job).items():
            assert (self.weights()[name.removeprefix("module.")] - values).abs().max() < 1e-6, name


def others_kept(before: dict[int, int], after: dict[int, int], moved: int) -> bool:
    return {seat for seat in before if before[seat] != after.get(seat)} == {moved}


@on_machines
@pytest.mark.all
def test_a_far_rank_leaves_a_device_that_is_lost_twice_and_comes_back(tmp_path: Path) -> None:
    ill = Ailment("error", step=8, times=2, probes=False, device="pretend:1")
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, wait="6 12 16 24", **SOON) as launch,
    ):
        launch.begin()
        launch.until(lambda: launch.waits_for(6, 4))
        first = launch.pids()
        launch.go(6)
        launch.until(lambda: launch.waits_for(12, 4))
        on_cpu = launch.pids()
        assert others_kept(first, on_cpu, 3)
        launch.until(lambda: launch.has_said("probe passed") and launch.is_told(3, "pretend:1"))
        launch.go(12)
        launch.until(lambda: launch.waits_for(16, 4))
        back = launch.pids()
        assert others_kept(on_cpu, back, 3)
        launch.go(16)
        launch.until(lambda: launch.has_said("trusted again"))
        launch.until(lambda: launch.waits_for(24, 4))
        launch.go(24)
        launch.check()
    assert [(fault["device"], fault["action"]) for fault in launch.of("fault")] == [
        ("rank 3", "replace"),
        ("rank 3", "next_rung"),
    ]
    verdicts = launch.of("verdict")
    assert [(each["blame"], each["rank"], each["host"], each["device"]) for each in verdicts] == [
        ("unknown", 3, "m1", "pretend:1"),
        ("device", 3, "m1", "pretend:1"),
    ]
    assert launch.has_said("rank 3 moved from pretend:1 to the CPU (") and launch.has_said(
        "rank 3 is back on pretend:1"
    )
    assert launch.ledger(1).history("pretend:1").faults == 2 and launch.ledger(0).history("pretend:1").faults == 0
    assert launch.ledger(1).trust("pretend:1", "pretend:1").state == "trusted"
