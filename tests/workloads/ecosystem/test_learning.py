"""Policy and PPO: the quick form is the usual one, pieces add up to the whole, and somebody learns something."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.base.errors import HoldfastError, UserError
from holdfast.workloads.ecosystem import evaluate, ppo, reference
from holdfast.workloads.ecosystem.learner import Learner
from holdfast.workloads.ecosystem.policy import SIZES, Policy, attention, parameters
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, Rules
from holdfast.workloads.ecosystem.self_play import League
from holdfast.workloads.ecosystem.vitals import Vitals

CPU = torch.device("cpu")
SMALL = Rules(worlds=4, size=14.0, prey=12, predators=6, prey_capacity=16, predator_capacity=8)


def seen(count: int = 20, neighbours: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    own, others = torch.randn(count, 13), torch.randn(count, neighbours, 13)
    others[..., -1] = (torch.rand(count, neighbours) > 0.3).float()
    return own, others * others[..., -1:]


def batch(count: int = 64) -> ppo.Batch:
    numbers = torch.randn(3, count)
    return ppo.Batch(seen(count), torch.randint(0, 10, (count,)), torch.full((count,), -2.3), *numbers)


def test_the_presets_are_as_large_as_they_are_called() -> None:
    for name, least, most in (("full", 2_800_000, 3_000_000), ("small", 650_000, 780_000)):
        with torch.device("meta"):
            assert least < 2 * parameters(Policy(SIZES[name])) < most


def test_the_quick_attention_is_the_usual_one() -> None:
    torch.manual_seed(0)
    net = Policy(SIZES["small"]).double()
    own, others = (each.double() for each in seen())
    others[3] = 0.0  # somebody who sees nobody
    quick, usual = net(own, others), reference.usual_forward(net, own, others)
    alone = reference.one_at_a_time(net, own, others)
    for mine, theirs, one in zip(quick, usual, alone, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mine, one, rtol=1e-5, atol=1e-6)
        assert torch.isfinite(mine).all()


def test_every_kernel_of_the_attention_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    net, (own, others) = Policy(SIZES["tiny"]), seen()
    found = {}
    for backend in ("auto", "math", "flash"):
        net.zero_grad()
        with attention(backend, CPU):
            logits, value = net(own, others)
            (logits.square().sum() + value.sum()).backward()
        found[backend] = [each.grad.clone() for each in net.parameters() if each.grad is not None]
    for backend in ("math", "flash"):
        for mine, theirs in zip(found[backend], found["auto"], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for bad, words in (("efficient", "does not exist on the CPU"), ("fast", "unknown attention")):
        with pytest.raises(UserError, match=words), attention(bad, CPU):
            pass


def test_pieces_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    net, some = Policy(SIZES["tiny"]).double(), batch(50)
    some = ppo.Batch(
        tuple(each.double() for each in some.inputs), some.actions, *(e.double() for e in some.tensors()[3:])
    )
    grads = []
    for pieces in (1, 4, 7):
        net.zero_grad()
        ppo.accumulate(net, some, ppo.Recipe(pieces=pieces))
        grads.append(torch.cat([each.grad.flatten() for each in net.parameters() if each.grad is not None]))
    assert grads[0].norm() > 1e-3
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=1e-5, atol=1e-7)


def test_advantages_are_what_their_definition_says() -> None:
    rng = np.random.default_rng(0)
    steps, slots, gamma, lam = 12, 5, 0.9, 0.8
    rewards, values = (rng.normal(size=(steps, slots)).astype(np.float32) for _ in range(2))
    ends, cuts = rng.random((steps, slots)) < 0.2, rng.random((steps, slots)) < 0.1
    cuts &= ~ends
    there = np.ones((steps, slots), bool)
    last = rng.normal(size=slots).astype(np.float32)
    advantages, returns = ppo.gae(rewards, values, ends, cuts, there, last, gamma=gamma, lam=lam)
    for slot in range(slots):
        for t in range(steps):
            wanted, weight = 0.0, 1.0
            for s in range(t, steps):
                after = values[s + 1, slot] if s + 1 < steps else last[slot]
                after = 0.0 if ends[s, slot] else values[s, slot] if cuts[s, slot] else after
                wanted += weight * (rewards[s, slot] + gamma * after - values[s, slot])
                weight *= gamma * lam
                if ends[s, slot] or cuts[s, slot]:
                    break
            assert advantages[t, slot] == pytest.approx(wanted, abs=1e-4)
    assert np.allclose(returns, advantages + values)


def test_a_running_scale_is_that_of_all_values() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, (1000, 2))
    scale, twin = ppo.Scale(2), ppo.Scale(2)
    for part in np.split(values, [10, 11, 400]):
        scale.learn(part)
    twin.load_state_dict(scale.state_dict())
    assert np.allclose(twin.mean, values.mean(0)) and np.allclose(twin.spread, values.std(0, ddof=1))


def test_a_policy_that_says_nan_is_named() -> None:
    learner = Learner(SMALL, "tiny", ppo.Recipe(), steps=2, freeze=0)
    with torch.no_grad():
        learner.nets[PREDATOR].actor[-1].bias[3] = float("nan")
    with pytest.raises(HoldfastError, match="the policy of the predators says NaN for 24 of 24"):
        learner.turn(CPU)


@pytest.mark.all
def test_one_turn_has_one_result() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        learner = Learner(SMALL, "tiny", ppo.Recipe(minibatch=64), seed=3, steps=6, freeze=1)
        for _ in range(3):
            numbers = learner.turn(CPU)
        found.append((numbers, torch.cat([p.flatten() for net in learner.nets.values() for p in net.parameters()])))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
    assert len(learner.league) == 3 and learner.league.ages == [0, 1, 2]
    assert {"catch_rate", "attempts", "survival", "predators_entropy", "prey", "predators"} <= set(numbers)


def test_the_league_keeps_the_first_and_the_newest() -> None:
    league, net = League(keep=3), torch.nn.Linear(1, 1)
    for age in range(6):
        with torch.no_grad():
            net.weight.fill_(age)
        league.add({"prey": net}, age)
    assert league.ages == [0, 4, 5]
    twin = League(keep=3)
    twin.load_state_dict(league.state_dict())
    assert twin.into("prey", net, 0.5) == 4 and net.weight.item() == 4.0
    assert twin.into("prey", net, 0.9999) == 5 and twin.into("prey", net, 0.0) == 0


def test_predators_that_stop_trying_are_noticed() -> None:
    vitals = Vitals()
    vitals.first = [10.0, 11.0, 9.0]
    assert vitals.warning({"attempts": 4.0, "predators_return": -1.0}) == ""
    words = vitals.warning({"attempts": 0.5, "predators_return": 0.0})
    assert words.startswith(
        "warning: predators have stopped trying: 0.50 attempts in 100 steps, 10.00 at the beginning"
    )
    assert "attempt_cost" in words and "stopped trying" in vitals.note and Vitals().note == ""
    assert vitals.warning({"attempts": 0.5, "predators_return": 0.0}) == "", "said once"


@pytest.mark.long
def test_predators_learn_to_lunge_at_what_is_in_reach() -> None:
    """A crowded little world, a little network, seconds: clearly more than dice, which the long measurement repeats."""
    torch.manual_seed(0)
    rules = Rules(worlds=6, size=13.0, prey=24, predators=16, prey_capacity=32, predator_capacity=24, neighbours=4)
    recipe = ppo.Recipe(lr=3e-3, minibatch=256, most=1024, epochs=3)
    learner = Learner(rules, "tiny", recipe, seed=0, steps=16, freeze=0)
    for _ in range(10):
        learner.turn(CPU)
    with torch.no_grad():
        mine = evaluate.duel(rules, {PREY: None, PREDATOR: learner.nets[PREDATOR]}, worlds=6, steps=40, seed=1)
        dice = evaluate.duel(rules, {PREY: None, PREDATOR: None}, worlds=6, steps=40, seed=1)
    found, low, high = evaluate.ratio(mine.catches, dice.catches)
    assert low <= found <= high and low > 1.3, (found, low, high)


@pytest.mark.parametrize("pieces", [-1, 513])
def test_a_minibatch_cannot_be_cut_into_more_pieces_than_it_has_rows(pieces: int) -> None:
    from holdfast.workloads.ecosystem.train import train

    with pytest.raises(HoldfastError, match=f"pieces is {pieces}"):
        train(None, pieces=pieces)  # type: ignore[arg-type]
