"""What goes along with an optimizer, schedulers and gradient scalers, goes on where it was, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

from holdfast.state.protected import Protected
from tests.state.saving import CPU, load, save
from tests.state.state_jobs import Job, check_resumes, net, same

# -- schedulers ----------------------------------------------------------------------------------------------


class Slope:
    """A callable with state, which LambdaLR saves."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 1 / (1 + self.calls)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "LambdaLR object": lambda o: schedulers.LambdaLR(o, Slope()),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 2, 4]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: schedulers.LinearLR(o, total_iters=4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1, 3), schedulers.ExponentialLR(o, 0.9)], milestones=[4]
    ),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 2), schedulers.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.2, step_size_up=2, mode="triangular2"),
    "CyclicLR custom": lambda o: schedulers.CyclicLR(o, 0.01, 0.2, 2, scale_fn=lambda x: 0.9**x),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=20),
    "SWALR": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


def test_every_scheduler_of_torch_is_tested() -> None:
    known = {
        name
        for name, cls in vars(schedulers).items()
        if isinstance(cls, type) and issubclass(cls, schedulers.LRScheduler) and not name.startswith("_")
    }
    assert known - {"LRScheduler"} <= {name.split()[0] for name in SCHEDULERS}


def step_scheduler(job: Job, loss: Tensor) -> None:
    scheduler = job.others["scheduler"]
    if isinstance(scheduler, schedulers.ReduceLROnPlateau):
        scheduler.step(float(loss))
    else:
        scheduler.step()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler(name: str) -> None:
    def build(seed: int) -> Job:
        torch.manual_seed(seed)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return Job(seed, model, optimizer, {"scheduler": SCHEDULERS[name](optimizer)}, step_scheduler)

    check_resumes(build, 4)


class Warmup(schedulers.LRScheduler):
    """A popular shape: a scheduler that holds another one and a function."""

    def __init__(self, optimizer: torch.optim.Optimizer, after: Any) -> None:
        self.after = after
        self.shape: Callable[[int], float] = lambda step: min(1.0, step / 3)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        if self.last_epoch > 3:
            self.after.step()
            return list(self.after.get_last_lr())
        return [base * self.shape(self.last_epoch) for base in self.base_lrs]


def test_scheduler_that_holds_another_and_a_function() -> None:
    def build(seed: int) -> Job:
        torch.manual_seed(seed)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = Warmup(optimizer, schedulers.ExponentialLR(optimizer, 0.5))
        return Job(seed, model, optimizer, {"scheduler": scheduler}, step_scheduler)

    check_resumes(build, 5)


# -- gradscaler ----------------------------------------------------------------------------------------------


def scaled_step(scaler: torch.amp.GradScaler, model: nn.Module, optimizer: Any, batch: Tensor) -> None:
    optimizer.zero_grad()
    scaler.scale(model(batch).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("before", [0, 1, 5])
def test_grad_scaler(before: int) -> None:
    def build(seed: int) -> tuple[nn.Module, Any, Any, Protected]:
        torch.manual_seed(seed)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        return model, optimizer, scaler, Protected({"m": model, "o": optimizer, "scaler": scaler}, CPU)

    def train(job: Any, first: int, last: int) -> None:
        for step in range(first, last):
            batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            batch[0, 0] = float("inf") if step == 3 else 1.0
            scaled_step(job[2], job[0], job[1], batch)

    first = build(1)
    train(first, 0, before)
    slot = save(first[3])
    train(first, before, before + 4)
    second = build(2)
    load(second[3], slot)
    # A step that broke off half-way leaves notes in the scaler; a rollback removes them.
    second[2]._per_optimizer_states[id(second[1])]["stage"] = "broken off"
    load(second[3], save(second[3]))
    train(second, before, before + 4)
    assert second[2].get_scale() == first[2].get_scale()
    assert second[2].state_dict() == first[2].state_dict()
    same(dict(first[0].state_dict()), dict(second[0].state_dict()))


def test_disabled_grad_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    protected = Protected({"scaler": scaler}, CPU)
    load(protected, save(protected))
