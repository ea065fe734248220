"""What a loop keeps besides its model: `session.state`, a dictionary, and meters, which are running means.

    session.state["best"] = 0.93                # restored with everything else
    meter = session.meter("train_loss")         # where a script writes `running = 0.0`
    meter.add(loss, len(batch))
    meter.mean

Local variables are not restored when a worker is replaced. These are, in the middle of an epoch, too.
"""

from __future__ import annotations

import math
from typing import Any

import torch


class Meter:
    """A running mean. It waits for no device before it is read."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._total = 0.0
        self._count = 0.0
        self._waiting: torch.Tensor | None = None
        """The sum of what is still on a device."""

    def add(self, value: Any, count: float = 1) -> None:
        """`value` is the mean of `count` samples: a number, a tensor with one element, or the loss of a step."""
        tensor = value if isinstance(value, torch.Tensor) else getattr(value, "tensor", None)
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
            wide = tensor.detach().reshape(()).to(torch.float32 if tensor.device.type == "mps" else torch.float64)
            self._waiting = wide * count if self._waiting is None else self._waiting + wide * count
        else:
            self._total += float(value) * count
        self._count += count

    @property
    def count(self) -> float:
        return self._count

    @property
    def total(self) -> float:
        return self._total + (0.0 if self._waiting is None else float(self._waiting))

    @property
    def mean(self) -> float:
        """Not a number as long as nothing was added."""
        return self.total / self._count if self._count else math.nan

    def __float__(self) -> float:
        return self.mean

    def __format__(self, spec: str) -> str:
        return format(self.mean, spec)

    def __repr__(self) -> str:
        return f"Meter({self.mean!r})"

    def state_dict(self) -> dict[str, Any]:
        return {"total": self._total, "count": self._count, "waiting": self._waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._total, self._count, self._waiting = float(state["total"]), float(state["count"]), state["waiting"]


class Kept:
    """All of a session's, as one object that is protected."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._meters: dict[str, Meter] = {}

    def meter(self, name: str) -> Meter:
        """A meter that begins anew here."""
        meter = self._meters.setdefault(name, Meter())
        meter.reset()
        return meter

    def state_dict(self) -> dict[str, Any]:
        meters = {name: meter.state_dict() for name, meter in self._meters.items()}
        return {"values": self.values, "meters": meters} if self.values or meters else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place: the script has the dictionary and its meters already."""
        values = dict(state.get("values", {}))
        self.values.clear()
        self.values.update(values)
        saved = state.get("meters", {})
        for name in {*self._meters, *saved}:
            meter = self._meters.setdefault(name, Meter())
            meter.load_state_dict(saved[name]) if name in saved else meter.reset()
