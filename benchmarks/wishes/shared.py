"""What the scripts of the wishes share: samples with numbers, a fault that comes once, the digest of the weights."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import torch

HERE = Path(os.environ.get("WISH_FOLDER", "."))
SAMPLES, BATCH, EPOCHS = 80, 8, 3
KILL_AT = 13
"""A step in the middle of the second of three epochs."""
BAD_SAMPLE = 37


class Numbered(torch.utils.data.Dataset):
    """Sample i is made of i alone: which ones were trained on, and in which order, decides the weights."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=numbers), torch.randn(1, generator=numbers)


class Faulty(Numbered):
    """One sample takes its loader process down, or never comes: where WISH_FAULT says `kill` or `hang`."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == BAD_SAMPLE and once("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        while index == BAD_SAMPLE and once("hang"):
            time.sleep(3600)
        return super().__getitem__(index)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def learner() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """The body of an ordinary loop."""
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def once(name: str) -> bool:
    """True the first time it is asked, where the wish wants its fault at all; over restarts too."""
    path = HERE / f"{name}.came"
    if os.environ.get("WISH_FAULT") != name or path.exists():
        return False
    path.touch()
    return True


def kill_at(step: int, at: int = KILL_AT) -> None:
    """A real kill -9, of this very process, after this many steps."""
    if step == at and once("kill"):
        os.kill(os.getpid(), signal.SIGKILL)


def shown(rank: int) -> None:
    """One more step of this rank, in a file that the driver looks at."""
    path = HERE / f"pid-{rank}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").replace(path)  # the driver reads it at any moment
    with (HERE / f"steps-{rank}").open("a", encoding="ascii") as file:
        file.write(".")


def slowly() -> None:
    """A step takes long enough for a signal to come in the middle of the training."""
    time.sleep(0.1)


def place(name: str) -> None:
    """Long work that looks at no flag; the driver sends its SIGTERM in the one that WISH_PLACE names."""
    chosen = name == os.environ.get("WISH_PLACE")
    if chosen:
        (HERE / "there").touch()
    until = time.monotonic() + (90.0 if chosen else 0.1)
    while time.monotonic() < until:
        torch.randn(64, 64) @ torch.randn(64, 64)


def finish(model: torch.nn.Module) -> None:
    """Leave the digest of the weights for the driver."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + value.detach().cpu().numpy().tobytes())
    (HERE / "digest").write_text(digest.hexdigest())
    torch.save({key: value.detach().clone() for key, value in model.state_dict().items()}, HERE / "weights.pt")
