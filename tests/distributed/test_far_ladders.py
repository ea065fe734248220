"""Ladder, blame and sentinel for ranks of several machines: each machine judges its own, and the journal names it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.run_facts import Look
from holdfast.cli.runs import page
from holdfast.devices.ledger import LEDGER, Ledger
from holdfast.distributed import rank_devices
from holdfast.injection import ailments, away
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
        """That of this machine; its key there depends on its name."""
        folder = self.home(number) / "state"
        with open(folder / LEDGER, encoding="utf-8") as file:
            return Ledger(folder, machine=json.loads(file.readline())["machine"])

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


@on_machines
@pytest.mark.all
@pytest.mark.parametrize("ddp", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "wrapped"])
def test_wrong_numbers_of_a_far_rank_are_found_and_it_leaves_its_device(tmp_path: Path, ddp: bool) -> None:
    """All go back to the last snapshot that device and CPU agreed on, which that rank alone may have."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:0")
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, wait="6 20", ddp=ddp, **{"sentinel.cost": 100}) as launch,
    ):
        launch.begin()
        launch.until(lambda: launch.waits_for(6, 4))
        first = launch.pids()
        launch.go(6)
        launch.until(lambda: launch.waits_for(20, 4))
        assert others_kept(first, launch.pids(), 2)
        launch.go(20)
        launch.check()
    (fault,) = launch.of("fault")
    assert (fault["kind"], fault["device"], fault["step"]) == ("wrong_numbers", "rank 2", 8)
    assert fault["action"] == "next_rung" and fault["reason"] == "pretend:0 → cpu, the others stay"
    (verdict,) = launch.of("verdict")
    assert (verdict["blame"], verdict["rank"], verdict["host"], verdict["device"]) == ("device", 2, "m1", "pretend:0")
    assert verdict["sentence"].startswith("the device is at fault, each time: rank 2 (pretend:0 on m1): ")
    (undone,) = launch.of("undone")
    assert undone["to_step"] < 8 and undone["rank"] == 2
    told = json.loads((Path(verdict["folder"]) / "fault.json").read_text())
    assert told["verdict"]["sentence"] == verdict["sentence"], "the evidence of the fault has it"
    ledger = launch.ledger(1)
    assert ledger.history("pretend:0").faults == 1 and ledger.trust("pretend:0", "pretend:0").state != "trusted"
    assert launch.ledger(0).history("pretend:0").faults == 0
    shown = "\n".join(page(Look(launch.run)))
    assert "rank 2 moved from pretend:0 to the CPU" in shown and "rank 2 (pretend:0 on m1)" in shown, "holdfast show"


@on_machines
@pytest.mark.long
@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_a_far_rank_moves_to_a_card_that_no_other_has(tmp_path: Path, kind: str) -> None:
    ill = Ailment(kind, step=8, times=None, device="pretend:1")
    job = {"watchdog.floor": "2s", "watchdog.first_step": "10s"}
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, wait="6 20", **job) as launch,
    ):
        launch.begin(**{rank_devices.PRETEND_CARDS: "3"})
        launch.until(lambda: launch.waits_for(6, 4))
        first = launch.pids()
        launch.go(6)
        launch.until(lambda: launch.waits_for(20, 4))
        assert others_kept(first, launch.pids(), 3)
        launch.go(20)
        launch.check()
    assert [fault["action"] for fault in launch.of("fault")] == ["replace", "next_rung"]
    assert launch.has_said("rank 3 moved from pretend:1 to pretend:2 (")


@on_machines
@pytest.mark.long
def test_a_far_rank_runs_out_of_memory(tmp_path: Path) -> None:
    """All compute the step in pieces, in their processes."""
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, wait="6 20", full="3:8:2") as launch,
    ):
        launch.begin()
        launch.until(lambda: launch.waits_for(6, 4))
        first = launch.pids()
        launch.go(6)
        launch.until(lambda: launch.waits_for(20, 4))
        assert first == launch.pids()
        launch.go(20)
        launch.check()
    assert {(fault["kind"], fault["device"]) for fault in launch.of("fault")} == {("out_of_memory", "rank 3")}


@on_machines
@pytest.mark.long
def test_a_far_device_that_cannot_be_opened_is_left(tmp_path: Path) -> None:
    away_3 = tmp_path / "away-3"
    away_3.touch()
    with Machines(2, share=[tmp_path]) as machines, IllSeveral(machines, tmp_path, wait="10") as launch:
        launch.begin(**{away.VARIABLE: f"3={away_3}"})
        launch.until(lambda: launch.is_told(3, "cpu"))
        away_3.unlink()
        launch.until(lambda: launch.waits_for(10, 4))
        launch.go(10)
        launch.check()
    assert launch.has_said("rank 3 moved from pretend:1 to the CPU (rank 3 was lost in setup)")


@on_machines
@pytest.mark.long
def test_a_cut_cable_is_no_fault_of_a_device(tmp_path: Path) -> None:
    """The agent of the machine that is cut off ends its ranks: their devices stay trusted, and they come back there."""
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, nproc=1, wait="6 12", **{"watchdog.floor": "2s"}) as launch,
    ):
        launch.begin()
        launch.until(lambda: launch.waits_for(6, 2))
        first = launch.pids()
        machines.cut(1)
        launch.until(lambda: launch.has_said("machine 1 (m1) is lost"))
        machines.mend(1)
        launch.go(6)
        launch.until(lambda: launch.waits_for(12, 2))
        assert others_kept(first, launch.pids(), 1) and launch.is_told(1, "pretend:0")
        launch.go(12)
        launch.check()
    assert launch.ledger(1).history("pretend:0").faults == 0 and launch.of("verdict") == []


@on_machines
@pytest.mark.long
def test_wrong_numbers_are_undone_also_if_their_rank_stays_away(tmp_path: Path) -> None:
    """Its slots are on its machine, and no rank of that machine is in the next group: the first machine knows where
    to go back to, and to the beginning if nobody else has that snapshot."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:0")
    words, away_1 = (*PRETEND, "--min-ranks", "1"), tmp_path / "away-1"
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, words=words, nproc=1, wait="8 20", **{"sentinel.cost": 100}) as launch,
    ):
        launch.begin(**{away.VARIABLE: f"1={away_1}"})
        launch.until(lambda: launch.waits_for(8, 2))
        away_1.touch()
        launch.go(8)
        launch.until(lambda: launch.waits_for(20, 1))
        launch.go(20)
        launch.check()
    (undone,) = launch.of("undone")
    assert undone["to_step"] < 8 and undone["rank"] == 1
