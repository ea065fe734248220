"""A job for ranks that share one card: `fault="assert:2:12"` has rank 2 meet a fault of the device at step 12, once.

The faults are real: an index that is out of bounds in a kernel, memory that the card does not have, a kernel that never
ends, and `wrong`, a multiplication of which one number is wrong. `seen` is a folder that remembers that it happened.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast


def train(
    session: holdfast.Session, steps: int = 60, width: int = 512, ddp: bool = True, fault: str = "", seen: str = ""
) -> None:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = session.device
    inner = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    inner.to(device)
    model: nn.Module = DistributedDataParallel(inner) if ddp else inner
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(64 * steps, 64), torch.randint(0, 4, (64 * steps,))
    data = holdfast.Loader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(1):
        for batch in session.batches(data):

            def loss(part: list[torch.Tensor]) -> torch.Tensor:
                _meet(session, fault, seen)
                return nn.functional.cross_entropy(model(part[0]), part[1])

            session.step(loss, batch)


def _meet(session: holdfast.Session, fault: str, seen: str) -> None:
    kind, _, place = fault.partition(":")
    if not kind or place != f"{session.rank}:{session.batch + 1}":
        return
    marker = Path(seen, f"met-{kind}")
    if marker.exists():
        return
    marker.touch()
    device = session.device
    if kind == "assert" and device.type == "cpu":  # as a card says it, to try the way of a fault without one
        raise RuntimeError("CUDA error: device-side assert triggered")
    if kind == "assert":
        torch.zeros(4, device=device)[torch.tensor([9], device=device)].sum().item()
    elif kind == "memory":
        torch.empty(1 << 40, dtype=torch.uint8, device=device)
    elif kind == "endless":
        torch.cuda._sleep(2**62)
        torch.cuda.synchronize()
