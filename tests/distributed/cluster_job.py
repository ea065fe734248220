"""What tests of clusters train: hundreds of steps, slow until the job was requeued, so that a signal comes in time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

STEPS = 600
"""In two epochs."""
SAMPLES = STEPS // 2 * 8


def train(session: Any, seen: str) -> None:
    import torch

    import holdfast

    torch.manual_seed(3)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    samples = torch.utils.data.TensorDataset(torch.arange(len(x)), x)
    data = holdfast.Loader(samples, batch_size=8, shuffle=True, num_workers=1)
    session.protect(model=model, optimizer=optimizer, data=data)
    known = {"restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")), "first": session.step_count}
    for _ in session.epochs(2):
        for batch in session.batches(data):
            session.step(lambda b: (model(b[1]) ** 2).mean(), batch)
            row = {**known, "rank": session.rank, "step": session.step_count, "samples": batch[0].tolist()}
            with open(Path(seen, f"rank{session.rank}-{os.uname().nodename}.jsonl"), "a") as file:
                file.write(json.dumps(row) + "\n")
            if not known["restarts"]:
                time.sleep(0.1)
