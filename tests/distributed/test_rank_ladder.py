"""Each rank has a sentinel, a ladder and a ledger: only the rank whose device fails moves, and it comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base import processes
from holdfast.cli.run_facts import Look
from holdfast.cli.runs import page
from holdfast.data.sample_order import permutation
from holdfast.devices.ledger import Ledger
from holdfast.distributed import rank_devices
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from tests.distributed.launched import Launched, alone, check_result

pytestmark = [
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]
SOON = {"probation.first_delay": "0.2s", "probation.factor": "1.5", "probation.steps": "3"}
"""Delays that a test can wait for."""


class Ill(Launched):
    """A launch on pretended devices, one for each rank, with these ailments."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        *listed: Ailment,
        words: Sequence[str] = ("--device", "pretend"),
        env: dict[str, str] | None = None,
        **job: Any,
    ) -> None:
        self.ailments = ailments.write(folder / "ailments" / "pretend.json", listed)
        super().__init__(folder, ranks, *words, env={ailments.VARIABLE: str(self.ailments), **(env or {})}, **job)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.run.events() if event.kind == kind]

    def said(self) -> list[str]:
        return [str(event.data.get("text")) for event in self.run.events() if event.kind in ("trust", "note")]

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.said())


def seats(launch: Launched) -> dict[int, int]:
    return {each.rank: each.pid for each in launch.ranks()}


@pytest.mark.all
@pytest.mark.parametrize("ddp", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "wrapped"])
def test_wrong_numbers_of_one_rank_are_found_and_it_leaves_its_device(tmp_path: Path, ddp: bool) -> None:
    """All go back to the last snapshot that device and CPU agreed on: what the wrong gradients did is in no weight."""
    ill = Ailment("wrong", step=8, times=None, device="pretend:1")
    with Ill(tmp_path, 3, ill, wait="6 20", ddp=ddp, **{"sentinel.cost": 100}) as launch:
        launch.until(lambda: launch.waits_for(6, 3))
        before = seats(launch)
        launch.go(6)
        launch.until(lambda: launch.waits_for(20, 3))
        after = seats(launch)
        assert {seat for seat in before if before[seat] != after[seat]} == {1}, "the others keep their processes"
        launch.go(20)
        check_result(launch)
    (fault,) = launch.of("fault")
    assert (fault["kind"], fault["device"], fault["step"]) == ("wrong_numbers", "rank 1", 8)
    assert fault["action"] == "next_rung" and fault["reason"] == "pretend:1 → cpu, the others stay"
    (verdict,) = launch.of("verdict")
    assert (verdict["blame"], verdict["rank"], verdict["device"]) == ("device", 1, "pretend:1")
    assert verdict["sentence"].startswith(
        f"the device is at fault, each time: rank 1 (pretend:1 on {verdict['host']}): "
    )
    (undone,) = launch.of("undone")
    assert undone["to_step"] < 8
    assert launch.has_said("rank 1 moved from pretend:1 to the CPU (rank 1 computes wrong numbers at step 8")
    assert Ledger().history("pretend:1").faults == 1 and Ledger().trust("pretend:1", "pretend:1").state != "trusted"
    assert Ledger().history("pretend:0").faults == 0
    shown = "\n".join(page(Look(launch.run)))
    assert "rank 1 moved from pretend:1 to the CPU" in shown and "rank 1 (pretend:1 on" in shown, "holdfast show"


@pytest.mark.long
def test_steps_since_the_last_agreement_are_undone_in_all_ranks(tmp_path: Path) -> None:
    """With an ordinary budget the comparison comes steps later. What was committed meanwhile is not believed."""
    ill = Ailment("wrong", step=2, times=None, device="pretend:1")
    job = {"epochs": 2000, "sentinel.cost": 99, "pause": 0.02, "checkpoint.every": "1ms"}  # each commit is saved
    with Ill(tmp_path, 2, ill, snapshot="2", **job) as launch:
        launch.until(lambda: launch.job is not None and any(each.beat.step for each in launch.ranks()))
        launch.until(lambda: launch.has_said("rank 1 moved from pretend:1 to the CPU"))
        (undone,) = launch.of("undone")
        assert undone["to_step"] < undone["from_step"], undone
        launch.until(lambda: any(each.beat.step > undone["from_step"] for each in launch.ranks()))
        launch.process.terminate()
        printed = launch.end()
    assert (
        printed["state"] == "STOPPED" and printed["receipt"]["steps_undone"] == undone["from_step"] - undone["to_step"]
    )
    kept = {int(path.name) for path in (launch.run.path / "checkpoints").glob("[0-9]*")}
    doubtful = {int(path.name) for path in (launch.run.path / "doubtful").glob("[0-9]*") if path.name.isdigit()}
    events = list(launch.run.events())
    before = events[: next(number for number, event in enumerate(events) if event.kind == "undone")]
    saved = [int(event.data["step"]) for event in before if event.kind == "checkpoint"]
    wrong = {step for step in saved if step > undone["to_step"]}  # all but the newest may have made room by then
    assert doubtful <= wrong and max(wrong) in doubtful and kept, (saved, undone)


@pytest.mark.all
@pytest.mark.parametrize("ddp", [True, pytest.param(False, marks=pytest.mark.long)], ids=["wrapped", "plain"])
def test_a_rank_leaves_a_device_that_is_lost_twice_and_comes_back(tmp_path: Path, ddp: bool) -> None:
    ill = Ailment("error", step=8, times=2, probes=False, device="pretend:1")
    with Ill(tmp_path, 3, ill, wait="6 12 16 24", ddp=ddp, **SOON) as launch:
        launch.until(lambda: launch.waits_for(6, 3))
        first = seats(launch)
        launch.go(6)
        launch.until(lambda: launch.waits_for(12, 3))
        on_cpu = seats(launch)
        job = launch.job
        assert (
            job is not None and [getattr(rank_devices.told(job, seat), "device", "") for seat in range(3)][1] == "cpu"
        )
        launch.until(lambda: launch.has_said("probe passed"))
        launch.go(12)
        launch.until(lambda: launch.waits_for(16, 3))
        back = seats(launch)
        told = rank_devices.told(job, 1)
        assert told is not None and told.device == "pretend:1"
        launch.go(16)
        launch.until(lambda: launch.has_said("trusted again"))
        launch.until(lambda: launch.waits_for(24, 3))
        launch.go(24)
        check_result(launch)
    for now in (on_cpu, back):
        assert (now[0], now[2]) == (first[0], first[2]), "the others keep their processes"
    assert len({first[1], on_cpu[1], back[1]}) == 3
    assert [fault["action"] for fault in launch.of("fault")] == ["replace", "next_rung"]
    assert [(each["blame"], each["rank"]) for each in launch.of("verdict")] == [("unknown", 1), ("device", 1)]
    assert launch.has_said("rank 1 moved from pretend:1 to the CPU (") and launch.has_said(
        "rank 1 is back on pretend:1"
    )
    assert Ledger().history("pretend:1").faults == 2
    assert Ledger().trust("pretend:1", "pretend:1").state == "trusted"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_a_rank_moves_to_a_card_that_no_other_has(tmp_path: Path, kind: str) -> None:
    """Its own hangs, or crashes the process, each time. The card of the other rank is not taken."""
    ill = Ailment(kind, step=8, times=None, device="pretend:1")
    job = {"watchdog.floor": "2s", "watchdog.first_step": "10s"}
    with Ill(tmp_path, 2, ill, env={rank_devices.PRETEND_CARDS: "3"}, wait="20", **job) as launch:
        launch.until(lambda: launch.waits_for(20, 2))
        launch.go(20)
        check_result(launch)
    assert [fault["action"] for fault in launch.of("fault")] == ["replace", "next_rung"]
    assert launch.has_said("rank 1 moved from pretend:1 to pretend:2 (")


@pytest.mark.long
def test_a_device_that_cannot_be_opened_is_left(tmp_path: Path) -> None:
    """Without --min-ranks the run was given up after five tries."""
    (tmp_path / "away-1").touch()
    with Ill(tmp_path, 2, wait="10") as launch:
        launch.until(lambda: launch.job is not None and rank_devices.told(launch.job, 1) is not None)
        launch.until(lambda: getattr(rank_devices.told(launch.job, 1), "device", "") == "cpu")  # type: ignore[arg-type]
        launch.give_back(1)
        launch.until(lambda: launch.waits_for(10, 2))
        launch.go(10)
        check_result(launch)
    assert launch.has_said("rank 1 moved from pretend:1 to the CPU (rank 1 was lost in setup)"), launch.said()


@pytest.mark.all
@pytest.mark.parametrize("ddp", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "wrapped"])
def test_samples_that_cannot_be_read_are_left_out_by_all_ranks(tmp_path: Path, ddp: bool) -> None:
    """In the parts of different ranks, and two in one batch. The others are used once in every epoch."""
    order = permutation(0, 0, 60).tolist()
    bad = [order[0], order[11], order[25]]  # of the first batch, of the first rank and the last; of the third
    words = " ".join(map(str, bad))
    skip = {"data.skip_bad": "true"}
    with Launched(tmp_path, 3, bad=words, wait="30", ddp=ddp, **skip) as launch:
        launch.until(lambda: launch.waits_for(30, 3))
        assert len({each.pid for each in launch.ranks()}) == 3
        launch.go(30)
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["faults"] == {} and receipt["samples_quarantined"] == 3
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == receipt["steps_lost"] == 0
    left = Counter(index for index in range(60) if index not in bad)
    assert launch.samples() == dict.fromkeys(range(6), left)
    for name, values in alone(tmp_path / "alone", {**skip}, bad=words).items():
        assert (launch.weights()[name.removeprefix("module.")] - values).abs().max() < 1e-6, name
    out = [event.data["index"] for event in launch.run.events() if event.kind == "quarantined"]
    assert set(out) == set(bad)


@pytest.mark.long
def test_a_sample_that_ends_its_rank_is_left_out_by_all(tmp_path: Path) -> None:
    with Launched(tmp_path, 2, deadly="17") as launch:
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 30 and receipt["samples_quarantined"] == 1
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert next(event.data["index"] for event in launch.run.events() if event.kind == "quarantined") == 17


def test_the_devices_of_ranks() -> None:
    cards = ["cuda:0", "cuda:1", "cuda:2"]
    planned: Callable[..., list[str]] = rank_devices.planned
    assert planned("auto", 2, 2, cards) == ["cuda:0", "cuda:1"]
    assert planned("auto", 4, 4, cards) == ["cpu"] * 4, "too few for all of them"
    assert planned("auto", 3, 2, ["cuda:0", "cuda:1"]) == ["cuda:0", "cuda:1", "cpu"], "a spare has none"
    assert planned("cuda", 2, 2, []) == ["cuda:0", "cuda:1"]
    assert planned("cuda:1", 2, 2, cards) == ["cuda:1", "cuda:1"]
    assert torch.device(planned("cpu", 1, 1, cards)[0]).type == "cpu"
