"""Ladder, blame and sentinel for ranks of several machines: each machine judges its own, and the journal names it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import dataclass_json
from holdfast.cli.run_facts import Look
from holdfast.cli.runs import page
from holdfast.devices.ledger import LEDGER, Ledger
from holdfast.distributed import rank_devices, rank_ladder, rank_undo
from holdfast.distributed.far_ladders import FarLadders
from holdfast.distributed.job import Job
from holdfast.distributed.machine_link import TrustTold, VerdictTold
from holdfast.distributed.rank_ladder import Answer
from holdfast.distributed.rank_undo import Undone
from holdfast.faults.blame import Blame, Verdict
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.injection import ailments, away
from holdfast.injection.ailments import Ailment
from holdfast.run.folder import RunFolder
from tests.distributed import machines as made
from tests.distributed.driving import SHARDED
from tests.distributed.launched import check_result
from tests.distributed.machines import Machines
from tests.distributed.several import Several
from tests.distributed.test_rank_ladder import SOON
from tests.distributed.test_sharded_ladder import whole_alone

pytestmark = pytest.mark.timeout(900)
on_machines = pytest.mark.skipif(bool(made.missing()), reason=made.missing())
PRETEND = ("--device", "pretend")


class IllSeveral(Several):
    """A launch on pretended devices of two machines; the second has these ailments, or the machine `on`."""

    def __init__(
        self,
        machines: Machines,
        folder: Path,
        *ill: Ailment,
        words: Sequence[str] = PRETEND,
        nproc: int = 2,
        on: int = 1,
        **job: Any,
    ) -> None:
        super().__init__(machines, folder, 2, *words, nproc=nproc, start=False, **job)
        self.ailments = [
            ailments.write(folder / f"ailments-{number}" / "pretend.json", listed)
            for number, listed in enumerate([ill if number == on else () for number in range(2)])
        ]

    def begin(self, **env: str) -> None:
        for number, path in enumerate(self.ailments):
            changes = {"run.folder": self.home(number) / "there"} if number else {}
            self.start(number, changes=changes, **{ailments.VARIABLE: str(path), **env})

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
        check_result(launch)
    assert [(fault["device"], fault["action"]) for fault in launch.of("fault")] == [
        ("rank 3", "replace"),
        ("rank 3", "next_rung"),
    ]
    verdicts = launch.of("verdict")
    assert [(each["blame"], each["rank"], each["host"], each["device"]) for each in verdicts] == [
        ("unknown", 3, "m1", "pretend:1"),
        ("device", 3, "m1", "pretend:1"),
    ]
    assert launch.has_said("rank 3 on m1 moved from pretend:1 to the CPU (") and launch.has_said(
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
        check_result(launch)
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
    assert list(launch.home(1).glob("there/suspicions/step-8/*")), "in `run.folder` of that machine"
    ledger = launch.ledger(1)
    assert ledger.history("pretend:0").faults == 1 and ledger.trust("pretend:0", "pretend:0").state != "trusted"
    assert launch.ledger(0).history("pretend:0").faults == 0
    shown = "\n".join(page(Look(launch.run)))
    assert "rank 2 on m1 moved from pretend:0 to the CPU" in shown and "rank 2 (pretend:0 on m1)" in shown, (
        "holdfast show"
    )


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
        check_result(launch)
    assert [fault["action"] for fault in launch.of("fault")] == ["replace", "next_rung"]
    assert launch.has_said("rank 3 on m1 moved from pretend:1 to pretend:2 (")


@on_machines
@pytest.mark.long
def test_the_rank_that_keeps_the_run_folder_leaves_its_device_and_comes_back(tmp_path: Path) -> None:
    """It is alone on the first machine. The far one keeps its process."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:0")
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, nproc=1, on=0, wait="6 14 20", **{"sentinel.cost": 100}, **SOON) as launch,
    ):
        launch.begin()
        launch.until(lambda: launch.waits_for(6, 2))
        first = launch.pids()
        launch.go(6)
        launch.until(lambda: launch.waits_for(14, 2))
        on_cpu = launch.pids()
        assert others_kept(first, on_cpu, 0)
        ailments.write(launch.ailments[0], [])  # it is well from here on
        launch.until(lambda: launch.has_said("probe passed"))
        launch.go(14)
        launch.until(lambda: launch.waits_for(20, 2))
        assert others_kept(on_cpu, launch.pids(), 0)
        launch.go(20)
        check_result(launch)
    assert launch.has_said("rank 0 on m0 moved from pretend:0 to the CPU (") and launch.has_said(
        "rank 0 is back on pretend:0"
    )
    (verdict,) = launch.of("verdict")
    assert (verdict["rank"], verdict["host"], verdict["blame"]) == (0, "m0", "device")
    assert launch.ledger(0).history("pretend:0").faults == 1 and launch.ledger(1).history("pretend:0").faults == 0


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
        check_result(launch)
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
        check_result(launch)
    assert launch.has_said("rank 3 on m1 moved from pretend:1 to the CPU (rank 3 was lost in setup)")


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
        check_result(launch)
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
        check_result(launch)
    (undone,) = launch.of("undone")
    assert undone["to_step"] < 8 and undone["rank"] == 1


@on_machines
@pytest.mark.long
def test_a_spare_of_another_machine_takes_the_place_of_a_rank_with_wrong_numbers(tmp_path: Path) -> None:
    """The rank that leaves its device is the next spare, on the CPU. It is on the device again once that is well."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:0")
    words, job = (*PRETEND, "--spares", "1"), {"sentinel.cost": 100, "snapshot": "1", **SOON}
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, words=words, nproc=1, wait="4 8 20", **job) as launch,
    ):
        launch.begin()
        launch.until(lambda: len(launch.pids()) == 3 and launch.waits_for(4, 2))
        now = launch.roster()
        assert now is not None
        if now.seats != (0, 1):  # those of three processes that are ready first have begun
            launch.kill(2)
        launch.go(4)
        launch.until(lambda: len(launch.pids()) == 3 and launch.waits_for(8, 2))
        now = launch.roster()
        assert now is not None and now.seats == (0, 1)
        launch.go(8)
        launch.until(lambda: launch.waits_for(20, 2))
        now = launch.roster()
        assert now is not None and now.seats == (0, 2)
        launch.until(lambda: launch.is_told(1, "cpu") and 1 in launch.pids())
        spare = launch.pids()[1]
        ailments.write(launch.ailments[1], [])  # it is well from here on
        launch.until(lambda: launch.has_said("probe passed"))
        launch.until(lambda: launch.is_told(1, "pretend:0") and launch.pids().get(1, spare) != spare)
        launch.go(20)
        check_result(launch)
    (undone,) = launch.of("undone")
    assert undone["to_step"] < 8 and undone["rank"] == 1
    blamed = [(each["rank"], each["host"]) for each in launch.of("verdict") if each["blame"] == "device"]
    assert blamed == [(1, "m1")], "the spare may have been killed by the test"


@on_machines
@pytest.mark.long
def test_a_far_rank_with_a_part_of_the_model_moves_to_a_free_card(tmp_path: Path) -> None:
    """FSDP2 on two machines: its part comes from its slots, in a process on another card of the same machine."""
    ill = Ailment("error", step=4, times=None, device="pretend:0")
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, nproc=1, path=SHARDED, snapshot="1") as launch,
    ):
        launch.begin(**{rank_devices.PRETEND_CARDS: "2"})
        assert launch.finish()["receipt"]["steps"] == 10
    assert launch.has_said("rank 1 on m1 moved from pretend:0 to pretend:1 (")
    assert [(each["blame"], each["host"]) for each in launch.of("verdict")] == [("unknown", "m1"), ("device", "m1")]
    for name, values in whole_alone(tmp_path / "alone").items():
        assert (launch.weights()[name] - values).abs().max() < 1e-6, name


@on_machines
@pytest.mark.long
@pytest.mark.parametrize("bad", [1, 0], ids=["far", "first"])
def test_wrong_numbers_of_a_rank_with_a_part_take_all_machines_back_to_one_commit(tmp_path: Path, bad: int) -> None:
    """Its copy on the first machine is not overwritten by newer ones."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:0")
    job: dict[str, Any] = {"path": SHARDED, "snapshot": "1", "epochs": 3, "sentinel.cost": 100}
    with (
        Machines(2, share=[tmp_path]) as machines,
        IllSeveral(machines, tmp_path, ill, nproc=1, on=bad, **job) as launch,
    ):
        launch.begin(**{rank_devices.PRETEND_CARDS: "2"})
        assert launch.finish()["receipt"]["steps"] == 15
    assert launch.has_said(f"rank {bad} on m{bad} moved from pretend:0 to pretend:1 (")
    (verdict,) = launch.of("verdict")
    assert (verdict["blame"], verdict["rank"], verdict["host"]) == ("device", bad, f"m{bad}")
    (undone,) = launch.of("undone")
    assert undone["rank"] == bad and 0 < undone["to_step"] < 8, undone
    for name, values in whole_alone(tmp_path / "alone", epochs=3).items():
        assert (launch.weights()[name] - values).abs().max() < 1e-6, name


# What another machine says ------------------------------------------------------------------------------------------


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[FarLadders, Job, RunFolder]]:
    job, run = Job(tmp_path / "job"), RunFolder(tmp_path / "run")
    for each in (job.path, run.path):
        each.mkdir()
    yield FarLadders(job, run), job, run


def an_answer(**changes: Any) -> dict[str, Any]:
    evidence = {"rank": 0, "host": "another", "case": "/somewhere"}
    fault = Fault(Kind.WRONG_NUMBERS, "rank 0", step=8, message="mm", evidence=evidence)
    made = Answer(fault, Move(Action.NEXT_RUNG, 1), "cuda:1", "cpu", Undone(0, 99, sequence=7, step=6))
    return {**json.loads(json.dumps(dataclass_json.write(made))), **changes}


def test_what_a_far_ladder_has_decided_is_about_the_rank_it_belongs_to(far: Any) -> None:
    """By its seat and the name of its machine, whatever the message says; and it reaches no further than this group."""
    ladders, job, _ = far
    assert ladders.ended(3, 77, an_answer(), generation=5, host="m1")
    made = rank_ladder.answer(job, 77)
    assert made is not None and (made.fault.device, made.before, made.after) == ("rank 3", "cuda:1", "cpu")
    assert made.fault.evidence == {"rank": 3, "host": "m1", "device": "cuda:1", "case_there": "/somewhere"}, (
        "no folder of this machine is read"
    )
    assert made.undone == Undone(3, 5, sequence=7, step=6)


def test_a_far_rank_without_an_agreed_snapshot_takes_all_back_to_where_the_launch_began(far: Any) -> None:
    """Which the first machine alone knows."""
    ladders, job, _ = far
    rank_undo.begin(job, 40)
    ladders.ended(3, 77, an_answer(undone={"seat": 3, "generation": 2}), generation=5, host="m1")
    made = rank_ladder.answer(job, 77)
    assert made is not None and made.undone == Undone(3, 2, sequence=0, step=40)


def test_a_new_process_with_the_number_of_an_old_one_has_no_past(far: Any) -> None:
    ladders, job, _ = far
    ladders.ended(3, 77, an_answer(), generation=5, host="m1")
    ladders.wants_to_leave(77)
    ladders.began(3, 77, "cpu")
    assert rank_ladder.answer(job, 77) is None and not ladders.leaves(77) and ladders.device_of(3) == "cpu"


@pytest.mark.parametrize(
    "bad",
    [{"fault": {"kind": "no such"}}, {"move": {"action": "fly", "rung": 0}}, {"before": 7}, {"undone": {"seat": "x"}}],
)
def test_what_is_no_answer_is_passed_over(far: Any, bad: dict[str, Any]) -> None:
    ladders, job, _ = far
    assert ladders.ended(3, 77, an_answer(**bad), generation=5, host="m1") is None
    assert rank_ladder.answer(job, 77) is None and ladders.ended(3, 78, None, generation=5, host="m1") is None


def test_a_far_verdict_waits_for_its_fault_and_is_one_line(far: Any, tmp_path: Path) -> None:
    ladders, job, run = far
    why = "numbers\nare wrong" + "x" * 5000
    verdict = Verdict(Blame.DEVICE, why, repeatable=True, samples=({"no": "index"},))
    ladders.heard(3, 77, VerdictTold(9, 1, verdict, "elsewhere", "cuda:1", code="F018", step=8), host="m1")
    ladders.tell(last=True)
    assert [*run.events()] == [], "the fault is not in the journal yet"
    folder = tmp_path / "fault"
    folder.mkdir()
    rank_ladder.say_told(job, 77, folder)
    ladders.tell(last=True)
    ladders.tell(last=True)
    (event,) = run.events()
    told = event.data
    assert (told["rank"], told["host"], told["device"], told["blame"]) == (3, "m1", "cuda:1", "device")
    assert told["sentence"].startswith("the device is at fault, each time: rank 3 (cuda:1 on m1): numbers?are wrongx")
    assert len(told["sentence"]) < 2200


def test_trust_of_a_far_device_names_its_host(far: Any) -> None:
    ladders, _, run = far
    ladders.heard(3, 0, TrustTold(9, "cuda:1: probe passed", "cuda:1", "probation", {"x": "y" * 20000}), host="m1")
    (event,) = run.events()
    assert event.data["text"] == "rank 3 on m1, cuda:1: probe passed"
    assert (event.data["rank"], event.data["state"]) == (3, "probation") and "suspicion" not in event.data


def test_cards_of_one_name_on_two_machines_are_two_cards(tmp_path: Path) -> None:
    job = Job(tmp_path)
    rank_devices.tell_group(job, 1, ["cuda:0", "cuda:0"], [0, 1])
    rank_devices.tell_group(job, 2, ["cuda:0", "cuda:0"], [1, 1])
    assert not rank_devices.over_gloo(job, 1) and rank_devices.over_gloo(job, 2)
    rank_devices.tell_group(job, 3, ["cuda:0", "cpu"], [0, 1])
    assert rank_devices.over_gloo(job, 3) and rank_devices.mixed(job, 3)
