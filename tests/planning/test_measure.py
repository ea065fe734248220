"""The tuner: plain wins ties, what is clearly faster wins, what is wrong or deadly is refused, a run sticks to it."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.planning import measure
from holdfast.planning.choice import Choice, Knob
from holdfast.planning.records import FILE, Memory, Record, Result
from tests.worker.local_runs import run

PIECES = Knob("pieces", (1, 2, 4))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words say how busy the machine is."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


class Costing:
    """Steps that take a known time by their own clock, by the number of pieces."""

    def __init__(self, seconds: dict[int, list[float] | float], losses: dict[int, float] | None = None) -> None:
        self.seconds, self.losses, self.now = seconds, losses or {}, 0.0

    def make(self, choice: Choice) -> measure.Step:
        def step() -> float:
            cost = self.seconds[choice.pieces]
            self.now += cost if isinstance(cost, float) else cost.pop(0)
            return self.losses.get(choice.pieces, 1.0)

        return step

    def tune(self, knobs: list[Knob], **options: Any) -> Result:
        return measure.tune(self.make, knobs, clock=lambda: self.now, **options)


def test_the_clearly_faster_one_is_chosen() -> None:
    found = Costing({1: 0.02, 2: 0.005, 4: 0.03}).tune([PIECES])
    assert found.choice == Choice(pieces=2)
    assert found.speedup == pytest.approx(4.0)
    assert {row.choice.pieces for row in found.rows} == {2, 4}
    assert found.words().startswith("tuned: in 2 pieces: ")


def test_plain_wins_a_tie() -> None:
    found = Costing({1: 0.01, 2: 0.01, 4: 0.0098}).tune([PIECES])
    assert found.choice == Choice()
    assert found.speedup == 1.0
    assert found.words().startswith("tuned: plain settings are the fastest (")


def test_luck_in_the_first_measurement_does_not_last() -> None:
    """Two cold steps and five lucky ones; when it is held against plain once more, it is slower."""
    lucky: list[float] = [0.01] * 2 + [0.005] * 5 + [0.02] * 5
    found = Costing({1: 0.01, 2: lucky}).tune([Knob("pieces", (1, 2))])
    assert found.choice == Choice()
    assert [round(row.ratio or 0, 2) for row in found.rows] == [0.5, 2.0]


def test_a_hopeless_one_is_not_measured_to_the_end() -> None:
    slow: list[float] = [1.0] * 4  # a fifth step would raise
    found = Costing({1: 0.01, 2: slow}).tune([Knob("pieces", (1, 2))])
    assert found.rows[0].ratio == pytest.approx(100)


def test_one_that_begins_far_slower_is_not_even_warmed_up() -> None:
    found = Costing({1: 0.01, 2: [60.0]}).tune([Knob("pieces", (1, 2))])  # a second step would raise
    assert found.rows[0].refused == "its first step was far slower"


def test_a_wrong_loss_is_refused_however_fast() -> None:
    found = Costing({1: 0.02, 2: 0.001, 4: 0.001}, {2: 1.2, 4: float("nan")}).tune([PIECES])
    assert found.choice == Choice()
    assert [row.refused for row in found.rows] == ["its loss is 1.2, not 1", "its loss is not finite"]


def test_one_that_raises_is_refused() -> None:
    class Raising(Costing):
        def make(self, choice: Choice) -> measure.Step:
            if choice.pieces == 2:
                raise RuntimeError("could not create a primitive")
            return super().make(choice)

    found = Raising({1: 0.01, 4: 0.001}).tune([PIECES])
    assert found.choice == Choice(pieces=4)
    assert found.rows[0].refused == "RuntimeError: could not create a primitive"


def test_the_budget_is_kept() -> None:
    many = [Knob("pieces", (1, 2)), Knob("workers", (0, 1)), Knob("threads", (0, 1))]
    costing = Costing({1: 0.05, 2: 0.05})
    found = costing.tune(many, budget_s=1.2, rounds=5)
    assert len(found.rows) == 1  # the second knob was not begun
    assert costing.now <= 1.2


def test_one_that_ended_a_worker_is_not_tried_again(tmp_path: Path) -> None:
    record = Record(tmp_path / FILE, "cpu")
    record.trying(Choice(pieces=2))
    again = Record(tmp_path / FILE, "cpu")  # the next worker
    assert again.ended_a_worker() == [Choice(pieces=2)]
    found = Costing({1: 0.01, 4: 0.01}).tune([PIECES], trying=again.trying, forbidden=again.ended_a_worker())
    assert found.rows[0].refused == "it ended an earlier worker"
    again.keep(found)
    assert again.ended_a_worker() == [Choice(pieces=2)]  # known as long as the run lives


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"cpu": 3}',
        '{"cpu": {"choice": {"precision": "int4"}}}',
        '{"cpu": {"choice": {"threads": true}}}',
        '{"cpu": {"choice": {"pieces": 1000000}}}',
        '{"cpu": {"choice": "bf16"}}',
    ],
)
def test_a_record_that_is_none_is_not_used(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert Record(tmp_path / FILE, "cpu").choice() is None


def test_each_device_has_its_own(tmp_path: Path) -> None:
    Record(tmp_path / FILE, "cuda:0").keep(Result(Choice(precision="bf16"), 2.0, 0.1, 1.0))
    assert Record(tmp_path / FILE, "cpu").choice() is None
    Record(tmp_path / FILE, "cpu").keep(Result(Choice(threads=1), 1.1, 0.1, 1.0))
    assert Record(tmp_path / FILE, "cuda:0").choice() == Choice(precision="bf16")
    assert Record(tmp_path / FILE, "cpu").choice() == Choice(threads=1)


def test_what_is_remembered_must_still_be_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "state"))
    memory = Memory("k")
    assert memory.recall([PIECES], Choice()) is None
    memory.keep(Result(Choice(pieces=4), 1.5, 0.1, 1.0))
    found = memory.recall([PIECES], Choice())
    assert found is not None and found.choice == Choice(pieces=4)
    assert found.words() == "tuned: in 4 pieces: 1.50x (1.00 to 1.00) as fast as plain (remembered from an earlier run)"
    assert memory.recall([Knob("pieces", (1, 2))], Choice()) is None
    assert Memory("other").recall([PIECES], Choice()) is None
    if os.name == "posix":
        assert (tmp_path / "state" / FILE).stat().st_mode & 0o077 == 0


def test_a_memory_of_a_busy_hour_does_not_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path))
    for load, lasts in ((100.0 * (os.cpu_count() or 1), False), (0.0, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load), raising=False)
        Memory("k").keep(Result(Choice(pieces=4), 1.5, 0.1, 1.0))
        data = json.loads((tmp_path / FILE).read_text())
        data["k"]["when"] -= 2 * 3600
        (tmp_path / FILE).write_text(json.dumps(data))
        assert (Memory("k").recall([PIECES], Choice()) is not None) is lasts


def test_an_old_memory_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
    Memory("k").keep(Result(Choice(pieces=4), 1.5, 0.1, 1.0))
    data = json.loads((tmp_path / FILE).read_text())
    data["k"]["when"] -= 31 * 86400
    (tmp_path / FILE).write_text(json.dumps(data))
    assert Memory("k").recall([PIECES], Choice()) is None


# Real steps -----------------------------------------------------------------------------------------------------


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(6)
        return x, x.sum(dim=0, keepdim=True)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))


def test_tuning_touches_neither_the_model_nor_the_random_numbers() -> None:
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trial = measure.Training(model, loss_of, Points(), batch=8)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    with measure.untouched_generators():
        found = measure.tune(trial.make, [Knob("pieces", (1, 2)), Knob("precision", ("fp32", "bf16"))], rounds=2)
    assert all(row.refused == "" for row in found.rows), found.rows
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # type: ignore[index]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.get_num_threads() >= 1


def test_pieces_give_the_gradients_of_the_whole_batch() -> None:
    whole, cut = (
        measure.Training(small(), loss_of, Points(), batch=10).make(Choice(pieces=pieces)) for pieces in (1, 4)
    )
    assert whole() == pytest.approx(cut(), rel=1e-5)


def test_a_model_with_batch_statistics_is_not_cut() -> None:
    plain = measure.Training(small(), loss_of, Points(), batch=8)
    normed = measure.Training(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)), loss_of, Points(), batch=8)
    assert "pieces" in {knob.name for knob in plain.knobs()}
    assert "pieces" not in {knob.name for knob in normed.knobs()}
    assert "layout" in {knob.name for knob in measure.Training(nn.Conv2d(1, 1, 1), loss_of, Points(), 8).knobs()}


def test_long_steps_are_measured_with_a_smaller_batch(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Slow(measure.Training):
        def make(self, choice: Choice) -> Any:
            sizes.append(self.batch)
            return lambda: time.sleep(self.batch * 0.02) or 1.0

    record = Record(tmp_path / FILE, "cpu")
    found = measure._in_budget(Slow(small(), loss_of, Points(), batch=64), [], Choice(), record)
    assert found.choice == Choice() and max(sizes) < 64, "a step of the whole batch was taken"
    assert measure.LEAST_BATCH <= sizes[-1] <= 2 * measure.LEAST_BATCH


def test_a_run_sticks_to_what_it_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker of the run does not measure: the bits of a step depend on the choice."""
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "state"))
    seen: list[Choice] = []

    def train(session: Any) -> None:
        trial = measure.Training(small(), loss_of, Points(), batch=8)
        seen.append(measure.for_session(session, trial))
        recorded = session.run.folder / FILE
        data = json.loads(recorded.read_text())
        data[str(session.device)]["choice"] = Choice(pieces=2, threads=1).to_json()
        recorded.write_text(json.dumps(data))
        monkeypatch.setattr(measure, "tune", lambda *_, **__: pytest.fail("it was measured again"))
        before = torch.get_num_threads()
        seen.append(measure.for_session(session, trial))
        assert torch.get_num_threads() == 1
        torch.set_num_threads(before)

    run(tmp_path / "runs", train)
    assert isinstance(seen[0], Choice)
    assert seen[1] == Choice(pieces=2, threads=1)


def test_what_the_user_decided_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "state"))
    found: list[Choice] = []

    def train(session: Any) -> None:
        trial = measure.Training(small(), loss_of, Points(), batch=8)
        found.append(measure.for_session(session, trial, tuned=False, fixed={"precision": "bf16"}))

    run(tmp_path / "runs", train)
    assert found == [Choice(precision="bf16")]


def test_a_choice_computes_what_it_says() -> None:
    seen: list[torch.dtype] = []

    def compute(batch: torch.Tensor) -> torch.Tensor:
        seen.append((batch @ batch).dtype)
        return (batch @ batch).sum()

    x = torch.ones(4, 4)
    assert Choice(precision="bf16").loss(compute, torch.device("cpu"))(x).dtype is torch.float32
    assert Choice().loss(compute, torch.device("cpu")) is compute
    compute(x)
    assert seen == [torch.bfloat16, torch.float32]
    assert Choice().words() == "plain"
    assert Choice(precision="bf16", threads=1, workers=2, compile=True).words() == (
        "bf16, 1 thread, 2 loader processes, compiled"
    )
