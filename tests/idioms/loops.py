"""Several loops, folds, curricula, early stopping: loops over epochs of other shapes."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import holdfast
from holdfast.worker.session import Session
from tests.idioms.pieces import Log, idiom, loss_of, moment, net, samples


def one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, data: DataLoader) -> None:
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def pretrained(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=6), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        one_epoch(model, optimizer, data)
    for param in model[0].parameters():
        param.requires_grad_(False)
    for epoch in range(3):
        one_epoch(model, optimizer, data)
        log(epoch_of_loop=epoch, weight=model[3].weight.sum().item())
    return model


@idiom("pretrain, freeze, then finetune: two loops", plain=pretrained)
def finetune(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=6), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(2):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
    for param in model[0].parameters():
        param.requires_grad_(False)
    for epoch in session.epochs(3):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        session.log(epoch_of_loop=epoch, weight=model[3].weight.sum().item())


def folded(log: Log) -> nn.Module:
    whole, model = samples(), net()
    start = copy.deepcopy(model.state_dict())
    for fold in range(3):
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        part = Subset(whole, [index for index in range(24) if index % 3 != fold])
        data = DataLoader(part, batch_size=4)
        for epoch in range(4):
            one_epoch(model, optimizer, data)
            if epoch == fold:
                break
        log(fold=fold, weight=model[0].weight.sum().item())
    return model


@idiom("k folds with early stopping", plain=folded)
def fold(session: Session) -> None:
    whole, model = samples(), net()
    start = copy.deepcopy(model.state_dict())
    data = holdfast.Loader(whole, batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session.protect(model=model, optimizer=optimizer, data=data)
    for number in range(3):
        model.load_state_dict(start)
        data.dataset = Subset(whole, [index for index in range(24) if index % 3 != number])
        for epoch in session.epochs(4, name=f"fold {number}"):
            for batch in session.batches(data):
                session.step(lambda b: loss_of(model, b), batch)
                moment(session)
            if epoch == number:
                session.log(fold=number, weight=model[0].weight.sum().item())
                break


def graded(log: Log) -> nn.Module:
    whole, model = samples(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(4):
        one_epoch(model, optimizer, DataLoader(Subset(whole, range(6 * (epoch + 1))), batch_size=4))
    return model


@idiom("a curriculum: data.dataset = … in each epoch", plain=graded)
def curriculum(session: Session) -> None:
    whole, model = samples(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = holdfast.Loader(whole, batch_size=4)
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(4):
        data.dataset = Subset(whole, range(6 * (epoch + 1)))
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)


class Growing(torch.utils.data.Dataset):
    """Finds more samples as it goes."""

    def __init__(self) -> None:
        self.items = [(torch.ones(6) * index / 10, torch.ones(1) * index) for index in range(8)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.items[index]

    def grow(self) -> None:
        for _ in range(4):
            index = len(self.items)
            self.items.append((torch.ones(6) * index / 10, torch.ones(1) * index))

    def state_dict(self) -> dict[str, int]:
        return {"length": len(self.items)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del self.items[state["length"] :]
        while len(self.items) < state["length"]:
            self.grow()


def grown(log: Log) -> nn.Module:
    found, model = Growing(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(4):
        one_epoch(model, optimizer, DataLoader(found, batch_size=4))
        found.grow()
    return model


@idiom("a dataset that grows, protected", plain=grown)
def grow(session: Session) -> None:
    found, model = Growing(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = holdfast.Loader(found, batch_size=4)
    session.protect(model=model, optimizer=optimizer, data=data, found=found)
    for _ in session.epochs(4):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        found.grow()


@idiom("a dataset that grows, not protected", plain=grown, refused="had grown|length=")
def grow_unprotected(session: Session) -> None:
    found, model = Growing(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = holdfast.Loader(found, batch_size=4)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(4):
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)
        found.grow()


def resized(log: Log) -> nn.Module:
    whole, model = samples(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        one_epoch(model, optimizer, DataLoader(whole, batch_size=2 * 2**epoch))
    return model


@idiom("another batch size in each epoch", plain=resized)
def resize(session: Session) -> None:
    whole, model = samples(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = holdfast.Loader(whole, batch_size=2)
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(3):
        data.batch_size = 2 * 2**epoch
        for batch in session.batches(data):
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)


def unfrozen(log: Log) -> nn.Module:
    data, model = DataLoader(samples(), batch_size=6), net()
    optimizer = torch.optim.Adam(model[3].parameters(), lr=0.01)
    for epoch in range(4):
        if epoch == 2:
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.001})
        one_epoch(model, optimizer, data)
    return model


@idiom("add_param_group in the third epoch", plain=unfrozen)
def unfreeze(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=6), net()
    optimizer = torch.optim.Adam(model[3].parameters(), lr=0.01)
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(4):
        if epoch >= 2 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.001})
        for batch in session.batches(data):
            model.zero_grad()
            session.step(lambda b: loss_of(model, b), batch)
            moment(session)


@idiom("early stopping by a counter in session.state")
def patience(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=6, shuffle=True), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    session.protect(model=model, optimizer=optimizer, data=data)
    session.state.update(best=float("inf"), bad=0, seen=[])
    for epoch in session.epochs(8):
        meter = session.meter("loss")
        for batch in session.batches(data):
            meter.add(session.step(lambda b: loss_of(model, b), batch), len(batch[0]))
            session.state["seen"].append(len(batch[0]))
            moment(session)
        session.state["bad"] = 0 if meter.mean < session.state["best"] else session.state["bad"] + 1
        session.state["best"] = min(meter.mean, session.state["best"])
        session.log(train_loss=meter, bad=session.state["bad"], batches=len(session.state["seen"]), loop=epoch)
        if session.state["bad"] == 2:
            break


@idiom("a mean over the epoch in a local variable: chaos sees it", refused="numbers differ")
def local_mean(session: Session) -> None:
    data, model = holdfast.Loader(samples(), batch_size=6), net(0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(2):
        running = 0.0
        for batch in session.batches(data):
            running += float(session.step(lambda b: loss_of(model, b), batch))
            moment(session)
        session.log(train_loss=running / len(data))
