"""Ratios are against the best plain setting with their spread, what is not sure is not taken, and the time is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.planning import measure
from holdfast.planning.choice import Choice, Knob
from holdfast.planning.measurement import heard
from holdfast.planning.records import FILE, Memory, Record, Result
from holdfast.planning.step_comparison import CHANCE, by_chance, interval, tune

THREADS, PIECES = Knob("threads", (0, 1)), Knob("pieces", (1, 2))


class Machine:
    """Steps by their own clock: what each takes, by threads and pieces, and what disturbs the n-th step of all."""

    def __init__(self, seconds: dict[tuple[int, int], float], disturbed: Any = lambda number: 1.0) -> None:
        self.seconds, self.disturbed, self.now, self.number = seconds, disturbed, 0.0, 0

    def make(self, choice: Choice) -> measure.Step:
        def step() -> float:
            self.number += 1
            self.now += self.seconds[choice.threads, choice.pieces] * self.disturbed(self.number)
            return 1.0

        return step

    def tune(self, *knobs: Knob, **options: Any) -> Result:
        return tune(self.make, knobs, clock=lambda: self.now, **options)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_to(value: float) -> None:
        monkeypatch.setattr(os, "getloadavg", lambda: (value, value, value), raising=False)

    set_to(0.0)
    return set_to


def test_the_ratio_is_against_the_best_plain_setting_and_not_against_threads_that_wait_for_each_other(
    load: Any,
) -> None:
    """Two threads on a busy machine take 20 times as long. That is nothing that pieces could boast of."""
    found = Machine({(0, 1): 0.2, (1, 1): 0.01, (1, 2): 0.008}).tune(PIECES, THREADS)
    assert found.choice == Choice(threads=1, pieces=2) and found.base == Choice(threads=1)
    assert found.speedup == pytest.approx(1.25)
    assert found.words().startswith(
        "tuned: 1 thread, in 2 pieces: 1.25x (1.25 to 1.25, faster in 5 of 5 pairs) as fast as the best plain setting ("
    )
    alone = Machine({(0, 1): 0.2, (1, 1): 0.01, (1, 2): 0.012}).tune(THREADS, PIECES)
    assert alone.choice == Choice(threads=1)
    assert alone.words().startswith("tuned: 1 thread, the best plain setting: 20.00x (20.00 to 20.00, faster in 5 of 5")


def test_a_ratio_has_its_spread(load: Any) -> None:
    found = Machine({(0, 1): 0.02, (0, 2): 0.01}, lambda number: 1.0 + 0.1 * (number % 3)).tune(PIECES)
    assert found.choice == Choice(pieces=2)
    assert found.low < found.speedup < found.high


def test_what_is_faster_half_of_the_time_is_not_taken_however_much_then(load: Any) -> None:
    """Somebody else runs now and then. The median of the first pairs says faster; it is not sure, so plain it is."""
    noise = iter([1.0] * 4 + [1.0, 0.5, 0.5, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5] + [1.0, 0.5, 1.0, 2.0, 2.0, 1.0] * 20)
    load(50.0)
    found = Machine({(0, 1): 0.01, (0, 2): 0.01}, lambda number: next(noise)).tune(PIECES)
    assert found.choice == Choice(), found.rows
    assert found.rows[0].ratio is not None and found.rows[0].ratio < 0.97, "the first look was lucky"
    words = found.words()
    assert "no setting is surely faster than plain" in words
    assert f"the machine is busy (50 processes want {os.cpu_count()} cores)" in words


def test_how_sure() -> None:
    assert by_chance(5, 5) == 1 / 32 <= CHANCE < by_chance(4, 4)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([float(each) for each in range(1, 10)]) == (2.0, 8.0)


# The time -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an alarm")
def test_a_step_that_never_ends_is_cut_when_the_time_is_over() -> None:
    """A kernel that is emulated may take minutes; one that hangs, for ever."""

    def make(choice: Choice) -> measure.Step:
        return lambda: time.sleep(300.0 if choice.pieces == 2 else 0.01) or 1.0

    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]
    began = time.monotonic()
    found = tune(make, [PIECES], budget_s=1.0)
    assert time.monotonic() - began < 100
    assert found.choice == Choice() and found.rows[0].refused == "the time was over"
    assert signal.getsignal(signal.SIGALRM) is before[0]
    after = signal.getitimer(signal.ITIMER_REAL)[0]  # of pytest, which ends a test that takes too long
    assert (after > 0) == (before[1] > 0) and after <= before[1]


def test_outside_of_the_main_thread_there_is_no_alarm_and_it_works_all_the_same() -> None:
    found: list[Result] = []

    def make(choice: Choice) -> measure.Step:
        return lambda: time.sleep(0.001 * choice.pieces) or 1.0

    thread = threading.Thread(target=lambda: found.append(tune(make, [PIECES], budget_s=2.0)))
    thread.start()
    thread.join(60)
    assert found and found[0].choice == Choice()


class Sleeping(measure.Training):
    """Steps of a known length that are counted."""

    taken = 0

    def knobs(self) -> list[Knob]:
        return [Knob("pieces", (1, 2, 4)), Knob("workers", (0, 1, 2)), Knob("layout", ("contiguous", "channels_last"))]

    def make(self, choice: Choice) -> measure.Step:
        def step() -> float:
            type(self).taken += 1
            time.sleep(0.01)
            return 1.0

        return step


@pytest.mark.parametrize("steps", [30, 200, 1000])
def test_it_takes_a_twentieth_of_the_run_at_most(tmp_path: Path, steps: int) -> None:
    """In steps, because all take the same here: the busier the machine, the fewer are taken."""
    Sleeping.taken = 0
    trial = Sleeping(nn.Linear(1, 1), lambda *_: torch.zeros(()), [(torch.zeros(1),)] * 8, batch=8, steps=steps)
    found = measure._in_budget(trial, trial.knobs(), Choice(), Record(tmp_path / FILE, "cpu"))
    assert Sleeping.taken <= max(3, steps / 20), (Sleeping.taken, found)
    assert (found.basis == "measured") == (steps == 1000), found
    if steps < 1000:
        assert found.words().startswith("not tuned: plain settings (")


def test_a_long_run_is_tuned_for_half_a_minute_at_most() -> None:
    assert measure.MOST_S == 30.0 and measure.SHARE == 0.05


# Found again --------------------------------------------------------------------------------------------------------


def test_bf16_that_looked_slow_for_a_moment_makes_no_other_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which candidates are tried is measured; what was remembered must not depend on that."""
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path))
    trial = measure.Training(nn.Linear(6, 1), lambda *_: torch.zeros(()), [(torch.zeros(6), torch.zeros(1))], batch=8)
    keys = []
    for fast in (True, False):
        monkeypatch.setattr(measure, "cpu_likes_bf16", lambda fast=fast: fast)
        assert ("precision" in {knob.name for knob in trial.knobs()}) is fast
        keys.append(measure._key(trial, [], Choice()))
    assert keys[0] == keys[1]
    Memory(keys[0]).keep(Result(Choice(precision="bf16"), 1.5, 0.1, 1.0))
    assert Memory(keys[1]).recall(trial.possible(), Choice()) is not None


def test_what_a_plan_found_lasts_as_long_as_the_plan_also_from_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path))
    load(100.0)
    for planned, hours, lasts in ((True, 6 * 24, True), (True, 8 * 24, False), (False, 2, False)):
        Memory("k").keep(Result(Choice(pieces=2), 1.5, 0.1, 1.0, low=1.2, high=1.9), planned=planned)
        data = json.loads((tmp_path / FILE).read_text())
        data["k"]["when"] -= hours * 3600
        (tmp_path / FILE).write_text(json.dumps(data))
        found = Memory("k").recall([PIECES], Choice())
        assert (found is not None) is lasts
        if found:
            assert "1.50x (1.20 to 1.90) as fast as plain (remembered from the plan)" in found.words()


def test_a_trial_without_time_to_tune_leaves_it_to_the_run_and_the_plan_counts_it(tmp_path: Path) -> None:
    trial = Sleeping(nn.Linear(1, 1), lambda *_: torch.zeros(()), [(torch.zeros(1),)] * 8, batch=8, steps=100_000)
    found = measure._in_budget(trial, trial.knobs(), Choice(), Record(tmp_path / FILE, "cpu"), most_s=0.05)
    assert found.basis == "left to the run: a run takes 30 s"
    Record(tmp_path / FILE, "cpu").keep(found)
    kept = json.loads((tmp_path / FILE).read_text())["cpu"]
    words = [{"setup": 2.0}, {"steps": [1, 0.1]}, {"tuning": kept}]
    heard_of = heard(words, 1.0, job="job", device="cpu")
    assert heard_of.tuner_s == 30.0 and heard_of.setup_s == pytest.approx(32.0, abs=0.5)


JOB = """\
import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast
from holdfast.planning import measure


def loss_of(net, b):
    return nn.functional.mse_loss(net(b[0]), b[1])


def train(session):
    x = torch.randn(512, 32)
    samples = TensorDataset(x, x.sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    choice = measure.for_session(session, measure.Training(model, loss_of, samples, batch=16, steps=50_000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = holdfast.Loader(samples, batch_size=16, shuffle=True, num_workers=choice.workers)
    session.protect(model=model, optimizer=optimizer, data=data)
    compute = choice.loss(lambda b: loss_of(model, b), session.device)
    for _ in session.epochs(2):
        for batch in session.batches(data):
            session.step(compute, batch, accumulate=choice.pieces)
"""


@pytest.mark.all
@pytest.mark.timeout(400)
def test_the_run_that_the_plan_recommended_finds_what_its_trial_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STATE", str(tmp_path / "state"))
    (tmp_path / "job.py").write_text(JOB)

    def holdfast(*words: str) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-m", "holdfast", *words, "--json", "-q"], cwd=tmp_path,
                              capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return dict(json.loads(done.stdout))

    plan = holdfast("plan", "job.py", "--measure", "8s", "--device", "cpu")
    first = next(each for each in plan["measurements"] if not each["preset"])
    assert first["tuner"] and first["tuner_s"] == 0.0, first
    told = holdfast("train", "job.py")  # follows the plan; as it, it measures a step in processes of its own
    kept = json.loads((Path(told["folder"]) / FILE).read_text())["cpu"]
    assert kept["basis"] == "remembered from the plan" and kept["took_s"] == 0.0
