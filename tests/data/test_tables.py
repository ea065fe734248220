"""Batches of tensors in memory are taken out of them by one copy: bit by bit what torch's collate function makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from holdfast import Loader
from holdfast.data.loader_child import Fetcher, Ticket, fetch_here

COUNT = 40


def tensors() -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(4)
    pictures = torch.randn(COUNT, 3, 5, 5, generator=source)
    numbers = torch.randint(9, (COUNT,), generator=source)
    return [pictures, numbers, torch.randn(COUNT, 2, generator=source).double(), numbers > 4]


def table(*chosen: int) -> TensorDataset:
    every = tensors()
    return TensorDataset(*(every[at] for at in chosen or range(len(every))))


MADE: dict[str, Callable[[], Any]] = {
    "whole": table,
    "one tensor": lambda: table(1),
    "part, a list": lambda: Subset(table(), [7, 3, 3, 39, 0, 11]),
    "part, a range": lambda: Subset(table(), range(4, 20)),
    "part, an array": lambda: Subset(table(), np.arange(5, 25)),  # type: ignore[arg-type]
    "part, a tensor": lambda: Subset(table(), torch.arange(9)),  # type: ignore[arg-type]
    "part of a part": lambda: Subset(Subset(table(0, 1), range(10, 30)), [19, 0, 5]),
    "counted from the end": lambda: Subset(table(), [-1, 2, -5]),
    "bf16": lambda: TensorDataset(tensors()[0].bfloat16(), tensors()[1]),
    "strided": lambda: TensorDataset(tensors()[0].transpose(1, 3)),
    "with a gradient": lambda: TensorDataset(tensors()[2].requires_grad_()),
}


def batch(dataset: Any, samples: Any = None) -> tuple[Fetcher, Any, list[int]]:
    wanted = np.arange(len(dataset))[::-1] if samples is None else np.asarray(samples)
    fetcher = Fetcher(dataset, None)
    return fetcher, fetch_here(fetcher, Ticket(1, 0, 0, wanted.astype(np.int64).copy())), wanted.tolist()


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted) and len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other) and (one.dtype, one.stride()) == (other.dtype, other.stride())


@pytest.mark.parametrize("name", MADE)
def test_it_is_what_torch_makes_of_the_samples(name: str) -> None:
    dataset = MADE[name]()
    _, found, samples = batch(dataset)
    assert_same(found, default_collate([dataset[index] for index in samples]))


def test_samples_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda *_: pytest.fail("a sample was read"))
    for dataset in (MADE["whole"](), MADE["part of a part"]()):
        batch(dataset)


def test_a_class_of_one_s_own_is_asked_for_its_samples() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return tuple(2 * each for each in super().__getitem__(index))

    dataset = Doubled(tensors()[2])
    _, found, samples = batch(dataset)
    assert torch.equal(found[0], 2 * tensors()[2][samples])
    part = Subset(dataset, range(6))
    assert torch.equal(batch(part)[1][0], 2 * tensors()[2][list(range(5, -1, -1))])


def test_a_change_between_two_batches_is_seen() -> None:
    indices = [1, 2, 3]
    dataset = Subset(table(1), indices)
    fetcher, found, _ = batch(dataset)
    indices[0] = 9
    again = fetch_here(fetcher, Ticket(1, 0, 0, np.array([0, 1])))
    assert again[0].tolist() == tensors()[1][[9, 2]].tolist()
    whole = dataset.dataset
    assert isinstance(whole, TensorDataset)
    whole.tensors[0].add_(100)
    assert fetch_here(fetcher, Ticket(1, 0, 0, np.array([0])))[0].item() == tensors()[1][9] + 100
    whole.tensors = (tensors()[2],)
    assert torch.equal(fetch_here(fetcher, Ticket(1, 0, 0, np.array([1])))[0], tensors()[2][2:3])
    assert found[0].tolist() == tensors()[1][[3, 2, 1]].tolist(), "a batch is a copy"


def test_an_index_that_is_not_there_names_its_sample() -> None:
    with pytest.raises(IndexError) as caught:
        batch(Subset(table(), [1, COUNT + 3]))
    assert any("dataset[1]" in note for note in getattr(caught.value, "__notes__", ["dataset[1]"]))


def test_a_collate_function_gets_samples() -> None:
    seen: list[Any] = []
    data = Loader(table(1), batch_size=8, collate_fn=lambda items: seen.extend(items) or len(items))
    assert list(data) == [8] * 5 and all(type(item) is tuple for item in seen)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_same_batches_with_and_without_processes(workers: int) -> None:
    data: Dataset[Any] = table()
    loader = Loader(data, batch_size=7, shuffle=True, seed=3, num_workers=workers)
    try:
        found = list(loader)
    finally:
        loader.close()
    alone = list(Loader(Doubtful(data), batch_size=7, shuffle=True, seed=3))
    for one, other in zip(found, alone, strict=True):
        assert_same(one, other)


class Doubtful(Dataset[Any]):
    """The same samples, of a class that nobody knows."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]
