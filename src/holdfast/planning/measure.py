"""The tuner: which precision, layout, threads, pieces, loader processes, compiled or not? By a short measurement.

    trial = Training(net, loss_of, samples, batch=64, lr=1e-3, steps=2000)
    choice = for_session(session, trial)             # before session.protect: measured once, kept in the run folder
    loss = choice.loss(lambda b: loss_of(net, b), session.device)

    result = tune(make, [Knob("threads", (2, 1))])   # the general form: make(choice) returns one real step
    result.choice, result.speedup, result.rows

Real steps of all candidates are taken in turns, so that a busy machine disturbs all alike, and compared in pairs
(step_comparison.py). A candidate has to be clearly faster than the best so far, and the winner surely faster than the
best plain setting, or that one it is. A candidate whose loss is not the plain one's, or that raises, is refused. All of
it takes a twentieth of the run at most, and 30 s at most.

In a run the result is written to `tuning.json` before the first step counts. Every worker after that, and every resume,
uses what stands there, so recovery stays exact to the bit. What is being tried is written there as well: if it takes
the process down, the next worker passes it over. What was measured is remembered for this machine, so that a second
run begins at once, and with the same bits; so does the run that follows a plan, whose trial has tuned already.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import os
import random
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
from holdfast.planning.step_comparison import NEEDED, Step, tune

__all__ = ["Choice", "Knob", "Result", "Row", "Training", "for_session", "tune"]

SHARE, MOST_S, UNKNOWN_S = 0.05, 30.0, 1.5
"""The part of a run's time that tuning may take; the most; and what it may take where the length is not known."""
LONG_S, LEAST_BATCH = 0.5, 4
"""Steps that take longer are measured with smaller batches: what is faster stays faster, and the run begins sooner."""
COMPILE_PAYS_S = 1200.0
"""Compiling takes tens of seconds: tried last, and only where a run would take so long without it."""
CUT = "measured in part"
"""The basis of what a trial of a plan found in less time than a run would have taken for it."""
LEFT = "left to the run"
"""The basis where a trial had no time to compare anything. ": a run takes 30 s" tells planning/measurement.py."""

COMPILE = Knob("compile", (False, True))
CPU = torch.device("cpu")


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
        """What is worth a try: all that is possible, but bf16 only where this CPU is not slow with it."""
        slow = self.device.type == "cpu" and not cpu_likes_bf16()
        return [knob for knob in self.possible() if not (slow and knob.name == "precision") and knob != COMPILE]

    def possible(self) -> list[Knob]:
        """What can be chosen for this model, on this device, without changing what is computed."""
        kinds = {type(module) for module in self.model.modules()}
        found = []
        if self.device.type == "cpu" and torch.get_num_threads() > 1:
            now = torch.get_num_threads()
            found.append(Knob("threads", tuple(dict.fromkeys((0, max(1, now // 2), 1)))))
        if self.device.type in ("cuda", "cpu"):
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
        found.append(COMPILE)
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
    possible = [knob for knob in trial.possible() if knob.name not in fixed]
    memory = Memory(_key(trial, sorted(fixed), start))
    remembered = memory.recall(possible, start)
    if remembered is not None:
        return remembered
    knobs = [knob for knob in trial.knobs() if knob.name not in fixed]
    last = [] if "compile" in fixed else [COMPILE]
    allowed = getattr(session, "tuning_s", math.inf)
    session.progress(0, 1, "measuring the fastest way to take a step")
    try:
        result = _in_budget(trial, knobs, start, record, last, allowed)
    except torch.OutOfMemoryError:  # the run itself can help itself there, once it is protected
        result = Result(start, 1.0, None, 0.0, (), "not measured: there was no room for a copy of the model")
    if result.basis in ("measured", CUT):
        memory.keep(result, planned=math.isfinite(allowed))
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
    began = time.perf_counter()
    if trial.steps and SHARE * trial.steps < 2:
        return Result(start, 1.0, None, 0.0, (), f"not measured: the run has only {trial.steps} steps")
    one = _a_step(trial, start)
    worth = one * trial.steps
    if one > LONG_S and trial.batch > LEAST_BATCH:
        small = max(LEAST_BATCH, int(trial.batch * LONG_S / one))
        trial, short = dataclasses.replace(trial, batch=small), one * small / trial.batch
    else:
        short = one
    own = min(SHARE * worth, MOST_S) if trial.steps else UNKNOWN_S
    left = min(own, most_s) - (time.perf_counter() - began)
    if left < (NEEDED + 3) * short:
        took = time.perf_counter() - began
        if most_s < own:
            return Result(start, 1.0, one, took, (), f"{LEFT}: a run takes {own:.0f} s")
        return Result(start, 1.0, one, took, (), f"not measured: {own:.1f} s, a twentieth of the run, are too few")
    wanted = [*knobs, *last] if worth > COMPILE_PAYS_S else knobs
    dead = record.ended_a_worker()
    found = tune(trial.make, wanted, start=start, budget_s=left, trying=record.trying, forbidden=dead)
    basis = CUT if most_s < own else "measured"
    return dataclasses.replace(found, basis=basis, took_s=time.perf_counter() - began)


def _a_step(trial: Training, start: Choice) -> float:
    """What a step takes. One of a large batch is reckoned from two small ones, because it may take a minute."""

    def timed(batch: int) -> float:
        step = dataclasses.replace(trial, batch=batch).make(start)
        step()
        times = []
        for _ in range(2):  # the faster one: what disturbs a step would make the run look longer than it is
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        return min(times)

    if trial.batch <= 2 * LEAST_BATCH:
        return timed(trial.batch)
    few = timed(LEAST_BATCH)
    if few * trial.batch / LEAST_BATCH <= LONG_S:
        return timed(trial.batch)
    more = timed(2 * LEAST_BATCH)
    return few + max(0.0, more - few) / LEAST_BATCH * (trial.batch - LEAST_BATCH)


def _key(trial: Training, fixed: Sequence[str], start: Choice) -> str:
    """What a remembered result depends on: the work, the machine, the library, what the user decided. Nothing in it may
    change from one process to the next: labels of another length, or whether bf16 looked fast just then."""
    shape = tuple(trial.samples[0][0].shape) if len(trial.samples) else ()
    sizes = [tuple(each.shape) for each in trial.model.parameters()]
    name = (
        torch.cuda.get_device_name(trial.device)
        if trial.device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    facts = (str(shape), str(sizes), trial.batch, str(trial.device), name, torch.__version__, os.cpu_count(),
             torch.get_num_threads(), list(fixed), str(start))  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
