"""A wide network on made-up vectors: what the CPU computes of one of its steps, sample by sample, takes seconds.

holdfast train benchmarks/jobs/wide.py steps=40
"""

from __future__ import annotations

import torch
from torch import nn

import holdfast


def train(session: holdfast.Session, *, steps: int = 40, width: int = 1024, batch: int = 256) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    made = torch.Generator().manual_seed(2)
    x, y = torch.randn(4096, 64, generator=made), torch.randint(10, (4096,), generator=made)
    data = holdfast.Loader(torch.utils.data.TensorDataset(x, y), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    per_epoch = len(data)
    for _ in session.epochs(-(-steps // per_epoch)):
        for each in session.batches(data):
            loss = session.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), each)
            session.log(loss=loss)
            if session.step_count >= steps:
                return


if __name__ == "__main__":
    holdfast.main(train)
