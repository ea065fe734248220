"""The replay of a failed step on the CPU, sample by sample where it objects.

    finding = Inquiry(…).into(kind)
    finding.cpu, finding.samples, finding.tensor

As a rule it runs in a process of its own (opinion.py), beside the worker that took over. A class label out of range is
an IndexError on the CPU, and on some cards a page fault or a hang. What raises for some samples and not for others is
in the data; what raises for each is in the code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from holdfast.data import batch as batches
from holdfast.faults.blame import Cpu, Finding
from holdfast.faults.classification import Kind
from holdfast.worker import step
from holdfast.worker.replay import CPU, Numbers, Replay, belongs_elsewhere
from holdfast.worker.step import Work

BEFORE = "before the step"
"""The weights are not finite to begin with: that says nothing about samples."""
CHUNK = 8
"""Samples computed at once on the CPU, so that the budget is looked at now and then."""

Describe = Callable[[int], dict[str, Any]]
"""The row of a batch as a sample people can find: its index in the dataset and where it came from."""


class OutOfTime(Exception):
    """The budget of the replay is spent."""


class Inquiry:
    """One step, computed again."""

    def __init__(
        self,
        replay: Replay,
        work: Work,
        *,
        budget_s: float,
        describe: Describe = lambda row: {"index": row, "source": None},
        beat: Callable[[], None] = lambda: None,
        others_passed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replay = replay
        self.work = work
        self.describe = describe
        self.size = batches.batch_size(work.batch)
        self.others_passed = others_passed
        """Steps before this one were fine: what a batch of one sample does is its own doing."""
        self._beat = beat
        self._clock = clock
        self._deadline = clock() + budget_s

    def into(self, kind: Kind) -> Finding:
        """What the CPU makes of the step; for numbers that are not finite, what the device makes of it as well."""
        try:
            if kind is Kind.NON_FINITE:
                return self._numbers()
            return self._whole()
        except OutOfTime:
            return Finding(Cpu.UNKNOWN, "the CPU did not get through the batch in time")

    # -- does it raise? ------------------------------------------------------------------------------------

    def _whole(self) -> Finding:
        try:
            for rows in self._chunks():
                self._compute(rows)
        except OutOfTime:
            raise
        except Exception as error:
            return self.raised(error)
        return Finding(Cpu.FINE, "the CPU computes this step")

    def raised(self, error: Exception) -> Finding:
        """The step raised this on the CPU: for which samples?"""
        if belongs_elsewhere(error):
            return Finding(Cpu.UNKNOWN, "the step uses tensors that stay on the device")
        text = _said(error)
        bad = self._rows_that(lambda rows: self._raises(rows))
        if bad is None:
            return Finding(Cpu.RAISED, "the batch cannot be taken apart", error=text)
        return self._about(Cpu.RAISED, bad, error=text)

    def _raises(self, rows: Sequence[int]) -> bool:
        try:
            self._compute(rows)
        except OutOfTime:
            raise
        except Exception:
            return True
        return False

    # -- is it finite? -------------------------------------------------------------------------------------

    def _numbers(self) -> Finding:
        """From the inside out: the weights, the batch, the CPU, the device in fp32."""
        weights = self._bad_weights()
        if weights is not None:
            return Finding(Cpu.NOT_FINITE, BEFORE, tensor=weights, every_sample=True)
        inputs = self._rows_with_bad_input()
        if inputs:
            rows, name = inputs
            return Finding(Cpu.NOT_FINITE, samples=tuple(map(self.describe, rows)), tensor=name)
        try:
            whole = self._compute(None)
            finite = whole.finite
        except OutOfTime:
            raise
        except Exception as error:
            return self.raised(error)
        if not finite:
            bad = self._rows_that(lambda rows: not self._compute(rows).finite)
            tensor = first_bad_tensor(self.replay, self.work.fn, self.work.batch, on=CPU, plain=True)
            if bad is None:
                return Finding(Cpu.NOT_FINITE, "the batch cannot be taken apart", tensor=tensor)
            return self._about(Cpu.NOT_FINITE, bad, tensor=tensor)
        here = self._on_device(plain=False)
        plain = self._on_device(plain=True)
        tensor = None
        if here is False or plain is False:
            tensor = first_bad_tensor(self.replay, self.work.fn, self.work.batch, plain=here is not False)
        return Finding(Cpu.FINE, tensor=tensor, device_finite=here, plain_finite=plain)

    def _bad_weights(self) -> str | None:
        named = ((name, parameter) for name, parameter in self.replay.parameters())
        return next((name for name, tensor in named if not bool(torch.isfinite(tensor).all())), None)

    def _rows_with_bad_input(self) -> tuple[list[int], str] | None:
        if self.size is None:
            return None
        rows: set[int] = set()
        names: list[str] = []
        for number, tensor in enumerate(batches.tensors_of(self.work.batch)):
            if not tensor.is_floating_point() or tensor.dim() == 0 or tensor.shape[0] != self.size:
                continue
            bad = ~torch.isfinite(tensor.detach().reshape(self.size, -1)).all(dim=1)
            found = bad.nonzero().flatten().tolist()
            if found:
                rows.update(found)
                names.append(f"tensor {number} of the batch")
        return (sorted(rows), names[0]) if rows else None

    def _on_device(self, *, plain: bool) -> bool | None:
        work = self.work
        scale = float(work.scaler.get_scale()) if work.scaler is not None and not plain else 1.0
        try:
            return self.replay.compute(work.fn, work.batch, plain=plain, scale=scale).finite
        except RuntimeError:
            return None

    # -- samples -------------------------------------------------------------------------------------------

    def _compute(self, rows: Sequence[int] | None) -> Numbers:
        self._look_at_the_clock()
        batch = self.work.batch if rows is None else batches.take(self.work.batch, rows)
        return self.replay.compute(self.work.fn, batch, on=CPU, plain=True)

    def _chunks(self) -> list[list[int] | None]:
        mixes = step.mixes_samples(self.replay.modules.values())
        if self.size is None or mixes or self.size <= CHUNK:
            return [None]
        return [list(range(start, min(start + CHUNK, self.size))) for start in range(0, self.size, CHUNK)]

    def _rows_that(self, fails: Callable[[Sequence[int]], bool]) -> list[int] | None:
        """The rows for which it fails, each by itself (twice over: statistics of one are none). None: not known."""
        if self.size is None:
            return None
        try:
            return [row for row in range(self.size) if fails([row, row])]
        except OutOfTime:
            return None

    def _about(self, cpu: Cpu, bad: list[int], **more: Any) -> Finding:
        assert self.size is not None
        if 0 < len(bad) < self.size or (len(bad) == self.size == 1 and self.others_passed):
            return Finding(cpu, samples=tuple(map(self.describe, bad)), **more)
        return Finding(cpu, every_sample=len(bad) == self.size, **more)

    def _look_at_the_clock(self) -> None:
        self._beat()
        if self._clock() > self._deadline:
            raise OutOfTime


def first_bad_tensor(
    replay: Replay, fn: Callable[[Any], Any], batch: Any, *, on: torch.device | None = None, plain: bool = False
) -> str | None:
    """The name of the first tensor that is not finite, in the order of computing: outputs, the loss, gradients."""
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensors = [tensor for tensor in batches.tensors_of(output) if tensor.is_floating_point()]
            if not found and not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
                found.append(f"the output of {name}")

        return hook

    handles = [
        part.register_forward_hook(look(f"{prefix}.{name}" if name else prefix))
        for prefix, module in replay.modules.items()
        for name, part in module.named_modules()
    ]
    try:
        numbers = replay.compute(fn, batch, on=on, plain=plain)
    except Exception:  # whatever it raises, what was seen before stays seen
        return found[0] if found else None
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if numbers.loss - numbers.loss != 0.0:
        return "the loss"
    bad = numbers.first_bad_gradient()
    return f"the gradient of {bad}" if bad else None


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
