"""Batches that fit into the pipe: the same bits as through shared memory, and what does not fit goes as before."""

from __future__ import annotations

import os
import pickle
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from holdfast.data.loader import Loader
from holdfast.data.small_batch import packed, room_of_a_pipe, widened
from tests.data.loaders import POSIX, TIDY

ROOM = 1 << 16
Pair = namedtuple("Pair", "x y")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a pipe holds")
PLAIN = {
    "floats": torch.randn(7, 3),
    "one number": torch.tensor(2.5),
    "none": torch.empty(0, 4),
    "half": torch.randn(5).half(),
    "bfloat16": torch.randn(5).bfloat16(),
    "flags": torch.tensor([True, False]),
    "complex": torch.randn(3, dtype=torch.complex64),
    "integers": torch.arange(9),
    "not a number": torch.tensor([float("nan"), -0.0, float("inf")]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_tensor_comes_out_as_it_went_in(name: str) -> None:
    tensor = PLAIN[name]
    payload = packed(tensor, ROOM)
    assert payload is not None
    back = pickle.loads(payload)
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert back.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()
    assert back.data_ptr() % 64 == 0, "as torch makes it: some products depend on where a tensor begins"


def test_a_nest_of_tensors_keeps_its_form() -> None:
    value = {"a": [torch.ones(2), "text"], "b": Pair(torch.zeros(1), 7), "c": (None, 1.5)}
    payload = packed(value, ROOM)
    assert payload is not None
    back = pickle.loads(payload)
    assert type(back["b"]) is Pair
    assert torch.equal(back["a"][0], torch.ones(2))
    assert (back["a"][1], back["b"].y, back["c"]) == ("text", 7, (None, 1.5))


def _shared_twice() -> list[torch.Tensor]:
    whole = torch.randn(4, 4)
    return [whole.view(16), whole]


OTHERS: dict[str, Any] = {
    "a view": torch.randn(4, 4)[1:],
    "two of the same memory": _shared_twice(),
    "columns": torch.randn(4, 4).t(),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "with a gradient": torch.ones(2, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "too large": torch.zeros(ROOM // 4 + 1),
    "too large together": [torch.zeros(ROOM // 8), torch.ones(ROOM // 8), torch.ones(1)],
    "a storage": torch.ones(3).untyped_storage(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_more_than_its_bytes_goes_another_way(name: str) -> None:
    assert packed(OTHERS[name], ROOM) is None


@LINUX
def test_a_pipe_is_widened_as_far_as_it_goes() -> None:
    reader, writer = os.pipe()
    try:
        held = widened(writer)
        os.set_blocking(writer, False)
        assert os.write(writer, bytes(held)) == held
        with pytest.raises(BlockingIOError):
            os.write(writer, b"x")
    finally:
        os.close(reader)
        os.close(writer)
    assert room_of_a_pipe() == held
    assert widened(os.open(os.devnull, os.O_RDONLY)) == 0, "not a pipe"


class Rows(Dataset):  # type: ignore[type-arg]
    """Each sample says who has read it."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return torch.full((self.width,), float(index)), -1 if info is None else info.id


def stacked(items: list[Any]) -> Any:
    return default_collate(items)


@POSIX
@TIDY
@pytest.mark.parametrize("collate", [None, stacked])
@pytest.mark.parametrize("width", [3, 1 << 18])
def test_a_loader_gives_the_same_either_way(width: int, collate: Any) -> None:
    """Small and large, with torch's own collate function and one of the script's."""
    batches = {}
    for workers in (0, 1):
        loader = Loader(Rows(width), batch_size=4, shuffle=True, num_workers=workers, collate_fn=collate)
        batches[workers] = [batch for _ in range(2) for batch in loader]
        loader.close()
    assert len(batches[0]) == len(batches[1]) == 6
    for (here, nobody), (there, readers) in zip(batches[0], batches[1], strict=True):
        assert torch.equal(here, there)
        assert nobody.tolist() == [-1] * 4
        assert readers.tolist() == [0] * 4, "a dataset finds itself in a loader process"
        if sys.platform == "linux":
            assert there.is_shared() == (width > 3)


@POSIX
@TIDY
def test_batches_may_grow_out_of_the_pipe_and_back() -> None:
    class Uneven(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.full((3 if index % 8 < 4 else self.width,), float(index)), index

    loader = Loader(Uneven(1 << 18), batch_size=4, num_workers=1, shuffle=False)
    seen = [(values.shape[1], number.tolist(), values.is_shared()) for values, number in loader]
    loader.close()
    shared = sys.platform == "linux"
    assert [(width, numbers) for width, numbers, _ in seen] == [
        (3, [0, 1, 2, 3]),
        (1 << 18, [4, 5, 6, 7]),
        (3, [8, 9, 10, 11]),
    ]
    if shared:
        assert [each for *_, each in seen] == [False, True, False]
