"""What the tests of clusters train: some hundred steps, slow ones until the job was requeued, so that a signal meets it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

STEPS = 600


def train(session: Any, seen: str) -> None:
    import holdfast

    torch.manual_seed(3)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(STEPS // 2 * 8, 8, generator=torch.Generator().manual_seed(1))
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.arange(len(x)), x), batch_size=8, shuffle=True, num_workers=1)
    session.protect(model=model, optimizer=optimizer, data=data)
    first = session.step_count
    start = os.environ.get("SLURM_RESTART_COUNT", "0")
    for _ in session.epochs(2):
        for batch in session.batches(data):
            session.step(lambda b: (model(b[1]) ** 2).mean(), batch)
            line = f"{start} {session.rank} {session.step_count} {first} {' '.join(map(str, batch[0].tolist()))}\n"
            with open(Path(seen, f"rank{session.rank}-{os.uname().nodename}.txt"), "a") as file:
                file.write(line)
            if start == "0":
                time.sleep(0.1)
