"""What the idioms share: small data, a small model, a list of them, and the moments at which a process may be killed.

@idiom("gradient accumulation", plain=by_torch)        # by_torch(log) -> the model, without holdfast
def accumulate(session: Session) -> None:
    ...
    moment(session)                                    # once in each body: the kit may kill the process here
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from holdfast.worker.session import Session

Log = Callable[..., None]
Plain = Callable[[Log], nn.Module]
Ported = Callable[[Session], None]


@dataclass(frozen=True)
class Idiom:
    """One row of the table."""

    name: str
    ported: Ported
    plain: Plain | None
    refused: str
    """Part of the error that is due, where the idiom cannot be exact."""


IDIOMS: dict[str, Idiom] = {}


def idiom(name: str, *, plain: Plain | None = None, refused: str = "") -> Callable[[Ported], Ported]:
    def add(ported: Ported) -> Ported:
        IDIOMS[name] = Idiom(name, ported, plain, refused)
        return ported

    return add


def moment(session: Session) -> None:
    """The process is killed, or the run is asked to stop, where the kit has said so; each time once."""
    folder = session.run.folder
    plan = json.loads((folder / "plan.json").read_text()) if (folder / "plan.json").exists() else {}
    with open(folder / "moments", "a", encoding="ascii") as file:
        file.write(".")
        file.flush()
        count = file.tell()
    if count in plan.get("kill", []):
        os.kill(os.getpid(), signal.SIGKILL)
    if count == plan.get("stop") or count == plan.get("end"):
        number = signal.SIGTERM if count == plan.get("stop") else signal.SIGKILL
        os.kill(int(json.loads((folder / "run.json").read_text())["pid"]), number)


def samples(count: int = 24, width: int = 6) -> TensorDataset:
    x = torch.randn(count, width)
    return TensorDataset(x, x.sum(dim=1, keepdim=True))


def net(dropout: float = 0.0) -> nn.Module:
    """Without dropout it ends as the plain script does: torch's DataLoader draws a number in each epoch."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    loss = mse_loss(model(batch[0]), batch[1])
    in_forward()
    return loss


class Forward:
    """What is to happen in the middle of a forward, counted over all lives, each once."""

    folder: Path | None = None
    plan: ClassVar[dict[str, Any]] = {}


def in_forward() -> None:
    """No memory is left, or nothing comes back, where the kit has said so."""
    if Forward.folder is None or not {"oom", "hang"} & set(Forward.plan):
        return
    with open(Forward.folder / "losses", "a", encoding="ascii") as file:
        file.write(".")
        file.flush()
        count = file.tell()
    if count in Forward.plan.get("hang", ()):
        while True:  # as a kernel that never ends; a sleep would be a wait for a timer, which a loop by hand may do
            pass
    if count in Forward.plan.get("oom", ()):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
