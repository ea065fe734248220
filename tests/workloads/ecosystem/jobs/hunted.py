"""The ecosystem, in a process that is killed in the middle of a roll-out, or between two steps of an optimizer."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import holdfast
from holdfast.workloads.ecosystem import train as workload
from holdfast.workloads.ecosystem.world import World


def train(session: holdfast.Session, *, rollout: int = 0, update: int = 0, memory: int = 0, updates: int = 4) -> None:
    """`rollout`: killed at this step of the world; `update`: after this step of an optimizer; from the start."""
    folder = session.run.folder

    def once(name: str) -> bool:
        path = Path(folder) / f"fired-{name}"
        if path.exists():
            return False
        path.touch()
        return True

    walked = World.step
    count = {"world": 0, "optimizer": 0}

    def step(self: World, actions: Any) -> Any:
        count["world"] += 1
        if count["world"] == rollout and once("rollout"):
            os.kill(os.getpid(), signal.SIGKILL)
        if count["world"] == memory and once("memory"):
            raise torch.OutOfMemoryError("out of memory in the middle of a roll-out")
        return walked(self, actions)

    def stepped(*_: Any) -> None:
        count["optimizer"] += 1
        if count["optimizer"] == update and once("update"):
            os.kill(os.getpid(), signal.SIGKILL)

    World.step = step  # type: ignore[method-assign]
    hook = register_optimizer_step_post_hook(stepped)
    try:
        workload.train(session, preset="tiny", updates=updates, steps=6, worlds=4, prey=12, predators=6, size=14.0,
                       minibatch=64, samples=128, epochs=2, freeze=2, evaluate=2, arena=2, tune=False)  # fmt: skip
    finally:
        World.step = walked  # type: ignore[method-assign]
        hook.remove()
