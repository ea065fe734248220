"""Out of memory inside a step: rolled back whole, tried again, in pieces, elsewhere, and back to normal later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import holdfast
from holdfast.injection import late
from holdfast.worker import cadence
from holdfast.worker.session import Session
from tests.worker.local_runs import Outcome, Raise, equal, fingerprint, new_folder, oom, run

SIZE, SAMPLES = 8, 64


def dataset() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(
        torch.randn(SAMPLES, 4, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
    )


def network(*, norm: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Tanh(), nn.Linear(6, 1))


class Memory:
    """A device on which no more than `room` samples fit."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.sizes: list[int] = []
        """How many samples each forward that fitted had."""

    def use(self, count: int) -> None:
        if count > self.room:
            raise oom()
        self.sizes.append(count)


Script = Callable[[Session, dict[str, Any], Any, Memory], None]


def a_step(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
    def fn(piece: Any) -> Tensor:
        memory.use(len(piece[0]))
        return mse_loss(objects["model"](piece[0]), piece[1])

    session.step(fn, batch)


def trained(
    root: Path,
    body: Script = a_step,
    *,
    epochs: int = 1,
    memory: Memory | None = None,
    build: Callable[[], dict[str, Any]] | None = None,
    prepare: Callable[[Session, dict[str, Any]], None] | None = None,
    **options: Any,
) -> tuple[dict[str, Any], Outcome]:
    """The final state of a small training, and what happened on the way."""
    results: list[dict[str, Any]] = []
    memory = memory or Memory()

    def train(session: Session) -> None:
        objects = build() if build else {"model": network()}
        objects.setdefault("optimizer", torch.optim.Adam(objects["model"].parameters(), lr=0.01))
        data = holdfast.Loader(dataset(), SIZE)
        if prepare:
            prepare(session, objects)
        session.protect(**objects, data=data)
        for _ in session.epochs(epochs):
            for batch in session.batches(data):
                body(session, objects, batch, memory)
        results.append(fingerprint(**objects))

    outcome = run(root, train, **options)
    return results[-1], outcome


# -- an error of the script's own ----------------------------------------------------------------------------


def test_an_error_that_the_script_catches_keeps_nothing_of_its_step(tmp_path: Path) -> None:
    """Neither its activations, which the frames of its traceback hold, nor its batch."""
    alive: list[weakref.ref[Tensor]] = []

    def train(session: Session) -> None:
        model = network()
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

        def fn(batch: Tensor) -> Tensor:
            hidden = model[0](batch)
            alive.extend([weakref.ref(hidden), weakref.ref(batch)])
            if failing:
                raise KeyError("no such label")
            return model[2](model[1](hidden)).square().mean()

        for number in range(3):
            failing = number == 1
            try:
                session.step(fn, torch.randn(8, 4))
            except KeyError:
                gc.collect()  # while the error is being handled it is the script's to keep it
                assert alive[-2]() is not None
            gc.collect()
            assert [each() for each in alive] == [None] * len(alive)

    run(tmp_path, train)
    assert len(alive) == 6


# -- once ----------------------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", ["cpu", f"{late.NAME}:0"])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
def test_inside_the_optimizer_after_it_has_written(kind: Any, step: int, device: str, tmp_path: Path) -> None:
    """Parameters and moments are already the new ones, at step 1 the moments did not even exist before."""
    count = 0

    def explode(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise oom()

    def build() -> dict[str, Any]:
        model = network()
        momentum = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
        return {"model": model, "optimizer": kind(model.parameters(), lr=0.01, **momentum)}

    expected, _ = trained(tmp_path, build=build)
    with_fault, outcome = trained(
        tmp_path,
        build=build,
        prepare=lambda _, objects: objects["optimizer"].register_step_post_hook(explode),
        device=device,
    )
    equal(with_fault, expected)
    assert outcome.moves == ["retry"]
    assert outcome.kinds("fault")[0]["fault"]["step"] == step
    assert outcome.kinds("recovered") == [{"step": step, "in_process": True}]


def test_between_two_optimizers_of_one_step(tmp_path: Path) -> None:
    """The first has updated, the second runs out of memory: without rollback the first would update twice."""
    raised: list[bool] = []

    def explode(*_: Any) -> None:
        if not raised:
            raised.append(True)
            raise oom()

    def build() -> dict[str, Any]:
        model = network()
        return {
            "model": model,
            "optimizer": torch.optim.Adam(model[0].parameters(), lr=0.01),
            "second": torch.optim.SGD(model[2].parameters(), lr=0.01, momentum=0.9),
        }

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        both = [objects["optimizer"], objects["second"]]
        session.step(lambda b: mse_loss(objects["model"](b[0]), b[1]), batch, optimizer=both)

    expected, _ = trained(tmp_path, body, build=build)
    result, outcome = trained(
        tmp_path, body, build=build, prepare=lambda _, objects: objects["second"].register_step_pre_hook(explode)
    )
    equal(result, expected)
    assert outcome.moves == ["retry"]


@pytest.mark.all
def test_the_graph_of_the_failed_try_is_freed_before_the_next_one(tmp_path: Path) -> None:
    alive: list[weakref.ref[Tensor]] = []

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        def fn(piece: Any) -> Tensor:
            gc.disable()
            assert not any(reference() is not None for reference in alive), "the old activations are still there"
            hidden = objects["model"][0](piece[0])
            if not alive:
                alive.append(weakref.ref(hidden))
                raise oom()
            return mse_loss(objects["model"][1:](hidden), piece[1])

        session.step(fn, batch)
        gc.enable()

    _, outcome = trained(tmp_path, body)
    assert outcome.moves == ["retry"]


def test_what_the_body_did_before_the_step_is_not_undone(tmp_path: Path) -> None:
    """An average, a world of numpy arrays and a counter move first; then the step runs out of memory."""

    class World:
        def __init__(self) -> None:
            self.field = np.zeros(5)
            self.tick = 0
            self.heat = torch.zeros(3)

        def state_dict(self) -> dict[str, Any]:
            return {"field": self.field, "tick": self.tick, "heat": self.heat}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.field[:] = state["field"]
            self.tick = state["tick"]
            self.heat.copy_(state["heat"])

    def build() -> dict[str, Any]:
        return {"model": network(), "world": World()}

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        world = objects["world"]
        world.field += np.random.rand(5)
        world.tick += 1
        a_step(session, objects, batch, memory)

    worlds: list[World] = []

    def final(**options: Any) -> tuple[dict[str, Any], np.ndarray, int]:
        result, _ = trained(
            tmp_path, body, build=build, prepare=lambda _, objects: worlds.append(objects["world"]), **options
        )
        return result, worlds[-1].field.copy(), worlds[-1].tick

    expected, field, tick = final()
    result, its_field, its_tick = final(hooks=[Raise(oom, "forward", 3), Raise(oom, "optimizer", 6)])
    equal(result, expected)
    assert tick == its_tick == SAMPLES // SIZE
    assert np.array_equal(field, its_field)


# -- transactions --------------------------------------------------------------------------------------------


@pytest.mark.sample(3, 1)
@pytest.mark.parametrize("update", [1, 2, 3])
def test_several_updates_are_rolled_back_whole(update: int, tmp_path: Path) -> None:
    calls: list[int] = []

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        def three() -> int:
            for number in (1, 2, 3):
                calls.append(number)
                if len(calls) == 6 + update and memory.room == 0:
                    raise oom()
                objects["optimizer"].zero_grad()
                noise = torch.rand_like(batch[0])
                mse_loss(objects["model"](batch[0] + noise), batch[1]).backward()
                objects["optimizer"].step()
            return len(calls)

        assert session.transaction(three) == len(calls)

    expected, _ = trained(tmp_path, body)
    calls.clear()
    result, outcome = trained(tmp_path, body, memory=Memory(0))
    equal(result, expected)
    assert outcome.moves == ["retry"]
    assert outcome.receipt["steps"] == SAMPLES // SIZE
    assert len(calls) == 3 * SAMPLES // SIZE + update


@pytest.mark.all
def test_a_transaction_that_never_fits_is_not_split(tmp_path: Path) -> None:
    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        session.transaction(lambda: memory.use(1))

    with pytest.raises(holdfast.ScriptFailed) as caught:
        trained(tmp_path, body, memory=Memory(0))
    assert "out of memory" in caught.value.message
    assert any("holdfast train" in hint for hint in caught.value.hints)


def test_a_users_own_error_undoes_the_step_it_came_from(tmp_path: Path) -> None:
    """Whole or not at all: a script that catches its own error and goes on finds nothing half done."""

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        def half() -> None:
            objects["optimizer"].zero_grad()
            mse_loss(objects["model"](batch[0]), batch[1]).backward()
            objects["optimizer"].step()
            torch.rand(1)
            raise ValueError("this sample is bad")

        if memory.room == 0:
            before = fingerprint(**objects)
            with pytest.raises(ValueError, match="this sample is bad"):
                session.transaction(half)
            equal(fingerprint(**objects), before)
        a_step(session, objects, batch, Memory())

    expected, _ = trained(tmp_path, body)
    result, outcome = trained(tmp_path, body, memory=Memory(0))
    equal(result, expected)
    assert outcome.receipt["faults"] == {}
    assert outcome.receipt["steps"] == SAMPLES // SIZE


# -- again and again -----------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_split_until_it_does_and_grows_back(tmp_path: Path) -> None:
    memory = Memory(3)

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        if session.step_count == 6:
            memory.room = 8  # another process let go of its memory
        a_step(session, objects, batch, memory)

    expected, _ = trained(tmp_path, epochs=3)
    result, outcome = trained(tmp_path, body, epochs=3, memory=memory, oom__grow_back_steps=4)
    equal(result, expected, tolerance=1e-5)
    assert outcome.moves[:3] == ["retry", "split 2", "split 4"]
    assert outcome.receipt["steps"] == 24
    assert memory.sizes[:8] == [2] * 8
    assert memory.sizes[-2:] == [8, 8]
    assert [note["pieces"] for note in outcome.kinds("note")][-1] == 1


@pytest.mark.all
def test_growing_back_too_early_falls_back_and_waits_longer(tmp_path: Path) -> None:
    result, outcome = trained(tmp_path, epochs=5, memory=Memory(4), oom__grow_back_steps=3)
    expected, _ = trained(tmp_path, epochs=5)
    equal(result, expected, tolerance=1e-5)
    tried = [fault["fault"]["step"] for fault in outcome.kinds("fault") if fault["fault"]["evidence"]["pieces"] == 1]
    first, *later = sorted(set(tried))
    assert first == 1
    waits = [after - before for before, after in zip([first, *later], later, strict=False)]
    assert len(waits) >= 2
    assert waits == sorted(waits) and waits[-1] >= 2 * waits[0]


def test_a_model_with_batchnorm_is_not_split(tmp_path: Path) -> None:
    with pytest.raises(holdfast.ScriptFailed):
        trained(tmp_path, build=lambda: {"model": network(norm=True)}, memory=Memory(4))


def test_unless_it_is_allowed(tmp_path: Path) -> None:
    _, outcome = trained(
        tmp_path, build=lambda: {"model": network(norm=True)}, memory=Memory(4), oom__allow_batchnorm_split="true"
    )
    assert outcome.moves[:2] == ["retry", "split 2"]


@pytest.mark.all
def test_a_frozen_batchnorm_mixes_nothing(tmp_path: Path) -> None:
    def build() -> dict[str, Any]:
        model = network(norm=True)
        model[1].eval()
        return {"model": model}

    _, outcome = trained(tmp_path, build=build, memory=Memory(4))
    assert outcome.moves[:2] == ["retry", "split 2"]


def test_time_is_not_split_for_samples(tmp_path: Path) -> None:
    """The script turned the batch: its first dimension is not the samples of the Loader any more."""

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        def fn(turned: Tensor) -> Tensor:
            memory.use(turned.shape[1])
            return objects["model"](turned.T).square().mean()

        session.step(fn, batch[0].T)

    with pytest.raises(holdfast.ScriptFailed):
        trained(tmp_path, body, memory=Memory(4))


def test_splitting_can_be_forbidden(tmp_path: Path) -> None:
    with pytest.raises(holdfast.ScriptFailed):
        trained(tmp_path, memory=Memory(4), oom__split="false")


@pytest.mark.all
def test_one_batch_that_never_fits_is_computed_on_the_cpu_and_the_rest_is_not(tmp_path: Path) -> None:
    """The pretend device computes on the CPU, so the bits are those of an undisturbed run."""
    expected, _ = trained(tmp_path)
    result, outcome = trained(tmp_path, hooks=[Raise(oom, "forward", 4, times=5)], device="pretend:0")
    assert outcome.moves == ["retry", "split 2", "split 4", "split 8", "cpu_batch"]
    equal(result, expected)
    assert outcome.receipt["steps"] == SAMPLES // SIZE
    assert len(outcome.kinds("recovered")) == 1
    assert outcome.kinds("note") == []


@pytest.mark.all
def test_a_transaction_on_the_cpu_sees_the_device_it_is_on(tmp_path: Path) -> None:
    devices: list[torch.device] = []

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        session.transaction(lambda: devices.append(session.device))

    _, outcome = trained(tmp_path, body, hooks=[Raise(oom, "forward", 2, times=2)], device="pretend:0")
    assert outcome.moves == ["retry", "cpu_batch"]
    assert {device.type for device in devices} == {"cpu"}


# -- fewer snapshots -----------------------------------------------------------------------------------------


def test_right_after_a_snapshot_it_can_still_be_rolled_back(tmp_path: Path) -> None:
    expected, _ = trained(tmp_path)
    result, outcome = trained(tmp_path, hooks=[Raise(oom, "optimizer", 6)], snapshot__every=5)
    equal(result, expected)
    assert outcome.moves == ["retry"]


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("every", [5, "auto"])
@pytest.mark.parametrize("norm", [False, True])
def test_between_snapshots_a_step_that_fails_before_its_update_is_tried_again(
    tmp_path: Path, every: int | str, norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers and generators are as they were when it began."""
    monkeypatch.setattr(cadence, "LEAST_PATIENCE", 60.0)  # a busy machine must not make a savepoint too dear

    def build() -> dict[str, Any]:
        return {"model": nn.Sequential(network(norm=norm), nn.Dropout(0.3))}

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        with torch.no_grad():  # a change before the step belongs to it, and is not done twice
            for parameter in objects["model"].parameters():
                parameter.mul_(0.99)

        def fn(piece: Any) -> Tensor:
            return mse_loss(objects["model"](piece[0]), piece[1]) * (1.0 + 0.1 * float(np.random.normal()))

        session.step(fn, batch)

    expected, _ = trained(tmp_path, body, build=build, epochs=2)
    faults = [Raise(oom, "backward", 4), Raise(oom, "optimizer", 6), Raise(oom, "optimizer", 12)]
    result, outcome = trained(tmp_path, body, build=build, epochs=2, hooks=faults, snapshot__every=every)
    equal(result, expected)
    assert outcome.moves == ["retry"] * 3


def _changed_by_the_update(at: int, body: Script = a_step) -> tuple[Script, Callable[..., None]]:
    seen: list[int] = []

    def broken(*_: Any) -> None:
        seen.append(1)
        if len(seen) == at:
            raise oom()

    def prepare(session: Session, objects: dict[str, Any]) -> None:
        objects["optimizer"].register_step_post_hook(broken)

    return body, prepare


def _changed_by_the_function(at: int) -> tuple[Script, None]:
    steps: list[int] = []

    def body(session: Session, objects: dict[str, Any], batch: Any, memory: Memory) -> None:
        def fn(piece: Any) -> Tensor:
            steps.append(1)
            if len(steps) == at:
                with torch.no_grad():
                    objects["model"][0].weight.mul_(0.5)
                raise oom()
            return mse_loss(objects["model"](piece[0]), piece[1])

        session.step(fn, batch)

    return body, None


@pytest.mark.parametrize("changed", [_changed_by_the_update, _changed_by_the_function])
def test_between_snapshots_half_an_update_takes_a_new_worker(tmp_path: Path, changed: Callable[[int], Any]) -> None:
    """There is nothing in this process to go back to: parameters were written to."""
    body, prepare = changed(4)
    with pytest.raises(holdfast.ScriptFailed):
        trained(tmp_path, body, prepare=prepare, snapshot__every=5)


# -- a worker that starts with a decision ---------------------------------------------------------------------


def test_a_new_worker_keeps_the_pieces_it_was_given_for_a_while(tmp_path: Path) -> None:
    """Its predecessor was lost at step 30 for lack of memory: the first thing to do is not to try it whole."""
    memory = Memory()
    lives: list[int] = []

    def train(session: Session) -> None:
        if lives:
            session.begin_with(pieces=2, cpu_batch=False)
        model = network()
        objects = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}
        data = holdfast.Loader(dataset(), SIZE)
        session.protect(**objects, data=data)
        for epoch in session.epochs(6):
            if epoch == 3 and not lives:
                lives.append(1)
                raise KeyboardInterrupt
            for batch in session.batches(data):
                a_step(session, objects, batch, memory)

    folder = new_folder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, train, folder=folder, oom__grow_back_steps=5)
    memory.sizes.clear()
    run(tmp_path, train, folder=folder, oom__grow_back_steps=5)
    assert memory.sizes[:10] == [4] * 10
    assert memory.sizes[10:] == [8] * 19
