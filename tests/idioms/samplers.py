"""Samplers, batch samplers and generators in a holdfast.Loader; loaders of other libraries, where those are there."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, WeightedRandomSampler

import holdfast
from holdfast.worker.session import Session
from tests.idioms.as_they_are import fit, fit_held
from tests.idioms.pieces import Log, idiom, loss_of, moment, net, samples


def weighted() -> dict[str, Any]:
    g = torch.Generator().manual_seed(11)
    return {"batch_size": 4, "sampler": WeightedRandomSampler(torch.arange(1.0, 25.0), 22, generator=g)}


def weighted_plain(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), **weighted()), net()
    return fit(model, data, log)


@idiom("WeightedRandomSampler with a generator in a Loader", plain=weighted_plain)
def weighted_loader(session: Session) -> None:
    data, model = holdfast.Loader(samples(), **weighted()), net()
    fit_held(session, model, data)


@idiom("WeightedRandomSampler without a generator in a Loader")
def weighted_global(session: Session) -> None:
    sampler = WeightedRandomSampler(torch.arange(1.0, 25.0), 22)
    fit_held(session, net(0.2), holdfast.Loader(samples(), batch_size=4, sampler=sampler))


def generated_plain(log: Log) -> nn.Module:
    g = torch.Generator().manual_seed(12)
    data, model = DataLoader(samples(), batch_size=4, shuffle=True, generator=g), net()
    return fit(model, data, log)


@idiom("shuffle=True and generator= in a Loader: the order of torch", plain=generated_plain)
def generated(session: Session) -> None:
    g = torch.Generator().manual_seed(12)
    data, model = holdfast.Loader(samples(), batch_size=4, shuffle=True, generator=g), net()
    fit_held(session, model, data)


class Sentences(Dataset):
    """Of many lengths."""

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> Tensor:
        return torch.sin(torch.arange(float(2 + index * 7 % 5)) + index)


class Buckets(Sampler):
    """Batches of samples of about one length, in another order each time; an epoch of its own that it counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(26), key=lambda index: (index * 7 % 5, index))
        batches = [order[start : start + 4] for start in range(0, 26, 4)]
        random.Random(self.epoch).shuffle(batches)
        self.epoch += 1
        yield from batches

    def __len__(self) -> int:
        return 7


def padded(items: list[Tensor]) -> list[Tensor]:
    x = torch.zeros(len(items), 6)
    for row, item in enumerate(items):
        x[row, : len(item)] = item[:6]
    return [x, x.sum(dim=1, keepdim=True)]


def bucketed_plain(log: Log) -> nn.Module:
    data, model = DataLoader(Sentences(), batch_sampler=Buckets(), collate_fn=padded), net()
    return fit(model, data, log)


@idiom("batches by length: a batch_sampler that counts its epochs, in a Loader", plain=bucketed_plain)
def bucketed(session: Session) -> None:
    data, model = holdfast.Loader(Sentences(), batch_sampler=Buckets(), collate_fn=padded), net()
    fit_held(session, model, data)


@idiom("batches by length: a batch_sampler that counts its epochs, in a DataLoader", plain=bucketed_plain)
def bucketed_torch(session: Session) -> None:
    data, model = DataLoader(Sentences(), batch_sampler=Buckets(), collate_fn=padded), net()
    fit_held(session, model, data)


@idiom("torch's BatchSampler over a RandomSampler in a Loader")
def batch_sampler(session: Session) -> None:
    whole = samples()
    batches = BatchSampler(RandomSampler(whole), batch_size=5, drop_last=True)
    fit_held(session, net(0.2), holdfast.Loader(whole, batch_sampler=batches))


class Hard(Sampler):
    """Samples that the script found hard come more often."""

    def __init__(self) -> None:
        super().__init__()
        self.hard: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter([*range(24), *self.hard])

    def __len__(self) -> int:
        return 24 + len(self.hard)


@idiom("a sampler that the script changes and nobody restores", refused="another order")
def hard(session: Session) -> None:
    sampler, model = Hard(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = holdfast.Loader(samples(), batch_size=6, sampler=sampler)
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        sampler.hard += [epoch, epoch + 3, epoch + 5]


@idiom("two loaders in turns, in a loop of ones own")
def in_turns(session: Session) -> None:
    even, model = holdfast.Loader(samples(), batch_size=4, shuffle=True), net(0.2)
    odd = DataLoader(samples(15), batch_size=3, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, even=even, odd=odd)
    iterators = [iter(even), iter(odd)]
    while session.step_count < 15:
        turn = session.step_count % 2
        batch = next(iterators[turn], None)
        if batch is None:
            iterators[turn] = iter((even, odd)[turn])
            batch = next(iterators[turn])
        session.log(loss=session.step(lambda b: loss_of(model, b), batch))
        moment(session)


@idiom("a loop over one loader inside of a loop over another")
def nested(session: Session) -> None:
    outer, inner, model = holdfast.Loader(samples(12), batch_size=4, shuffle=True), samples(8), net(0.2)
    tasks = holdfast.Loader(inner, batch_size=4, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, outer=outer, tasks=tasks)
    for _ in session.epochs(3):
        for batch in session.batches(outer):
            for task in session.batches(tasks):
                session.step(lambda b, t=task: loss_of(model, b) + loss_of(model, t), batch)
                moment(session)
            session.log(first=task[0][0, 0])


def where_there_is(module: str) -> Callable[[Callable[[], None]], None]:
    """Idioms of another library are in the list where it is installed."""

    def add(define: Callable[[], None]) -> None:
        if importlib.util.find_spec(module) is not None:
            define()

    return add


@where_there_is("torchdata")
def _torchdata() -> None:
    @idiom("a StatefulDataLoader of torchdata as it is")
    def stateful(session: Session) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        fit_held(session, net(0.2), StatefulDataLoader(samples(), batch_size=4, shuffle=True))


def rows(shards: list[int]) -> Iterator[dict[str, list[float]]]:
    for shard in shards:
        for row in range(9):
            yield {"x": [float(shard + row + k) / 10 for k in range(6)]}


def stacked(items: list[dict[str, list[float]]]) -> list[Tensor]:
    x = torch.tensor([item["x"] for item in items])
    return [x, x.sum(dim=1, keepdim=True)]


@where_there_is("datasets")
def _datasets() -> None:
    for name, buffer in (("", 0), (", with a shuffle buffer", 7)):

        @idiom(f"a stream of Hugging Face datasets in a DataLoader{name}")
        def streaming(session: Session, buffer: int = buffer) -> None:
            import datasets

            stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 20, 40]})
            stream = stream.shuffle(seed=5, buffer_size=buffer) if buffer else stream
            fit_held(session, net(0.2), DataLoader(stream, batch_size=5, collate_fn=stacked))
