"""The tuner: which precision, layout, threads, pieces, loader processes, compiled or not? By a short measurement.

    trial = Training(net, loss_of, samples, batch=64, lr=1e-3, steps=2000)
    choice = for_session(session, trial)             # before session.protect: measured once, kept in the run folder
    loss = choice.loss(lambda b: loss_of(net, b), session.device)

    result = tune(make, [Knob("threads", (2, 1))])   # the general form: make(choice) returns one real step
    result.choice, result.speedup, result.rows

Real steps of all candidates are taken in turns, so that a busy machine disturbs all alike, and compared in pairs. A
candidate has to be clearly faster than the best so far, and the winner once more clearly faster than plain, or plain
it is: the result is never worse than plain, as far as a measurement can tell. A candidate whose loss is not the plain
one's, or that raises, is refused.

In a run the result is written to `tuning.json` before the first step counts. Every worker after that, and every resume,
uses what stands there, so recovery stays exact to the bit. What is being tried is written there as well: if it takes
the process down, the next worker passes it over. What was measured is remembered for this machine, so that a second
run begins at once, and with the same bits.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast
from holdfast.planning.choice import Choice, Knob
from holdfast.planning.kernels import worth_a_try
from holdfast.planning.records import FILE, Memory, Record, Result, Row

__all__ = ["Choice", "Knob", "Result", "Row", "Training", "for_session", "tune"]

CLEARLY = 0.03
"""A candidate has to take so much less time than the best so far."""
HOPELESS = 1.15
"""One that was never less than so much slower in two rounds is not measured further."""
ROUNDS = 5
SHARE, LEAST_S, MOST_S = 0.05, 1.5, 60.0
"""The part of a run's time that tuning may take, and its limits in seconds."""
LONG_S, LEAST_BATCH = 0.5, 4
"""Steps that take longer are measured with smaller batches: what is faster stays faster, and the run begins sooner."""
COMPILE_PAYS_S = 1200.0
"""Compiling takes a minute: tried only where a run would take so long without it."""

FEW = 8
"""Steps that it takes to compare one candidate with plain."""
CUT = "measured in part"
"""The basis of what a trial of a plan found in less time. The run that follows soon uses that too; a long one measures
anew, and ": a run takes 60 s" says so to planning/measurement.py."""
ANEW_S = 30.0
"""Where tuning may take so long, a run does not go by what a trial found in less."""

COMPILE = Knob("compile", (False, True))
CPU = torch.device("cpu")
Step = Callable[[], float]
"""One real step; returns its loss, which also waits for the device."""


def tune(
    make: Callable[[Choice], Step],
    knobs: Sequence[Knob],
    *,
    start: Choice | None = None,
    rounds: int = ROUNDS,
    budget_s: float = 20.0,
    trying: Callable[[Choice | None], None] = lambda _: None,
    forbidden: Sequence[Choice] = (),
    clock: Callable[[], float] = time.perf_counter,
    check: bool = True,
) -> Result:
    """Turn one knob after the other, keep what is clearly faster, and check the winner against plain at the end.

    Without `check` the winner is believed as it is, which saves a few steps where time is short.
    """
    plain = start or Choice()
    bench = _Bench(make, trying, tuple(forbidden), clock)
    bench.build(plain)
    bench.steps[plain]()
    began = clock()
    best, rows = plain, []
    for knob in knobs:
        candidates = [dataclasses.replace(best, **{knob.name: value}) for value in knob.values]
        candidates = [each for each in dict.fromkeys(candidates) if each != best]
        if clock() - began > budget_s:
            break
        found = [bench.against(each, best, rounds, began + budget_s) for each in candidates]
        rows += found
        good = [row for row in found if row.ratio is not None and row.ratio < 1.0 - CLEARLY]
        if good:
            best = min(good, key=lambda row: row.ratio or math.inf).choice
        bench.let_go(all_but=(plain, best))
    speedup = 1.0
    if best != plain and not check:
        speedup = (bench.median(plain) or 1.0) / (bench.median(best) or 1.0)
    elif best != plain:
        last = bench.against(best, plain, rounds, began + 2 * budget_s)
        rows.append(last)
        if last.ratio is None or last.ratio >= 1.0 - CLEARLY:
            best = plain
        else:
            speedup = 1.0 / last.ratio
    trying(None)
    return Result(best, speedup, bench.median(plain), clock() - began, tuple(rows))


class _Bench:
    """The candidates that were built, and their times."""

    def __init__(
        self,
        make: Callable[[Choice], Step],
        trying: Callable[[Choice | None], None],
        forbidden: tuple[Choice, ...],
        clock: Callable[[], float],
    ) -> None:
        self.make, self.trying, self.forbidden, self.clock = make, trying, forbidden, clock
        self.steps: dict[Choice, Step] = {}
        self.losses: dict[Choice, float] = {}
        self.times: dict[Choice, list[float]] = {}
        self.cold: dict[Choice, float] = {}
        """What the first step took: caches are cold, memory is new, and compiling happens there."""

    def build(self, choice: Choice) -> None:
        """Make it and take its first step, which does not count."""
        if choice not in self.steps:
            step = self.make(choice)
            began = self.clock()
            self.losses[choice] = step()
            self.cold[choice] = self.clock() - began
            self.steps[choice] = step

    def let_go(self, all_but: tuple[Choice, ...]) -> None:
        """Each candidate holds a copy of the model, and maybe loader processes."""
        for choice in [each for each in self.steps if each not in all_but]:
            del self.steps[choice]

    def against(self, choice: Choice, best: Choice, rounds: int, deadline: float) -> Row:
        if choice in self.forbidden:
            return Row(choice, None, None, "it ended an earlier worker")
        self.trying(choice)
        try:
            self.build(choice)
            wrong = self._wrong(choice)
            if wrong:
                return Row(choice, None, None, wrong)
            if not choice.compile and self.cold[choice] > 3.0 * self.cold[best] + 1.0:
                return Row(choice, self.cold[choice], None, "its first step was far slower")
            if len(self.times.get(choice, ())) == 0:
                self.steps[choice]()
            ratios = self._in_turns(choice, best, rounds, deadline)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            return Row(
                choice, None, None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        return Row(choice, self.median(choice), statistics.median(ratios))

    def _in_turns(self, choice: Choice, best: Choice, rounds: int, deadline: float) -> list[float]:
        ratios = []
        for number in range(rounds):
            order = (choice, best) if number % 2 else (best, choice)
            took = {each: self._timed(each) for each in order}
            ratios.append(took[choice] / took[best])
            hopeless = number >= 1 and min(ratios) > HOPELESS
            if hopeless or (number >= 2 and self.clock() > deadline):
                break
        return ratios

    def _timed(self, choice: Choice) -> float:
        began = self.clock()
        self.steps[choice]()
        took = self.clock() - began
        self.times.setdefault(choice, []).append(took)
        return took

    def _wrong(self, choice: Choice) -> str:
        mine, theirs = self.losses[choice], next(iter(self.losses.values()))  # plain was built first
        if not math.isfinite(mine) and math.isfinite(theirs):
            return "its loss is not finite"
        if abs(mine - theirs) > 0.05 * max(abs(theirs), 1e-3):
            return f"its loss is {mine:.5g}, not {theirs:.5g}"
        return ""

    def median(self, choice: Choice) -> float | None:
        return statistics.median(self.times[choice]) if self.times.get(choice) else None


# Training steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """How to take a real training step of a model, on a copy of it: the model itself is not touched."""

    model: nn.Module
    loss_of: Callable[[Any, Any], torch.Tensor]
    samples: Any
    """The dataset the run will train on."""
    batch: int
    lr: float = 1e-3
    steps: int = 0
    """Steps the run will take, to know how much tuning pays; 0 if unknown."""
    device: torch.device = CPU

    def knobs(self) -> list[Knob]:
        """What can be chosen for this model, on this device, without changing what is computed."""
        kinds = {type(module) for module in self.model.modules()}
        found = []
        if self.device.type == "cpu" and torch.get_num_threads() > 1:
            now = torch.get_num_threads()
            found.append(Knob("threads", tuple(dict.fromkeys((0, max(1, now // 2), 1)))))
        if self.device.type == "cuda" or (self.device.type == "cpu" and cpu_likes_bf16()):
            found.append(Knob("precision", ("fp32", "bf16")))
        if nn.Conv2d in kinds:
            # Before the layout: which one is faster depends on the kernels.
            if self.device.type == "cpu" and worth_a_try():
                found.append(Knob("kernels", ("default", "gemm_backward")))
            found.append(Knob("layout", ("contiguous", "channels_last")))
        if not any(issubclass(kind, nn.modules.batchnorm._BatchNorm) for kind in kinds):
            found.append(Knob("pieces", tuple(each for each in (1, 2, 4) if each <= self.batch)))
        cores = os.cpu_count() or 1
        found.append(Knob("workers", tuple(dict.fromkeys((0, *(each for each in (1, 2, 4) if each <= cores // 2))))))
        return found

    def make(self, choice: Choice) -> Step:
        """One step under `choice`: the next batch, forward, backward, update."""
        torch.manual_seed(0)
        threads = torch.get_num_threads()
        model = choice.arrange(copy.deepcopy(self.model).to(self.device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr)
        compute = choice.loss(lambda batch: self.loss_of(model, batch), self.device)
        batches = self._batches(choice.workers)
        model.eval()  # the first step is taken without dropout, so that the losses of candidates can be compared

        def step() -> float:
            choice.apply()
            try:
                optimizer.zero_grad(set_to_none=True)
                total = 0.0
                batch = next(batches)
                for piece, weight in _cut(batch, choice.pieces):
                    loss = compute(tuple(each.to(self.device) for each in piece)) * weight
                    loss.backward()
                    total += float(loss.detach())
                optimizer.step()
            finally:
                torch.set_num_threads(threads)
                model.train()
            return total

        return step

    def _batches(self, workers: int) -> Iterator[Any]:
        """The same batches for every candidate."""
        size = min(self.batch, len(self.samples))
        while True:
            data = holdfast.Loader(
                self.samples, batch_size=size, shuffle=True, seed=0, drop_last=True, num_workers=workers
            )
            try:
                yield from data
            finally:
                data.close()


def cpu_likes_bf16() -> bool:
    """Whether this CPU multiplies bf16 at least nearly as fast as fp32. Where it is emulated, a step takes minutes."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(192, 192, dtype=dtype)
        x @ x
        rounds = []
        for _ in range(5):
            began = time.perf_counter()
            x @ x
            rounds.append(time.perf_counter() - began)
        times[dtype] = min(rounds)
    return times[torch.bfloat16] < 1.5 * times[torch.float32]


def _cut(batch: Any, pieces: int) -> Iterator[tuple[Any, float]]:
    count = len(batch[0])
    for part in torch.arange(count).chunk(pieces):
        yield tuple(each[part[0] : part[-1] + 1] for each in batch), len(part) / count


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Python's, numpy's and torch's random numbers go on afterwards as if nothing had been drawn."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)


# In a run ---------------------------------------------------------------------------------------------------


def for_session(
    session: holdfast.Session, trial: Training, *, tuned: bool = True, fixed: dict[str, Any] | None = None
) -> Choice:
    """The choice of this run on this device: as recorded, as remembered on this machine, or measured now.

    `fixed` holds what the user decided. Call it before `session.protect`; it prints one line.
    """
    trial = dataclasses.replace(trial, device=session.device)
    start = dataclasses.replace(Choice(), **(fixed or {}))
    record = Record(session.run.folder / FILE, str(session.device))
    known = record.choice()
    if known is not None:
        known.apply()
        return known
    if not tuned:
        result = Result(start, 1.0, None, 0.0, (), "as given")
    else:
        with untouched_generators():
            result = _measured(session, trial, start, fixed or {}, record)
    record.keep(result)
    if tuned:
        print(result.words(), flush=True)
    result.choice.apply()
    return result.choice


def _measured(
    session: holdfast.Session, trial: Training, start: Choice, fixed: dict[str, Any], record: Record
) -> Result:
    knobs = [knob for knob in trial.knobs() if knob.name not in fixed]
    last = [] if "compile" in fixed else [COMPILE]
    memory = Memory(_key(trial, knobs, start))
    remembered = memory.recall([*knobs, *last], start)
    if remembered is not None:
        return remembered
    session.progress(0, 1, "measuring the fastest way to take a step")
    try:
        result = _in_budget(trial, knobs, start, record, last, getattr(session, "tuning_s", math.inf))
    except torch.OutOfMemoryError:  # the run itself can help itself there, once it is protected
        result = Result(start, 1.0, None, 0.0, (), "not measured: there was no room for a copy of the model")
    else:
        if result.basis == "measured":
            memory.keep(result)
        elif result.basis == CUT:
            memory.keep(result, briefly=True)
    session.progress(1, 1, "measuring the fastest way to take a step")
    return result


def _in_budget(
    trial: Training,
    knobs: list[Knob],
    start: Choice,
    record: Record,
    last: Sequence[Knob] = (COMPILE,),
    most_s: float = math.inf,
) -> Result:
    """For as long as it may take, beside what the run will take; `last` are knobs that only a long run is worth,
    `most_s` is all that a trial of a plan has."""
    plain = trial.make(start)
    plain()
    began = time.perf_counter()
    plain()
    one = time.perf_counter() - began
    worth = one * trial.steps
    del plain
    if one > LONG_S and trial.batch > LEAST_BATCH:
        trial = dataclasses.replace(trial, batch=max(LEAST_BATCH, int(trial.batch * LONG_S / one)))
    budget = min(max(SHARE * worth, LEAST_S), MOST_S)
    wanted = [*knobs, *last] if worth > COMPILE_PAYS_S else knobs
    dead = record.ended_a_worker()
    if budget <= most_s:
        return tune(trial.make, wanted, start=start, budget_s=budget, trying=record.trying, forbidden=dead)
    cut = CUT if budget < ANEW_S else f"{CUT}: a run takes {budget:.0f} s"
    if most_s < FEW * one:  # not even one candidate could be told from plain
        return Result(start, 1.0, one, 0.0, (), f"{CUT}: a run takes {budget:.0f} s")
    found = tune(trial.make, knobs, start=start, budget_s=most_s, trying=record.trying, forbidden=dead, check=False)
    return dataclasses.replace(found, basis=cut)


def _key(trial: Training, knobs: list[Knob], start: Choice) -> str:
    """What a remembered result depends on: the work, the machine, the library, the candidates."""
    shapes = [tuple(each.shape) for each in trial.samples[0]] if len(trial.samples) else []
    sizes = [tuple(each.shape) for each in trial.model.parameters()]
    name = (
        torch.cuda.get_device_name(trial.device)
        if trial.device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    facts = (str(shapes), str(sizes), trial.batch, str(trial.device), name, torch.__version__, os.cpu_count(),
             torch.get_num_threads(), str([knob.values for knob in knobs]), str(start))  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
