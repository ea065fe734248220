"""A replay gives the numbers of the step and leaves no trace, whatever scripts do in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.data.batch import take
from holdfast.injection.pretend import DEVICE
from holdfast.worker.precision import as_plain_arithmetic, coarsest, watch_precision
from holdfast.worker.replay import CPU, Replay
from holdfast.worker.step import Work
from tests.worker.replay_jobs import Job

# A replay leaves no trace -----------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [None, CPU], ids=["here", "cpu"])
@pytest.mark.parametrize("plain", [False, True])
def test_nothing_is_changed(job: Job, on: torch.device | None, plain: bool) -> None:
    job.loss(job.batch).backward()
    before = [tensor.clone() for tensor in job.everything()]
    places = [parameter.data_ptr() for parameter in job.model.parameters()]
    versions = [parameter._version for parameter in job.model.parameters()]
    modes = [part.training for part in job.model.modules()]
    numbers = job.replay.compute(job.loss, job.batch, on=on, plain=plain)
    assert numbers.finite and set(numbers.gradients) == {f"model.{n}" for n, _ in job.model.named_parameters()}
    assert all(torch.equal(*pair) for pair in zip(before, job.everything(), strict=True))
    assert places == [parameter.data_ptr() for parameter in job.model.parameters()]
    assert versions == [parameter._version for parameter in job.model.parameters()]
    assert modes == [part.training for part in job.model.modules()]
    assert job.model.recur.dropout == 0.5


def test_nothing_is_changed_when_it_raises(job: Job) -> None:
    before = [tensor.clone() for tensor in job.everything()]
    modes = [part.training for part in job.model.modules()]

    def fails(batch: Any) -> Tensor:
        job.loss(batch).backward()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        job.replay.compute(fails, job.batch, on=CPU, plain=True)
    assert all(torch.equal(*pair) for pair in zip(before, job.everything(), strict=True))
    assert modes == [part.training for part in job.model.modules()]


def test_chance_is_off_and_batch_statistics_are_not(job: Job) -> None:
    first, second = (job.replay.compute(job.loss, job.batch, seed=seed) for seed in (1, 2))
    assert first.loss == second.loss
    assert job.loss(job.batch).item() != job.loss(job.batch).item()
    job.model.norm.running_mean.fill_(100.0)
    assert job.replay.compute(job.loss, job.batch).loss == first.loss


def test_one_sample_alone_uses_the_running_statistics() -> None:
    job = Job()
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    replay = Replay({"model": model}, home=DEVICE)
    assert replay.compute(lambda b: model(b).square().mean(), torch.randn(1, 3)).finite
    assert job.replay.compute(job.loss, take(job.batch, [3])).finite


def test_the_scale_of_a_scaler_is_taken_out_again(job: Job) -> None:
    plain, scaled = job.replay.compute(job.loss, job.batch), job.replay.compute(job.loss, job.batch, scale=1024.0)
    assert plain.loss == scaled.loss
    for name, gradient in plain.gradients.items():
        assert torch.allclose(gradient, scaled.gradients[name], rtol=1e-5)


def test_autocast_is_seen_and_taken_away() -> None:
    layer = nn.Linear(8, 8)
    x = torch.randn(4, 8)

    def step(_: Any = None) -> torch.dtype:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x).dtype

    with watch_precision() as seen:
        assert step() is torch.bfloat16
    assert seen.names == {"bf16"}
    with as_plain_arithmetic():
        assert step() is torch.float32
    assert step() is torch.bfloat16
    assert coarsest(seen.names, {torch.float32}, CPU) == "bf16"
    assert coarsest(set(), {torch.float32, torch.float16}, CPU) == "fp16"


# What scripts do --------------------------------------------------------------------------------------------


def test_a_step_that_changes_its_batch_is_given_another(job: Job) -> None:
    before = job.batch[0].clone()
    job.replay.compute(lambda b: job.loss([b[0].div_(255.0), b[1]]), job.batch)
    assert torch.equal(job.batch[0], before)


def test_weights_that_are_averaged_in_the_forward_stay(job: Job) -> None:
    frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    job.model.register_parameter("average", frozen)

    def step(batch: Any) -> Tensor:
        with torch.no_grad():
            frozen.add_(1.0)
        return job.loss(batch)

    for on in (None, CPU):
        job.replay.compute(step, job.batch, on=on)
    assert torch.equal(frozen, torch.zeros(3))


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has only the old switch")
def test_tf32_that_was_switched_on_the_new_way_survives() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        assert coarsest(set(), {torch.float32}, torch.device("cuda")) == "tf32"
        with as_plain_arithmetic():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_the_norm_of_half_gradients_has_room() -> None:
    from holdfast.worker.step import perform

    model = nn.Linear(1000, 1000, bias=False).half()
    work = Work(lambda x: (model(x) * 100.0).sum(), torch.ones(1, 1000).half(), [], None, None, 1, None, watch=True)
    work.optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6)]
    perform(work, CPU, lambda phase: None)
    assert work.norm is not None and torch.isfinite(work.norm) and float(work.norm) > 65504
