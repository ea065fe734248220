"""Scripts that were written for torchrun: what they call by name, their samplers, and updates by their own hand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast
from holdfast.base import processes
from holdfast.base.errors import UserError
from holdfast.data.distributed_sampler import AllReplicas, shared_loader
from tests.distributed.launched import ROOT, Launched
from tests.distributed.torchrun_parts import (
    LENGTH,
    samples_below_torchrun,
    weights_below_torchrun,
    weights_of_one_process,
)

SCRIPT = Path(__file__).with_name("torchrun_job.py")
STEPS = 24
"""Three epochs with two ranks."""
launches = [
    pytest.mark.all,
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]


def launched(folder: Path, ranks: int, *words: str, **job: Any) -> Launched:
    return Launched(folder, ranks, *words, path=SCRIPT, **job)


def launching(test: Any) -> Any:
    for mark in launches:
        test = mark(test)
    return test


def check_weights(launch: Launched, ranks: int) -> None:
    found = list(launch.weights().values())
    for mine, theirs in zip(found, weights_below_torchrun(3, ranks), strict=True):
        assert (mine - theirs).abs().max() < 1e-9


@launching
@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "no wrapper"])
def test_samples_and_weights_are_those_of_torchrun_and_survive_a_kill(tmp_path: Path, wrapped: bool) -> None:
    with launched(tmp_path, 2, wait="11", wrapped=wrapped) as launch:
        launch.until(lambda: launch.waits_for(11, 2))
        before = {each.rank: each.pid for each in launch.ranks()}
        launch.kill(1)
        launch.go(11)
        launch.until(lambda: (now := launch.roster()) is not None and now.number > 1)
        now = launch.roster()
        assert now is not None and now.pids[0] == before[0] and now.pids[1] != before[1]
        ended = launch.finish()
    receipt = ended["receipt"]
    assert receipt["steps"] == STEPS and receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    for epoch, used in launch.samples().items():
        steps = samples_below_torchrun(epoch, 2)
        assert used == Counter(index for step in steps for part in step for index in part), "62: one was padded"
    check_weights(launch, 2)


@launching
def test_an_exchange_of_the_script_that_breaks_is_no_error_of_its_own(tmp_path: Path) -> None:
    """Without a wrapper too: rank 0 waits in the script's own all_reduce when rank 1 is killed."""
    with launched(tmp_path, 2, wrapped=False, gathers=True, die="1:9") as launch:
        assert launch.finish()["receipt"]["steps"] == STEPS
    check_weights(launch, 2)


@launching
def test_batches_of_a_sampler_stay_while_a_rank_is_away(tmp_path: Path) -> None:
    with launched(tmp_path, 3, "--min-ranks", "2", wait="4 8 14") as launch:
        launch.until(lambda: launch.waits_for(4, 3))
        launch.take_away(1)
        launch.go(4)
        launch.until(lambda: launch.waits_for(8, 2))
        launch.give_back(1)
        launch.until(lambda: launch.is_invited(3))
        launch.go(8)
        launch.until(lambda: launch.waits_for(14, 3))
        launch.go(14)
        receipt = launch.finish()["receipt"]
    assert receipt["steps"] == 18 and receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    check_weights(launch, 3)


@launching
@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "no wrapper"])
def test_ranks_that_seed_themselves_share_one_order(tmp_path: Path, wrapped: bool) -> None:
    """A Loader has the seed of its script, and here it is another one in each rank. The last batch has five samples, so
    that the parts of the two ranks do not weigh the same."""
    with launched(tmp_path, 2, data="loader", wrapped=wrapped) as launch:
        launch.finish()
    assert launch.samples() == {epoch: Counter(range(LENGTH)) for epoch in range(3)}
    for mine, theirs in zip(launch.weights().values(), weights_of_one_process(3, 2), strict=True):
        assert (mine - theirs).abs().max() < 1e-9


@launching
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("both", "a holdfast.Loader with a DistributedSampler would leave samples out"),
        ("unlike", "`data` is not the same in all ranks: length is 61 in one and 60 in another"),
    ],
)
def test_data_that_cannot_be_shared_are_refused_before_the_first_step(tmp_path: Path, data: str, said: str) -> None:
    with launched(tmp_path, 2, data=data) as launch:
        ended = launch.end()
    assert launch.process.returncode == 2 and said in ended["error"]["message"], ended
    assert not list(launch.seen.iterdir())


@launching
@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "no wrapper"])
def test_a_closure_needs_a_wrapper(tmp_path: Path, wrapped: bool) -> None:
    """Without one each rank would update with gradients of its own."""
    with launched(tmp_path, 2, wrapped=wrapped, closure=True) as launch:
        ended = launch.finish() if wrapped else launch.end()
    if wrapped:
        check_weights(launch, 2)
        return
    said = "`optimizer.step(closure)` computes gradients that the ranks cannot bring together"
    assert launch.process.returncode == 2 and said in ended["error"]["message"], ended


# -- without a launch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [60, 61, 5])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_each_part_of_a_batch_is_what_the_sampler_of_that_rank_gives(length: int, shuffle: bool, drop: bool) -> None:
    data = TensorDataset(torch.arange(length))
    samplers = [DistributedSampler(data, 3, rank, shuffle=shuffle, drop_last=drop) for rank in range(3)]
    for each in samplers:
        each.set_epoch(7)
    loaders = [DataLoader(data, batch_size=4, sampler=each, drop_last=drop and length > 12) for each in samplers]
    shared = [shared_loader(loader, rank=rank, ranks=3) for rank, loader in enumerate(loaders)]
    for rank, (mine, theirs) in enumerate(zip(shared, loaders, strict=True)):
        assert mine is not None
        mine.share_with(rank, 3)
        assert len(mine) == len(theirs)
        read = [batch.value[0].tolist() for batch in mine.batches(0, 0)]
        assert read == [batch[0].tolist() for batch in theirs]
        mine.close()


def test_batches_stay_those_of_as_many_ranks_as_the_run_began_with() -> None:
    data = TensorDataset(torch.arange(61))
    began, fewer = (AllReplicas(DistributedSampler(data, ranks, 0), 4, False) for ranks in (4, 3))
    assert list(began) != list(fewer)
    fewer.load_state_dict(began.state_dict())
    assert list(began) == list(fewer) and len(began) == len(fewer) == 4


class InTurns(DistributedSampler[Any]):
    """With an order of its own."""

    def __iter__(self) -> Any:
        return iter(range(self.rank, len(self.dataset), self.num_replicas))  # type: ignore[arg-type]


def test_a_sampler_of_the_scripts_own() -> None:
    data = TensorDataset(torch.arange(8))
    every = AllReplicas(InTurns(data, 2, 1), 2, False)
    assert list(every) == [[0, 2, 1, 3], [4, 6, 5, 7]]
    every.load_state_dict({"replicas": 4})
    with pytest.raises(UserError, match="cannot be used with another number of ranks"):
        list(every)


class Drawn(DistributedSampler[Any]):
    """Draws from a generator that it keeps: each time another order."""

    source = torch.Generator().manual_seed(1)

    def __iter__(self) -> Any:
        return iter(torch.randperm(64, generator=self.source).tolist()[self.rank :: self.num_replicas])


def test_a_sampler_that_gives_another_order_each_time_is_refused() -> None:
    with pytest.raises(UserError, match="a Drawn gives another order each time it is asked"):
        list(AllReplicas(Drawn(TensorDataset(torch.arange(64)), 2, 0), 2, False))


def test_loaders_that_no_sampler_shares_out() -> None:
    data = TensorDataset(torch.arange(8))
    assert shared_loader(DataLoader(data, shuffle=True), rank=0, ranks=2) is None
    assert shared_loader(DataLoader(data, batch_size=None), rank=0, ranks=2) is None
    assert shared_loader([1, 2, 3], rank=0, ranks=2) is None
    with pytest.raises(UserError, match="is for rank 0 of 4, and this is rank 0 of 2"):
        shared_loader(DataLoader(data, sampler=DistributedSampler(data, 4, 0)), rank=0, ranks=2)


def test_a_loader_with_a_sampler_of_each_rank_is_refused() -> None:
    data = TensorDataset(torch.arange(8))
    loader = holdfast.Loader(data, batch_size=4, sampler=DistributedSampler(data, 2, 0))
    loader.share_with(0, 1)
    with pytest.raises(UserError, match="would leave samples out"):
        loader.share_with(0, 2)


_BY_NAME = """
import torch.distributed as dist
from holdfast.distributed import script_calls

before = dist.init_process_group
script_calls.install()
script_calls.install()
from torch.distributed import destroy_process_group, init_process_group
assert init_process_group is not before and init_process_group.__name__ == "init_process_group"
init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with script_calls.group_is_here():
    init_process_group("nccl")
    mine = dist.new_group([0])
    destroy_process_group(mine)
    destroy_process_group()
    assert dist.is_initialized()
destroy_process_group()
assert not dist.is_initialized()
"""


def test_functions_that_a_script_took_by_name() -> None:
    env = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", _BY_NAME], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
