"""The same PPO in somebody else's environment: any of PettingZoo's parallel ones, MAgent2's among them.

    holdfast train ecosystem-any                                       adversarial_pursuit, predators learn
    holdfast train ecosystem-any env=tiger_deer group=tiger            the hard one: two tigers must attack together
    holdfast train ecosystem-any env=my_package.my_env group=walker    a module of yours with `parallel_env`

One update is whole episodes and then PPO, in one transaction. The others of the environment roll dice.
"""

from __future__ import annotations

import holdfast
from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem import ppo
from holdfast.workloads.ecosystem.anyworld import GroupLearner, groups, make


def train(
    session: holdfast.Session,
    *,
    env: str = "adversarial_pursuit",
    group: str = "",
    updates: int = 40,
    worlds: int = 4,
    steps: int = 150,
    tag_penalty: float = 0.0,
    hidden: int = 128,
    lr: float = 1e-3,
    epochs: int = 2,
    minibatch: int = 2048,
    entropy: float = 0.01,
    gamma: float = 0.95,
) -> None:
    """One run: episodes, updates, and what the group got beside dice."""
    if updates < 1 or worlds < 1 or steps < 1:
        raise UserError(f"updates, worlds and steps are {updates}, {worlds}, {steps}", cause="each has to be 1 or more")
    options = {"tag_penalty": tag_penalty} if env == "adversarial_pursuit" else {}
    if env in ("adversarial_pursuit", "tiger_deer"):
        options |= {"map_size": 45, "max_cycles": steps}
    made = [make(env, **options) for _ in range(worlds)]
    there = groups(made[0])
    default = next((name for name in ("predator", "tiger") if name in there), next(iter(there)))
    chosen = there.get(group or default)
    if chosen is None:
        raise UserError(f"no group `{group}` in {env}", cause=f"there are {', '.join(there)}")
    recipe = ppo.Recipe(lr=lr, epochs=epochs, minibatch=minibatch, entropy=entropy, gamma=gamma, most=0)
    learner = GroupLearner(made, chosen, recipe, seed=session.run.seed, steps=steps, hidden=hidden)
    print(f"{env}: {len(chosen.agents)} x {chosen.name} learn, the others roll dice; {worlds} worlds", flush=True)
    session.protect(**learner.protected())
    for _ in session.epochs(updates):
        numbers = session.transaction(lambda: learner.turn(session.device))
        session.log(**{("episode_return" if key == "return" else key): value for key, value in numbers.items()})
    with session.evaluating():
        mine = learner.turn(session.device, learn=False)
        dice = learner.turn(session.device, learn=False, dice=True)
    times = f"{mine['rewarded'] / dice['rewarded']:.1f} times" if dice["rewarded"] else "dice get none"
    print(f"rewarded steps per agent and episode: {mine['rewarded']:.2f}, by dice {dice['rewarded']:.2f} ({times})")
