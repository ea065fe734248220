"""Loader: the same bits with any number of children, from any batch on, whatever else draws or iterates."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from holdfast.data.loader import Loader
from tests.data.loaders import LENGTH, POSIX, TIDY, Augmented, make, values

pytestmark = [POSIX, TIDY]


def mixup(items: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.stack(items) + torch.rand(()) + np.random.rand() + random.random()


@pytest.mark.parametrize("workers", [1, 2])
def test_children_give_the_same_bits_as_none(workers: int, undisturbed: torch.Tensor) -> None:
    loader = make(workers=workers)
    assert torch.equal(values(loader), undisturbed)
    loader.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_collate_function_that_draws_gives_the_same_bits(workers: int) -> None:
    loaders = [make(workers=count, collate_fn=mixup) for count in (0, workers)]
    here, there = (torch.cat(list(loader)) for loader in loaders)
    assert torch.equal(here, there)
    loaders[1].close()


def test_sums_that_depend_on_threads_give_the_same_bits() -> None:
    class Sums(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randn(300_000).sum()[None]

    loaders = [make(Sums(4), workers=count) for count in (0, 1)]
    here, there = (torch.cat(list(loader)) for loader in loaders)
    assert torch.equal(here, there)
    loaders[1].close()


def test_batches_sent_by_value_are_the_same(undisturbed: torch.Tensor) -> None:
    loader = make()
    loader._fetcher.by_value = True
    assert torch.equal(values(loader), undisturbed)
    loader.close()


@pytest.mark.sample(3, 1)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_run_goes_on_at_any_batch(workers: int, undisturbed: torch.Tensor) -> None:
    loader = make(workers=workers)
    trained = []
    saved: list[str] = []
    for batch in loader.batches(loader.epoch, loader.cursor):
        saved.append(json.dumps(loader.state_dict()))  # taken before this batch is complete: it comes again
        trained.append(batch.value)
        loader.advance(batch)
        if batch.index == 5:
            break
    for position, state in enumerate(saved):
        other = make(workers=workers)
        other.load_state_dict(json.loads(state))
        rest = [batch.value for batch in other.batches(other.epoch, other.cursor)]
        assert torch.equal(torch.cat(trained[:position] + rest), undisturbed[:LENGTH])
        other.close()
    loader.close()


def test_the_state_is_restored_over_another_seed_and_position() -> None:
    loader = make(workers=1)
    next(loader.batches(3, 4))  # children are under way with another job
    before = make(workers=0)
    for batch in before.batches(0, 0):
        before.advance(batch)
        if batch.index == 3:
            break
    state = before.state_dict()
    loader.seed = 999
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert torch.equal(next(loader.batches(0, 4)).value, next(before.batches(0, 4)).value)
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generators_of_the_training_are_left_alone(workers: int) -> None:
    def state() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), random.getstate()

    torch.manual_seed(3)
    np.random.seed(3)
    np.random.standard_normal()  # keeps a second value back
    random.seed(3)
    before, threads = state(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    loader = make(workers=workers)
    for _ in loader.batches(0, 0):
        assert state() == before
    list(loader)
    loader.close()
    assert state() == before
    left = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert left == threads + 1


def test_a_loader_without_a_seed_follows_the_script() -> None:
    def order() -> list[int]:
        return [index for batch in Loader(Augmented(), 5, shuffle=True).batches(0, 0) for index in batch.samples]

    torch.manual_seed(1)
    first = order()
    torch.rand(3)
    assert order() == first
    torch.manual_seed(2)
    assert order() != first


def test_plain_iteration_leaves_the_cursor_alone() -> None:
    loader = Loader(TensorDataset(torch.arange(10)), 4, num_workers=1)
    for _ in range(2):
        assert torch.cat([value[0] for value in loader]).tolist() == list(range(10))
    assert (loader.epoch, loader.cursor) == (0, 0)
    assert loader.state_dict()["coverage"]["count"] == 0
    loader.close()


def test_two_iterators_of_one_loader_do_not_mix() -> None:
    loader, plain = make(workers=2), make(workers=0)
    first, second = loader.batches(0, 0), loader.batches(1, 3)
    expected = [*plain.batches(0, 0)][:4], [*plain.batches(1, 3)][:4]
    for position in range(4):
        assert torch.equal(next(first).value, expected[0][position].value)
        assert torch.equal(next(second).value, expected[1][position].value)
    loader.close()


def test_leaving_an_epoch_early_leaves_nothing_of_it_in_the_next(undisturbed: torch.Tensor) -> None:
    loader = make(Augmented(seconds=0.002))
    for _ in range(5):
        for batch in loader.batches(0, 0):
            if batch.index == 2:
                break
    pids = loader._pool.pids
    assert torch.equal(torch.cat([batch.value for batch in loader.batches(1, 0)]), undisturbed[LENGTH:])
    assert loader._pool.pids == pids  # and all that with the same children
    loader.close()
