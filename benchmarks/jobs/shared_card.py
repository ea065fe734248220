"""A job for ranks that share one card: `fault="assert:2:12"` has rank 2 meet a fault of the device at step 12, once.

The faults are real: an index that is out of bounds in a kernel, memory that the card does not have, a kernel that never
ends. `seen` is a folder that remembers that it happened. With `wrong:2:12` every product of matrices that the card
computes for rank 2 from step 12 on is wrong in one number of 32, in each process of that rank: the card stays wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import holdfast


class WrongProducts(TorchDispatchMode):
    """What the card computes for this process, until it ends. The CPU stays right."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name in ("mm", "addmm") and out.device.type != "cpu" and out.is_floating_point():
            out = out.clone(memory_format=torch.contiguous_format)
            out.view(-1)[3::32] *= 1.5
        return out


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
    wrong: list[WrongProducts] = []
    for _ in session.epochs(1):
        for batch in session.batches(data):

            def loss(part: list[torch.Tensor]) -> torch.Tensor:
                _meet(session, fault, seen)
                return nn.functional.cross_entropy(model(part[0]), part[1])

            if not wrong and _is_wrong(session, fault):  # outside of a step, in which a look may be under way
                wrong.append(WrongProducts().__enter__())
            session.step(loss, batch)


def _is_wrong(session: holdfast.Session, fault: str) -> bool:
    kind, _, place = fault.partition(":")
    if kind != "wrong" or session.device.type == "cpu":
        return False
    rank, step = map(int, place.split(":"))
    return session.rank == rank and session.batch + 1 >= step


def _meet(session: holdfast.Session, fault: str, seen: str) -> None:
    kind, _, place = fault.partition(":")
    if not kind or kind == "wrong" or place != f"{session.rank}:{session.batch + 1}":
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
