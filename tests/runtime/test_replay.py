"""A replay gives the numbers of the step and leaves no trace; the sentinel tells rounding from wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.runtime.blame import Blame, Cpu, judge
from holdfast.runtime.faults import Fault, Kind
from holdfast.runtime.inquiry import Inquiry, first_bad_tensor
from holdfast.runtime.precision import as_plain_arithmetic, coarsest, watch_precision
from holdfast.runtime.replay import CPU, Numbers, Replay
from holdfast.runtime.rng import capture_rng
from holdfast.runtime.sentinel import FIRST_STEP, Opinion, Sentinel, compare
from holdfast.runtime.transaction import Work, take
from holdfast.settinggroups import SentinelSettings
from holdfast.testing.pretend import DEVICE


class Net(nn.Module):
    """Convolution, batch statistics, dropout, a recurrent layer: what a replay must take care of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.recur = nn.GRU(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return self.head(self.recur(x.transpose(1, 2))[0].mean(dim=1))


class Job:
    """A step of a small network, as a session holds it."""

    def __init__(self, size: int = 12) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.replay = Replay({"model": self.model}, home=DEVICE)
        self.batch = [torch.randn(size, 3, 10), torch.arange(size) % 5]
        self.work = Work(self.loss, self.batch, [self.optimizer], None, None, 1, None)

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def everything(self) -> list[Tensor]:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [*self.model.state_dict().values(), *gradients, *capture_rng(CPU)[0].values()]


@pytest.fixture
def job() -> Job:
    return Job()


# A replay leaves no trace ----------------------------------------------------------------------------------


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


# The sentinel ----------------------------------------------------------------------------------------------


def _sentinel(job: Job, **settings: Any) -> Sentinel:
    return Sentinel(job.replay, DEVICE, SentinelSettings(**settings))


def _looked(sentinel: Sentinel, job: Job) -> Opinion:
    opinion = sentinel.check(job.work)
    assert opinion is not None, sentinel.off
    return opinion


@pytest.fixture
def wrong(job: Job) -> Iterator[Callable[[str, Callable[[Tensor], Tensor]], None]]:
    """Corrupt a gradient on the pretended device only: there the parameter is where it lives, not a copy."""
    handles = []

    def corrupt(name: str, how: Callable[[Tensor], Tensor]) -> None:
        parameter = dict(job.model.named_parameters())[name]
        home = parameter.data_ptr()
        handles.append(parameter.register_hook(lambda grad: how(grad) if parameter.data_ptr() == home else grad))

    yield corrupt
    for handle in handles:
        handle.remove()


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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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


# The inquiry -----------------------------------------------------------------------------------------------


def _inquire(job: Job, kind: Kind = Kind.DEVICE_LOST, **more: Any) -> Any:
    return Inquiry(job.replay, job.work, budget_s=60.0, **more).into(kind)


def test_a_step_the_cpu_computes_is_fine(job: Job) -> None:
    assert _inquire(job).cpu is Cpu.FINE


def test_a_label_out_of_range_names_its_sample(job: Job) -> None:
    job.batch[1][7] = 99
    finding = _inquire(job, describe=lambda row: {"index": 100 + row, "source": f"file-{row}"})
    assert finding.cpu is Cpu.RAISED
    assert finding.samples == ({"index": 107, "source": "file-7"},)
    assert "IndexError" in str(finding.error)
    verdict = judge(Fault(Kind.DEVICE_LOST, step=3, phase="forward"), finding, None)
    assert verdict.blame is Blame.DATA
    assert verdict.sentence().startswith("the data are at fault: sample 107 (file-7): the CPU raises IndexError")


def test_an_error_for_every_sample_is_the_scripts(job: Job) -> None:
    job.work.fn = lambda b: job.model(b[0])[:, 17].mean()
    finding = _inquire(job)
    assert finding.cpu is Cpu.RAISED and finding.every_sample and not finding.samples
    assert judge(Fault(Kind.HANG, step=3, phase="forward"), finding, None).blame is Blame.UNKNOWN, "it may be for CUDA"
    assert judge(Fault(Kind.HANG, step=3, phase="forward"), finding, "failed").blame is Blame.CODE


def test_the_budget_ends_the_replay(job: Job) -> None:
    clock = Clock()

    def beat() -> None:
        clock.now += 1.0

    finding = Inquiry(job.replay, job.work, budget_s=0.5, beat=beat, clock=clock).into(Kind.CRASH)
    assert finding.cpu is Cpu.UNKNOWN and "in time" in finding.why


def test_a_nan_in_the_batch_is_the_datas(job: Job) -> None:
    job.batch[0][4, 1, 2] = float("nan")
    finding = _inquire(job, Kind.NON_FINITE)
    assert [sample["index"] for sample in finding.samples] == [4]
    assert finding.tensor == "tensor 0 of the batch"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.DATA


def test_a_sample_that_overflows_by_itself_is_the_datas(job: Job) -> None:
    job.batch[0][9] = 3e38
    finding = _inquire(job, Kind.NON_FINITE)
    assert [sample["index"] for sample in finding.samples] == [9]
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.DATA


def test_a_logarithm_of_zero_is_the_codes_and_named(job: Job) -> None:
    job.work.fn = lambda b: torch.log(0.0 * job.model(b[0])).mean()
    finding = _inquire(job, Kind.NON_FINITE)
    assert finding.every_sample and finding.tensor == "the loss"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.CODE


def test_weights_that_are_lost_already_are_named(job: Job) -> None:
    with torch.no_grad():
        job.model.head.weight[0, 0] = float("inf")
    finding = _inquire(job, Kind.NON_FINITE)
    assert finding.tensor == "model.head.weight"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.CODE


def test_the_first_layer_that_overflows_is_named(job: Job) -> None:
    with torch.no_grad():
        job.model.first.weight.fill_(3e38)
    assert first_bad_tensor(job.replay, job.loss, job.batch) == "the output of model.first"


def test_half_precision_that_overflows_is_the_precisions(job: Job) -> None:
    wide = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        wide.weight.fill_(100.0)
    replay = Replay({"model": wide}, home=DEVICE)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return wide(x).float().mean() / 1e4

    work = Work(step, torch.full((4, 64), 20.0), [torch.optim.SGD(wide.parameters(), lr=0.1)], None, None, 1, None)
    finding = Inquiry(replay, work, budget_s=60.0).into(Kind.NON_FINITE)
    assert (finding.cpu, finding.device_finite, finding.plain_finite) == (Cpu.FINE, False, True)
    verdict = judge(Fault(Kind.NON_FINITE), finding, None)
    assert verdict.blame is Blame.PRECISION and verdict.tensor == "the output of model"


def test_a_device_that_makes_nan_is_the_devices(job: Job, wrong: Any) -> None:
    wrong("head.weight", lambda grad: grad * float("nan"))
    finding = _inquire(job, Kind.NON_FINITE)
    assert (finding.cpu, finding.device_finite, finding.plain_finite) == (Cpu.FINE, False, False)
    assert finding.tensor == "the gradient of model.head.weight"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.DEVICE


# What scripts do -------------------------------------------------------------------------------------------


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
    from holdfast.runtime.transaction import perform

    model = nn.Linear(1000, 1000, bias=False).half()
    work = Work(lambda x: (model(x) * 100.0).sum(), torch.ones(1, 1000).half(), [], None, None, 1, None, watch=True)
    work.optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6)]
    perform(work, CPU, lambda phase: None)
    assert work.norm is not None and torch.isfinite(work.norm) and float(work.norm) > 65504
