"""A training script as people write them for torchrun, with the few lines that docs/writing-a-script.md asks for.

It takes functions of torch.distributed by name and calls them while it is imported, reads the environment, seeds each
rank differently, gives each rank a sampler of its own, and calls `backward()` and `optimizer.step()` itself. `wrapped`:
the model is in DistributedDataParallel; without it nobody has said how gradients are exchanged. `data`: "sampler" is a
DataLoader with a DistributedSampler, "loader" a holdfast.Loader, "both" a Loader with such a sampler, "unlike" a Loader
whose dataset is shorter in rank 1. `gathers` has the ranks add up a number after each step; `closure` gives the
optimizer a function to call; `die="1:5"` kills rank 1 after its step 5, before that, once. `seen` and `wait` as in
job.py.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed import all_reduce, destroy_process_group, get_rank, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import holdfast
from tests.distributed.torchrun_parts import LENGTH, SEED, SIZE, Points, network

init_process_group(backend="gloo", init_method="env://")
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (get_rank(), get_world_size()) == (RANK, RANKS)
assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"])


def data_of(kind: str) -> Any:
    points = Points(LENGTH - (kind == "unlike" and RANK == 1))
    if kind == "sampler":
        return DataLoader(points, batch_size=SIZE, sampler=DistributedSampler(points))
    if kind == "both":
        return holdfast.Loader(points, batch_size=SIZE * RANKS, sampler=DistributedSampler(points))
    return holdfast.Loader(points, batch_size=SIZE * RANKS, shuffle=True)


def train(
    session: holdfast.Session,
    epochs: int = 3,
    wrapped: bool = True,
    data: str = "sampler",
    gathers: bool = False,
    closure: bool = False,
    die: str = "",
    seen: str = "",
    wait: str = "",
) -> None:
    torch.manual_seed(SEED + RANK)
    model = network()
    if wrapped:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = data_of(data)
    session.protect(model=model, optimizer=optimizer, data=loader)
    for epoch in session.epochs(epochs):
        if data == "sampler":
            loader.sampler.set_epoch(epoch)
        for x, y, which in session.batches(loader):
            step = session._position.step + 1
            while str(step) in wait.split() and not (Path(seen) / f"go-{step}").exists():
                session._board.beat()
                time.sleep(0.005)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step(loss.item if closure else None)
            if die == f"{RANK}:{step}" and session.run.generation < 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if gathers:
                total = loss.detach().clone()
                all_reduce(total)
            if seen:
                with open(Path(seen) / f"part-{session.run.generation}-{RANK}.txt", "a") as file:
                    file.write(f"{epoch} {step} {' '.join(map(str, which.tolist()))}\n")
    destroy_process_group()
