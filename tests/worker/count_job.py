"""How much Python the runtime executes in a step that is not committed, counted inside of a supervised worker.

Each byte code of a file of holdfast counts, and of nothing else: what the model and the optimizer do with their
tensors is theirs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import holdfast

OURS = str(Path(holdfast.__file__).parent) + os.sep
STEPS = 24


class Many(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), 1.0 / count)) for _ in range(count)])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(x * torch.stack(list(self.scales)).sum(0))
        return found


class OfAScript(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Nobody knows what such a dataset does: the generators are watched while it is read."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], 2 * self.x[index]


class Counter:
    """While it is open: `count` byte codes of ours."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.one

    def one(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += event == "opcode"
        return self.one


def train(session: holdfast.Session, *, tensors: int = 20, own: int = 0, out: str = "") -> None:
    model = Many(tensors)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(STEPS * 4, 4, generator=torch.Generator().manual_seed(1))
    data = holdfast.Loader(OfAScript(x) if own else TensorDataset(x, 2 * x), batch_size=4, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    snapshots = session._context.snapshots
    counter, found, before = Counter(), [], (0, 0)
    for _ in session.epochs(1):
        for batch in session.batches(data):
            sys.settrace(None)
            sequence, count = snapshots.next_sequence, counter.count
            found.append([sequence - before[0], count - before[1]])
            before = (sequence, count)
            sys.settrace(counter)
            session.step(lambda b: (model(b[0]) - b[1]).square().mean(), batch)
        sys.settrace(None)
    Path(out).write_text(json.dumps([count for commits, count in found[2:] if commits == 0]))
