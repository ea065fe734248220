"""Samplers, batch samplers and generators of a Loader: the order of torch, again in another process, or an error."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, get_worker_info

from holdfast import Loader
from holdfast.base.errors import UserError

NUMBERS = TensorDataset(torch.arange(10))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def epoch_of(data: Loader, start: int = 0) -> list[list[int]]:
    found = []
    for batch in data.batches(data.epoch, start):
        found.append(batch.value[0].tolist())
        data.advance(batch)
    data.finish_epoch()
    return found


class Buckets:
    """Batches in another order each time, which it counts by itself."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9]]
        random.Random(self.times).shuffle(batches)
        self.times += 1
        return iter(batches)

    def __len__(self) -> int:
        return 4


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "weighted": lambda: {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 10, 8, generator=seeded())},
    "generator": lambda: {"batch_size": 3, "shuffle": True, "generator": seeded()},
    "batch sampler": lambda: {"batch_sampler": Buckets()},
    "a list": lambda: {"batch_size": 2, "sampler": [9, 1, 9, 4, 4], "drop_last": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_order_is_that_of_torch(way: str) -> None:
    data, alone = Loader(NUMBERS, **WAYS[way]()), DataLoader(NUMBERS, **WAYS[way]())
    assert len(data) == len(alone)
    for _ in range(3):
        assert epoch_of(data) == [value[0].tolist() for value in alone]
    assert (data.skipped, data.repeated) == (0, 0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", [*WAYS, "global"])
@pytest.mark.parametrize("workers", [0, 1])
def test_another_process_has_the_rest_of_the_epoch_and_the_next(way: str, workers: int) -> None:
    def made() -> Loader:
        how = {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 10, 8), "seed": 5}
        return Loader(NUMBERS, **(WAYS[way]() if way in WAYS else how), num_workers=workers)

    data = made()
    epoch_of(data)
    batches = data.batches(1, 0)
    data.advance(next(batches))
    state = copy.deepcopy(data.state_dict())
    rest = [batch.value[0].tolist() for batch in batches]
    for _ in rest:
        data.advance(next(iter(data.batches(1, data.cursor))))
    data.finish_epoch()
    following = epoch_of(data)
    data.close()
    torch.manual_seed(99)
    other = made()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    other.load_state_dict(state)
    assert epoch_of(other, 1) == rest
    assert epoch_of(other) == following
    assert (other.skipped, other.repeated) == (0, 0)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    other.close()


class Hard:
    """Samples that the script found hard come once more."""

    def __init__(self) -> None:
        self.hard: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter([*range(10), *self.hard])

    def __len__(self) -> int:
        return 10 + len(self.hard)


def test_an_epoch_after_a_rollback_has_the_length_it_began_with() -> None:
    """A step of it was rolled back, and the script changes the sampler after the last batch."""
    sampler = Hard()
    data = Loader(NUMBERS, batch_size=5, sampler=sampler)
    passing = data.batches(0, 0)
    data.advance(next(passing))
    data.load_state_dict(copy.deepcopy(data.state_dict()))
    data.advance(next(passing))
    assert list(passing) == []
    sampler.hard += [3, 4]
    data.finish_epoch()
    assert (data.epoch, data.skipped, data.repeated) == (1, 0, 0)
    assert len(list(data.batches(1, 0))) == 3


def test_a_sampler_that_was_changed_and_is_not_is_an_error() -> None:
    sampler = Hard()
    data = Loader(NUMBERS, batch_size=5, sampler=sampler)
    epoch_of(data)
    sampler.hard += [3, 4]
    between = copy.deepcopy(data.state_dict())
    data.advance(next(data.batches(1, 0)))
    within = copy.deepcopy(data.state_dict())
    for state, start in ((between, 0), (within, 1)):
        other = Loader(NUMBERS, batch_size=5, sampler=Hard())
        other.load_state_dict(state)
        with pytest.raises(UserError, match="the Hard gives another order than before the run was interrupted"):
            epoch_of(other, start)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sampler": [1], "shuffle": True}, "both say the order"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler says the order and the batches"),
        ({"sampler": 3}, "has no __iter__"),
        ({"sampler": iter([1, 2])}, "can be asked only once"),
        ({"generator": 3, "shuffle": True}, "torch.Generator"),
        ({"in_order": False}, "no other process could repeat"),
        ({"timeout": -1}, "timeout is -1"),
        ({"multiprocessing_context": "fork"}, "num_workers is 0"),
        ({"multiprocessing_context": "spoon", "num_workers": 1}, "this system has"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Loader(NUMBERS, **arguments)


@pytest.mark.parametrize(
    ("sampler", "said"),
    [(["a"], "whole numbers"), ([3, 12], "gives sample 12"), ([], "no batch at all")],
)
def test_what_a_sampler_must_not_give(sampler: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        epoch_of(Loader(NUMBERS, sampler=sampler))


class Opened(torch.utils.data.Dataset):
    """Has its file only in a loader process."""

    file: str = ""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index if self.file == "open" else -1


def open_file(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == worker
    info.dataset.file = "open"


@pytest.mark.all
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_init_fn_finds_the_dataset_of_the_script(context: str) -> None:
    data = Loader(Opened(), 2, num_workers=1, worker_init_fn=open_file, multiprocessing_context=context, timeout=60)
    assert [batch.tolist() for batch in data] == [[0, 1], [2, 3]]
    data.close()


def test_a_step_that_is_rolled_back_to_before_its_epoch_keeps_the_order_that_was_begun() -> None:
    data = Loader(NUMBERS, batch_size=3, shuffle=True, generator=seeded())
    epoch_of(data)
    before = copy.deepcopy(data.state_dict())
    batches = data.batches(1, 0)
    found = [next(batches).value[0].tolist()]
    data.load_state_dict(before)
    data.advance(next(iter(data.batches(1, 0))))
    found += [batch.value[0].tolist() for batch in batches]
    assert sorted(sample for batch in found for sample in batch) == list(range(10)) and len(data) == 4
