"""Loaders of others as they are: a new process goes on at each place with the batches of an undisturbed pass."""

from __future__ import annotations

import copy
import io
import os
import random
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from holdfast.base.errors import UserError
from holdfast.data.any_loader import AnyLoader

Make = Callable[[], Any]
Place = tuple[int, dict[str, Any], tuple[Any, ...]]


def generators() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def plain(value: Any) -> Any:
    return repr(value.tolist() if isinstance(value, torch.Tensor) else value)


def live(make: Make, epochs: int = 3, place: Place | None = None, notes: list[str] | None = None) -> Any:
    """The batches of a life from its beginning or from a place, and all places in it at which it might be gone on."""
    torch.manual_seed(1 if place is None else 77)
    random.seed(1 if place is None else 78)
    loader = make()
    data = AnyLoader(loader)
    data.source.on_note = (notes if notes is not None else []).append
    if place is not None:
        data.load_state_dict(copy.deepcopy(place[1]))
    waiting = [place[2]] if place is not None else []

    def ready() -> None:
        if waiting:
            set_generators(waiting.pop())

    out: list[Any] = []
    places: list[Place] = []
    while data.epoch < epochs:
        if not data.cursor:
            ready()
        for batch in data.batches(data.epoch, data.cursor, ready):
            torch.rand(2)  # what a dropout draws
            out.append((data.epoch, batch.index, plain(batch.value)))
            data.advance(batch)
            data.at_end()
            places.append((len(out), copy.deepcopy(data.state_dict()), generators()))
        data.finish_epoch()
        places.append((len(out), copy.deepcopy(data.state_dict()), generators()))
    return out, places


def check(make: Make, epochs: int = 3, *, every: int = 1) -> list[str]:
    notes: list[str] = []
    out, places = live(make, epochs)
    assert len(out) > epochs
    for place in places[::every]:
        again, _ = live(make, epochs, place, notes)
        assert again == out[place[0] :], place[0]
    return notes


class Noise(Dataset):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1) + random.random() + float(np.random.rand()) + index


class Counting(Sampler):
    """Another order in each epoch, which it counts by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = list(range(11))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return iter(order)

    def __len__(self) -> int:
        return 11


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(11):
            yield torch.rand(1) + index


def numbers() -> TensorDataset:
    return TensorDataset(torch.arange(22.0).reshape(11, 2))


def with_generator(**more: Any) -> DataLoader:
    return DataLoader(Noise(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(4), **more)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(numbers(), batch_size=3, shuffle=True),
        lambda: with_generator(),
        lambda: DataLoader(Noise(), batch_size=2, sampler=Counting()),
        lambda: DataLoader(Stream(), batch_size=3),
        Stream,
    ],
    ids=["shuffled", "generator", "counting sampler", "stream", "stream alone"],
)
def test_it_goes_on_at_each_place(make: Make) -> None:
    check(make)


def test_batches_are_those_of_torch_alone() -> None:
    def seeded() -> DataLoader:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        return with_generator()

    loader, alone = seeded(), []
    for epoch in range(2):
        for index, value in enumerate(loader):
            torch.rand(2)
            alone.append((epoch, index, plain(value)))
    data, held = AnyLoader(seeded()), []
    for epoch in range(2):
        for batch in data.batches(epoch, data.cursor):
            torch.rand(2)
            held.append((epoch, batch.index, plain(batch.value)))
            data.advance(batch)
            data.state_dict()
        data.finish_epoch()
    assert held == alone


@pytest.mark.all
def test_loader_processes_that_draw_are_followed_by_reading_again() -> None:
    notes = check(lambda: with_generator(num_workers=2, persistent_workers=True), epochs=2, every=3)
    assert "batches are read again and passed over: DataLoader cannot say its position" in notes[0]
    assert len(notes) == len({id(note) for note in notes}), "once in a process"


def test_an_order_of_its_own_is_an_error_that_says_so() -> None:
    class Unsteady(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.rand(12, generator=torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "big"))))

    _, places = live(lambda: DataLoader(Unsteady(), batch_size=2), epochs=1)
    with pytest.raises(UserError, match="DataLoader gives other batches than before: there is no way back to batch 2"):
        live(lambda: DataLoader(Unsteady(), batch_size=2), 1, places[1])


class Tokens:
    """Goes on where it is, in each pass."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.place += 1
            yield torch.tensor([self.place])

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def test_a_stream_that_goes_on_where_it_was_left_does_so_after_a_restart() -> None:
    def life(state: dict[str, Any] | None, epochs: int) -> tuple[list[int], dict[str, Any]]:
        data, found = AnyLoader(Tokens()), []
        if state is not None:
            data.load_state_dict(state)
        for _ in range(epochs):
            for batch in data.batches(data.epoch, data.cursor):
                found.append(int(batch.value))
                data.advance(batch)
                if batch.index == 2:
                    break
            data.finish_epoch(left=True)
        return found, data.state_dict()

    first, state = life(None, 1)
    assert first == [1, 2, 3]
    assert life(copy.deepcopy(state), 2)[0] == [4, 5, 6, 7, 8, 9]


def test_a_dead_loader_process_is_replaced_and_no_batch_is_lost() -> None:
    wanted, _ = live(lambda: with_generator(num_workers=1), epochs=1)
    torch.manual_seed(1)
    random.seed(1)
    data, found, events = AnyLoader(with_generator(num_workers=1)), [], []
    data.on_event = lambda kind, details: events.append((kind, details["batch"]))
    for batch in data.batches(0, 0):
        torch.rand(2)
        found.append((0, batch.index, plain(batch.value)))
        data.advance(batch)
        if batch.index == 1:
            os.kill(data._track._it._workers[0].pid, signal.SIGKILL)  # type: ignore[union-attr]
            data._track._it._workers[0].join()  # type: ignore[union-attr]
    assert found == wanted
    assert events and events[0][0] == "loader_died"


# Libraries of others, where they are installed.


def test_torchdata() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata").StatefulDataLoader
    assert check(lambda: stateful(numbers(), batch_size=3, shuffle=True)) == []
    check(lambda: stateful(Noise(), batch_size=3, shuffle=True))
    check(lambda: stateful(Noise(), batch_size=4, shuffle=True, num_workers=2), epochs=2, every=3)


def rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for row in range(5):
            yield {"a": 10 * shard + row}


def test_streams_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets")

    def stream() -> Any:
        return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2]})

    assert check(stream) == [], "it says its position"
    assert check(lambda: DataLoader(stream(), batch_size=4)) == []
    assert (
        "cannot say its position" in check(lambda: DataLoader(stream().shuffle(seed=3, buffer_size=5), batch_size=4))[0]
    )


def test_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    for shard in range(3):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for row in range(4):
                text = str(10 * shard + row).encode()
                about = tarfile.TarInfo(f"{shard}{row}.txt")
                about.size = len(text)
                tar.addfile(about, io.BytesIO(text))
    shards = str(tmp_path / "{0..2}.tar")
    check(lambda: webdataset.WebDataset(shards, shardshuffle=False).decode(), every=3)
    check(lambda: webdataset.WebDataset(shards, shardshuffle=3, detshuffle=True, seed=3).decode(), every=3)
    shuffled = lambda: webdataset.WebDataset(shards, shardshuffle=False).shuffle(5)  # noqa: E731 - by time and process
    _, places = live(shuffled, 1)
    with pytest.raises(UserError, match="gives other batches than before"):
        live(shuffled, 1, places[4])
