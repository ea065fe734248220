"""Ranks that are not equally fast: parts of a batch with exact weights, by measured times, the same after a loss."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base import processes
from holdfast.cli.run_facts import Look
from holdfast.cli.runs import page
from holdfast.data.loader import Loader
from holdfast.data.shares import Change, Parts, Shares, cut, in_place_of
from holdfast.distributed.job import Job
from holdfast.distributed.share_keeper import Policy, ShareKeeper, begin_beside, left_out
from holdfast.distributed.share_rule import WINDOWS, Measured, better, is_faster, middle
from tests.distributed.launched import Launched, alone

# Cutting ----------------------------------------------------------------------------------------------------


def test_every_sample_is_in_one_part() -> None:
    draw = random.Random(1)
    for _ in range(300):
        weights = [draw.randrange(30) for _ in range(draw.randrange(1, 6))]
        weights[draw.randrange(len(weights))] += 1
        samples = draw.randrange(200)
        counts = cut(samples, weights)
        assert sum(counts) == samples
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - samples * weight / sum(weights)) < 1, "in proportion, to a whole sample"


def test_parts_are_a_function_of_the_place() -> None:
    shares = Shares((0, 1, 2), None)
    shares.add(Change(0, 5, {0: 6, 1: 3, 2: 1}))
    shares.merge([[1, 0, [[0, 1], [1, 1], [2, 8]]]])
    assert shares.parts(0, 4, 9) == Parts((3, 3, 3), 0)
    assert shares.parts(0, 5, 10) == shares.parts(0, 99, 10) == Parts((6, 3, 1), 1)
    assert shares.parts(1, 0, 10) == Parts((1, 1, 8), 2)
    fewer = Shares((0, 2), None)
    fewer.merge(shares.to_json())
    assert fewer.parts(0, 5, 7).counts == (6, 1), "one rank is away: the others in the same proportion"
    more = Shares((0, 1, 2, 3), None)
    more.merge(shares.to_json())
    assert more.parts(0, 5, 8).counts == (2, 2, 2, 2), "nothing is known of a seat: equal parts"


def test_a_spare_stands_for_a_seat_that_is_missing() -> None:
    """Of three ranks and two spares. In a full group a rank has the part of its number."""
    assert in_place_of((0, 1, 2), 3) == in_place_of((0, 1, 3), 3) == in_place_of((2, 3, 4), 3) == (0, 1, 2)
    assert in_place_of((0, 2), 3) == (0, 2), "nobody makes up for seat 1"
    assert in_place_of((1, 2)) == (1, 2)
    assert in_place_of((2, 4), 3) == (0, 2)
    assert Policy("3:1").table(in_place_of((0, 2), 2)).parts(0, 0, 8).counts == (6, 2)


def test_an_older_state_does_not_take_a_change_back() -> None:
    """Two changes at one place: the second loader of a run has not moved between them."""
    shares = Shares((0, 1))
    shares.add(Change(0, 1, {0: 1, 1: 3}))
    older = shares.to_json()
    shares.add(Change(0, 1, {0: 1, 1: 7}))
    loader = Loader(torch.utils.data.TensorDataset(torch.arange(80)), 8)
    state = {**loader.state_dict(), "shares": older}
    loader.share_with(0, 2, shares)
    loader.load_state_dict(state)
    assert shares.parts(0, 9, 8).counts == (1, 7)
    again = Shares((0, 1))
    loader.share_with(0, 2, again)
    assert again.parts(0, 9, 8).counts == (2, 6), "where the launch knows nothing, the state counts"


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 0, [[0, -1], [1, 3]]]],
        [[0, 0, [[0, -1], [1, 1]]]],
        [[0, 0, [[0, 0], [1, 0]]]],
        [[0, 0, [[0, 1.5], [1, 1]]]],
        [[0, 0, [[0, True], [1, 3]]]],
        [[0, 0, [[0, 1], [0, 2], [1, 3]]]],
        [[-1, 0, [[0, 1], [1, 3]]]],
        [["0", 0, [[0, 1], [1, 3]]]],
        [[0, 0, {"0": 1}]],
        [[0, 0, [0, 1]]],
        [[0, 0], 3, None],
        {"0": 1},
        "shares",
        7,
    ],
)
def test_damaged_rows_of_a_checkpoint_are_left_out(rows: object) -> None:
    shares = Shares((0, 1))
    loader = Loader(torch.utils.data.TensorDataset(torch.arange(80)), 8)
    loader.share_with(0, 2, shares)
    loader.load_state_dict({**loader.state_dict(), "shares": rows})
    assert shares.parts(0, 0, 8) == Parts((4, 4), 0)


@pytest.mark.parametrize("children", [0, 2])
def test_a_change_begins_where_no_rank_has_read(children: int) -> None:
    """Two ranks read a batch each at a time; parts change in the middle, and a rank goes back behind the change."""
    dataset = torch.utils.data.TensorDataset(torch.arange(240))

    def rank_of(number: int) -> tuple[Loader, Shares]:
        loader, shares = Loader(dataset, 12, shuffle=True, seed=5, num_workers=children), Shares((0, 1), None)
        loader.share_with(number, 2, shares)
        return loader, shares

    ranks = [rank_of(0), rank_of(1)]
    parts: dict[int, list[list[int]]] = {}
    streams = [loader.batches(0, 0) for loader, _ in ranks]
    saved: dict[str, Any] = {}
    for at, batches in enumerate(zip(*streams, strict=True)):
        parts[at] = [batch.own.tolist() for batch in batches]
        assert sorted([*parts[at][0], *parts[at][1]]) == sorted(batches[0].samples.tolist())
        assert [batch.share for batch in batches] == [len(each) / 12 for each in parts[at]]
        assert [batch.value[0].tolist() for batch in batches] == parts[at], "what was read is what counts"
        for (loader, _), batch in zip(ranks, batches, strict=True):
            loader.advance(batch)
        if at == 3:
            saved = ranks[0][0].state_dict()
        if at == 5:
            (place,) = {loader.unread() for loader, _ in ranks}
            for _, shares in ranks:
                shares.add(Change(*place, {0: 10, 1: 2}))
    assert place == (0, 12 if children else 7)
    assert [len(each[1]) for each in parts.values()] == [6] * place[1] + [2] * (20 - place[1])
    again, shares = rank_of(1)
    again.load_state_dict(saved)  # of a step before the change; the table of the launch has it
    shares.merge(ranks[0][1].to_json())
    assert {batch.index: batch.own.tolist() for batch in again.batches(0, 4)} == {
        at: each[1] for at, each in parts.items() if at >= 4
    }
    later, _ = rank_of(1)
    later.load_state_dict(ranks[0][0].state_dict())  # of one after it: the state has it
    assert next(iter(later.batches(0, 19))).own.tolist() == parts[19][1]
    for loader in (ranks[0][0], ranks[1][0], again, later):
        loader.close()


# Deciding ---------------------------------------------------------------------------------------------------


class _Machines:
    """Ranks that take `fixed` seconds and `each` more for a sample, give or take some percent."""

    def __init__(self, *ranks: tuple[float, float], noise: float = 0.02) -> None:
        self.ranks = list(ranks)
        self.noise = noise
        self.draw = random.Random(7)

    def time(self, rank: int, count: int) -> float:
        fixed, each = self.ranks[rank]
        return (fixed + each * max(1, count)) * self.draw.gauss(1.0, self.noise)

    def measured(self, counts: tuple[int, ...]) -> Measured:
        return Measured(counts, [[self.time(rank, count) for _ in range(WINDOWS)] for rank, count in enumerate(counts)])


def _settled(machines: _Machines, counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The ways to share, from this one to where nothing changes."""
    found, before = [counts], None
    for _ in range(12):
        now = machines.measured(found[-1])
        changed = better(now, before)
        if changed is None:
            return found
        before, found = now, [*found, changed]
    raise AssertionError(f"it does not settle: {found}")


def test_a_slow_rank_gets_what_it_can_do_in_the_same_time() -> None:
    assert _settled(_Machines((0.0, 0.01), (0.0, 0.03)), (16, 16)) == [(16, 16), (24, 8)]
    assert _settled(_Machines((0.0, 0.01), (0.0, 0.01), (0.0, 0.01)), (11, 11, 10)) == [(11, 11, 10)]
    noisy = _Machines((0.0, 0.01), (0.0, 0.011), noise=0.1)
    assert _settled(noisy, (16, 16)) == [(16, 16)], "a gain within the noise is none"


@pytest.mark.parametrize("fixed", [0.0, 0.05, 0.2])
def test_parts_do_not_swing(fixed: float) -> None:
    """With a cost that does not depend on samples, from both sides: it goes one way and stops."""
    for begin in ((31, 1), (16, 16), (2, 30)):
        way = [counts[1] for counts in _settled(_Machines((0.01, 0.005), (fixed, 0.01)), begin)]
        down = way == sorted(way, reverse=True)
        assert (way == sorted(way) or down) and len(way) <= 6, way


def test_nothing_is_promised_from_a_fixed_cost() -> None:
    """A rank whose own code takes a second gains nothing from fewer samples: after one try its part stays."""
    way = _settled(_Machines((0.0, 0.001), (1.0, 0.001)), (16, 16))
    assert len(way) == 2 and way[1][1] == 1


def test_the_range_of_a_median() -> None:
    assert middle([3, 1, 2, 8, 5, 7, 4, 6]) == (2, 7)
    narrow = middle(list(range(32)))
    assert narrow == (10, 21)
    assert is_faster([1.0, 1.1] * 4, [1.2, 1.3] * 4) and not is_faster([1.0, 1.25] * 4, [1.2, 1.3] * 4)


class _Trial:
    """Steps of a card and a CPU beside it, by a clock of their own."""

    def __init__(self, folder: Path, machines: _Machines, exchange: float, samples: int = 32) -> None:
        self.policy = Policy("auto", ("cuda:0", "cpu"))
        self.job, self.machines, self.exchange, self.samples = Job(folder), machines, exchange, samples
        begin_beside(self.job, self.policy)
        self.now = 0.0
        self.said: list[str] = []

    def group(self, seats: tuple[int, ...], over: Callable[[ShareKeeper], bool]) -> ShareKeeper:
        """As the ranks do it: parts from the table, times from their clocks, until it is over."""
        keeper = ShareKeeper(self.policy, self.job, seats, clock=lambda: self.now)
        shares, own = self.policy.table(seats), [0.0] * len(seats)
        for step in range(20000):
            parts = shares.parts(0, step, self.samples)
            spent = [self.machines.time(seat, count) for seat, count in zip(seats, parts.counts, strict=True)]
            own = [total + each for total, each in zip(own, spent, strict=True)]
            self.now += max(spent) + (self.exchange if len(seats) > 1 else 0.0)
            keeper.hear(own, parts if len(seats) > 1 else None, shares.changes)
            if keeper.weights is not None:
                shares.add(Change(0, step + 2, keeper.weights))
                keeper.weights = None
            self.said += [note.text for note in keeper.news]
            keeper.news = []
            if over(keeper):
                return keeper
        raise AssertionError("nothing was decided")


def test_a_cpu_that_helps_stays(tmp_path: Path) -> None:
    trial = _Trial(tmp_path, _Machines((0.002, 0.003), (0.005, 0.02)), exchange=0.001)
    assert left_out(trial.job) == {1}
    trial.group((0,), lambda _: not left_out(trial.job))
    trial.group((0, 1), lambda _: bool(trial.said))
    (said,) = trial.said
    assert said.startswith("the CPU takes 4 of 32 samples: ") and said.endswith(" % faster steps")
    assert not left_out(trial.job)


@pytest.mark.parametrize(("cpu", "exchange"), [((0.01, 1.0), 0.0), ((0.0, 0.01), 0.15)], ids=["slow", "exchange"])
def test_a_cpu_that_does_not_help_leaves(tmp_path: Path, cpu: tuple[float, float], exchange: float) -> None:
    trial = _Trial(tmp_path, _Machines((0.002, 0.003), cpu), exchange)
    trial.group((0,), lambda _: not left_out(trial.job))
    trial.group((0, 1), lambda keeper: keeper.leaves)
    (said,) = trial.said
    assert said.startswith("the CPU is left out: the step would take ") and said.endswith(" times as long")
    assert left_out(trial.job) == {1}
    again = ShareKeeper(trial.policy, trial.job, (0,))
    assert not again.measures, "not tried again in this launch"


def test_who_measures() -> None:
    both = ("cuda:0", "cpu")
    assert Policy("auto", both).measures((0, 1)) and Policy("measured").measures((0, 1))
    assert not Policy("auto").measures((0, 1)) and not Policy("equal", both).measures((0, 1))
    assert not Policy("auto", both).measures((0,)), "the card alone"
    assert not Policy("auto", ("cpu", "cpu")).measures((0, 1)) and not Policy("auto", ("cuda:0", "cuda:1")).beside
    assert Policy("3:1").table((0, 1)).parts(0, 0, 8).counts == (6, 2)
    measured = Policy("equal").table((0, 1))
    measured.add(Change(0, 0, {0: 7, 1: 1}))  # in the state of a run that was measured
    assert measured.parts(0, 0, 8).counts == (4, 4)


def test_threads_beside_a_card() -> None:
    policy = Policy("auto", ("cuda:0", "cpu"))
    assert [policy.threads_beside(cores, loaders) for cores, loaders in ((16, 0), (16, 4), (2, 0), (2, 4))] == [
        *(15, 7, 1, 1)
    ]
    assert Policy("auto", ("cuda:0", "cuda:1", "cpu", "cpu")).threads_beside(32, 2) == 11


# Real processes ---------------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork, /dev/shm")


def _parts(launch: Launched) -> dict[int, dict[int, set[tuple[int, ...]]]]:
    """By step and rank: which samples it has computed, all processes of that rank."""
    found: dict[int, dict[int, set[tuple[int, ...]]]] = {}
    for path in launch.seen.glob("part-*.txt"):
        rank = int(path.stem.split("-")[2])
        for line in path.read_text().splitlines():
            _, step, *samples = map(int, line.split())
            found.setdefault(step, {}).setdefault(rank, set()).add(tuple(samples))
    return found


def _close(launch: Launched, folder: Path, **job: Any) -> None:
    for name, values in alone(folder / "alone", **job).items():
        assert (launch.weights()[name] - values).abs().max() < 1e-9, name


@needs_fork
@pytest.mark.all
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ddp", "turn"), [(False, False), (True, False), (False, True), (True, True)])
def test_unequal_parts_have_exact_weights(tmp_path: Path, ddp: bool, turn: bool) -> None:
    """In float64 the weights are those of one process, also with a last batch that does not divide, and where the
    script computes the gradients in a transaction."""
    with Launched(tmp_path, 3, "--shares", "5:3:1", wait="100000", length=69, ddp=ddp, turn=turn) as launch:
        ended = launch.finish()
    assert ended["receipt"]["samples_skipped"] == ended["receipt"]["samples_repeated"] == 0
    first = _parts(launch)[1]
    assert [len(next(iter(first[rank]))) for rank in range(3)] == [7, 4, 1]
    assert launch.samples() == {epoch: Counter(range(69)) for epoch in range(6)}
    _close(launch, tmp_path, length=69)


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ddp", [False, True])
def test_a_slow_rank_gets_less_and_a_loss_changes_nothing(tmp_path: Path, ddp: bool) -> None:
    """Rank 1 reads slowly. After the change the other rank is killed and all go back behind it: parts are the same.

    Commits come at the end of an epoch only.
    """
    job: dict[str, Any] = {"length": 1600, "batch": 32, "epochs": 4, "ddp": ddp}

    def changes(launch: Launched) -> list[str]:
        return [each for each in launch.notes() if each.startswith("from step ")]

    with Launched(tmp_path, 2, "--shares", "measured", wait="190", lag="1:0.02", snapshot="1000", **job) as launch:
        launch.until(lambda: changes(launch))
        step = int(changes(launch)[0].split()[2].rstrip(":"))
        launch.until(lambda: (at := min(each.beat.attempt for each in launch.ranks())) > step + 3 and at % 50 > 3)
        launch.kill(0)
        launch.until(lambda: launch.waits_for(190, 2))
        launch.go(190)
        receipt = launch.finish()["receipt"]
    assert receipt["faults"] == {"killed": 1} and receipt["steps"] == 200 and receipt["steps_repeated"] > 0
    parts = _parts(launch)
    assert all(len(each) == 1 for ranks in parts.values() for each in ranks.values()), "done again with the same parts"
    sizes = [len(next(iter(parts[at][1]))) for at in range(1, 201)]
    assert sizes[: step - 1] == [16] * (step - 1) and all(size < 16 for size in sizes[step - 1 :])
    assert launch.samples() == {epoch: Counter(range(1600)) for epoch in range(4)}
    _close(launch, tmp_path, **{**job, "ddp": False})
    assert changes(launch)[0] in "\n".join(page(Look(launch.run))), "holdfast show"


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_rank_that_was_named_gets_less(tmp_path: Path) -> None:
    """By default: equal parts until a rank holds the others up, here one that is halted for most of the time."""
    with Launched(tmp_path, 2, wait="100000", epochs=100000, batch=32, length=320, lag="0:0.002 1:0.002") as launch:
        launch.until(lambda: launch.are_ready(2) and min(each.beat.step for each in launch.ranks()) > 3)
        (pid,) = [each.pid for each in launch.ranks() if each.rank == 1]

        def halted_and_looked() -> bool:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            return any(each.startswith("from step ") for each in launch.notes())

        launch.until(halted_and_looked)
        named, change = [each for each in launch.notes() if each.startswith(("rank 1 holds", "from step "))][:2]
        assert named.startswith("rank 1 holds the others up: "), "first the name, then the change"
        assert int(change.rpartition(" ")[2]) < 16


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_spare_has_the_part_of_the_rank_that_is_lost(tmp_path: Path, lost: int) -> None:
    """Steps computed again have the parts they had, by the number of the rank, so that the bits are the same."""
    words = ("--spares", "1", "--shares", "3:1")
    (tmp_path / "whole").mkdir()
    with Launched(tmp_path / "whole", 2, *words, wait="100000") as whole:
        whole.finish()
    (tmp_path / "lost").mkdir()
    with Launched(tmp_path / "lost", 2, *words, wait="8", snapshot="1000") as launch:
        launch.until(lambda: launch.waits_for(8, 2) and launch.are_ready(3))
        launch.kill(lost)
        launch.until(lambda: (now := launch.roster()) is not None and 2 in now.seats)
        launch.go(8)
        receipt = launch.finish()["receipt"]
    assert receipt["faults"] == {"killed": 1} and receipt["steps_repeated"] > 0
    assert _parts(launch) == _parts(whole)
    for name, values in whole.weights().items():
        assert torch.equal(launch.weights()[name], values), name


@needs_fork
@pytest.mark.all
@pytest.mark.timeout(600)
def test_what_one_rank_cannot_read_in_an_evaluation_is_trained_on(tmp_path: Path) -> None:
    """The others read it there, so all ranks have it in their batches."""
    with Launched(tmp_path, 2, wait="100000", look="1:17") as launch:
        ended = launch.finish()
    assert ended["receipt"]["samples_skipped"] == ended["receipt"]["samples_repeated"] == 0
    assert launch.samples() == {epoch: Counter(range(60)) for epoch in range(6)}
    _close(launch, tmp_path)


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ddp", [False, True])
def test_the_loss_of_ranks_of_different_kinds_may_differ_in_type(tmp_path: Path, ddp: bool) -> None:
    with Launched(tmp_path, 2, "--devices", "pretend:0,cpu", "--shares", "1:1", half=0, ddp=ddp) as launch:
        receipt = launch.finish()["receipt"]
    assert receipt["faults"] == {} and receipt["steps"] == 30
    _close(launch, tmp_path)


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_rank_fails_in_its_first_step_beside_another_device(tmp_path: Path) -> None:
    """Rank 0 asks for times in the vote of that step. No rank may do what it asks for: most of them did not hear it."""
    job: dict[str, Any] = {"length": 320, "batch": 32, "epochs": 30, "ddp": True}
    with Launched(tmp_path, 2, "--devices", "pretend:0,cpu", lag="0:0.005 1:0.005", full="1:0:1", **job) as launch:
        receipt = launch.finish()["receipt"]
    assert receipt["faults"] == {"out_of_memory": 1} and receipt["steps_lost"] == 0
    _close(launch, tmp_path, **{**job, "ddp": False})


@needs_fork
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("lag", "stays"), [("0:0.02 1:0.02", True), ("0:0.005 1:1", False)], ids=["helps", "slow"])
def test_the_cpu_beside_another_device(tmp_path: Path, lag: str, stays: bool) -> None:
    """`pretend:0` computes on the CPU and counts as a device of another kind."""
    job: dict[str, Any] = {"length": 320, "batch": 32, "epochs": 14 if stays else 40}

    def verdicts(launch: Launched) -> list[str]:
        return [each for each in launch.notes() if each.startswith("the CPU ")]

    with Launched(
        tmp_path, 2, "--devices", "cpu,pretend:0", wait=str(10 * job["epochs"] - 9), lag=lag, **job
    ) as launch:
        launch.until(lambda: verdicts(launch))
        launch.until(lambda: launch.waits_for(10 * job["epochs"] - 9, 2 if stays else 1))
        launch.go(10 * job["epochs"] - 9)
        receipt = launch.finish()["receipt"]
    (said,) = verdicts(launch)
    assert said.startswith("the CPU takes " if stays else "the CPU is left out: the step would take ")
    assert receipt["faults"] == {} and receipt["steps_lost"] == 0 and receipt["steps_repeated"] == 0
    assert not [each for each in launch.notes() if "is away" in each]
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert launch.run.info["device"] == ("pretend:0+cpu" if stays else "pretend:0")
    _close(launch, tmp_path, **job)
