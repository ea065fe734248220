"""Windows on their way into the loop: whole batches are the bits of single windows, in memory that is used again."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast
from holdfast.workloads.eeg import cache
from holdfast.workloads.eeg.training import Places, Samples
from tests.workloads.eeg import small


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    windows = cache.open(small.challenge1(tmp_path / "cache", subjects=4, trials=5))
    rows = np.arange(len(windows))[::2]
    targets = windows.table["response_time"][rows, None]
    return Samples(windows, rows, targets, domain=np.arange(len(rows)), fold=np.arange(len(rows)) % 3)


def test_a_whole_batch_has_the_bits_of_its_windows(samples: Samples) -> None:
    wanted = [3, 0, 7]
    whole = samples.batch_of(wanted)
    assert whole is not None
    one_by_one = torch.utils.data.default_collate([samples[index] for index in wanted])
    assert len(whole) == len(one_by_one)
    for here, there in zip(whole, one_by_one, strict=True):
        assert here.dtype == there.dtype and torch.equal(here, there)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_takes_whole_batches_and_gives_the_same(samples: Samples, workers: int) -> None:
    class Single(Samples):
        batch_of = None  # type: ignore[assignment]

    single = Single.__new__(Single)
    single.__dict__.update(samples.__dict__)
    mine = holdfast.Loader(samples, batch_size=4, shuffle=True, seed=3, num_workers=workers)
    for here, there in zip(mine, holdfast.Loader(single, batch_size=4, shuffle=True, seed=3), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


def test_varied_or_cut_windows_come_one_by_one(samples: Samples) -> None:
    varied = Samples(samples.windows, samples.rows, samples.targets.numpy(), augment=1.0)
    cut = Samples(samples.windows, samples.rows, samples.targets.numpy(), length=100)
    assert varied.batch_of([0, 1]) is None
    assert cut.batch_of([0, 1]) is None


def test_memory_is_used_again_when_nobody_has_it_any_more() -> None:
    places = Places(most=3)
    first = torch.from_numpy(places.take((4, 5)))
    address, view = first.data_ptr(), first[1:, 2]
    second = torch.from_numpy(places.take((4, 5)))
    assert second.data_ptr() != address
    del first
    assert torch.from_numpy(places.take((4, 5))).data_ptr() != address, "a view of it is still there"
    del view
    assert torch.from_numpy(places.take((4, 5))).data_ptr() == address
    kept = [torch.from_numpy(places.take((4, 5))).fill_(number) for number in range(10)]
    assert [float(each.mean()) for each in kept] == list(range(10))
    assert pickle.loads(pickle.dumps(places)).take((1,)).shape == (1,)
