"""A look at the protected objects sees all that has changed since the last one, nothing else, and costs little."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.state.protected import Protected
from tests.state.saving import CPU, load, save
from tests.state.state_jobs import Job, World, net


def trained() -> tuple[Any, torch.optim.Optimizer, Protected]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    optimizer = torch.optim.Adam(model.parameters())
    protected = Protected({"model": model, "optimizer": optimizer}, CPU)
    Job(0, model, optimizer).train(0, 1)
    protected.layout()
    return model, optimizer, protected


def test_a_step_changes_nothing() -> None:
    model, optimizer, protected = trained()
    assert not protected.changed()
    before = protected.tensors()
    Job(0, model, optimizer).train(1, 3)
    assert not protected.changed()
    assert protected.tensors() is before


def test_restore_keeps_the_objects() -> None:
    torch.manual_seed(0)
    job = Job(0, model := net(), torch.optim.AdamW(model.parameters()))
    protected = job.protected()
    job.train(0, 2)
    slot = save(protected)
    live = list(protected.tensors())
    job.train(2, 4)
    load(protected, slot)
    assert not protected.changed()
    assert all(a is b for a, b in zip(live, protected.tensors(), strict=True))


def test_move_keeps_parameters_and_goes_on() -> None:
    model, optimizer, protected = trained()
    params = list(model.parameters())
    protected.move(CPU)
    assert all(a is b for a, b in zip(params, model.parameters(), strict=True))
    Job(0, model, optimizer).train(1, 2)


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "parameter replaced": lambda model, o: setattr(model[0], "weight", nn.Parameter(torch.zeros(6, 6))),
    "parameter removed": lambda model, o: setattr(model[0], "bias", None),
    "buffer added": lambda model, o: model.register_buffer("new", torch.ones(3)),
    "buffer replaced": lambda model, o: setattr(model[1], "running_mean", torch.ones(6)),
    "layer added": lambda model, o: model.append(nn.Linear(6, 6)),
    "layer replaced": lambda model, o: model.__setitem__(0, nn.Linear(6, 6)),
    "cast": lambda model, o: model.half(),
    "state removed": lambda model, o: o.state.clear(),
    "state replaced": lambda model, o: o.state[model[0].weight].update(exp_avg=torch.ones(6, 6)),
    "state added": lambda model, o: o.state[model[0].weight].update(extra=torch.ones(2)),
    "state loaded": lambda model, o: o.load_state_dict(copy.deepcopy(o.state_dict())),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_seen(what: str) -> None:
    model, optimizer, protected = trained()
    CHANGES[what](model, optimizer)
    assert protected.changed()
    names = [entry.name for entry in protected.layout().live]
    assert not protected.changed()
    expected = [f"model.{key}" for key in model.state_dict()]
    assert sorted(name for name in names if name.startswith("model.")) == sorted(expected)
    for entry, tensor in zip(protected.layout().live, protected.tensors(), strict=True):
        key = entry.name.removeprefix("model.")
        if key != entry.name:
            assert tensor.data_ptr() == model.state_dict()[key].data_ptr()


def test_meta_speaks_of_now() -> None:
    _, optimizer, protected = trained()
    optimizer.param_groups[0]["lr"] = 0.125
    assert protected.meta()["state"]["optimizer"]["groups"][0]["lr"] == 0.125
    optimizer.param_groups[0]["lr"] = 0.5
    assert protected.meta(look=False)["state"]["optimizer"]["groups"][0]["lr"] == 0.125
    assert '"lr":0.5' in protected.meta_json({"step": 4})


def test_lazy_tensors_are_those_only_the_optimizer_writes() -> None:
    _, _, protected = trained()
    names = [entry.name for entry in protected.layout().live]
    eager = {name for name, lazy in zip(names, protected.lazy(), strict=True) if not lazy}
    assert eager == {"model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked"}


STAMPS: dict[str, Callable[[Any, Any, World], object]] = {
    "weight": lambda model, o, world: torch.nn.init.zeros_(model[0].weight),
    "buffer": lambda model, o, world: model[1].running_mean.add_(1),
    "learning rate": lambda model, o, world: o.param_groups[0].update(lr=0.7),
    "optimizer state": lambda model, o, world: o.state[model[0].weight]["exp_avg"].mul_(2),
    "array": lambda model, o, world: world.grid.fill(2),
    "made anew": lambda model, o, world: world.memory.add_(1),
    "number": lambda model, o, world: setattr(world, "best", 99.0),
}


@pytest.mark.parametrize("what", STAMPS)
def test_stamp_changes_with_what_is_protected(what: str) -> None:
    model, optimizer, protected = trained()
    world = World(3)
    protected.add({"world": world})
    protected.layout()
    protected.stamp()
    before = protected.stamp()
    assert protected.stamp() == before
    STAMPS[what](model, optimizer, world)
    assert protected.stamp() != before


def test_arrays_too_large_to_read_count_as_written() -> None:
    world = World(3)
    world.grid = np.zeros(3 << 20)
    protected = Protected({"world": world}, CPU)
    protected.layout()
    assert protected.versions() != protected.versions()


@pytest.mark.all
def test_a_look_is_cheap() -> None:
    """Fifty times the goal of 50 ns a tensor would still pass: this guards against another order of cost."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(250)))
    optimizer = torch.optim.Adam(model.parameters())
    Job(0, nn.Sequential(nn.Linear(6, 4), model), optimizer).train(0, 1)
    optimizer.zero_grad()  # gradients that wait for an update are state, too
    protected = Protected({"model": model, "optimizer": optimizer}, CPU)
    count = len(protected.layout().live)
    assert count == 2000
    best = min(timed(protected.changed) for _ in range(20))
    assert best / count < 2.5e-6


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
