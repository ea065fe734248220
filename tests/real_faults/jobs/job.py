"""The job of the fault tests: small, and with everything in it that a careless resume gets wrong.

Dropout, a scheduler, an average of the weights, augmentation that draws from three generators, numbers drawn
between the epochs. Every sample it trains on goes into a protected diary, which tells at the end what the
weights have seen; every call of the loss goes into a plain file as well, which tells what really happened.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

import holdfast

SAMPLES, FEATURES, CLASSES, BATCH = 64, 16, 4, 8


class Augmented(Dataset[tuple[torch.Tensor, int, int]]):
    """Sample `index`, a little different each time: drawn from torch, numpy and random."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
        x += 0.1 * torch.randn(FEATURES) + 0.1 * float(numpy.random.standard_normal()) + 0.1 * random.random()
        return x, index % CLASSES, index


class Diary:
    """What the committed state has seen: samples in order, and numbers drawn outside of the steps."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.drawn: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.samples, self.drawn = list(state["samples"]), list(state["drawn"])

    def draw(self) -> None:
        """One number of each generator, now."""
        self.drawn += [float(torch.rand(())), float(numpy.random.rand()), random.random()]


class Witness:
    """A plain file outside of everything protected: one line for each call of the loss."""

    def __init__(self, session: holdfast.Session) -> None:
        self.session = session
        self.fd = os.open(session.run.folder / "witness.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def saw(self, samples: torch.Tensor) -> None:
        if self.session.replaying:  # off the record: nothing is trained on it
            return
        words = [self.session.run.generation, self.session.step_count + 1, self.session.device, *samples.tolist()]
        os.write(self.fd, (" ".join(map(str, words)) + "\n").encode())


def make_model(norm: str = "none", dropout: float = 0.1) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(FEATURES, 32)]
    if norm == "batch":
        layers.append(nn.BatchNorm1d(32))
    return nn.Sequential(*layers, nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, CLASSES))


class Job:
    """Everything protected, and one step of it; scripts with a twist of their own build on it."""

    def __init__(
        self, session: holdfast.Session, *, workers: int = 0, norm: str = "none", dropout: float = 0.1, pause: float = 0
    ) -> None:
        self.session = session
        self.pause = pause
        self.model = make_model(norm, dropout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.data = holdfast.Loader(Augmented(), batch_size=BATCH, shuffle=True, num_workers=workers)
        self.diary = Diary()
        self.witness = Witness(session)
        session.protect(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            ema=self.ema,
            data=self.data,
            diary=self.diary,
        )

    def loss(self, batch: Any) -> torch.Tensor:
        x, y, index = batch
        self.witness.saw(index)
        time.sleep(self.pause)
        return cross_entropy(self.model(x), y)

    def step(self, batch: Any) -> None:
        self.session.step(self.loss, batch, clip=1.0)
        self.after(batch)

    def after(self, batch: Any) -> None:
        """What belongs to the step and comes after the update."""
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        self.diary.samples += batch[2].tolist()

    def evaluate(self) -> None:
        with self.session.evaluating():
            x = torch.randn(16, FEATURES)  # drawn, and given back: evaluating leaves the generators alone
            self.session.log(valid_loss=float(cross_entropy(self.model(x), torch.arange(16) % CLASSES)))


def train(
    session: holdfast.Session, *, epochs: int = 3, workers: int = 0, norm: str = "none", pause: float = 0.0
) -> None:
    """`pause`: seconds each step takes, for tests that have to meet one."""
    job = Job(session, workers=workers, norm=norm, pause=pause)
    for _ in session.epochs(epochs):
        job.diary.draw()
        for batch in session.batches(job.data):
            job.step(batch)
        job.evaluate()
        job.diary.draw()


if __name__ == "__main__":
    holdfast.main(train)
