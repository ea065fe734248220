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
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from holdfast.runtime.session import Session
from tests.runtime.local_runs import Raise, batches_of, equal, fingerprint, oom, run, seed_everything, survive

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

EPOCHS, SIZE, SAMPLES = 2, 4, 22
STEPS = EPOCHS * 6


def dataset() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 6, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)


def network() -> nn.Module:
    """Dropout draws random numbers, BatchNorm has buffers: both must be rolled back and resumed."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


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


def test_undisturbed(job: Job, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, job.trainer(results))
    equal(results[-1], job.run_bare(), tolerance=job.tolerance)
    steps = 2 * STEPS if isinstance(job, Adversarial) else STEPS
    assert (outcome.receipt["steps"], outcome.receipt["steps_repeated"]) == (steps, 0)
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)
    assert outcome.receipt["faults"] == {}


def test_resumed_after_deaths(job: Job, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    outcome = survive(tmp_path, job.trainer(results), DEATHS if not isinstance(job, Several) else ["loop 3", "data 4"])
    equal(results[-1], job.run_bare(), tolerance=job.tolerance)
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)


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


@pytest.mark.parametrize("count", [1, 2])
def test_a_fault_while_compiling(count: int, tmp_path: Path) -> None:
    job = Compiled()
    expected = job.run_bare()
    torch._dynamo.reset()
    results: list[dict[str, Any]] = []
    outcome = run(tmp_path, job.trainer(results), hooks=[Raise(oom, "compile", count)])
    equal(results[-1], expected)
    assert outcome.moves == ["retry"]


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


# -- accumulation --------------------------------------------------------------------------------------------


def deterministic() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def accumulated(tmp_path: Path, count: int, size: int, **options: Any) -> tuple[dict[str, Any], list[float]]:
    """The state and losses of a few epochs, each batch in so many pieces."""
    results: list[dict[str, Any]] = []
    losses: list[float] = []

    def train(session: Session) -> None:
        objects = deterministic()
        x, y = dataset()
        data = holdfast.Loader(torch.utils.data.TensorDataset(x.double(), y), size)
        session.protect(**objects, data=data)
        for _ in session.epochs(3):
            for batch in session.batches(data):
                fn = lambda b: cross_entropy(objects["model"](b[0]), b[1])  # noqa: E731
                losses.append(session.step(fn, batch, accumulate=count, **options).item())
        results.append(fingerprint(**objects))

    run(tmp_path, train)
    return results[-1], losses


@pytest.mark.parametrize("count", [2, 3, 4, 100])
def test_a_batch_in_pieces_is_the_whole_batch(count: int, tmp_path: Path) -> None:
    """Pieces of unequal size weigh by their samples: 22 samples in batches of 8 leave a last one of 6."""
    whole, losses = accumulated(tmp_path, 1, 8)
    pieces, their_losses = accumulated(tmp_path, count, 8)
    equal(pieces, whole, tolerance=1e-6)
    assert their_losses == pytest.approx(losses, rel=1e-6)


def test_clipping_sees_the_whole_gradient(tmp_path: Path) -> None:
    equal(accumulated(tmp_path, 4, 8, clip=0.05)[0], accumulated(tmp_path, 1, 8, clip=0.05)[0], tolerance=1e-6)


def test_a_split_of_ones_own(tmp_path: Path) -> None:
    """A batch that is not tensors with a common first dimension, cut by the function that knows how."""
    seen: list[int] = []

    def split(batch: Any, count: int) -> list[tuple[Any, float]]:
        rows = batch["rows"]
        seen.append(count)
        size = -(-len(rows) // count)
        cut = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [({"rows": part}, len(part) / len(rows)) for part in cut]

    def final(count: int) -> dict[str, Any]:
        results: list[dict[str, Any]] = []

        def train(session: Session) -> None:
            objects = deterministic()
            x, y = dataset()
            data = holdfast.Loader(list(zip(x.double(), y, strict=True)), 8, collate_fn=lambda rows: {"rows": rows})
            session.protect(**objects, data=data)

            def fn(batch: Any) -> Tensor:
                inputs, targets = zip(*batch["rows"], strict=True)
                return cross_entropy(objects["model"](torch.stack(inputs)), torch.stack(targets))

            for _ in session.epochs(1):
                for batch in session.batches(data):
                    session.step(fn, batch, accumulate=count, split=split)
            results.append(fingerprint(**objects))

        run(tmp_path, train)
        return results[-1]

    equal(final(3), final(1), tolerance=1e-6)
    assert seen == [3, 3, 3]


def test_a_batch_that_cannot_be_split_says_how_to(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        batch = [torch.zeros(4, 6, dtype=torch.float64), torch.zeros(5)]
        session.step(lambda b: objects["model"](b[0]).sum(), batch, accumulate=2)

    with pytest.raises(holdfast.UserError, match="this batch cannot be split") as caught:
        run(tmp_path, train)
    assert "split=" in caught.value.hints[0]


# -- the loss ------------------------------------------------------------------------------------------------


def one_step(tmp_path: Path, fn: Callable[[Any], Any], use: Callable[[Session, holdfast.Loss], None]) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(2, 1)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        use(session, session.step(lambda b: fn(model(b)), torch.ones(3, 2)))

    run(tmp_path, train)


def test_a_loss_is_a_number_when_it_is_read(tmp_path: Path) -> None:
    def use(session: Session, loss: holdfast.Loss) -> None:
        assert loss._value is None, "nothing has read it yet"
        assert f"{loss:.3f}" == "1.000"
        assert float(loss) == loss.item() == 1.0
        assert repr(loss) == "Loss(1.0)"
        assert not loss.tensor.requires_grad
        session.log(loss=loss)

    one_step(tmp_path, lambda out: mse_loss(out, torch.zeros(3, 1)), use)


def test_a_loss_keeps_its_value_when_training_goes_on_and_when_it_is_over(tmp_path: Path) -> None:
    kept: list[holdfast.Loss] = []
    then: list[float] = []

    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        for _ in range(5):
            kept.append(session.step(lambda b: objects["model"](b).square().mean(), torch.ones(2, 6).double()))
            then.append(kept[-1].tensor.item())

    run(tmp_path, train)
    assert [loss.item() for loss in kept] == then
    assert len(set(then)) == 5


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda out: out, "must return the loss"),
        (lambda out: 0.5, "must return the loss"),
        (lambda out: None, "must return the loss"),
        (lambda out: {"loss": out.mean()}, "must return the loss"),
        (lambda out: out.mean().detach(), "has no gradient"),
        (lambda out: torch.tensor(1.0), "has no gradient"),
    ],
)
def test_what_is_not_a_loss(fn: Callable[[Any], Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(holdfast.UserError, match=words):
        one_step(tmp_path, fn, lambda session, loss: None)


def test_a_loss_with_one_element_will_do(tmp_path: Path) -> None:
    one_step(tmp_path, lambda out: out.mean().reshape(1, 1), lambda session, loss: float(loss))  # type: ignore[arg-type, return-value]


# -- around the loop -----------------------------------------------------------------------------------------


def test_evaluating_leaves_modes_and_generators_as_they_were(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = network()
        model[1].eval()  # a frozen BatchNorm must stay frozen
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        modes = [part.training for part in model.modules()]
        before = fingerprint(model=model)
        with session.evaluating():
            assert not any(part.training for part in model.modules())
            assert not torch.is_grad_enabled()
            torch.rand(100)
            model(dataset()[0])
        assert [part.training for part in model.modules()] == modes
        assert torch.is_grad_enabled()
        equal(fingerprint(model=model), before)
        with pytest.raises(KeyError), session.evaluating():
            raise KeyError
        assert [part.training for part in model.modules()] == modes

    run(tmp_path, train)


def test_a_compiled_model_is_evaluated_as_such(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        plain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        model = torch.compile(plain, backend="eager")
        session.protect(model=model, optimizer=torch.optim.SGD(plain.parameters(), lr=0.1))
        x = dataset()[0]
        with session.evaluating():
            assert torch.equal(model(x), model(x)), "dropout is off"
        assert not torch.equal(model(x), model(x)), "dropout is on again"

    run(tmp_path, train)


def test_numbers_that_are_logged_are_kept_with_their_place(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        for epoch in session.epochs(2):
            session.step(lambda b: objects["model"](b).square().mean(), torch.ones(2, 6).double())
            session.log(valid_loss=1.0 - epoch / 4, tensor=torch.tensor(2.5), bad=float("inf"))
        with pytest.raises(holdfast.UserError, match="`name` is str"):
            session.log(name="text")  # type: ignore[arg-type]

    outcome = run(tmp_path, train)
    metrics = [{key: value for key, value in row.items() if key != "time"} for row in outcome.folder.metrics()]
    assert metrics == [
        {"step": 1, "epoch": 0, "valid_loss": 1.0, "tensor": 2.5, "bad": None},
        {"step": 2, "epoch": 1, "valid_loss": 0.75, "tensor": 2.5, "bad": None},
    ]
    assert (outcome.folder.path / "best.safetensors").exists()


def test_a_transaction_has_no_loss_to_show(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(1, 1)
        session.protect(model=model)
        for _ in range(3):
            session.transaction(lambda: None)
            beat = session._board.read()
        assert beat.step >= 2 and beat.loss is None, beat.loss

    run(tmp_path, train)


def test_progress_is_on_the_board_and_a_sign_of_life(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        before = session._board.read().beats
        session.progress(3, 10, "decoding images")
        beat = session._board.read()
        assert (beat.done, beat.total, beat.label, beat.beats) == (3, 10, "decoding images", before + 1)

    run(tmp_path, train)


def test_what_a_script_may_ask_about_its_run(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        assert session.device == torch.device("cpu")
        assert (session.run.seed, session.run.generation, session.run.resumed) == (0, 0, False)
        assert session.run.folder.is_dir()
        assert session.run.name in session.run.folder.name
        assert (session.step_count, session.epoch) == (0, 0)

    run(tmp_path, train)


# -- protecting ----------------------------------------------------------------------------------------------


def protected_names(tmp_path: Path, *positional: Any, **named: Any) -> list[str]:
    names: list[str] = []

    def train(session: Session) -> None:
        session.protect(*positional, **named)
        names.extend(session._named)

    run(tmp_path, train)
    return names


def test_positional_objects_are_named_by_what_they_are(tmp_path: Path) -> None:
    class World:
        def state_dict(self) -> dict[str, Any]:
            return {"tick": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    model, other = nn.Linear(2, 2), torch.compile(nn.Linear(2, 2), backend="eager")
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    data = holdfast.Loader([torch.ones(2)])
    scheduler, scaler = StepLR(optimizer, 1), torch.amp.GradScaler("cpu")
    assert protected_names(tmp_path, model, other, optimizer, scheduler, scaler, data, World()) == [
        "model", "model2", "optimizer", "scheduler", "scaler", "data", "world",
    ]  # fmt: skip
    assert protected_names(tmp_path, model, other, optimizer, model2=nn.Linear(1, 1)) == [
        "model", "model3", "optimizer", "model2",
    ]  # fmt: skip


def refused(tmp_path: Path, train: Callable[[Session], None]) -> holdfast.UserError:
    with pytest.raises(holdfast.UserError) as caught:
        run(tmp_path, train)
    return caught.value


def test_protecting_twice(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.protect(model=nn.Linear(1, 1))
        session.protect(other=nn.Linear(1, 1))

    assert refused(tmp_path, train).message == "session.protect was called twice"


@pytest.mark.parametrize("use", ["step", "transaction", "epochs", "batches"])
def test_a_loop_without_protection(use: str, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        if use == "step":
            session.step(lambda b: b, torch.ones(1), optimizer=[])
        elif use == "transaction":
            session.transaction(lambda: None)
        elif use == "epochs":
            list(session.epochs(2))
        else:
            list(session.batches(holdfast.Loader([torch.ones(1)])))

    error = refused(tmp_path, train)
    assert error.message in ("nothing is protected", "this Loader was not protected")
    assert "session.protect" in error.hints[0]


def test_an_optimizer_that_was_not_protected(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(1, 1)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        session.step(lambda b: model(b).sum(), torch.ones(1, 1), optimizer=torch.optim.Adam(model.parameters()))

    assert refused(tmp_path, train).message == "the Adam given to session.step was not protected"


def test_which_of_two_optimizers(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(1, 1)
        session.protect(
            model=model,
            one=torch.optim.SGD([model.weight], lr=0.1),
            two=torch.optim.SGD([model.bias], lr=0.1),
        )
        session.step(lambda b: model(b).sum(), torch.ones(1, 1))

    error = refused(tmp_path, train)
    assert (error.message, error.cause) == ("session.step needs one optimizer", "2 are protected")


def test_a_loader_of_torch_is_told_apart(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.protect(model=nn.Linear(1, 1))
        list(session.batches(torch.utils.data.DataLoader([1, 2])))  # type: ignore[arg-type]

    assert refused(tmp_path, train).message == "session.batches takes a holdfast.Loader, not a DataLoader"


def test_the_users_own_error_comes_out_as_it_is(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        session.step(lambda b: {}["missing"], torch.ones(1))

    with pytest.raises(KeyError, match="missing"):
        run(tmp_path, train)
