"""The order of samples, their seeds and the proof of coverage."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from holdfast.data.generators import NAMES, borrowed, seed
from holdfast.data.sample_order import Coverage, Epoch, collate_seeds, fingerprint, permutation, sample_seeds


def draw() -> tuple[float, float, float, float]:
    # randn and standard_normal keep a second value back: a generator's state is more than its words.
    return torch.rand(()).item(), np.random.rand(), np.random.standard_normal(), random.gauss(0, 1)


def epoch(number: int = 0, **changes: object) -> Epoch:
    settings = {"seed": 7, "length": 37, "batch_size": 5, "shuffle": True, "drop_last": False, **changes}
    return Epoch(number=number, **settings)  # type: ignore[arg-type]


def test_the_order_is_pinned() -> None:
    """A run saved by one version is resumed by another: these numbers must never change."""
    assert permutation(7, 0, 10).tolist() == ORDER_7_0
    assert permutation(7, 1, 10).tolist() == ORDER_7_1
    assert sample_seeds(7, 1, np.array([3]))[0].tolist() == SEEDS_7_1_3
    assert collate_seeds(7, 1, 2) == COLLATE_7_1_2
    assert fingerprint(np.arange(10)) == FINGERPRINT_10


ORDER_7_0 = [5, 0, 3, 9, 2, 4, 8, 7, 6, 1]
ORDER_7_1 = [1, 0, 8, 6, 2, 4, 5, 9, 3, 7]
SEEDS_7_1_3 = [18024100423580344883, 15844714479165655396, 10055394077108308285]
COLLATE_7_1_2 = [2833084399275629293, 14488259888047565892, 7009566232703504701]
FINGERPRINT_10 = 7438657777315996608


def test_every_sample_is_there_once() -> None:
    plan = epoch()
    seen = np.concatenate([plan.samples(batch) for batch in range(len(plan))])
    assert sorted(seen) == list(range(37))
    assert [len(plan.samples(batch)) for batch in range(len(plan))] == [5] * 7 + [2]


def test_drop_last_drops_the_rest() -> None:
    plan = epoch(drop_last=True)
    assert len(plan) == 7
    assert plan.expected().count == 35


def test_without_shuffle_the_order_is_plain() -> None:
    assert epoch(shuffle=False).samples(1).tolist() == [5, 6, 7, 8, 9]


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permutation(seed, number, 50)) for seed in (0, 1, -1, 2**70) for number in range(5)}
    assert len(orders) == 4 * 5 - 5  # 2**70 is 0 in 64 bits


def test_the_order_is_uniform() -> None:
    """Each sample comes first equally often: chi-square over 20 places, far below its 1e-6 quantile."""
    firsts = [permutation(seed, 0, 20)[0] for seed in range(4000)]
    counts = np.bincount(firsts, minlength=20)
    assert ((counts - 200) ** 2 / 200).sum() < 65


def test_seeds_fix_all_three_generators_and_differ_by_sample() -> None:
    drawn = []
    for words in sample_seeds(7, 0, np.array([1, 2, 1])).tolist():
        seed(words, NAMES)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert all(a != b for a, b in zip(drawn[0], drawn[1], strict=True))


def test_borrowed_generators_come_back_as_they_were() -> None:
    for state in (draw, lambda: None):
        seed([1, 2, 3], NAMES)
        state()
        with borrowed(NAMES):
            seed([4, 5, 6], NAMES)
            draw()
        after = draw()
        seed([1, 2, 3], NAMES)
        state()
        assert after == draw()


def test_borrowed_generators_come_back_after_an_error() -> None:
    seed([1, 2, 3], NAMES)
    with pytest.raises(ValueError, match="boom"), borrowed(NAMES):
        draw()
        raise ValueError("boom")
    after = draw()
    seed([1, 2, 3], NAMES)
    assert after == draw()


@pytest.mark.parametrize(
    ("seen", "skipped", "repeated"),
    [
        ([0, 1, 2, 3], 0, 0),
        ([3, 1, 0, 2], 0, 0),
        ([0, 1, 2], 1, 0),
        ([0, 1, 2, 3, 3, 3], 0, 2),
        ([0, 1, 2, 2], 1, 1),
    ],
)
def test_coverage_tells_what_was_skipped_or_repeated(seen: list[int], skipped: int, repeated: int) -> None:
    plan = epoch(length=4, batch_size=2)
    coverage = Coverage()
    for index in seen:
        coverage.add(np.array([index]))
    assert coverage.compare(plan.expected()) == (skipped, repeated)
