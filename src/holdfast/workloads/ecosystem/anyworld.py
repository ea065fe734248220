"""PPO in any PettingZoo parallel environment: agents in groups that share a policy, whole episodes, several at a time.

    worlds = [make("adversarial_pursuit", tag_penalty=0.0, map_size=45) for _ in range(4)]
    group = groups(worlds[0])["predator"]                       # its agents, observation size, actions
    learner = GroupLearner(worlds, group, Recipe(), seed=0)
    numbers = learner.turn(device)                              # an episode of each world, then an update

Most environments cannot be saved in the middle, so a turn is whole episodes: each begins with a seed that depends on
the turn alone, and nothing of it is to be kept between two turns. Agents that die or come later are masked; groups
whose members see or do different things are refused.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem import ppo

KNOWN = {
    "adversarial_pursuit": ("magent2.environments.adversarial_pursuit_v4", "bench"),
    "tiger_deer": ("magent2.environments.tiger_deer_v4", "bench"),
}
"""Names for short, and the extra that has them."""


def make(name: str, **options: Any) -> Any:
    """An environment by a short name, or by a module with `parallel_env`; `ecosystem` is our own."""
    if name == "ecosystem":
        from holdfast.workloads.ecosystem.parallel import ParallelEcosystem

        return ParallelEcosystem(**options)
    module, extra = KNOWN.get(name, (name, "bench"))
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        hints = [f"pip install 'holdfast[{extra}]'"] if name in KNOWN else ["a module with `parallel_env`"]
        raise UserError(f"no environment `{name}`", cause=str(error), hints=hints) from None
    build = getattr(found, "parallel_env", None)
    if build is None:
        raise UserError(f"{module} is not an environment of PettingZoo", cause="it has no `parallel_env`")
    return build(**options)


@dataclass(frozen=True, slots=True)
class Group:
    """Agents that share a policy."""

    name: str
    agents: tuple[str, ...]
    wide: int
    """Numbers in an observation, flat."""
    actions: int


def groups(env: Any) -> dict[str, Group]:
    """By what stands before the number in their names; UserError if members of one differ."""
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise UserError("this environment has no agents", cause="`possible_agents` is missing or empty")
    found: dict[str, list[str]] = {}
    for agent in agents:
        head, _, number = str(agent).rpartition("_")
        found.setdefault(head if head and number.isdigit() else str(agent), []).append(agent)
    return {name: _group(env, name, members) for name, members in found.items()}


def _group(env: Any, name: str, members: list[str]) -> Group:
    shapes, actions = set(), set()
    for agent in members:
        space, does = env.observation_space(agent), env.action_space(agent)
        shape = getattr(space, "shape", None)
        if shape is None:
            raise UserError(f"{agent} sees a {type(space).__name__}", cause="only arrays (Box) can be learned from")
        if not hasattr(does, "n"):
            raise UserError(f"{agent} acts in a {type(does).__name__}", cause="only Discrete actions can be learned")
        shapes.add(tuple(shape))
        actions.add(int(does.n))
    if len(shapes) > 1 or len(actions) > 1:
        raise UserError(
            f"the agents called {name} are not alike",
            cause=f"they see {sorted(shapes)} and have {sorted(actions)} actions",
            hints=["agents that share a policy need the same spaces: give them different names"],
        )
    return Group(name, tuple(members), int(np.prod(shapes.pop())), actions.pop())


class Flat(nn.Module):
    """Actor and critic for flat observations."""

    def __init__(self, wide: int, actions: int, hidden: int = 128) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.actor, self.critic = nn.Linear(hidden, actions), nn.Linear(hidden, 1)
        for layer, gain in ((self.trunk[0], 1.4), (self.trunk[2], 1.4), (self.actor, 0.01), (self.critic, 1.0)):
            assert isinstance(layer, nn.Linear)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        trunk = self.trunk(x)
        return self.actor(trunk).float(), self.critic(trunk).float().squeeze(-1)


class Episodes:
    """What a group did in an episode of each world."""

    def __init__(self, steps: int, slots: int) -> None:
        self.rewards, self.values = np.zeros((steps, slots), np.float32), np.zeros((steps, slots), np.float32)
        self.ends, self.cuts, self.there = (np.zeros((steps, slots), bool) for _ in range(3))
        self.seen: list[Tensor] = []
        self.actions: list[Tensor] = []
        self.logps: list[Tensor] = []
        self.where: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.steps = 0


class GroupLearner:
    """One group learns; the others roll dice."""

    def __init__(
        self,
        worlds: list[Any],
        group: Group,
        recipe: ppo.Recipe,
        *,
        seed: int = 0,
        steps: int = 150,
        hidden: int = 128,
    ) -> None:
        self.worlds, self.group, self.recipe, self.seed, self.steps = worlds, group, recipe, seed, steps
        self.net = Flat(group.wide, group.actions, hidden)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=recipe.lr, eps=1e-5)
        self.scale = ppo.Scale()
        self.turns = 0
        self._place = {agent: at for at, agent in enumerate(group.agents)}
        others = {name: each for name, each in groups(worlds[0]).items() if name != group.name}
        self._dice = {agent: each.actions for each in others.values() for agent in each.agents}

    def protected(self) -> dict[str, Any]:
        return {"policy": self.net, "optimizer": self.optimizer, "scale": self.scale, "cursor": self}

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turns = int(state["turns"])

    def turn(self, device: torch.device, *, learn: bool = True, dice: bool = False) -> dict[str, float]:
        """An episode in each world; then learn from them."""
        found = self.episodes(device, self.seed * 100_003 + self.turns * len(self.worlds), dice=dice)
        numbers = self.numbers_of(found)
        if learn:
            self.scale.learn(self._discounted(found))
            batch = self._batch(found, device)
            numbers |= ppo.update(self.net, self.optimizer, batch, self.recipe) if len(batch) else {}
            self.turns += 1
        return numbers

    def episodes(self, device: torch.device, seed: int, *, dice: bool = False) -> Episodes:
        """Play; the worlds go in step, so that one forward serves all of them."""
        count, many = len(self.group.agents), len(self.worlds)
        found = Episodes(self.steps, count * many)
        rng = np.random.default_rng(seed)
        seen = [world.reset(seed=(seed + at) % (2**31))[0] for at, world in enumerate(self.worlds)]
        with torch.no_grad():
            for step in range(self.steps):
                acting = [
                    (at, agent)
                    for at, world in enumerate(self.worlds)
                    for agent in world.agents
                    if agent in self._place
                ]
                if not any(world.agents for world in self.worlds):
                    break
                chosen = self._choose(found, step, acting, seen, device, rng, dice)
                for at, world in enumerate(self.worlds):
                    if world.agents:
                        seen[at] = self._advance(found, step, at, world, chosen[at], rng)
                found.steps = step + 1
        return found

    def _choose(
        self, found: Episodes, step: int, acting: list[tuple[int, str]], seen: Any, device: Any, rng: Any, dice: bool
    ) -> list[dict[str, int]]:
        chosen: list[dict[str, int]] = [{} for _ in self.worlds]
        if not acting:
            return chosen
        slots = np.array([at * len(self.group.agents) + self._place[agent] for at, agent in acting])
        found.there[step, slots] = True
        if dice:
            for (at, agent), action in zip(acting, rng.integers(0, self.group.actions, len(acting)), strict=True):
                chosen[at][agent] = int(action)
            return chosen
        rows = np.stack([seen[at][agent] for at, agent in acting]).reshape(len(acting), -1)
        x = torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(device)
        logits, value = self.net(x)
        actions, logps = ppo.sample(logits, self.group.name)
        found.values[step, slots] = value.cpu().numpy()
        found.seen.append(x)
        found.actions.append(actions)
        found.logps.append(logps)
        found.where.append((np.full(len(slots), step), slots))
        for (at, agent), action in zip(acting, actions.tolist(), strict=True):
            chosen[at][agent] = action
        return chosen

    def _advance(self, found: Episodes, step: int, at: int, world: Any, chosen: dict[str, int], rng: Any) -> Any:
        strangers = [agent for agent in world.agents if agent not in self._place and agent not in self._dice]
        if strangers:
            raise UserError(
                f"an agent came that was not announced: {strangers[0]}",
                cause="`possible_agents` has to name everybody who may ever come",
            )
        others = [agent for agent in world.agents if agent not in self._place]
        drawn = rng.random(len(others)).tolist()
        actions = chosen | {agent: int(draw * self._dice[agent]) for agent, draw in zip(others, drawn, strict=True)}
        observations, rewards, gone, cut, _ = world.step(actions)
        base = at * len(self.group.agents)
        for agent in chosen:
            slot = base + self._place[agent]
            found.rewards[step, slot] = rewards.get(agent, 0.0)
            found.ends[step, slot] = gone.get(agent, agent not in world.agents)
            found.cuts[step, slot] = cut.get(agent, False) and not found.ends[step, slot]
        return observations

    def numbers_of(self, found: Episodes) -> dict[str, float]:
        """Counted from the rewards: in adversarial_pursuit a tag is worth 1, in tiger_deer a kill brings energy."""
        lived = int(found.there.sum())
        each = len(self.group.agents) * len(self.worlds)
        caught = found.rewards[found.there] > 0.0
        return {
            "return": float(found.rewards.sum()) / each,
            "rewarded": float(caught.sum()) / each,
            "agent_steps": float(lived),
            "survival": float(found.there[max(0, found.steps - 1)].mean()),
        }

    def _discounted(self, found: Episodes) -> NDArray[np.float32]:
        total, rows = np.zeros(found.rewards.shape[1], np.float32), []
        for t in range(found.steps - 1, -1, -1):
            total = found.rewards[t] + np.float32(self.recipe.gamma) * total * ~(found.ends[t] | found.cuts[t])
            rows.append(total[found.there[t]])
        return np.concatenate(rows) if rows else np.zeros(0, np.float32)

    def _batch(self, found: Episodes, device: torch.device) -> ppo.Batch:
        last = np.zeros(found.rewards.shape[1], np.float32)
        cuts = found.cuts.copy()
        cuts[found.steps - 1] |= found.there[found.steps - 1] & ~found.ends[found.steps - 1]
        advantages, returns = ppo.gae(
            found.rewards / np.float32(max(float(self.scale.spread[0]), 1e-3)), found.values, found.ends, cuts,
            found.there, last, gamma=self.recipe.gamma, lam=self.recipe.lam,
        )  # fmt: skip
        rows = tuple(np.concatenate([each[axis] for each in found.where]) for axis in (0, 1))
        batch = ppo.Batch(
            (torch.cat(found.seen),), torch.cat(found.actions), torch.cat(found.logps),
            *(torch.from_numpy(each[rows]).to(device) for each in (found.values, advantages, returns)),
        )  # fmt: skip
        some = ppo.thinned(len(batch), self.recipe.most)
        return batch if some is None else batch.rows(some.to(device))
