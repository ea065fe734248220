"""The sentinel: now and then, does the device compute what the CPU computes?

    sentinel = Sentinel(replay, device, settings.sentinel, clock=time.monotonic)
    if sentinel.due():
        opinion = sentinel.check(work)          # a few samples of the batch at hand, on the device and on the CPU
        opinion.agrees, opinion.tensor, opinion.error, opinion.bound

A card can give wrong gradients while the forward is right, and no error is ever raised: the loss just stops falling.
The bound follows from the precision in use. A disagreement is checked again with other samples before it counts: one
ReLU that falls to the other side of zero is no fault. What a check costs is measured, and the next one waits until it
has been earned at `sentinel.cost` of the training time; after a jump of the loss or the gradients it comes at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.devices import flags
from holdfast.runtime import transaction
from holdfast.runtime.faults import classify_exception
from holdfast.runtime.precision import ROUNDING, Seen, coarsest, watch_precision
from holdfast.runtime.replay import CPU, Numbers, Replay, belongs_elsewhere
from holdfast.runtime.transaction import Work
from holdfast.settinggroups import SentinelSettings

FIRST_STEP = 3
"""The step of a worker before which it looks for the first time: a device that is wrong is wrong from the start."""
ROUNDINGS = {"fp64": 4096, "fp32": 4096, "tf32": 256, "fp16": 256, "bf16": 96}
"""So many roundings of the precision in use may add up in the worst tensor. Of 10,000 clean comparisons each on an
H200, the worst was at 0.056 in TF32, 0.072 in fp16, 0.16 in bf16 (bounds 0.125, 0.125, 0.375), and in fp32 99 of 100 at
4e-5 (bound 2.4e-4): the rest had passed a kink, and a recheck with other samples was fine."""
SHARE = 0.1
"""Of the whole gradient, what a tensor counts for at least: some are zero but for rounding, like a key's bias."""
RECHECKS = 2
IN_DEBT = 2.0
"""Checks that may be owed before a jump is not looked at right away any more."""
SPIKE = 8.0
"""Times its usual size from which on a loss or a gradient has jumped."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a comparison gave."""

    agrees: bool
    error: float
    """Of the worst tensor, relative to its size."""
    bound: float
    tensor: str
    precision: str
    samples: int

    def to_json(self) -> dict[str, object]:
        return {
            "agrees": self.agrees,
            "error": float(f"{self.error:.3g}") if math.isfinite(self.error) else None,
            "bound": float(f"{self.bound:.3g}"),
            "tensor": self.tensor,
            "precision": self.precision,
            "samples": self.samples,
        }


class Sentinel:
    """Watches one device for one worker."""

    def __init__(
        self,
        replay: Replay,
        device: torch.device,
        settings: SentinelSettings,
        *,
        label: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replay = replay
        self.device = device
        self.settings = settings
        self.off: str | None = None
        """Why nothing can be compared, once that is known."""
        self.label = label or str(device)
        self.beat: Callable[[], None] = lambda: None
        """A sign of life between two computations."""
        self.checks = 0
        self.every_step = 0
        """Steps that are all compared: a device on probation."""
        self._clock = clock
        self._steps = 0
        self._debt = 0.0
        self._since = clock()
        self._hurry = False
        self._cost = 0.0
        self._usual: dict[str, float] = {}

    # -- when ----------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether to look before the step that begins now. Asked once a step."""
        now = self._clock()
        self._debt -= (now - self._since) * self.settings.cost / 100.0
        self._since = now
        self._steps += 1
        if self.off is not None:
            return False
        if self.every_step > 0 or (self._hurry and self._debt <= IN_DEBT * self._cost):
            return True
        return self._steps >= FIRST_STEP and self._debt <= 0.0

    def note(self, loss: float, gradient: float) -> None:
        """The numbers of a step that has arrived. One far above its usual size calls for a look."""
        for name, value in (("loss", abs(loss)), ("gradient", gradient)):
            if not math.isfinite(value):
                continue
            usual = self._usual.get(name)
            if usual is not None and value > SPIKE * usual and self._steps > 20:
                self._hurry = True
            self._usual[name] = value if usual is None else 0.95 * usual + 0.05 * value

    def _paid(self, began: float) -> None:
        """The time of a check is owed, not trained in: it does not earn the next one."""
        now = self._clock()
        self._cost = now - began
        self._debt = max(self._debt, 0.0) + self._cost
        self._since = now
        self._hurry = False
        self.every_step = max(0, self.every_step - 1)

    # -- what ----------------------------------------------------------------------------------------------

    def check(self, work: Work) -> Opinion | None:
        """Compare; None where nothing can be compared, and `off` says why."""
        began = self._clock()
        try:
            if self.checks == 0 and not self._can_compare(work):
                return None
            opinion = self._compare(work, 0)
            for again in range(1, RECHECKS + 1):
                if opinion.agrees:
                    break
                opinion = self._compare(work, again)
            if not opinion.agrees and not self._can_compare(work):  # it began to draw since it was looked at first
                return None
            self.checks += 1
            return opinion
        except torch.OutOfMemoryError:  # the step itself may fit; the next check is as far away as ever
            transaction.free_memory(self.device)
            return None
        except Exception as error:  # a script's function may take the whole batch only, or one device, or one mode
            if classify_exception(error, device=self.label) is not None:
                raise
            why = "the step uses tensors that stay on the device" if belongs_elsewhere(error) else "a replay fails"
            self.off = f"{why}: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            return None
        finally:
            self._paid(began)

    def _compare(self, work: Work, turn: int) -> Opinion:
        samples, count = self._samples(work, turn)
        with watch_precision(self.device) as seen:
            here = self._here(work, samples)
        self.beat()
        there = self.replay.compute(work.fn, samples, on=CPU, plain=True)
        self.beat()
        return compare(here, there, self._precision(seen), samples=count)

    def _precision(self, seen: Seen) -> str:
        dtypes = {parameter.dtype for _, parameter in self.replay.parameters()}
        parts = [part for module in self.replay.modules.values() for part in module.modules()]
        convolves = any(isinstance(part, (nn.modules.conv._ConvNd, nn.RNNBase)) for part in parts)
        return coarsest(seen.names, dtypes, self.device, convolves=convolves)

    def _here(self, work: Work, samples: object) -> Numbers:
        """As the script computes. A scale too large for these samples is no fault: the scaler would lower it."""
        scale = float(work.scaler.get_scale()) if work.scaler is not None else 1.0
        numbers = self.replay.compute(work.fn, samples, scale=scale)
        while work.scaler is not None and scale > 1.0 and math.isfinite(numbers.loss) and not numbers.finite:
            scale = max(1.0, scale / 256.0)
            numbers = self.replay.compute(work.fn, samples, scale=scale)
        return numbers

    def _can_compare(self, work: Work) -> bool:
        """Two replays with other seeds must not differ. Code that asks for the mode by itself gets the other one."""
        if not self._draws(work):
            return True
        if not self.replay.thorough:
            self.replay.thorough = True
            if not self._draws(work):
                return True
        self.off = "the step draws random numbers outside of dropout layers: two replays of it differ"
        return False

    def _draws(self, work: Work) -> bool:
        samples, count = self._samples(work, 0)
        with watch_precision(self.device) as seen:
            first, second = (self.replay.compute(work.fn, samples, seed=seed) for seed in (1, 2))
        return not compare(first, second, self._precision(seen), samples=count).agrees

    def _samples(self, work: Work, turn: int) -> tuple[object, int]:
        """A few samples from another place each time; the whole batch where it cannot be taken apart."""
        size = transaction.batch_size(work.batch)
        wanted = min(self.settings.samples, flags.amount("microbatch") or self.settings.samples)
        if size is None or size <= wanted:
            return work.batch, size or 0
        first = (self.checks * wanted + turn * (wanted + 1)) % size
        rows = [(first + row) % size for row in range(wanted)]
        return transaction.take(work.batch, rows), wanted


def compare(here: Numbers, there: Numbers, precision: str, *, samples: int = 0) -> Opinion:
    """The device's numbers against the CPU's: the worst tensor, and whether rounding explains it."""
    bound = ROUNDINGS[precision] * ROUNDING[precision]
    if not math.isfinite(there.loss):
        return Opinion(True, 0.0, bound, "loss", precision, samples)  # not finite on the CPU: no matter of the device
    # A loss may be the small difference of large numbers; its gradients tell, each with its size.
    worst, name = (0.0 if math.isfinite(here.loss) else math.inf), "loss"
    whole = math.sqrt(sum(float(grad.square().sum(dtype=torch.float64)) for grad in there.gradients.values()))
    for key in there.gradients.keys() | here.gradients.keys():
        error = _error(here.gradients.get(key), there.gradients.get(key), whole)
        if not error <= worst:  # a NaN is worse than any number
            worst, name = error, f"gradient of {key}"
    return Opinion(bool(worst <= bound), worst, bound, name, precision, samples)


def _error(here: Tensor | None, there: Tensor | None, whole: float) -> float:
    if here is None or there is None:
        given = here if there is None else there
        assert given is not None
        return 0.0 if whole == 0.0 else float(given.norm()) / whole
    size = float(there.norm()) + SHARE * whole
    difference = float((here - there).norm())
    if difference == 0.0:
        return 0.0
    return difference / size if size > 0.0 else math.inf
