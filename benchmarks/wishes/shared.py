"""What the scripts of the wishes share: samples with numbers, a fault that comes once, the digest of the weights."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import torch

HERE = Path(os.environ.get("WISH_FOLDER", "."))
SAMPLES, BATCH, EPOCHS = 80, 8, 3
KILL_AT = 13
"""A step in the middle of the second of three epochs."""


class Numbered(torch.utils.data.Dataset):
    """Sample i is made of i alone: which ones were trained on, and in which order, decides the weights."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=numbers), torch.randn(1, generator=numbers)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def once(name: str) -> bool:
    """True the first time it is asked, where the wish wants its fault at all; over restarts too."""
    path = HERE / f"{name}.came"
    if os.environ.get("WISH_FAULT") != name or path.exists():
        return False
    path.touch()
    return True


def kill_at(step: int) -> None:
    """A real kill -9, of this very process, after this many steps."""
    if step == KILL_AT and once("kill"):
        os.kill(os.getpid(), signal.SIGKILL)


def finish(model: torch.nn.Module) -> None:
    """Leave the digest of the weights for the driver."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + value.detach().cpu().numpy().tobytes())
    (HERE / "digest").write_text(digest.hexdigest())
    torch.save({key: value.detach().clone() for key, value in model.state_dict().items()}, HERE / "weights.pt")
