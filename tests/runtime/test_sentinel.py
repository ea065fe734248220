"""The sentinel tells rounding from wrong, and leaves alone what cannot be compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.runtime.replay import Numbers, Replay
from holdfast.runtime.sentinel import FIRST_STEP, Opinion, Sentinel, compare
from holdfast.runtime.transaction import Work
from holdfast.settinggroups import SentinelSettings
from holdfast.testing.pretend import DEVICE
from tests.runtime.replay_jobs import Clock, Job


def _sentinel(job: Job, **settings: Any) -> Sentinel:
    return Sentinel(job.replay, DEVICE, SentinelSettings(**settings))


def _looked(sentinel: Sentinel, job: Job) -> Opinion:
    opinion = sentinel.check(job.work)
    assert opinion is not None, sentinel.off
    return opinion


def test_a_right_device_is_agreed_with(job: Job) -> None:
    sentinel = _sentinel(job)
    for _ in range(20):
        opinion = _looked(sentinel, job)
        assert opinion.agrees and opinion.precision == "fp32", opinion


def _flip(bit: int) -> Callable[[Tensor], Tensor]:
    def flip(grad: Tensor) -> Tensor:
        grad = grad.clone()
        largest = int(grad.abs().argmax())
        grad.view(torch.int32).view(-1)[largest] ^= 1 << bit
        return grad

    return flip


@pytest.mark.parametrize(
    "how",
    [lambda g: g * 1e3, lambda g: g * 0.0, lambda g: -g, _flip(24), _flip(26), _flip(30)],
    ids=["times 1000", "zero", "sign", "exponent bit 1", "exponent bit 3", "exponent bit 7"],
)
def test_a_wrong_gradient_is_found_and_named(job: Job, wrong: Any, how: Callable[[Tensor], Tensor]) -> None:
    wrong("head.weight", how)
    opinion = _looked(_sentinel(job), job)
    assert not opinion.agrees
    assert opinion.tensor == "gradient of model.head.weight"


def test_one_odd_microbatch_is_no_fault(job: Job, wrong: Any) -> None:
    calls = []

    def once(grad: Tensor) -> Tensor:
        calls.append(1)
        return grad * 1e3 if len(calls) == 3 else grad  # the third: the first two compare the device with itself

    wrong("head.weight", once)
    assert _looked(_sentinel(job), job).agrees
    assert len(calls) == 4, "the disagreement was not looked at again"


def test_reduced_precision_has_its_own_bound(job: Job) -> None:
    def step(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return job.loss(batch)

    job.work.fn = step
    opinion = _looked(_sentinel(job), job)
    assert opinion.agrees and opinion.precision == "bf16"
    assert opinion.error > compare(Numbers(1.0), Numbers(1.0), "fp32").bound, "bf16 would have failed the fp32 bound"


def test_a_step_that_draws_by_itself_is_left_alone_with_a_reason(job: Job) -> None:
    job.work.fn = lambda b: job.loss([b[0] + torch.randn_like(b[0]), b[1]])
    sentinel = _sentinel(job)
    assert sentinel.check(job.work) is None
    assert sentinel.off is not None and "random numbers" in sentinel.off
    assert not sentinel.due()


def test_gradients_that_are_zero_but_for_rounding_raise_no_alarm() -> None:
    """A bias in front of a softmax over positions has no influence: its gradient is noise."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    replay = Replay({"model": model}, home=DEVICE)

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(x).squeeze(-1).softmax(dim=1) @ torch.arange(9.0)).square().mean()

    work = Work(loss, torch.randn(8, 9, 6), [torch.optim.SGD(model.parameters(), lr=0.1)], None, None, 1, None)
    opinion = Sentinel(replay, DEVICE, SentinelSettings()).check(work)
    assert opinion is not None and opinion.agrees


def test_checks_are_paid_for_out_of_the_training_time(job: Job) -> None:
    """1 % of the time, a check costs 5 s, a step takes 1 s: one check in 500 steps."""
    clock = Clock()
    sentinel = Sentinel(job.replay, DEVICE, SentinelSettings(cost=1.0), clock=clock)
    checked = []
    for step in range(1, 2001):
        clock.now += 1.0
        if sentinel.due():
            began = clock.now
            clock.now += 5.0
            sentinel._paid(began)
            checked.append(step)
    assert checked[0] == FIRST_STEP
    assert all(499 <= after - before <= 501 for before, after in itertools.pairwise(checked)), checked
    assert len(checked) == 4


def test_a_jump_of_the_loss_calls_for_a_look(job: Job) -> None:
    clock = Clock()
    sentinel = Sentinel(job.replay, DEVICE, SentinelSettings(cost=1.0), clock=clock)
    due = []
    for step in range(1, 100):
        clock.now += 1.0
        if sentinel.due():
            due.append(step)
            sentinel._debt = sentinel._cost = 1.0
            sentinel._hurry = False
        sentinel.note(2.0 if step != 60 else 50.0, 1.0)
    assert due == [FIRST_STEP, 61]


# What scripts do --------------------------------------------------------------------------------------------


def test_a_model_that_answers_otherwise_in_evaluation_is_compared_in_training_mode() -> None:
    """An auxiliary head that exists in training only."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.aux = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Any:
            return (self.body(x), self.aux(x)) if self.training else self.body(x)

    model = Two()

    def step(x: Tensor) -> Tensor:
        out, aux = model(x)
        return out.square().mean() + aux.square().mean()

    work = Work(step, torch.randn(8, 4), [torch.optim.SGD(model.parameters(), lr=0.1)], None, None, 1, None)
    sentinel = Sentinel(Replay({"model": model}, home=DEVICE), DEVICE, SentinelSettings())
    opinion = sentinel.check(work)
    assert opinion is not None and opinion.agrees, sentinel.off


def test_dropout_by_function_is_switched_off_with_the_mode() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.body(x), 0.5, self.training)

    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = Work(lambda x: model(x).square().mean(), torch.randn(8, 4), [optimizer], None, None, 1, None)
    sentinel = Sentinel(Replay({"model": model}, home=DEVICE), DEVICE, SentinelSettings())
    opinion = sentinel.check(work)
    assert opinion is not None and opinion.agrees and sentinel.replay.thorough, sentinel.off


def test_a_step_that_takes_the_whole_batch_only_is_left_alone(job: Job) -> None:
    """Its target is not in the batch: four rows do not fit it. The script is right, and must not be stopped."""
    target = job.batch[1]
    job.work.fn = lambda x: nn.functional.cross_entropy(job.model(x), target)
    job.work.batch = job.batch[0]
    sentinel = _sentinel(job)
    assert sentinel.check(job.work) is None
    assert sentinel.off is not None and sentinel.off.startswith("a replay fails: ValueError")


def test_noise_that_begins_later_is_no_wrong_number(job: Job) -> None:
    noisy: list[int] = []
    source = torch.Generator().manual_seed(0)  # of the script's own: nobody can set it back
    job.work.fn = lambda b: job.loss([b[0] + (torch.randn(b[0].shape, generator=source) if noisy else 0.0), b[1]])
    sentinel = _sentinel(job)
    assert _looked(sentinel, job).agrees
    noisy.append(1)
    assert sentinel.check(job.work) is None and sentinel.off is not None


def test_autocast_around_the_step_is_seen_and_taken_away(job: Job) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        opinion = _looked(_sentinel(job), job)
        assert opinion.precision == "bf16" and opinion.agrees
        plain = job.replay.compute(job.loss, job.batch, plain=True)
    assert plain.loss == job.replay.compute(job.loss, job.batch).loss


def test_losses_that_cancel_raise_no_alarm() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = critic(x).float()
        return out[: len(out) // 2].mean() - out[len(out) // 2 :].mean()

    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    sentinel = Sentinel(Replay({"critic": critic}, home=DEVICE), DEVICE, SentinelSettings())
    for _ in range(40):
        opinion = sentinel.check(Work(step, torch.randn(16, 6), [optimizer], None, None, 1, None))
        assert opinion is not None and opinion.agrees, opinion
