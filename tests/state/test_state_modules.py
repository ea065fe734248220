"""Modules with parameters and buffers of every kind are saved, loaded into new ones and trained on, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast.state import layout as layouts
from holdfast.state.protected import Protected
from tests.state.saving import CPU, load, save
from tests.state.state_jobs import Extra, Job, check_resumes, net, same, weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x))
        return out


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x))
        return out


class Odd(nn.Module):
    """Buffers of every kind: complex, bool, empty, 0-dim, expanded, transposed, replaced, growing, hidden."""

    count: Tensor
    mean: Tensor
    bank: Tensor
    late: Tensor | None
    early: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.wave = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.empty(0, 3))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("wide", torch.randn(3, 1).expand(3, 4))
        self.register_buffer("turned", torch.randn(3, 4).t())
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("bank", torch.zeros(1, 6))
        self.register_buffer("late", None)
        self.register_buffer("early", torch.ones(2))
        self.register_buffer("hidden", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.hidden = x.mean(0)
        self.bank = torch.cat([self.bank, x[:1]])
        if self.count == 2:
            self.late = x.std(0)
            self.early = None
        y = self.linear(x) * self.wave.abs() + self.mean + self.bank.sum(0)
        out: Tensor = y if self.late is None else y + self.late
        return out


MODULES: dict[str, Callable[[], Any]] = {
    "BatchNorm": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "BatchNorm without affine": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)),
    "Shared": Shared,
    "Odd": Odd,
    "Extra": Extra,
    "LSTM": lambda: FirstOutput(nn.LSTM(6, 6, 2)),
    "MultiheadAttention": lambda: Attend(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
    "old spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 6)),
    "channels last": lambda: channels_last(Images()),
    "float64": lambda: net(torch.float64),
}


class FirstOutput(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)[0]
        return out


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x)[0]
        return out


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        images = x[:, :, None, None].expand(-1, -1, 4, 4)[:, :2].to(memory_format=torch.channels_last)
        out: Tensor = self.conv(images)
        return out


def channels_last(module: Any) -> Any:
    return module.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    def build(seed: int) -> Job:
        torch.manual_seed(seed)
        model = MODULES[name]()
        job = Job(seed, model, torch.optim.Adam(model.parameters(), lr=0.01))
        if name == "float64":
            job.inputs = lambda gen: torch.randn(8, 6, generator=gen, dtype=torch.float64)
        return job

    check_resumes(build, 3)


def build_tied(seed: int) -> Job:
    torch.manual_seed(seed)
    model = Tied()
    job = Job(seed, model, torch.optim.Adam(model.parameters(), lr=0.01))
    job.inputs = lambda gen: torch.randint(9, (4, 5), generator=gen)
    return job


def test_tied_weights_are_stored_once() -> None:
    check_resumes(build_tied)
    job = build_tied(0)
    protected = job.protected()
    assert [entry.name for entry in protected.layout().live] == ["model.embed.weight"]
    slot = save(protected)
    header, ranges = layouts.weights_only(slot)
    loaded = safetensors.torch.load(header + b"".join(bytes(slot[a:b]) for a, b in ranges))
    fresh = Tied()
    fresh.load_state_dict(loaded)
    assert torch.equal(fresh.embed.weight, job.model.embed.weight)


def test_weights_file_loads_into_the_module() -> None:
    torch.manual_seed(0)
    job = Job(0, model := MODULES["BatchNorm"](), torch.optim.Adam(model.parameters()))
    protected = job.protected()
    job.train(0, 3)
    slot = save(protected)
    header, ranges = layouts.weights_only(slot)
    loaded = safetensors.torch.load(header + b"".join(bytes(slot[a:b]) for a, b in ranges))
    other = MODULES["BatchNorm"]()
    other.load_state_dict(loaded)
    same(weights(job), other.state_dict())


def test_average_of_a_model() -> None:
    def build(seed: int) -> Job:
        torch.manual_seed(seed)
        model = MODULES["BatchNorm"]()
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job = Job(seed, model, optimizer, {"ema": ema})
        job.body = lambda job, loss: ema.update_parameters(job.model)
        return job

    first = build(1)
    protected = first.protected()
    first.train(0, 3)
    slot = save(protected)
    first.train(3, 5)
    second = build(2)
    load(second.protected(), slot)
    second.train(3, 5)
    same(first.others["ema"].state_dict(), second.others["ema"].state_dict())


def test_compiled_module_is_saved_under_its_own_names() -> None:
    model = net()
    compiled: Any = torch.compile(model, backend="eager")
    protected = Protected({"model": compiled}, CPU)
    assert {entry.name for entry in protected.layout().live} == {f"model.{key}" for key in model.state_dict()}
    slot = save(protected)
    other = net()
    load(Protected({"model": other}, CPU), slot)
    same(dict(model.state_dict()), dict(other.state_dict()))


def test_compiled_submodule_is_saved_under_its_own_names() -> None:
    plain, wrapped = net(), net()
    wrapped[0] = torch.compile(wrapped[0], backend="eager")
    names = [entry.name for entry in Protected({"model": wrapped}, CPU).layout().live]
    assert names == [entry.name for entry in Protected({"model": plain}, CPU).layout().live]


def test_frozen_and_unfrozen_parameters_are_remembered() -> None:
    first, second = net(), net()
    protected = Protected({"model": first}, CPU)
    protected.layout()
    first[0].weight.requires_grad_(False)
    load(Protected({"model": second}, CPU), save(protected))
    assert not second[0].weight.requires_grad and second[0].bias.requires_grad


def test_a_buffer_assigned_at_each_step_is_followed() -> None:
    model = Odd()
    protected = Protected({"model": model}, CPU)
    protected.layout()
    for value in range(5):
        model.mean = torch.full((6,), float(value))
        protected.changed()
        layout = protected.layout()
        by_name = dict(zip([entry.name for entry in layout.live], protected.tensors(), strict=True))
        assert by_name["model.mean"].tolist() == [value] * 6
        if value >= 2:
            model.mean = torch.full((6,), 9.0)
            assert not protected.changed()
            assert by_name["model.mean"].tolist() == [9.0] * 6
