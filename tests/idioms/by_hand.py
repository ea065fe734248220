"""Loops that call backward and optimizer.step themselves."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

import holdfast
from holdfast.worker.session import Session
from tests.idioms.pieces import Log, idiom, loss_of, moment, net, samples


def accumulated(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=3), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for i, batch in enumerate(data):
            (loss_of(model, batch) / 3).backward()
            if (i + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
        log(weight=model[0].weight.sum().item())
    return model


@idiom("gradient accumulation by hand", plain=accumulated)
def accumulate(session: Session) -> None:
    """Eight batches, three a window: a window goes from one epoch into the next."""
    data, model = holdfast.Loader(samples(), batch_size=3), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for i, batch in enumerate(session.batches(data)):
            (loss_of(model, batch) / 3).backward()
            if (i + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
            moment(session)
        session.log(weight=model[0].weight.sum().item())


@idiom("gradient accumulation in transactions")
def accumulate_in_transactions(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=3), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(2):
        for i, batch in enumerate(session.batches(data)):

            def turn(batch: list = batch, i: int = i) -> None:
                (loss_of(model, batch) / 4).backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()

            session.transaction(turn)
            moment(session)


def accumulated_inside(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=6), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for batch in data:
            optimizer.zero_grad()
            for piece in zip(*(part.split(3) for part in batch), strict=True):
                (loss_of(model, piece) * 0.5).backward()
            optimizer.step()
        log(weight=model[0].weight.sum().item())
    return model


@idiom("gradient accumulation by session.step(accumulate=2)", plain=accumulated_inside)
def accumulate_inside(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=6), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(2):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch, accumulate=2)
            moment(session)
        session.log(weight=model[0].weight.sum().item())


def never_cleared(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for batch in data:
            loss_of(model, batch).backward()
            optimizer.step()
    return model


@idiom("gradients that are never cleared", plain=never_cleared)
def keep_gradients(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(2):
        for batch in session.batches(data):
            loss_of(model, batch).backward()
            optimizer.step()
            moment(session)


def cleared_to_zero(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        for batch in data:
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return model


@idiom("clipped by hand, gradients set to zero", plain=cleared_to_zero)
def clear_to_zero(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(2):
        for batch in session.batches(data):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            moment(session)
            session.log(steps=session.step_count)


def closures(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=8), net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for _ in range(3):
        for batch in data:

            def closure(batch: list = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
    return model


@idiom("LBFGS with a closure, by hand", plain=closures)
def closure_by_hand(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=8), net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for batch in session.batches(data):

            def closure(batch: list = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
            moment(session)


@idiom("LBFGS by session.step", plain=closures)
def closure_by_session(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=8), net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)


def scaled(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=4), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    for _ in range(2):
        for batch in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        log(scale=scaler.get_scale())
    return model


@idiom("autocast and GradScaler by hand", plain=scaled)
def scale(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    session.protect(model=model, optimizer=optimizer, data=data, scaler=scaler)
    for _ in session.epochs(2):
        for batch in session.batches(data):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            moment(session)
        session.log(scale=scaler.get_scale())
