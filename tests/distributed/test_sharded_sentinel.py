"""Ranks that hold parts of a model (FSDP2), and a device that computes wrong numbers: all go back to one commit.

The launches are real processes on pretended cards, with the script sharded_job.py. What is kept to go back to is also
tried with real slots in this process, where any rank may be lost after any vote.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast.base import processes
from holdfast.base.board import Board
from holdfast.devices.ledger import Ledger
from holdfast.distributed import rank_devices
from holdfast.distributed.checked_commits import CheckedCommits
from holdfast.injection import away
from holdfast.injection.ailments import Ailment
from holdfast.run.folder import RunFolder
from holdfast.run.messages import Message
from holdfast.state.protected import Protected
from holdfast.state.slots import Arena
from holdfast.state.snapshot import Snapshots
from holdfast.state.torch_private import TorchDispatchMode
from holdfast.worker.operators.confirmation import compare_here
from holdfast.worker.operators.recorder import Recorder
from tests.distributed.driving import SHARDED
from tests.distributed.test_rank_ladder import Ill, seats
from tests.distributed.test_sharded_ladder import check_weights, launched, of

pytestmark = [
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]
EACH_STEP = {"sentinel.cost": 100, "epochs": 3}
"""15 steps, of which each is looked at and waited for."""


def wrong(device: str, step: int = 8) -> Ailment:
    return Ailment("wrong", step=step, times=None, device=device)


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(run.path / "final.safetensors")


def check_quiet(folder: Path, run: RunFolder, **job: Any) -> None:
    """The weights have the bits of a run whose devices are all right, and of which none is found to be wrong."""
    code, printed, quiet = launched(folder / "quiet", None, **job)
    assert code == 0 and printed["receipt"]["steps"] == 15
    assert of(quiet, "fault") == of(quiet, "verdict") == of(quiet, "undone") == []
    assert not [each for each in of(quiet, "trust") if each.get("state") == "suspected"]
    found, right = weights(run), weights(quiet)
    assert found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)


def check_found(run: RunFolder, rank: int, step: int = 8) -> dict[str, Any]:
    """The right rank is named, and all have gone back to a commit before its numbers went wrong; returns that."""
    events = [(event.kind, event.data.get("text")) for event in run.events()]
    assert [len(of(run, kind)) for kind in ("fault", "verdict", "undone")] == [1, 1, 1], events
    (fault,) = of(run, "fault")
    assert (fault["kind"], fault["device"], fault["step"]) == ("wrong_numbers", f"rank {rank}", step)
    (verdict,) = of(run, "verdict")
    assert (verdict["blame"], verdict["rank"], verdict["device"]) == ("device", rank, f"pretend:{rank}")
    named = f"rank {rank} (pretend:{rank} on {verdict['host']}): "
    assert verdict["sentence"].startswith(f"the device is at fault, each time: {named}")
    (undone,) = of(run, "undone")
    assert undone["rank"] == rank and 0 < undone["to_step"] < step, undone
    return undone


@pytest.mark.all
def test_all_go_back_to_one_commit_and_the_rank_moves_to_a_free_card(tmp_path: Path) -> None:
    code, printed, run = launched(tmp_path, wrong("pretend:1"), cards=3, **EACH_STEP)
    assert code == 0 and printed["receipt"]["steps"] == 15, printed
    check_found(run, 1)
    moved = "rank 1 moved from pretend:1 to pretend:2 (rank 1 computes wrong numbers at step 8"
    assert any(moved in str(note["text"]) for note in of(run, "note"))
    assert Ledger().history("pretend:1").faults == 1 and Ledger().trust("pretend:1", "pretend:1").state != "trusted"
    assert Ledger().history("pretend:0").faults == 0
    check_quiet(tmp_path, run, **EACH_STEP)


@pytest.mark.long
@pytest.mark.parametrize(("mesh", "bad"), [(1, 2), (2, 3), (1, 0)], ids=["four", "replicas", "the first of four"])
def test_one_of_four_ranks(tmp_path: Path, mesh: int, bad: int) -> None:
    job = {"ranks": 4, "mesh": mesh, **EACH_STEP}
    code, printed, run = launched(tmp_path, wrong(f"pretend:{bad}"), cards=5, **job)
    assert code == 0 and printed["receipt"]["steps"] == 15, printed
    check_found(run, bad)
    check_quiet(tmp_path, run, **job)


@pytest.mark.long
@pytest.mark.parametrize("die", ["0:6:backward", "1:7:snapshot", "0:7:optimizer"])
def test_the_commit_to_go_back_to_outlives_a_rank_that_is_killed(tmp_path: Path, die: str) -> None:
    """The new process finds it in the slots of the one before."""
    code, printed, run = launched(tmp_path, wrong("pretend:1"), cards=3, die=die, **EACH_STEP)
    assert code == 0 and printed["receipt"]["steps"] == 15, printed
    assert [fault["kind"] for fault in of(run, "fault")] == ["killed", "wrong_numbers"]
    (undone,) = of(run, "undone")
    assert undone["rank"] == 1 and 0 < undone["to_step"] < 8, undone
    check_quiet(tmp_path, run, **EACH_STEP)


@pytest.mark.all
@pytest.mark.parametrize("bad", [1, pytest.param(0, marks=pytest.mark.long)])
def test_without_another_card_the_run_ends_and_saves_what_was_right(tmp_path: Path, bad: int) -> None:
    job = {**EACH_STEP, "checkpoint.every": "1ms", "checkpoint.keep": 100}
    code, printed, run = launched(tmp_path, wrong(f"pretend:{bad}"), **job)
    error = printed["error"]
    assert code == 4 and printed["state"] == "GAVE_UP"
    assert error["message"].startswith(f"rank {bad} computes wrong numbers at step 8 in ")
    assert ", and there is no other card for it on " in error["message"] and "each time" not in error["message"]
    assert f"it is on pretend:{bad}" in error["cause"] and any("--min-ranks" in hint for hint in error["hints"])
    assert Ledger().history(f"pretend:{bad}").faults == 1
    (undone,) = of(run, "undone")
    kept = sorted(int(path.name) for path in (run.path / "checkpoints").glob("[0-9]*"))
    assert kept[-1] == undone["to_step"] < 8 and undone["to_step"] > 0, "the newest one is before the wrong numbers"


@pytest.mark.long
def test_the_others_go_on_without_a_rank_whose_card_is_wrong(tmp_path: Path) -> None:
    code, printed, run = launched(tmp_path, wrong("pretend:1"), "--min-ranks", "1", **EACH_STEP)
    assert code == 0 and printed["receipt"]["steps"] == 15, printed
    check_found(run, 1)
    (gone,) = [str(note["text"]) for note in of(run, "note") if "away" in note]
    assert gone.startswith("rank 1 is away (pretend:1 computes wrong numbers): 1 of 2 ranks train")
    assert not [note for note in of(run, "note") if "back" in note]
    check_weights(run, tmp_path, epochs=3)


@pytest.mark.long
def test_a_spare_takes_the_place_of_a_rank_whose_card_is_wrong(tmp_path: Path) -> None:
    """The first two that are ready are ranks, so the third finds no card until those have begun."""
    not_yet = tmp_path / "not-yet"
    not_yet.touch()
    env = {rank_devices.PRETEND_CARDS: "3", away.VARIABLE: f"2={not_yet}"}
    words = ("--device", "pretend", "--spares", "1")
    with Ill(tmp_path, 2, wrong("pretend:1"), words=words, env=env, snapshot="1", path=SHARDED, **EACH_STEP) as launch:
        launch.until(lambda: launch.roster() is not None)
        not_yet.unlink()
        assert launch.finish()["receipt"]["steps"] == 15
    run = launch.run
    check_found(run, 1)
    check_quiet(tmp_path, run, **EACH_STEP)


@pytest.mark.long
def test_wrong_numbers_that_are_found_late_are_undone_in_all_ranks(tmp_path: Path) -> None:
    """With an ordinary budget the answer comes steps later, and each rank looks at other steps than the others."""
    job = {"epochs": 4000, "sentinel.cost": 99, "pause": 0.01, "checkpoint.every": "1ms", "checkpoint.keep": 100000}
    env = {rank_devices.PRETEND_CARDS: "3"}
    with Ill(tmp_path, 2, wrong("pretend:1", 60), snapshot="1", path=SHARDED, env=env, **job) as launch:
        launch.until(lambda: launch.waits_for(1, 2) or any(each.beat.step for each in launch.ranks()))
        before = seats(launch)
        launch.until(lambda: launch.has_said("rank 1 moved from pretend:1 to pretend:2"))
        (undone,) = launch.of("undone")
        launch.until(lambda: any(each.beat.step > undone["from_step"] for each in launch.ranks()))
        assert seats(launch)[0] == before[0], "the other keeps its process"
        launch.process.send_signal(signal.SIGTERM)
        printed = launch.end()
    assert printed["state"] == "STOPPED"
    assert undone["to_step"] < 60, "what is kept is from before the first wrong step"
    step = max(int(path.name) for path in (launch.run.path / "checkpoints").glob("[0-9]*"))
    assert step > undone["from_step"]
    more = {"epochs": step // 5 + 1, "sentinel.cost": 99, "checkpoint.every": "1ms", "checkpoint.keep": 100000}
    code, _, quiet = launched(tmp_path / "quiet", None, **more)
    assert code == 0 and of(quiet, "fault") == []
    found, right = (_saved(run, step) for run in (launch.run, quiet))
    assert found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)


def _saved(run: RunFolder, step: int) -> dict[str, torch.Tensor]:
    """The model in a checkpoint."""
    (path,) = (run.path / "checkpoints" / f"{step:06}").glob("*.safetensors")
    return {name: each for name, each in load_file(path).items() if name.startswith("model")}


# What is compared -------------------------------------------------------------------------------------------


class _Wrong(TorchDispatchMode):
    """A device whose kernel of this name gives three times the right answer."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "device_mesh") for each in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        return out.mul_(3.0) if func._schema.name == f"aten::{self.name}" else out


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", [None, "mm", "lerp_", "addcdiv_"])
def test_forward_backward_and_the_update_of_a_part_are_compared(group: None, name: str | None) -> None:
    """One rank, whose parts have the shapes of the whole: torch tries each operator with tensors that hold nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 5)).double()
    mesh = init_device_mesh("cpu", (1,))
    for each in (model[0], model):
        fully_shard(each, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = Recorder(torch.device("cpu"), label="pretend:0")
    recorder.everything = True
    with _Wrong(name) if name else contextlib.nullcontext():
        for step in range(2):
            with recorder.look(step):
                model(torch.randn(4, 8, dtype=torch.float64)).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()
            cases = recorder.taken()
            assert {"addmm", "mm", "lerp_", "addcmul_", "addcdiv_"} <= {case.title for case in cases}
            wrong = {case.title for case in cases if not compare_here(case).agrees}
            assert wrong == ({name} if name else set())


# The commit that all keep -----------------------------------------------------------------------------------


class _Link:
    def __init__(self, slots: int) -> None:
        self.board = Board.create()
        self.generation = 1
        self.slots: Arena | None = None
        self.count = slots

    def arena(self, capacity: int) -> Arena:
        self.slots = self.slots or Arena.create(2 * capacity, slots=self.count)
        return self.slots

    def committed(self, step: int) -> None:
        return None

    def send(self, message: Message) -> None:
        return None

    def close(self) -> None:
        self.board.close()
        if self.slots is not None:
            self.slots.close()


class _Rank:
    """What one rank has of the state, in real slots."""

    def __init__(self, slots: int) -> None:
        model = torch.nn.Linear(2, 1)
        self.link = _Link(slots)
        self.snapshots = Snapshots(Protected({"model": model}, torch.device("cpu")), self.link, torch.device("cpu"))
        self.snapshots.reserve()
        self.snapshots.compares = True
        self.checked = CheckedCommits(self.snapshots)
        self.take(0)
        self.snapshots.agree_on_start()

    def take(self, step: int) -> None:
        self.snapshots.take({"session": {"step": step}}, step=step, samples=step, loss=None)

    def held(self) -> set[int]:
        assert self.link.slots is not None
        return {commit.sequence for slot in self.link.slots.slots if (commit := slot.read()) is not None}

    def agreed(self) -> int:
        """Where all go back to if this rank is found to be wrong now (rank_undo.py)."""
        commit = None if self.link.slots is None else self.link.slots.agreed()
        return 0 if commit is None else commit.sequence


def _vote(ranks: Sequence[_Rank], hear: Sequence[bool]) -> None:
    told = [rank.checked.told() for rank in ranks]
    for rank, heard in zip(ranks, hear, strict=True):
        if heard:
            rank.checked.hear(told)


def _check_common(ranks: Sequence[_Rank], believed: int) -> None:
    common = set.intersection(*(rank.held() for rank in ranks))
    for rank in ranks:
        assert 0 < rank.agreed() <= believed and rank.agreed() in common


STEPS = st.lists(st.tuples(st.booleans(), st.lists(st.booleans(), min_size=3, max_size=3)), min_size=1, max_size=60)
"""Of each step: whether it is committed, and which ranks have agreed with the CPU in it by the next vote."""


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, last=st.lists(st.booleans(), min_size=3, max_size=3))
def test_all_ranks_hold_what_any_of_them_would_go_back_to(steps: list[Any], last: list[bool]) -> None:
    """Also if the group breaks in the last vote, and only some have heard it; and it never is a state after a step in
    which a rank has not agreed yet."""
    ranks = [_Rank(5) for _ in range(3)]
    try:
        believed = [1, 1, 1]
        for number, (commits, looks) in enumerate(steps, 1):
            _vote(ranks, last if number == len(steps) else [True] * 3)
            for place, (rank, agrees) in enumerate(zip(ranks, looks, strict=True)):
                if agrees and rank.snapshots.last is not None:
                    rank.snapshots.agreed(rank.snapshots.last)
                    believed[place] = rank.snapshots.last.sequence
            _check_common(ranks, min(believed))
            for rank in ranks if commits else ():
                rank.take(number)
            _check_common(ranks, min(believed))
    finally:
        for rank in ranks:
            rank.link.close()


def test_the_commit_moves_on_when_the_slowest_rank_has_agreed() -> None:
    ranks, kept = [_Rank(5) for _ in range(2)], []
    for step in range(1, 9):
        _vote(ranks, [True, True])
        assert ranks[0].agreed() == ranks[1].agreed()
        kept.append(ranks[0].agreed())
        ranks[0].snapshots.agreed(ranks[0].snapshots.last)
        if step in (3, 7):
            ranks[1].snapshots.agreed(ranks[1].snapshots.last)
        for rank in ranks:
            rank.take(step)
    assert kept == [1, 1, 1, 3, 3, 3, 3, 5], "3 was chosen before step 3 and 5 before step 5; both agreed in 3 and 7"
    for rank in ranks:
        rank.link.close()


def test_a_rank_that_compares_nothing_is_not_waited_for_and_three_slots_are_enough() -> None:
    ranks = [_Rank(3) for _ in range(2)]
    ranks[1].snapshots.compares = False
    began = time.monotonic()
    for step in range(1, 9):
        _vote(ranks, [True, True])
        ranks[0].snapshots.agreed(ranks[0].snapshots.last)
        for rank in ranks:
            rank.take(step)
    assert ranks[0].agreed() == ranks[1].agreed() > 1
    assert time.monotonic() - began < 60.0
    for rank in ranks:
        rank.link.close()
