"""What a loop may do with a session: each way to train ends with the bits of the same loop in bare PyTorch.

Undisturbed, after deaths at several places, and after running out of memory in each phase of a step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import Raise, batches_of, equal, fingerprint, oom, run, seed_everything, survive
from tests.worker.small import dataset, network

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

EPOCHS, SIZE = 2, 4
STEPS = EPOCHS * 6


class Job:
    """A way to train: what is built, and what one batch and the end of an epoch do, bare and with a session."""

    tolerance = 0.0

    def build(self) -> dict[str, Any]:
        model = network()
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}

    def loss(self, objects: dict[str, Any], batch: Any) -> Tensor:
        return cross_entropy(objects["model"](batch[0]), batch[1])

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        objects["optimizer"].zero_grad()
        self.loss(objects, batch).backward()
        objects["optimizer"].step()

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        session.step(lambda b: self.loss(objects, b), batch)

    def epoch_end(self, objects: dict[str, Any]) -> None: ...

    def run_bare(self) -> dict[str, Any]:
        seed_everything(0)
        objects = self.build()
        for _ in range(EPOCHS):
            for batch in batches_of(dataset(), SIZE):
                self.bare(objects, batch)
            self.epoch_end(objects)
        return fingerprint(**objects)

    def trainer(self, results: list[dict[str, Any]]) -> Callable[[Session], None]:
        def train(session: Session) -> None:
            objects = self.build()
            data = holdfast.Loader(torch.utils.data.TensorDataset(*dataset()), SIZE)
            session.protect(**objects, data=data)
            for _ in session.epochs(EPOCHS):
                for batch in session.batches(data):
                    self.body(session, objects, batch)
                self.epoch_end(objects)
            results.append(fingerprint(**objects))

        return train


class Plain(Job):
    pass


class Adversarial(Job):
    """Two networks, two optimizers, two steps in one body, as a GAN has."""

    def build(self) -> dict[str, Any]:
        generator, critic = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        return {
            "generator": generator,
            "critic": critic,
            "g_optimizer": torch.optim.Adam(generator.parameters(), lr=0.01),
            "c_optimizer": torch.optim.RMSprop(critic.parameters(), lr=0.01),
        }

    def critic_loss(self, objects: dict[str, Any], batch: Any) -> Tensor:
        fake = objects["generator"](torch.randn_like(batch[0])).detach()
        value: Tensor = objects["critic"](fake).mean() - objects["critic"](batch[0]).mean()
        return value

    def generator_loss(self, objects: dict[str, Any], batch: Any) -> Tensor:
        value: Tensor = -objects["critic"](objects["generator"](torch.randn_like(batch[0]))).mean()
        return value

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        for loss, name in ((self.critic_loss, "c_optimizer"), (self.generator_loss, "g_optimizer")):
            objects[name].zero_grad()
            loss(objects, batch).backward()
            objects[name].step()

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        session.step(lambda b: self.critic_loss(objects, b), batch, optimizer=objects["c_optimizer"])
        session.step(lambda b: self.generator_loss(objects, b), batch, optimizer=objects["g_optimizer"])


class Together(Job):
    """Two optimizers for one loss: a fast one for the head, a slow one for the rest."""

    def build(self) -> dict[str, Any]:
        model = network()
        return {
            "model": model,
            "slow": torch.optim.SGD(model[:3].parameters(), lr=0.01, momentum=0.9),
            "fast": torch.optim.AdamW(model[3:].parameters(), lr=0.05),
        }

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        for name in ("slow", "fast"):
            objects[name].zero_grad()
        self.loss(objects, batch).backward()
        for name in ("slow", "fast"):
            objects[name].step()

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        session.step(lambda b: self.loss(objects, b), batch, optimizer=[objects["slow"], objects["fast"]])


class Scheduled(Job):
    """One schedule by the batch, one by the epoch, one by a metric; stepped in the loop body, after the step."""

    def build(self) -> dict[str, Any]:
        objects = super().build()
        optimizer = objects["optimizer"]
        objects["cycle"] = OneCycleLR(optimizer, max_lr=0.1, total_steps=100)
        objects["stairs"] = StepLR(optimizer, step_size=1, gamma=0.5)
        objects["plateau"] = ReduceLROnPlateau(optimizer, patience=0)
        return objects

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        super().bare(objects, batch)
        objects["cycle"].step()

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        super().body(session, objects, batch)
        objects["cycle"].step()

    def epoch_end(self, objects: dict[str, Any]) -> None:
        objects["stairs"].step()
        objects["plateau"].step(1.0)


class ScheduledFirst(Scheduled):
    """The schedule is stepped before the step of the same body: a rollback of the step must not undo it."""

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        objects["cycle"].step()
        Job.bare(self, objects, batch)

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        objects["cycle"].step()
        Job.body(self, session, objects, batch)


class Scaled(Job):
    """fp16 with a GradScaler; the third batch overflows, so the scaler skips its update."""

    def build(self) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return {"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu", growth_interval=3)}

    def loss(self, objects: dict[str, Any], batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            output = objects["model"](batch[0])
        loss = cross_entropy(output.float(), batch[1])
        return loss * 1e38 * 1e38 if torch.equal(batch[1], dataset()[1][8:12]) else loss

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        objects["optimizer"].zero_grad()
        objects["scaler"].scale(self.loss(objects, batch)).backward()
        objects["scaler"].unscale_(objects["optimizer"])
        nn.utils.clip_grad_norm_(objects["model"].parameters(), 0.5)
        objects["scaler"].step(objects["optimizer"])
        objects["scaler"].update()

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        session.step(lambda b: self.loss(objects, b), batch, clip=0.5)


class BFloat16(Job):
    def loss(self, objects: dict[str, Any], batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = objects["model"](batch[0])
        return cross_entropy(output.float(), batch[1])


class Clipped(Job):
    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        objects["optimizer"].zero_grad()
        self.loss(objects, batch).backward()
        nn.utils.clip_grad_norm_(objects["model"].parameters(), 0.1)
        objects["optimizer"].step()

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        session.step(lambda b: self.loss(objects, b), batch, clip=0.1)


class Averaged(Job):
    """An exponential moving average, updated in the body after the step."""

    def build(self) -> dict[str, Any]:
        objects = super().build()
        average = get_ema_multi_avg_fn(0.9)
        objects["ema"] = AveragedModel(objects["model"], multi_avg_fn=average, use_buffers=True)
        return objects

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        super().bare(objects, batch)
        objects["ema"].update_parameters(objects["model"])

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        super().body(session, objects, batch)
        objects["ema"].update_parameters(objects["model"])


class Compiled(Job):
    """torch.compile without a compiler: what matters here is that the wrapper leaves no trace."""

    backend = "aot_eager"

    def build(self) -> dict[str, Any]:
        model = torch.compile(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), backend=self.backend)
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}


class Quasi(Job):
    """LBFGS evaluates the loss several times in one update."""

    def build(self) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        return {"model": model, "optimizer": torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4)}

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        def closure() -> Tensor:
            objects["optimizer"].zero_grad()
            loss = self.loss(objects, batch)
            loss.backward()
            return loss

        objects["optimizer"].step(closure)


class Several(Job):
    """`session.transaction`: two updates with one batch, whole or not at all."""

    def bare(self, objects: dict[str, Any], batch: Any) -> None:
        for _ in range(2):
            super().bare(objects, batch)

    def body(self, session: Session, objects: dict[str, Any], batch: Any) -> None:
        session.transaction(lambda: self.bare(objects, batch))


JOBS = [
    Plain, Adversarial, Together, Scheduled, ScheduledFirst, Scaled,
    BFloat16, Clipped, Averaged, Compiled, Quasi, Several,
]  # fmt: skip
DEATHS = ["loop 3", "forward 2", "optimizer 1", "snapshot 4", "data 2"]


@pytest.fixture(params=JOBS, ids=lambda job: job.__name__.lower())
def job(request: pytest.FixtureRequest) -> Job:
    return request.param()  # type: ignore[no-any-return]


@pytest.mark.sample(3)
def test_undisturbed(job: Job, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, job.trainer(results))
    equal(results[-1], job.run_bare(), tolerance=job.tolerance)
    steps = 2 * STEPS if isinstance(job, Adversarial) else STEPS
    assert (outcome.receipt["steps"], outcome.receipt["steps_repeated"]) == (steps, 0)
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)
    assert outcome.receipt["faults"] == {}


@pytest.mark.sample(12, 3)
def test_resumed_after_deaths(job: Job, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    outcome = survive(tmp_path, job.trainer(results), DEATHS if not isinstance(job, Several) else ["loop 3", "data 4"])
    equal(results[-1], job.run_bare(), tolerance=job.tolerance)
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)


@pytest.mark.sample(12)
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_out_of_memory_once(job: Job, phase: str, tmp_path: Path) -> None:
    if isinstance(job, Several) and phase != "forward":
        pytest.skip("a transaction is one phase")
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, job.trainer(results), hooks=[Raise(oom, phase, 1), Raise(oom, phase, 6)])
    equal(results[-1], job.run_bare(), tolerance=job.tolerance)
    assert set(outcome.moves) == {"retry"}
    assert outcome.receipt["faults"] == {"out_of_memory": len(outcome.moves)}
    assert outcome.receipt["steps_repeated"] == len(outcome.moves)


@pytest.mark.sample(3)
def test_the_weights_file_loads_into_the_bare_model(job: Job, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, job.trainer(results))
    weights = load_file(outcome.folder.path / "final.safetensors")
    modules = {name: value for name, value in job.build().items() if isinstance(value, nn.Module)}
    modules = {name: getattr(value, "_orig_mod", value) for name, value in modules.items()}
    for name, module in modules.items():
        prefix = "" if len(modules) == 1 else f"{name}."
        own = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
        module.load_state_dict(own, strict=True)
    assert not any("_orig_mod" in key for key in weights)


def test_compiling_is_a_phase_of_its_own_whenever_it_happens(tmp_path: Path) -> None:
    """At the first step, and again for the smaller batch at the end of an epoch; however it was compiled."""
    phases: list[list[str]] = [[]]

    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    def train(session: Session) -> None:
        model = Net(6, 3)
        model.compile(backend="eager", dynamic=False)
        data = holdfast.Loader(torch.utils.data.TensorDataset(*dataset()), SIZE)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data=data)
        session._phase_hooks.append(lambda phase: phases[-1].append(phase.label))
        for _ in session.epochs(EPOCHS):
            for batch in session.batches(data):
                phases.append([])
                session.step(lambda b: cross_entropy(model(b[0]), b[1]), batch)

    torch._dynamo.reset()
    run(tmp_path, train)
    del phases[0]
    compiled = ["compile" in step for step in phases]
    assert compiled == [True, *[False] * 4, True, *[False] * 6]
    assert phases[0][:5] == ["to-device", "forward", "compile", "forward", "backward"]
    assert torch._dynamo.callback.callback_handler.start_callbacks == [], "nothing is left behind"


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [1, 2])
def test_a_fault_while_compiling(count: int, tmp_path: Path) -> None:
    job = Compiled()
    expected = job.run_bare()
    torch._dynamo.reset()
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, job.trainer(results), hooks=[Raise(oom, "compile", count)])
    equal(results[-1], expected)
    assert outcome.moves == ["retry"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(" " in torch.__file__, reason="inductor hands its include paths to the compiler unquoted")
def test_compiled_for_real(tmp_path: Path) -> None:
    class Inductor(Compiled):
        backend = "inductor"

    results: list[dict[str, Any]] = []
    job = Inductor()
    survive(tmp_path, job.trainer(results), ["loop 3"])
    equal(results[-1], job.run_bare())


def test_a_skipped_update_is_counted_as_a_step_and_not_as_a_fault(tmp_path: Path) -> None:
    """The scaler halves its scale and goes on; the skip must really have happened for this to mean anything."""
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, Scaled().trainer(results))
    assert results[-1]["scaler.scale"] < 65536.0 * 2 ** (STEPS // 3)
    assert results[-1]["optimizer.state.0.step"].item() == STEPS - EPOCHS
    assert outcome.receipt["steps"] == STEPS
    assert outcome.receipt["faults"] == {}
