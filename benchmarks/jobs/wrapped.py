"""A model in DistributedDataParallel, or with `parts` in FSDP2, trained twice in turns: by session.step, and by a loop
without holdfast.

The second reads the same samples with a DataLoader and a DistributedSampler, as a script for torchrun does.
Both are in the same ranks, so a busy machine slows both. `folder` gets the seconds of every step of each, by rank, and
the processor seconds of all of them: on a busy machine a rank waits for a processor, and these do not count that.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import holdfast


def _network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 4),
    )  # fmt: skip


def _shared_out(model: nn.Module, kind: str, ranks: int) -> nn.Module:
    mesh = init_device_mesh(kind, (ranks,))
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(
    session: holdfast.Session,
    steps: int = 100,
    width: int = 256,
    rows: int = 256,
    parts: bool = False,
    folder: str = "",
) -> None:
    torch.distributed.init_process_group("gloo")
    device = session.device
    x, y = torch.randn(rows * steps, 64), torch.randint(0, 4, (rows * steps,))
    ours: nn.Module
    plain: nn.Module
    if parts:
        ours, plain = (_shared_out(_network(width).to(device), device.type, session.ranks) for _ in range(2))
    else:
        ours, plain = (DistributedDataParallel(_network(width).to(device)) for _ in range(2))
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3)
    other = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    samples = torch.utils.data.TensorDataset(x, y)
    data = holdfast.Loader(samples, batch_size=rows)
    part: Any = torch.utils.data.DistributedSampler(samples, session.ranks, session.rank, shuffle=False)
    plain_data = iter(torch.utils.data.DataLoader(samples, batch_size=rows // session.ranks, sampler=part))
    session.protect(model=ours, optimizer=optimizer, data=data)
    held, alone = [], []
    used: tuple[list[float], list[float]] = ([], [])
    for _ in session.epochs(1):
        began, busy = time.perf_counter(), time.process_time()
        for batch in session.batches(data):
            session.step(lambda b: nn.functional.cross_entropy(ours(b[0]), b[1]), batch)
            _wait_for(device)
            middle, busy_then = time.perf_counter(), time.process_time()
            _step(plain, other, [each.to(device) for each in next(plain_data)])
            _wait_for(device)
            alone.append(time.perf_counter() - middle)
            held.append(middle - began)
            used[0].append(busy_then - busy)
            used[1].append(time.process_time() - busy_then)
            began, busy = time.perf_counter(), time.process_time()  # the end of the body follows: vote and commit
    if folder:
        found = {"held": held[10:], "alone": alone[10:], "held_cpu": used[0][10:], "alone_cpu": used[1][10:]}
        Path(folder, f"rank{session.rank}.json").write_text(json.dumps(found))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
