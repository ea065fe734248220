"""Several loaders, random augmentation, and iterators that a script holds itself."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast
from holdfast.worker.session import Session
from tests.idioms.pieces import Log, idiom, loss_of, moment, net, samples


def two_of_them(log: Log) -> nn.Module:
    labelled, more, model = DataLoader(samples(), batch_size=4), DataLoader(samples(10), batch_size=4), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    it = iter(more)
    for _ in range(2):
        for batch in labelled:
            try:
                other = next(it)
            except StopIteration:
                it = iter(more)
                other = next(it)
            optimizer.zero_grad()
            (loss_of(model, batch) + loss_of(model, other)).backward()
            optimizer.step()
        log(weight=model[0].weight.sum().item())
    return model


@idiom("a second Loader by iter() and next()", plain=two_of_them)
def second_loader(session: Session) -> None:
    labelled, more, model = holdfast.Loader(samples(), batch_size=4), holdfast.Loader(samples(10), batch_size=4), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, labelled=labelled, more=more)
    it = iter(more)
    for _ in session.epochs(2):
        for batch in session.batches(labelled):
            try:
                other = next(it)
            except StopIteration:
                it = iter(more)
                other = next(it)
            session.step(lambda b, o=other: loss_of(model, b) + loss_of(model, o), batch)
            moment(session)
        session.log(weight=model[0].weight.sum().item())


@idiom("a second Loader by iter(), shuffled")
def second_shuffled(session: Session) -> None:
    labelled = holdfast.Loader(samples(), batch_size=4, shuffle=True)
    more, model = holdfast.Loader(samples(10), batch_size=4, shuffle=True), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, labelled=labelled, more=more)
    it = iter(more)
    for _ in session.epochs(2):
        for batch in session.batches(labelled):
            other = next(it, None)
            if other is None:
                it = iter(more)
                other = next(it)
            session.step(lambda b, o=other: loss_of(model, b) + loss_of(model, o), batch)
            moment(session)
            session.log(first=float(other[0][0, 0]))


@idiom("a second Loader by iter(), not protected", refused="not protected")
def second_unprotected(session: Session) -> None:
    labelled, more, model = (
        holdfast.Loader(samples(), batch_size=4),
        holdfast.Loader(samples(40), batch_size=4),
        net(0.2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, labelled=labelled)
    it = iter(more)
    for _ in session.epochs(1):
        for batch in session.batches(labelled):
            session.step(lambda b: loss_of(model, b) + loss_of(model, next(it)), batch)
            moment(session)


def zipped(log: Log) -> nn.Module:
    first, second, model = DataLoader(samples(), batch_size=4), DataLoader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(3):
        for batch, other in zip(first, second, strict=True):
            optimizer.zero_grad()
            (loss_of(model, batch) + loss_of(model, other)).backward()
            optimizer.step()
    return model


@idiom("two loaders zipped", plain=zipped)
def zip_two(session: Session) -> None:
    first, second, model = holdfast.Loader(samples(), batch_size=4), holdfast.Loader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session.protect(model=model, optimizer=optimizer, first=first, second=second)
    for _ in session.epochs(3):
        for batch, other in zip(session.batches(first), second, strict=True):
            session.step(lambda b, o=other: loss_of(model, b) + loss_of(model, o), batch)
            moment(session)


@idiom("two loaders zipped, session.batches last", refused="before the first batch")
def zip_wrong(session: Session) -> None:
    first, second, model = holdfast.Loader(samples(), batch_size=4), holdfast.Loader(samples(), batch_size=4), net(0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session.protect(model=model, optimizer=optimizer, first=first, second=second)
    for _ in session.epochs(3):
        for other, batch in zip(second, session.batches(first), strict=True):
            session.step(lambda b, o=other: loss_of(model, b) + loss_of(model, o), batch)
            moment(session)


class Noisy(Dataset):
    """Draws from all three generators."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = random.random() + float(np.random.rand())
        return torch.rand(6) + noise, torch.ones(1) * index


@idiom("random augmentation, shuffled, mixup in the body")
def augment(session: Session) -> None:
    data, model = holdfast.Loader(Noisy(), batch_size=4, shuffle=True), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for x, y in session.batches(data):
            share, order = float(np.random.beta(0.4, 0.4)), torch.randperm(len(x))
            mixed = [share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]]
            loss = session.step(lambda b: loss_of(model, b), mixed)
            moment(session)
            session.log(loss=loss)


@idiom("evaluation over a protected Loader in each epoch")
def evaluate(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4, shuffle=True), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    peek = next(iter(data))
    for _ in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        with session.evaluating():
            errors = torch.stack([loss_of(model, batch) for batch in data])
            session.log(train_error=errors.mean(), peek=loss_of(model, peek))


@idiom("batches until a number of steps, without epochs")
def by_steps(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4, shuffle=True), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    while session.step_count < 15:
        for batch in session.batches(data):
            session.log(loss=session.step(lambda b: loss_of(model, b), batch))
            moment(session)
            if session.step_count == 15:
                break
