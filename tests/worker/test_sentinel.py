"""The sentinel finds operators that are wrong, accuses none that is right, and the training never waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.base.errors import ScriptFailed
from holdfast.base.scratch import Scratch
from holdfast.injection.pretend import DEVICE, spoil
from holdfast.run.setting_groups import SentinelSettings
from holdfast.worker.local_run import newest_checkpoint
from holdfast.worker.operators import choice, zeros
from holdfast.worker.operators.checker_client import PREFIX
from holdfast.worker.operators.zeros import behind, silent
from holdfast.worker.sentinel import FIRST_STEP, Opinion, Sentinel
from tests.waiting import wait_until
from tests.worker.local_runs import new_folder, run
from tests.worker.replay_jobs import Clock, Job


class Wrong(TorchDispatchMode):
    """One operator of the device comes out otherwise."""

    def __init__(self, name: str, how: Callable[[Tensor], Tensor], times: int = 1 << 30) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name, self.how, self.times = name, how, times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name != f"aten::{self.name}" or self.times <= 0:
            return out
        self.times -= 1
        return self.how(out) if isinstance(out, Tensor) else (self.how(out[0]), *out[1:])


@pytest.fixture
def sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sentinel]:
    monkeypatch.setattr(choice, "LONGEST_S", 3600.0)  # a busy machine must not change what is taken
    made = Sentinel(DEVICE, SentinelSettings(cost=1e6), label="pretend:0", keep=tmp_path / "suspicions", seed=0)
    yield made
    made.close()


def step(job: Job, sentinel: Sentinel, number: int = 1) -> list[Opinion]:
    with sentinel.looking(number):
        job.optimizer.zero_grad()
        job.loss(job.batch).backward()
        job.optimizer.step()
    return sentinel.opinions()


def test_a_right_device_is_agreed_with(job: Job, sentinel: Sentinel) -> None:
    for number in range(4):
        (opinion,) = step(job, sentinel, number)
        assert opinion.agrees and opinion.compared > 40, opinion


def test_a_look_changes_nothing(job: Job, sentinel: Sentinel) -> None:
    torch.manual_seed(5)
    step(job, sentinel)
    looked = [each.clone() for each in job.everything()]
    other = Job()
    torch.manual_seed(5)
    other.optimizer.zero_grad()
    other.loss(other.batch).backward()
    other.optimizer.step()
    assert all(torch.equal(one, two) for one, two in zip(looked, other.everything(), strict=True))


@pytest.mark.sample(7, 1)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("mm", lambda out: out * 1.001),
        ("mm", torch.zeros_like),
        ("mm", lambda out: spoil(out, "bit")),
        ("convolution", lambda out: out.roll(1, 0)),
        ("native_batch_norm", lambda out: out + 1e-3),
        ("addmm", lambda out: torch.cat([out[:-1], torch.zeros_like(out[-1:])])),
        ("_log_softmax_backward_data", lambda out: -out),
    ],
    ids=["a little off", "zeros", "a bit of each warp", "rows moved", "normalisation", "last row missing", "sign"],
)
def test_a_wrong_operator_is_found_named_and_confirmed(
    job: Job, sentinel: Sentinel, name: str, how: Callable[[Tensor], Tensor]
) -> None:
    with Wrong(name, how):
        opinions = step(job, sentinel)
    assert [opinion.agrees for opinion in opinions] == [False]
    assert opinions[0].text.startswith(f"{name} in ") and opinions[0].confirmed, opinions[0]


def test_what_happens_once_is_a_suspicion_and_no_more(job: Job, sentinel: Sentinel) -> None:
    with Wrong("mm", torch.zeros_like, times=1):
        (opinion,) = step(job, sentinel)
    assert not opinion.agrees and not opinion.confirmed, opinion
    assert opinion.why == "0 of 3 repetitions disagree"


def test_a_stranger_can_see_it_again(job: Job, sentinel: Sentinel, tmp_path: Path) -> None:
    with Wrong("mm", lambda out: out + 1.0):
        (opinion,) = step(job, sentinel, 7)
    folder = tmp_path / "suspicions" / "step-7"
    assert opinion.folder == folder
    assert {path.name for path in folder.iterdir()} == {"case.safetensors", "finding.json", "again.py"}
    script = (folder / "again.py").read_text()
    assert len(script.splitlines()) <= 24 and opinion.text in script
    said: list[str] = []
    scope = {"__file__": str(folder / "again.py"), "print": lambda *words: said.append(" ".join(map(str, words)))}
    exec(compile(script, "again.py", "exec"), scope)
    assert said[0] == f"as recorded: {opinion.text}"
    assert said[1:] == ["again agrees", "other numbers agrees", "other numbers agrees"], "here the device is right"


@pytest.mark.all
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_normalisation_over_four_samples_accuse_nobody(
    sentinel: Sentinel, dtype: torch.dtype
) -> None:
    """The network that the comparison of whole steps condemned: deep, with batch statistics of few samples."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(8):
        layers += [nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last)
    for number in range(2):
        with sentinel.looking(number), torch.autocast("cpu", dtype):
            nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    assert [opinion.agrees for opinion in sentinel.opinions()] == [True, True]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 3  # wrong as mathematics, and no fault of the device


def test_what_scripts_do_accuses_nobody(sentinel: Sentinel) -> None:
    """Dropout, tied weights, sparse gradients, custom functions, messages over a graph, sorting, recurrence."""
    torch.manual_seed(0)
    words = nn.Embedding(20, 8, sparse=True)
    model = nn.ModuleDict({"norm": nn.LayerNorm(8), "mix": nn.MultiheadAttention(8, 2, 0.1), "recur": nn.LSTM(8, 8)})
    with sentinel.looking(1):
        x = model["norm"](words(torch.randint(20, (5, 6))))
        x = model["mix"](x, x, x)[0] + model["recur"](x)[0]
        x = Doubled.apply(nn.functional.dropout(x, 0.3))
        nodes = torch.zeros(4, 8).index_add(0, torch.tensor([0, 1, 1, 3, 0]), x[:, 0])
        best = x.reshape(-1, 8).sort(0)[0][-3:].sum() + x.topk(2, -1)[0].mean() + torch.linalg.norm(nodes)
        (best + (x @ words.weight.detach().T).logsumexp(-1).mean() + torch.randn(3).sum()).backward()
    (opinion,) = sentinel.opinions()
    assert opinion.agrees and opinion.compared > 40, opinion.text


def test_narrow_formats_accuse_nobody(sentinel: Sentinel) -> None:
    """Layers in eight bits: fake quantisation with its straight-through gradient, quantised tensors, float8."""
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 16), torch.randn(6, 16, requires_grad=True)
    with sentinel.looking(1):
        faked = torch.fake_quantize_per_tensor_affine(layer.weight, 0.02, 0, -128, 127)
        stored = torch.quantize_per_tensor(layer.weight.detach(), 0.02, 0, torch.qint8).dequantize()
        narrow = x.to(torch.float8_e4m3fn).to(torch.float32) @ layer.weight.to(torch.float8_e5m2).to(torch.float32).T
        (x @ faked.T + x @ stored.T + narrow).square().mean().backward()
    (opinion,) = sentinel.opinions()
    assert opinion.agrees and opinion.compared > 5, opinion.text


# Zeros ---------------------------------------------------------------------------------------------------------------


def nothing(out: Tensor) -> Tensor:
    return torch.zeros_like(out)


def stale(out: Tensor) -> Tensor:
    return torch.full_like(out, 77.0)


@pytest.mark.parametrize("how", [nothing, stale])
@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("mm", "a matrix product in forward"),
        ("convolution", "a convolution in forward"),
        ("convolution_backward", "a convolution in backward"),
        ("_scaled_dot_product_flash_attention_for_cpu", "attention in forward"),
    ],
)
def test_a_kernel_that_writes_nothing_is_found_by_known_answers(
    kernel: str, found: str, how: Callable[[Tensor], Tensor]
) -> None:
    assert silent(DEVICE) == silent(DEVICE, 1) == []
    with Wrong(kernel, how):
        assert found in silent(DEVICE) and found in silent(DEVICE, 1)


def test_a_loss_tells_with_which_operators_it_was_computed() -> None:
    products = {"a matrix product", "a matrix product of bf16"}
    images, words = torch.randn(2, 3, 8, 8), torch.randn(2, 2, 8, 16, requires_grad=True)
    layer, picture = nn.Linear(8, 4), nn.Conv2d(3, 4, 3)
    assert behind(layer(torch.randn(3, 8)).sum()) == products
    assert behind(picture(images).sum()) == {*products, "a convolution"}
    narrow = torch.nn.functional.scaled_dot_product_attention(*(words.bfloat16(),) * 3).float()
    assert behind(narrow.sum()) == {*products, "attention of bf16"}
    assert behind(picture(images).sum() + narrow.sum()) == {*products, "a convolution", "attention of bf16"}
    assert behind(Doubled.apply(words).sum()) is None, "nobody knows what it computes"


def test_asking_computes_nothing_of_a_checkpointed_part_again() -> None:
    calls: list[int] = []
    picture = nn.Conv2d(3, 4, 3)

    def part(x: Tensor) -> Tensor:
        calls.append(1)
        found: Tensor = picture(x)
        return found

    loss = torch.utils.checkpoint.checkpoint(part, torch.randn(2, 3, 8, 8), use_reentrant=False).sum()
    asked = behind(loss)
    assert asked is not None and "a convolution" in asked and len(calls) == 1


@pytest.mark.parametrize("how", [nothing, stale])
def test_a_step_with_a_kernel_that_writes_nothing_is_never_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Tensor], Tensor]
) -> None:
    """Asked after the first step of each function, for what it has used: the second one uses convolutions."""
    asked: list[Any] = []

    def listed(*args: Any, only: Any = None, **words: Any) -> list[str]:
        asked.append(only)
        return silent(*args, only=only, **words)

    monkeypatch.setattr(zeros, "silent", listed)
    done: list[int] = []

    def train(session: Any) -> None:
        model = nn.ModuleDict({"plain": nn.Linear(64, 2), "picture": nn.Conv2d(1, 2, 3)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        session.protect(model=model, optimizer=optimizer)
        context = session._context
        session._attempts.checks._keep_watch(context.device, context.snapshots)  # a run without a supervisor has none
        x = torch.randn(4, 64)
        while session.step_count < 2:
            session.step(lambda b: model["plain"](b).square().mean(), x)
            done.append(session._position.step)
        session.step(lambda b: model["picture"](b.reshape(4, 1, 8, 8)).square().mean(), x)
        done.append(session._position.step)

    folder = new_folder(tmp_path)
    with Wrong("convolution", how), pytest.raises(ScriptFailed) as failed:
        run(tmp_path, train, folder=folder, snapshot__every=1)
    assert "convolution in forward" in f"{failed.value} {failed.value.cause}", failed.value.cause
    assert done == [1, 2], "the step with the convolution was handed out as done"
    assert newest_checkpoint(folder).step == 2
    products = {"a matrix product", "a matrix product of bf16"}
    assert asked == [products, {"a convolution"}, {"a convolution"}], "once, and the second function's twice"


# When ----------------------------------------------------------------------------------------------------------------


def test_looks_are_paid_for_out_of_the_training_time() -> None:
    """1 % of the time, a look costs 5 s more than a step of 1 s: about one look in 500 steps, at no fixed distance."""
    clock = Clock()
    sentinel = Sentinel(DEVICE, SentinelSettings(cost=1.0), clock=clock, seed=0)
    looked = []
    for number in range(1, 4001):
        clock.now += 1.0
        if sentinel.due():
            sentinel.checks += 1
            clock.now += 5.0
            sentinel._paid(5.0)
            looked.append(number)
    assert looked[0] == FIRST_STEP and 7 <= len(looked) <= 9, looked


def test_a_jump_of_the_loss_calls_for_a_look() -> None:
    clock = Clock()
    sentinel = Sentinel(DEVICE, SentinelSettings(cost=1.0), clock=clock, seed=0)
    due = []
    for number in range(1, 100):
        clock.now += 1.0
        if sentinel.due():
            sentinel.checks += 1
            due.append(number)
            sentinel._paid(10.0)
        sentinel.note(2.0 if number != 60 else 50.0, 1.0)
    assert due == [FIRST_STEP, 61]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_training_does_not_wait_for_the_comparison(tmp_path: Path) -> None:
    """The checker is another process. While it is busy steps go on without a look; killed, it is started again."""
    sentinel = Sentinel(DEVICE, SentinelSettings(cost=99.0), label="pretend:0", keep=tmp_path, seed=0)
    model, heard, number = nn.Linear(4, 2), [], 0

    def train() -> list[Opinion]:
        nonlocal number
        number += 1
        with sentinel.looking(number):
            model(torch.randn(3, 4)).square().mean().backward()
        heard.extend(sentinel.opinions())
        return heard

    try:
        while sentinel.checks == 0:
            assert not train()
        assert sentinel.checking.busy and not sentinel.due()
        assert wait_until(train, 280.0) and number > FIRST_STEP + 1, "no step was done while it compared"
        assert heard[0].agrees and heard[0].compared > 3 and heard[0].step == FIRST_STEP, heard
        pid = sentinel.checking.pid
        assert pid is not None and pid != os.getpid() and os.getpriority(os.PRIO_PROCESS, pid) == 19
        os.kill(pid, 9)
        sentinel._not_before = 0.0
        assert wait_until(lambda: train() and any(each.compared for each in heard[1:]), 280.0), heard
        assert sentinel.off is None and sentinel.checking.pid != pid
    finally:
        sentinel.close()
    assert not [each for each in threading.enumerate() if each.name == "holdfast-checking"]


def test_where_there_is_one_core_it_looks_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert Sentinel(DEVICE, SentinelSettings()).rare == "there is one core"


def test_what_a_killed_worker_leaves_in_memory_is_removed(tmp_path: Path) -> None:
    """Its supervisor knows its number, and that it is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{gone.pid}-", dir="/dev/shm"))
    (left / "7-0.safetensors").write_bytes(b"numbers")
    (tmp_path / f"child-{gone.pid}").touch()
    Scratch(tmp_path).sweep()
    assert not left.exists()
