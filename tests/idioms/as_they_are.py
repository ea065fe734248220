"""Loaders of torch and of others as they are, without holdfast.Loader: given to session.protect and session.batches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from holdfast.worker.session import Session
from tests.idioms.pieces import Log, idiom, loss_of, moment, net, samples


def fit(model: nn.Module, data: Iterable[Any], log: Log, epochs: int = 3) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            log(loss=loss.item())
    return model


def fit_held(session: Session, model: nn.Module, data: Any, epochs: int = 3) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            loss = session.step(lambda b: loss_of(model, b), batch)
            moment(session)
            session.log(loss=loss)


def shuffled() -> tuple[DataLoader, nn.Module]:
    return DataLoader(samples(), batch_size=4, shuffle=True), net(0.2)


def shuffled_plain(log: Log) -> nn.Module:
    data, model = shuffled()
    return fit(model, data, log)


@idiom("a torch DataLoader as it is, shuffled, with dropout", plain=shuffled_plain)
def dataloader(session: Session) -> None:
    data, model = shuffled()
    fit_held(session, model, data)


class Noisy(Dataset):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.rand(6) + random.random() + float(np.random.rand()), torch.ones(1) * index


def noisy(workers: int) -> tuple[DataLoader, nn.Module]:
    g = torch.Generator().manual_seed(3)
    return DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers, generator=g), net(0.2)


def noisy_plain(log: Log) -> nn.Module:
    data, model = noisy(0)
    return fit(model, data, log)


@idiom("a torch DataLoader with generator= and random augmentation", plain=noisy_plain)
def dataloader_noisy(session: Session) -> None:
    data, model = noisy(0)
    fit_held(session, model, data)


def noisy_workers_plain(log: Log) -> nn.Module:
    data, model = noisy(2)
    return fit(model, data, log)


@idiom("a torch DataLoader with two workers that augment", plain=noisy_workers_plain)
def dataloader_workers(session: Session) -> None:
    data, model = noisy(2)
    fit_held(session, model, data)


class Stream(IterableDataset):
    """Samples one after the other, of a number that nobody says beforehand."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(23):
            x = torch.ones(6) * index / 10 + torch.rand(6)
            yield x, x.sum().reshape(1)


def streamed() -> tuple[DataLoader, nn.Module]:
    return DataLoader(Stream(), batch_size=4), net(0.2)


def streamed_plain(log: Log) -> nn.Module:
    data, model = streamed()
    return fit(model, data, log)


@idiom("an IterableDataset in a DataLoader, with random numbers", plain=streamed_plain)
def iterable(session: Session) -> None:
    data, model = streamed()
    fit_held(session, model, data)


class Tokens:
    """A stream without an end, which goes on where it is: each pass over it takes up where the last one was left."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[list[Tensor]]:
        while True:
            x = torch.sin(torch.arange(24.0).reshape(4, 6) + self.place)
            self.place += 1
            yield [x, x.sum(dim=1, keepdim=True)]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def tokens_plain(log: Log) -> nn.Module:
    data, model = Tokens(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for i, batch in enumerate(data):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            log(first=batch[0][0, 0].item())
            if i == 5:
                break
    return model


@idiom("an endless stream with state_dict, left by break in each epoch", plain=tokens_plain)
def tokens(session: Session) -> None:
    data, model = Tokens(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for i, batch in enumerate(session.batches(data)):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
            session.log(first=batch[0][0, 0])
            if i == 5:
                break


def cycle(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


@idiom("cycle(dataloader) and next() in a loop of ones own")
def cycled(session: Session) -> None:
    data, model = shuffled()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    batches = cycle(data)
    while session.step_count < 16:
        loss = session.step(lambda b: loss_of(model, b), next(batches))
        session.log(loss=loss)
        moment(session)


@idiom("zip of session.batches and session.batches, two DataLoaders")
def zipped(session: Session) -> None:
    first, model = shuffled()
    second = DataLoader(samples(18), batch_size=3, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session.protect(model=model, optimizer=optimizer, first=first, second=second)
    for _ in session.epochs(3):
        for batch, other in zip(session.batches(first), session.batches(second), strict=True):
            session.step(lambda b, o=other: loss_of(model, b) + loss_of(model, o), batch)
            moment(session)
            session.log(first=batch[0][0, 0], second=other[0][0, 0])


class Unsteady(IterableDataset):
    """Another order in each process, and nothing to restore it by."""

    def __init__(self, process: int) -> None:
        self._order = random.Random(process).sample(range(20), 20)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in self._order:
            yield torch.ones(6) * index, torch.ones(1) * index


@idiom("a stream in an order of its own each time", refused="gives other batches than before")
def unsteady(session: Session) -> None:
    fit_held(session, net(), DataLoader(Unsteady(session.run.generation), batch_size=2), epochs=2)
