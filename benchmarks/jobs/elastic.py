"""The same small job the way torchrun wants it: a checkpoint at each epoch, loaded again after a restart.

torchrun --nproc-per-node 1 --max-restarts 3 benchmarks/jobs/elastic.py FOLDER EPOCHS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from small import Data, network
from torch import nn


def main(folder: Path, epochs: int) -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved = folder / "last.pt"
    start = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
    loader = torch.utils.data.DataLoader(Data(), batch_size=16, shuffle=True)
    with open(folder / "steps.log", "a", buffering=1) as log:
        for epoch in range(start, epochs):
            for number, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                log.write(f"{os.getpid()} {epoch * len(loader) + number + 1} {time.time()}\n")
                time.sleep(0.01)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
