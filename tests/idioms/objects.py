"""Schedulers, averages, several optimizers, buffers, generators of the script's own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader

import holdfast
from holdfast.worker.session import Session
from tests.idioms.pieces import Log, idiom, loss_of, moment, net, samples


def scheduled(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=len(data))
    for _ in range(3):
        for batch in data:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            cycle.step()
        log(lr=cycle.get_last_lr()[0])
    return model


@idiom("a scheduler per batch", plain=scheduled)
def per_batch(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=len(data))
    session.protect(model=model, optimizer=optimizer, data=data, cycle=cycle)
    for _ in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            cycle.step()
            moment(session)
        session.log(lr=cycle.get_last_lr()[0])


def on_plateau(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    for _ in range(4):
        for batch in data:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
        plateau.step(loss.item())
        log(lr=optimizer.param_groups[0]["lr"])
    return model


@idiom("ReduceLROnPlateau per epoch", plain=on_plateau)
def per_epoch(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    session.protect(model=model, optimizer=optimizer, data=data, plateau=plateau)
    for _ in session.epochs(4):
        for batch in session.batches(data):
            loss = session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        plateau.step(loss.item())
        session.log(lr=optimizer.param_groups[0]["lr"])


@idiom("an exponential average of the weights")
def ema(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    session.protect(model=model, average=average, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            average.update_parameters(model)
            moment(session)


@idiom("stochastic weight averaging from the second epoch on")
def swa(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net(0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = swa_utils.AveragedModel(model)
    rates = swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    session.protect(model=model, average=average, optimizer=optimizer, rates=rates, data=data)
    for epoch in session.epochs(4):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        if epoch >= 1:
            average.update_parameters(model)
            rates.step()


@idiom("two optimizers, as a GAN has")
def gan(session: Session) -> None:
    maker, critic = nn.Linear(4, 6), net(0.2)
    make, tell = torch.optim.Adam(maker.parameters(), lr=0.01), torch.optim.Adam(critic.parameters(), lr=0.01)
    data = holdfast.Loader(samples(), batch_size=4, shuffle=True)
    session.protect(maker=maker, critic=critic, make=make, tell=tell, data=data)
    for _ in session.epochs(3):
        for batch in session.batches(data):
            told = session.step(
                lambda b: (critic(b[0]) - critic(maker(torch.randn(4, 4)).detach())).mean().square(),
                batch,
                optimizer=tell,
            )
            made = session.step(lambda b: critic(maker(torch.randn(4, 4))).square().mean(), batch, optimizer=make)
            moment(session)
        session.log(told=told, made=made)


@idiom("two optimizers by hand, one accumulates")
def gan_by_hand(session: Session) -> None:
    maker, critic = nn.Linear(4, 6), net(0.2)
    make, tell = torch.optim.Adam(maker.parameters(), lr=0.01), torch.optim.Adam(critic.parameters(), lr=0.01)
    data = holdfast.Loader(samples(), batch_size=4)
    session.protect(maker=maker, critic=critic, make=make, tell=tell, data=data)
    for _ in session.epochs(3):
        for i, batch in enumerate(session.batches(data)):
            tell.zero_grad()
            (critic(batch[0]) - critic(maker(torch.randn(4, 4)).detach())).mean().square().backward()
            tell.step()
            critic(maker(torch.randn(4, 4))).square().mean().backward()
            if i % 4 == 3:
                make.step()
                make.zero_grad()
            moment(session)


def normalized(log: Log) -> nn.Module:
    data = DataLoader(samples(), batch_size=4)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        for batch in data:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return model


@idiom("BatchNorm and clipping", plain=normalized)
def normalize(session: Session) -> None:
    data = holdfast.Loader(samples(), batch_size=4)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch, clip=1.0)
            moment(session)


@idiom("generators of the script's own, protected")
def own_generators(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=4), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dice, rolls, coins = random.Random(3), np.random.default_rng(4), torch.Generator().manual_seed(5)
    session.protect(model=model, optimizer=optimizer, data=data, dice=dice, rolls=rolls, coins=coins)
    for _ in session.epochs(3):
        for x, y in session.batches(data):
            noise = dice.random() + float(rolls.random()) + torch.rand(1, generator=coins)
            session.step(lambda b: loss_of(model, b), [x + noise, y])
            moment(session)
            session.log(noise=noise)


@idiom("a loop of ones own that asks session.step_count")
def own_loop(session: Session) -> None:
    model = net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer)
    while session.step_count < 16:
        x = torch.randn(4, 6)

        def turn(x: torch.Tensor = x) -> None:
            optimizer.zero_grad()
            loss = loss_of(model, [x, x.sum(dim=1, keepdim=True)])
            loss.backward()
            optimizer.step()
            session.log(loss=loss.item())

        session.transaction(turn)
        moment(session)


def with_schedule() -> tuple[nn.Module, torch.optim.Optimizer, lr_scheduler.LRScheduler]:
    model = net(0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.9)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    x = torch.randn(4, 6)
    optimizer.zero_grad()
    loss = loss_of(model, [x, x.sum(dim=1, keepdim=True)])
    loss.backward()
    optimizer.step()
    return loss


def after(step: int, schedule: lr_scheduler.LRScheduler) -> dict[str, Any]:
    """What follows a step: the schedule, and numbers to log, one of them drawn."""
    schedule.step()
    return {"lr": schedule.get_last_lr()[0], "noise": torch.rand(()).item(), "number": step}


def scheduled_freely(log: Log) -> nn.Module:
    model, optimizer, schedule = with_schedule()
    for step in range(16):
        loss = by_hand(model, optimizer)
        log(loss=loss.item(), **after(step, schedule))
    return model


@idiom("a loop of ones own: a scheduler and a logged number after session.step", plain=scheduled_freely)
def after_the_step(session: Session) -> None:
    """It is killed between the step and what belongs to it."""
    model, optimizer, schedule = with_schedule()
    session.protect(model=model, optimizer=optimizer, schedule=schedule)
    while session.step_count < 16:
        x = torch.randn(4, 6)
        loss = session.step(lambda b: loss_of(model, b), [x, x.sum(dim=1, keepdim=True)])
        moment(session)
        session.log(loss=loss, **after(session.step_count - 1, schedule))


@idiom("a loop of ones own with optimizer.step() by hand", plain=scheduled_freely)
def free_by_hand(session: Session) -> None:
    model, optimizer, schedule = with_schedule()
    session.protect(model=model, optimizer=optimizer, schedule=schedule)
    while session.step_count < 16:
        loss = by_hand(model, optimizer)
        moment(session)
        session.log(loss=loss.item(), **after(session.step_count - 1, schedule))


@idiom("a loop of ones own with two session.step in its body")
def two_steps_freely(session: Session) -> None:
    maker, critic = nn.Linear(4, 6), net(0.2)
    make, tell = torch.optim.Adam(maker.parameters(), lr=0.01), torch.optim.Adam(critic.parameters(), lr=0.01)
    session.protect(maker=maker, critic=critic, make=make, tell=tell)
    while session.step_count < 16:
        x = torch.randn(4, 6)
        told = session.step(lambda b: loss_of(critic, b), [x, x.sum(dim=1, keepdim=True)], optimizer=tell)
        moment(session)
        made = session.step(lambda z: critic(maker(z)).square().mean(), torch.randn(4, 4), optimizer=make)
        session.log(told=told, made=made)


@idiom("optimizer.step() by hand in an epoch without a Loader")
def epoch_by_hand(session: Session) -> None:
    model = net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer)
    for _ in session.epochs(4):
        for _ in range(4):
            by_hand(model, optimizer)
            moment(session)
        session.log(steps=session.step_count)
