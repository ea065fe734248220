"""Loader: an error of the user's code comes as it is and names its sample; wrong arguments are refused at once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from holdfast.base.errors import UserError
from holdfast.data.loader import Loader
from tests.data.loaders import POSIX, TIDY, At, Augmented, Event, make, record, values

pytestmark = [POSIX, TIDY]


# Errors of the user's code.


class BadFile(Exception):
    """Cannot be rebuilt by calling it with its own args."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line} is damaged")
        self.line = line


def raise_bad_file() -> None:
    raise BadFile("a.png", 12)


def raise_unicode_error() -> None:
    b"\xff".decode("utf-8")


def raise_key_error() -> None:
    dict[str, int]()["label"]


def raise_stop_iteration() -> None:
    next(iter([]))


@pytest.mark.sample(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("act", "kind"),
    [(raise_bad_file, BadFile), (raise_unicode_error, UnicodeDecodeError), (raise_key_error, KeyError)],
)
def test_an_error_in_the_dataset_comes_as_it_is(
    workers: int,
    act: Callable[[], None],
    kind: type[Exception],
    undisturbed: torch.Tensor,
    events: list[Event],
) -> None:
    index = int(undisturbed[9, 0])  # in batch 2
    loader = record(make(At(index, act), workers=workers), events)
    got = []
    with pytest.raises(kind) as caught:
        for batch in loader.batches(0, 0):
            got.append(batch.index)
    assert got == [0, 1]
    assert type(caught.value) is kind
    text = "".join(traceback.format_exception(caught.value))
    assert act.__name__ in text  # the line that raised, wherever it ran
    assert f"raised by dataset[{index}], in batch 2 of epoch 0" in text
    if kind is BadFile:
        assert caught.value.line == 12  # type: ignore[attr-defined]
        assert str(caught.value) == "a.png:12 is damaged"
    assert events == []
    loader.close()


def test_an_error_of_a_class_that_cannot_travel_keeps_its_words() -> None:
    class Local(Exception):
        pass

    def act() -> None:
        raise Local("only here")

    loader = make(At(3, act))
    with pytest.raises(RuntimeError, match="Local: only here"):
        values(loader)
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_in_the_dataset_does_not_end_the_epoch(workers: int) -> None:
    loader = make(At(3, raise_stop_iteration), workers=workers)
    with pytest.raises(RuntimeError, match="StopIteration"):
        values(loader)
    loader.close()


def test_the_loader_goes_on_after_an_error(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    loader = make(At(int(undisturbed[9, 0]), raise_key_error, tmp_path / "done"))
    with pytest.raises(KeyError):
        values(loader)
    pids = loader._pool.pids
    assert torch.equal(values(loader), undisturbed)
    assert loader._pool.pids == pids
    loader.close()


def unpicklable(items: list[Any]) -> Any:
    return lambda: items


def test_a_batch_that_cannot_be_pickled_is_an_error_and_no_hang() -> None:
    loader = make(collate_fn=unpicklable)
    with pytest.raises(Exception, match="pickle"):
        next(loader.batches(0, 0))
    loader.close()


# Arguments.


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": []}, "is empty"),
        ({"dataset": Stream()}, "`Stream` has not both"),
        ({"dataset": Dataset()}, "`Dataset` has not both"),
        ({"dataset": 3}, "`int` has not both"),
        ({"dataset": DataLoader(TensorDataset(torch.arange(3)))}, "`DataLoader` has not both"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": -2}, "batch_size is -2"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": None}, "batch_size is None"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"prefetch_factor": 0}, "prefetch_factor is 0"),
        ({"seed": "one"}, "seed is 'one'"),
        ({"batch_size": 50, "drop_last": True}, "drop_last leaves no batch"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Loader(**{"dataset": Augmented(), **arguments})


def test_numbers_of_numpy_are_numbers() -> None:
    ten: Any = np.int64(10)
    assert len(Loader(Augmented(), ten)) == 4
    assert len(Loader(Augmented(), 10, drop_last=True)) == 3
