"""What every way to train the same small job shares: the data, the network, the log of its steps, and the fault.

    data, model = Data(), network()
    for batch in …:
        loss = cross_entropy(model(x), y)      # the fault comes in here, once, after step PEER_AT
        …
        done(step)                             # a line in steps.log: pid, step, time
    finish(model)                              # what came out of it: the digest of the weights

PEER_FOLDER is where it all is; PEER_FAULT is kill, hang, oom, assert or bad. A fault that has come has left a mark, and
does not come again after a restart; a bad sample does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

FOLDER = Path(os.environ["PEER_FOLDER"])
FAULT = os.environ.get("PEER_FAULT", "")
AT = int(os.environ.get("PEER_AT", "250"))
EPOCHS = int(os.environ.get("PEER_EPOCHS", "4"))
SAMPLES = int(os.environ.get("PEER_SAMPLES", "3200"))
BATCH, BAD = 32, 37
PER_EPOCH = SAMPLES // BATCH

_last = 0


class Data(torch.utils.data.Dataset):
    """Numbers with a hint of their class in them; one of them may be a file that cannot be read."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if FAULT == "bad" and index == BAD:
            raise ValueError(f"sample {index} cannot be read: not a recording")
        label = index % 4
        return torch.randn(64, generator=torch.Generator().manual_seed(index)) + 0.3 * label, label


class Network(nn.Sequential):
    """Dropout is in it, so that a restart that forgets the random numbers shows."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            _meet_fault()
        found: Tensor = super().forward(x)
        return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network(
        nn.Linear(64, 384),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(384, 4),
    )


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def done(step: int) -> None:
    """A step is complete."""
    global _last
    _last = step
    with open(FOLDER / "steps.log", "a") as log:
        log.write(f"{os.getpid()} {step} {time.time()}\n")


def finish(model: nn.Module) -> None:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    (FOLDER / "finished.json").write_text(json.dumps({"sha256": digest.hexdigest(), "time": time.time()}))


def _meet_fault() -> None:
    if _last != AT or FAULT in ("", "bad"):
        return
    try:
        with open(FOLDER / "fired", "x") as mark:
            mark.write(FAULT)
    except FileExistsError:
        return
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while FAULT == "hang":
        time.sleep(1)
    if FAULT == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (on purpose)")
    if FAULT == "assert":
        raise RuntimeError("CUDA error: device-side assert triggered (on purpose)")
