"""A pretend accelerator, `pretend:0`: computes on the CPU, and has a memory of its own to run out of.

    memory = PretendMemory(session, samples=4)
    loss = session.step(lambda b: memory.hold(b) or mean_loss(b), batch)      # OutOfMemoryError above 4 samples

Device errors, on this device, are taken for what their words say (see chaos.py); on `cpu` they are a script's own.
It can be given ailments (ailments.py), which outlive the process that shows them: HOLDFAST_PRETEND names their file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.runtime.board import Phase
from holdfast.runtime.transaction import batch_size
from holdfast.testing import ailments, endless
from holdfast.testing.ailments import Ailment, Patient

if TYPE_CHECKING:
    from holdfast.runtime.session import Session

NAME = "pretend"
DEVICE = torch.device("cpu", 0)
"""Where its tensors are: on the CPU for torch, and still not equal to `torch.device("cpu")`."""


class PretendMemory:
    """Room for so many samples, as long as the session computes on the pretend device."""

    def __init__(self, session: Session, samples: int) -> None:
        self.session = session
        self.samples = samples

    def hold(self, batch: Any) -> None:
        """Raise what torch raises if the batch does not fit; on the CPU proper everything does."""
        asked = batch_size(batch) or 0
        if self.session.device == DEVICE and asked > self.samples:
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory. Tried to allocate room for {asked} samples; there is room for {self.samples}."
            )


# -- ailments -----------------------------------------------------------------------------------------------


def arm(session: Session, label: str, config: dict[str, Any]) -> None:
    """Let the device of this worker fail as its ailments say; one that has none, or is none of ours, is well."""
    path = ailments.find(config)
    if path is None or not label.startswith(NAME):
        return
    patient = Patient(path, label)
    if patient.ailments:
        session._phase_hooks.append(_Ailing(session, patient))


class _Ailing:
    """Watches the phases of one worker on a pretend device."""

    def __init__(self, session: Session, patient: Patient) -> None:
        self.session = session
        self.patient = patient
        self.wrong = patient.is_ill_with("wrong")
        """What is wrong with the numbers now: with those of the next replay on the device as well."""
        self._first: int | None = None
        self._spoiled: set[int] = set()

    def __call__(self, phase: Phase) -> None:
        if self.session.device != DEVICE:  # a batch that is computed on the CPU proper
            return
        step = self.session.step_count + 1
        self._first = step if self._first is None else self._first
        if phase in (Phase.FORWARD, Phase.REPLAY, Phase.SENTINEL):
            self._watch_gradients()
        ailment = self.patient.falls_ill(step=step, age=step - self._first, phase=phase.label)
        if ailment is not None and ailment.kind != "wrong":
            suffer(ailment)
        elif ailment is not None or self.patient.is_ill_with("wrong") is None:
            self.wrong = ailment

    def _watch_gradients(self) -> None:
        """Every gradient that is computed on this device from now on passes through our hands."""
        optimizers = [value for value in self.session._named.values() if isinstance(value, torch.optim.Optimizer)]
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        parameters = [each for group in groups for each in group if each.requires_grad]
        for number, parameter in enumerate(parameters):
            if id(parameter) not in self._spoiled:
                self._spoiled.add(id(parameter))
                parameter.register_hook(self._spoiler(last=number == len(parameters) - 1))

    def _spoiler(self, *, last: bool) -> Callable[[Tensor], Tensor]:
        def spoil_here(gradient: Tensor) -> Tensor:
            wrong = self.wrong if self.session.device == DEVICE else None
            return gradient if wrong is None else spoil(gradient, wrong.how, last=last)

        return spoil_here


def spoil(gradient: Tensor, how: str, *, last: bool = True) -> Tensor:
    """A wrong gradient. All but `scale` touch one tensor only, the last."""
    if how == "scale":
        return gradient * 1e3
    if not last:
        return gradient
    if how in ("zero", "nan"):
        return torch.full_like(gradient, 0.0 if how == "zero" else float("nan"))
    wrong = gradient.float().clone(memory_format=torch.contiguous_format)
    lane = wrong.view(-1)[::32]
    lane.view(torch.int32).bitwise_xor_(1 << 27)  # 65536 times too much or too little
    return wrong.to(gradient.dtype)


def suffer(ailment: Ailment) -> None:
    """Crash, hang or fail, here and now."""
    if ailment.kind == "crash":
        ctypes.string_at(0)
    if ailment.kind == "hang":
        endless.in_c()
    raise RuntimeError("CUDA error: an illegal memory access was encountered (a pretend device, holdfast.testing)")
