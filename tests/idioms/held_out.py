"""Loops in the shape of well-known ones, written by docs/writing-a-script.md alone: nothing was built for them.

The shapes are those of pytorch/examples (mnist, vae, imagenet), karpathy/minGPT (its Trainer) and karpathy/nanoGPT
(train.py). They are not ports of those files: data and models are small stand-ins, so that a run takes a second, and
only what makes each loop special is kept.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import holdfast
from holdfast.worker.session import Session
from tests.idioms.pieces import idiom, in_forward, moment


def images(count: int = 24, size: int = 8) -> TensorDataset:
    return TensorDataset(torch.rand(count, 1, size, size), torch.arange(count) % 4)


@idiom("held out: pytorch/examples mnist")
def mnist(session: Session) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(36, 4),
        nn.LogSoftmax(1),
    )
    train_loader = DataLoader(images(), batch_size=4, shuffle=True)
    test_loader = DataLoader(images(12), batch_size=6)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=train_loader)
    for _ in session.epochs(3):
        model.train()
        for batch_idx, (data, target) in enumerate(session.batches(train_loader)):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            in_forward()
            loss.backward()
            optimizer.step()
            moment(session)
            if batch_idx % 2 == 0:
                session.log(seen=batch_idx * len(data), loss=loss.item())
        model.eval()
        test_loss, correct = 0.0, 0
        with torch.no_grad():
            for data, target in test_loader:
                output = model(data)
                test_loss += F.nll_loss(output, target, reduction="sum").item()
                correct += (
                    output.argmax(dim=1, keepdim=True)
                    .eq(target.view_as(output.argmax(dim=1, keepdim=True)))
                    .sum()
                    .item()
                )
        session.log(test_loss=test_loss / 12, correct=correct)
        scheduler.step()


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h1 = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


@idiom("held out: pytorch/examples vae")
def vae(session: Session) -> None:
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = holdfast.Loader(images(), batch_size=4, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)

    def loss_function(batch: list[Tensor]) -> Tensor:
        recon, mu, logvar = model(batch[0])
        in_forward()
        bce = F.binary_cross_entropy(recon, batch[0].view(-1, 64), reduction="sum")
        return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())

    for _ in session.epochs(3):
        model.train()
        train_loss = session.meter("train_loss")
        for batch in session.batches(data):
            train_loss.add(session.step(loss_function, batch))
            moment(session)
        session.log(average=train_loss.total / 24)


@idiom("held out: pytorch/examples imagenet")
def imagenet(session: Session) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    train_loader = DataLoader(images(), batch_size=4, shuffle=True, num_workers=1, pin_memory=True)
    val_loader = DataLoader(images(8), batch_size=4)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=train_loader)
    session.state["best_acc1"] = 0.0
    for _ in session.epochs(3):
        losses, top1 = session.meter("losses"), session.meter("top1")
        model.train()
        for i, (picture, target) in enumerate(session.batches(train_loader)):
            output = model(picture)
            loss = criterion(output, target)
            in_forward()
            losses.add(loss.item(), picture.size(0))
            top1.add((output.argmax(1) == target).float().mean() * 100, picture.size(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            moment(session)
            if i % 3 == 0:
                session.log(losses=losses, top1=top1)
        with session.evaluating():
            acc1 = sum(float((model(x).argmax(1) == y).float().sum()) for x, y in val_loader) / 8 * 100
        scheduler.step()
        session.state["best_acc1"] = max(acc1, session.state["best_acc1"])
        session.log(acc1=acc1, best_acc1=session.state["best_acc1"])


class Characters(nn.Module):
    """As much of a GPT as its loop needs."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(16, 8), nn.Embedding(6, 8), nn.Dropout(0.1)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.lm_head = nn.Linear(8, 16, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.block(self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1)))))
        logits = self.lm_head(x)
        in_forward()
        return logits, F.cross_entropy(logits.view(-1, 16), targets.view(-1))


@idiom("held out: karpathy/minGPT's Trainer")
def mingpt(session: Session) -> None:
    """Samples drawn with replacement, ten thousand millions of them, by an iterator that the loop holds."""
    model = Characters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    text = torch.randint(16, (40, 6))
    train_dataset = TensorDataset(text, text.roll(-1, 1))
    train_loader = DataLoader(
        train_dataset, sampler=RandomSampler(train_dataset, replacement=True, num_samples=int(1e10)), batch_size=4
    )
    session.protect(model=model, optimizer=optimizer, data=train_loader)
    model.train()
    data_iter = iter(train_loader)
    while session.step_count < 15:

        def run_batch() -> None:
            nonlocal data_iter
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            _, loss = model(*batch)
            model.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            session.log(loss=loss.item())

        session.transaction(run_batch)
        moment(session)


@idiom("held out: karpathy/nanoGPT's train.py")
def nanogpt(session: Session) -> None:
    """A batch is cut out of one long text at random places and is fetched ahead; three of them make an update."""
    model = Characters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    text = torch.randint(16, (400,))
    session.protect(model=model, optimizer=optimizer)

    def get_batch() -> tuple[Tensor, Tensor]:
        ix = torch.randint(len(text) - 6, (4,))
        return torch.stack([text[i : i + 6] for i in ix]), torch.stack([text[i + 1 : i + 7] for i in ix])

    def get_lr(it: int) -> float:
        return 1e-3 * (it + 1) / 4 if it < 3 else 1e-4 + 0.5 * (1.0 + math.cos(math.pi * it / 15)) * 9e-4

    def estimate_loss() -> float:
        model.eval()
        with torch.no_grad():
            found = torch.stack([model(*get_batch())[1] for _ in range(2)]).mean().item()
        model.train()
        return found

    def turn() -> dict[str, Any]:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(session.step_count)
        for _ in range(3):
            loss = model(*get_batch())[1] / 3
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        session.log(loss=loss.item() * 3, lr=optimizer.param_groups[0]["lr"])
        return {}

    while session.step_count < 14:
        if session.step_count % 5 == 0:
            session.log(val=estimate_loss())
        session.transaction(turn)
        moment(session)
