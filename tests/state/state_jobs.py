"""Small trainings whose state is saved and restored, and odd things that may be protected with them.

    check_resumes(build)    # build(seed) makes a Job: saved, loaded into a new one and trained on, bit for bit

Shared by the tests of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from holdfast.state import layout as layouts
from holdfast.state.protected import Protected
from tests.state.saving import CPU, load, save

# For the whole process: the bits of a sum may depend on the number of threads.
torch.set_num_threads(1)


@dataclass
class Job:
    """A small training, built anew for each worker. `body` runs after each step, as a user's loop would."""

    seed: int
    model: Any
    optimizer: Any
    others: dict[str, Any] = field(default_factory=dict)
    body: Callable[[Job, Tensor], None] = lambda job, loss: None
    inputs: Callable[[torch.Generator], Tensor] = lambda gen: torch.randn(8, 6, generator=gen)

    def protected(self) -> Protected:
        return Protected({"model": self.model, "optimizer": self.optimizer, **self.others}, CPU)

    def train(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            batch = self.inputs(torch.Generator().manual_seed(step))

            def closure(batch: Tensor = batch) -> Tensor:
                self.optimizer.zero_grad()
                loss: Tensor = self.model(batch).float().square().mean()
                loss.backward()
                return loss

            loss = self.optimizer.step(closure)
            self.body(self, loss.detach())
            losses.append(float(loss.detach()))
        return losses


def net(dtype: torch.dtype = torch.float32) -> Any:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 6)).to(dtype)


def weights(job: Job) -> dict[str, Tensor]:
    state = job.model.state_dict()
    return {key: value.clone() for key, value in state.items() if isinstance(value, Tensor)}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype
        assert torch.equal(a[key], b[key]), key


def check_resumes(build: Callable[[int], Job], steps: int = 3) -> None:
    """A newly built job goes on exactly where the first one was; the first one can go back as well."""
    first = build(1)
    protected = first.protected()
    protected.layout()
    first.train(0, steps)
    slot = save(protected)
    safetensors.torch.load(bytes(slot))
    kept = bytearray(slot)
    expected = first.train(steps, steps + 3)
    end = weights(first)

    second = build(2)
    resumed = second.protected()
    load(resumed, slot)
    assert second.train(steps, steps + 3) == expected
    same(weights(second), end)

    load(protected, bytearray(kept))
    assert first.train(steps, steps + 3) == expected
    same(weights(first), end)

    # What was saved, restored and saved again is the same bytes.
    third = build(3)
    again = third.protected()
    load(again, bytearray(kept))
    assert layouts.weights_sha256(save(again)) == layouts.weights_sha256(kept)


class Extra(nn.Module):
    """Extra state, as quantizers and tokenizers in a module have it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.scale = 1.0
        self.seen: list[Any] = []

    def get_extra_state(self) -> Any:
        return {"scale": self.scale, "seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.scale, self.seen = state["scale"], state["seen"]

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= 1.01
        self.seen.append(x.detach().mean())
        out: Tensor = self.linear(x) * self.scale + self.seen[0]
        return out


class World:
    """An environment as reinforcement learning has it: arrays in place, generators, odd containers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.grid = self.rng.standard_normal((4, 4))
        self.best = float("-inf")
        self.visits: dict[Any, int] = {(0, 1): 2, 7: 3}
        self.memory = torch.zeros(3, 2)
        self.history: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "rng": self.rng.bit_generator.state,
            "grid": self.grid,
            "best": self.best,
            "visits": self.visits,
            "memory": self.memory.clone(),
            "history": self.history,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.grid, self.best, self.visits = state["grid"], state["best"], state["visits"]
        self.memory, self.history = state["memory"], state["history"]

    def act(self) -> float:
        self.grid += self.rng.standard_normal((4, 4))
        self.memory += 1
        self.best = max(self.best, float(self.grid.sum()))
        self.visits[(0, 1)] += 1
        self.history.append(self.best)
        return self.best
