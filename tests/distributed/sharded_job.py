"""A model whose parameters ranks share out among themselves with FSDP2, as a script for torchrun does it.

`die="1:4:backward"` kills rank 1 at step 4 in that phase, once; `full="1:4:2"` has rank 1 run out of memory twice at
step 4; `mesh=2` makes two replicas of the model, each shared out over the other ranks (HSDP); `clip` limits the
gradients; `look` evaluates after each epoch, which leaves parameters whole; `stop=3` asks for a stop after that step;
`whole` leaves the model as it is; `tied` has one weight in two layers; `accumulate` cuts batches; `seen` is a folder
for notes; `turn` does nothing in a transaction before each step. With `back=9` the device of a rank that was killed is
away until step 9: the file `away` in that folder says so; `pause` makes a step longer. The samples `nan="5 17"` hold no
numbers, and those of `huge` have an infinite loss; `glitch="1:4"` has rank 1 compute a loss at step 4 that is not
finite, once. Those of `leave` are left out from the first batch on that they are in.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.base.board import Phase


def data_of(length: int) -> torch.utils.data.TensorDataset:
    own = torch.Generator().manual_seed(1)
    x = torch.randn(length, 8, generator=own, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def train(
    session: holdfast.Session,
    epochs: int = 2,
    length: int = 60,
    batch: int = 12,
    die: str = "",
    full: str = "",
    mesh: int = 1,
    clip: float = 0.0,
    look: bool = False,
    tied: bool = False,
    accumulate: int = 1,
    whole: bool = False,
    stop: int = -1,
    back: int = -1,
    pause: float = 0.0,
    seen: str = "",
    turn: bool = False,
    nan: str = "",
    huge: str = "",
    glitch: str = "",
    leave: str = "",
) -> None:
    torch.manual_seed(3)
    # 17 and 5 rows do not divide evenly, and the last layer has one row: some ranks hold nothing of it.
    model = nn.Sequential(nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 5), nn.ReLU(), nn.Linear(5, 1))
    if tied:
        shared = nn.Linear(17, 17)
        model = nn.Sequential(nn.Linear(8, 17), nn.ReLU(), shared, nn.ReLU(), nn.Linear(17, 17))
        model[4].weight = shared.weight
    model.double()
    if not whole:
        shape, names = (
            ((session.ranks,), ("shard",)) if mesh == 1 else ((mesh, session.ranks // mesh), ("copy", "shard"))
        )
        device_mesh = init_device_mesh(session.device.type, shape, mesh_dim_names=names)
        for layer in (model[0],) if tied else (model[0], model[2]):
            fully_shard(layer, mesh=device_mesh)
        fully_shard(model, mesh=device_mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = data_of(length)
    numbers.tensors[0][[int(each) for each in nan.split()]] = torch.nan
    numbers.tensors[0][[int(each) for each in huge.split()]] = 1e300
    data = holdfast.Loader(numbers, batch_size=batch, shuffle=True)
    data.leave_out([int(each) for each in leave.split()], "is not wanted", epoch=0, batch=0)
    session.protect(model=model, optimizer=optimizer, data=data)
    fault = Fault(session, die, full, seen, away=back >= 0)
    fault.glitch = [int(word) for word in glitch.split(":")] if glitch else []
    session._phase_hooks.append(fault.on_phase)
    for _ in session.epochs(epochs):
        for samples in session.batches(data):
            if turn:
                session.transaction(lambda: None)
            session.step(
                lambda b: fault.forward(nn.functional.mse_loss(model(b[0]).mean(1, keepdim=True), b[1])),
                samples,
                clip=clip or None,
                accumulate=accumulate,
            )
            time.sleep(pause)
            if session.rank == 0 and session._position.step == back:
                Path(seen, "away").unlink(missing_ok=True)
            if session.rank == 1 and session._position.step == stop:
                session._board.request_stop()
        if look:
            with torch.no_grad():
                session.log(seen_loss=float(model(data_of(8).tensors[0]).abs().mean()))


class Fault:
    """What goes wrong in one rank, as often as is asked for."""

    def __init__(self, session: holdfast.Session, die: str, full: str, seen: str, *, away: bool) -> None:
        self.session = session
        self.away = away
        self.folder = Path(seen) if seen else None
        self.die: list[Any] = die.split(":")
        self.full = [int(word) for word in full.split(":")] if full else []
        self.glitch: list[int] = []

    def _times(self, name: str, most: int) -> bool:
        """Whether it has happened fewer times than that in this run; counts it."""
        assert self.folder is not None
        so_far = len(list(self.folder.glob(f"{name}-*")))
        if so_far >= most:
            return False
        Path(self.folder, f"{name}-{so_far}").write_text(str(os.getpid()))
        return True

    def on_phase(self, phase: Phase) -> None:
        if (
            self.die == [""]
            or self.session.rank != int(self.die[0])
            or self.session._position.step + 1 != int(self.die[1])
        ):
            return
        if phase.label == self.die[2] and self._times("died", 1):
            if self.away and self.folder is not None:
                Path(self.folder, "away").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        place = [self.session.rank, self.session._position.step + 1]
        if place == self.glitch and not self.session.replaying and self._times("slip", 1):
            return loss * torch.nan
        if place == self.full[:2] and self._times("full", self.full[2]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (in a test)")
        return loss
