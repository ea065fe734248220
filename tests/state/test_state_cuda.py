"""What only a real device shows: where state lives, what crosses between devices, and that a look waits for nothing."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.state.cuda_copies import copies_for
from holdfast.state.protected import Protected
from holdfast.state.rng import capture_rng, restore_rng, rng_specs
from holdfast.state.slots import Arena, Slot

from .saving import CPU, load, save

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]
CUDA = torch.device("cuda", 0)

OPTIMIZERS: dict[str, Any] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01, device=CUDA), capturable=True),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3, max_iter=3),
}


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.cuda.set_sync_debug_mode("default")


class Job:
    def __init__(self, name: str, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.device = device
        # No bias before the normalization: its gradient is rounding noise, which Adam would make large.
        self.model: Any = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 6)
        )
        self.optimizer = OPTIMIZERS[name](self.model.parameters())
        self.scaler: Any = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=2)
        self.protected = Protected({"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}, device)
        self.protected.move(device)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            batch = torch.randn(16, 6).to(self.device)

            def closure(batch: Tensor = batch) -> Tensor:
                self.optimizer.zero_grad()
                loss: Tensor = self.model(batch).square().mean()
                loss.backward()
                return loss

            self.optimizer.step(closure)

    def weights(self) -> dict[str, Tensor]:
        return {key: value.detach().cpu().clone() for key, value in self.model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor], *, exact: bool = True) -> None:
    for key in a:
        if exact:
            assert torch.equal(a[key], b[key]), key
        else:
            torch.testing.assert_close(a[key], b[key], rtol=1e-3, atol=1e-3)


def check_devices(job: Job) -> None:
    """Every optimizer tensor is where torch itself would have it."""
    for param, row in job.optimizer.state.items():
        group = job.optimizer.param_groups[0]
        for key, value in row.items():
            if isinstance(value, Tensor):
                on_device = key != "step" or group.get("capturable") or group.get("fused")
                assert value.device == (param.device if on_device else CPU), key


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_on_the_device(name: str) -> None:
    first = Job(name, 1, CUDA)
    first.train(0, 3)
    slot = save(first.protected)
    kept = bytearray(slot)
    first.train(3, 6)
    second = Job(name, 2, CUDA)
    load(second.protected, slot)
    check_devices(second)
    second.train(3, 6)
    same(first.weights(), second.weights())
    load(first.protected, kept)
    first.train(3, 6)
    same(first.weights(), second.weights())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_on_the_cpu_and_back(name: str) -> None:
    first = Job(name, 1, CUDA)
    first.model[2].p = 0.0
    first.train(0, 3)
    slot = save(first.protected)
    first.train(3, 7)

    second = Job(name, 2, CPU)
    second.model[2].p = 0.0
    load(second.protected, slot)
    check_devices(second)
    second.train(3, 5)
    slot = save(second.protected)

    third = Job(name, 3, CUDA)
    third.model[2].p = 0.0
    load(third.protected, slot)
    check_devices(third)
    third.train(5, 7)
    same(first.weights(), third.weights(), exact=False)
    capturable = third.optimizer.param_groups[0].get("capturable")
    assert capturable == first.optimizer.param_groups[0].get("capturable")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_move_for_one_batch(name: str) -> None:
    job = Job(name, 1, CUDA)
    job.train(0, 2)
    params = list(job.model.parameters())
    job.protected.layout()
    for device in (CPU, CUDA):
        job.protected.move(device)
        job.device = device
        check_devices(job)
        job.train(2, 3)
        assert job.protected.tensors()
        assert all(a is b for a, b in zip(params, job.model.parameters(), strict=True))
        save(job.protected)


@pytest.mark.parametrize("name", ["Adam", "AdamW fused", "Adam capturable", "SGD momentum"])
def test_a_look_waits_for_nothing(name: str) -> None:
    job = Job(name, 1, CUDA)
    job.train(0, 2)
    job.scaler.scale(torch.ones((), device=CUDA))
    job.protected.layout()
    job.protected.look()
    torch.cuda.set_sync_debug_mode("error")
    assert not job.protected.changed()
    job.protected.meta_json({"step": 3})
    job.protected.versions()
    capture_rng(CUDA)
    torch.cuda.set_sync_debug_mode("default")


def test_scaler_is_restored_on_the_device() -> None:
    job = Job("Adam", 1, CUDA)
    job.scaler.scale(torch.ones((), device=CUDA))
    job.scaler._scale.fill_(128.0)
    other = Job("Adam", 2, CUDA)
    load(other.protected, save(job.protected))
    assert other.scaler.get_scale() == 128.0
    assert other.scaler._scale.device == CUDA


def test_device_generator() -> None:
    torch.cuda.manual_seed(3)
    torch.randn(5, device=CUDA)
    tensors, words = capture_rng(CUDA)
    assert {name for name, _, _ in rng_specs(CUDA)} == tensors.keys()
    expected = torch.randn(5, device=CUDA).tolist()
    restore_rng(tensors, words, CUDA)
    assert torch.randn(5, device=CUDA).tolist() == expected
    restore_rng(tensors, words, CPU)  # on the CPU the device's state is left out
    tensors, words = capture_rng(CPU)
    restore_rng(tensors, words, CUDA)


def test_protected_generator_goes_on_and_may_change_its_device() -> None:
    generator = torch.Generator(CUDA).manual_seed(4)
    protected = Protected({"generator": generator}, CUDA)
    slot = save(protected)
    other = bytearray(slot)
    expected = torch.randn(3, generator=generator, device=CUDA).tolist()
    load(protected, slot)
    assert torch.randn(3, generator=generator, device=CUDA).tolist() == expected
    load(Protected({"generator": torch.Generator()}, CPU), other)


def test_tensors_of_an_object_come_back_to_the_device() -> None:
    class World:
        def __init__(self) -> None:
            self.here, self.host = torch.ones(3, device=CUDA), torch.ones(3)

        def state_dict(self) -> dict[str, Any]:
            return {"here": self.here.clone(), "host": self.host}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.here, self.host = state["here"], state["host"]

    world = World()
    protected = Protected({"world": world}, CUDA)
    protected.layout()
    protected.changed()
    protected.layout()
    world.here += 1
    assert not protected.changed()
    load(protected, save(protected))
    assert world.here.tolist() == [2, 2, 2] and world.here.device == CUDA
    assert world.host.device == CPU


def test_slots_are_locked_once_for_a_process_and_an_error_is_no_fault_of_the_next_kernel() -> None:
    """A rank that stays goes on with its slots in another session, and with other copies."""
    arena = Arena.create(1 << 20, slots=2)
    first, second = copies_for(CUDA), copies_for(CUDA)
    assert first is not None and second is not None
    for copies in (first, second):
        for slot in arena.slots:
            copies.lock_pages(slot)
    assert float(torch.ones(4, device=CUDA).sum()) == 4.0
    other = mmap.mmap(-1, 1 << 20)
    view = torch.frombuffer(other, dtype=torch.uint8)
    cudart: Any = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(view.data_ptr(), view.numel(), 0)) == 0
    first.lock_pages(Slot(0, other, -1, None))  # somebody has locked it: it is locked anew
    assert view.is_pinned() and float(torch.ones(4, device=CUDA).sum()) == 4.0
