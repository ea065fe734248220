"""A pretend accelerator, `pretend:0`: computes on the CPU, and has a memory of its own to run out of.

    memory = PretendMemory(session, samples=4)
    loss = session.step(lambda b: memory.hold(b) or mean_loss(b), batch)      # OutOfMemoryError above 4 samples

Device errors, on this device, are taken for what their words say (see chaos.py); on `cpu` they are a script's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from holdfast.runtime.transaction import batch_size

if TYPE_CHECKING:
    from holdfast.runtime.session import Session

NAME = "pretend"
DEVICE = torch.device("cpu", 0)
"""Where its tensors are: on the CPU for torch, and still not equal to `torch.device("cpu")`."""


class PretendMemory:
    """Room for so many samples, as long as the session computes on the pretend device."""

    def __init__(self, session: Session, samples: int) -> None:
        self.session = session
        self.samples = samples

    def hold(self, batch: Any) -> None:
        """Raise what torch raises if the batch does not fit; on the CPU proper everything does."""
        asked = batch_size(batch) or 0
        if self.session.device == DEVICE and asked > self.samples:
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory. Tried to allocate room for {asked} samples; there is room for {self.samples}."
            )
