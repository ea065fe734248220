"""Loader: a dataset may give whole batches in one go, `batch_of`, as long as it draws no random number there."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from holdfast.base.errors import UserError
from holdfast.data.loader import Loader
from tests.data.loaders import LENGTH, POSIX, SIZE, TIDY, Augmented

pytestmark = [POSIX, TIDY]


class InOneGo(Augmented):
    """Gives whole batches, unless it is told not to."""

    def __init__(self, wrong: int = -1) -> None:
        super().__init__()
        self.wrong = wrong

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.wrong:
            raise ValueError("this one is damaged")
        return torch.tensor([index, 1])

    def batch_of(self, indices: list[int]) -> torch.Tensor:
        if self.wrong in indices:
            raise RuntimeError("something in here is damaged")
        return torch.tensor([[index, 2] for index in indices])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_give_whole_batches(workers: int) -> None:
    loader = Loader(InOneGo(), SIZE, shuffle=True, seed=5, num_workers=workers)
    values = list(loader)
    assert sorted(int(row[0]) for value in values for row in value) == list(range(LENGTH))
    assert all(int(row[1]) == 2 for value in values for row in value)
    loader.close()


def test_with_a_collate_function_samples_come_one_by_one() -> None:
    values = list(Loader(InOneGo(), SIZE, collate_fn=torch.stack))
    assert all(int(row[1]) == 1 for value in values for row in value)


def test_what_a_whole_batch_raises_names_its_sample() -> None:
    with pytest.raises(ValueError, match="this one is damaged") as caught:
        list(Loader(InOneGo(wrong=7), SIZE))
    assert any("dataset[7]" in note for note in getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("draw", [torch.randn, np.random.standard_normal, lambda _: random.random()])
def test_a_whole_batch_that_draws_is_refused(draw: Callable[[int], object]) -> None:
    class Careless(InOneGo):
        def batch_of(self, indices: list[int]) -> torch.Tensor:
            draw(1)
            return super().batch_of(indices)

    with pytest.raises(UserError, match="`batch_of` of Careless drew a random number"):
        list(Loader(Careless(), SIZE))
