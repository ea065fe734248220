"""A small agent: an episode in a simulated world, then a few updates, as one transaction."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from windows import Windows, arguments

import holdfast


class World:
    """A point that is pushed towards zero."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.place = torch.ones(32, 8)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def push(self, action: torch.Tensor) -> torch.Tensor:
        self.place = (self.place + 0.1 * action.cpu() + 0.05 * torch.randn(32, 8)).clamp(-3, 3)
        return -self.place.square().mean()


def episode(world: World, policy: nn.Module, optimizer: torch.optim.Optimizer, length: int) -> None:
    seen, actions, rewards = [], [], []
    for _ in range(length):
        with torch.no_grad():
            mean = policy(world.place.to(world.device))
            action = mean + 0.3 * torch.randn_like(mean)
        seen.append(world.place.to(world.device))
        actions.append(action)
        rewards.append(world.push(action))
    gains = torch.stack(rewards).flip(0).cumsum(0).flip(0).to(world.device)
    gains = (gains - gains.mean()) / (gains.std() + 1e-6)
    for _ in range(4):
        optimizer.zero_grad()
        distance = (policy(torch.stack(seen)) - torch.stack(actions)).square().mean(dim=(1, 2))
        (distance * gains).mean().backward()
        optimizer.step()


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))


def train(
    session: holdfast.Session, *, times: str = "", episodes: int = 200, length: int = 64, window: int = 10
) -> None:
    policy = make()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    world = World(session.device)
    session.protect(policy=policy, optimizer=optimizer, world=world)
    windows = Windows(times, session.device, window)
    while session.step_count < episodes:
        session.transaction(lambda: episode(world, policy, optimizer, length))
        windows.step()


def bare(*, device: str, times: str, episodes: int, length: int, window: int) -> None:
    where = torch.device(device)
    policy = make().to(where)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    world, windows = World(where), Windows(times, where, window)
    for _ in range(episodes):
        episode(world, policy, optimizer, length)
        windows.step()


if __name__ == "__main__":
    bare(**arguments(device="cpu", times="", episodes=200, length=64, window=10))
