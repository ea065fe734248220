"""A pretend accelerator, `pretend:0`: computes on the CPU, and has a memory of its own to run out of.

    memory = PretendMemory(session, samples=4)
    loss = session.step(lambda b: memory.hold(b) or mean_loss(b), batch)      # OutOfMemoryError above 4 samples

Device errors, on this device, are taken for what their words say (see chaos.py); on `cpu` they are a script's own.
It can be given ailments (ailments.py), which outlive the process that shows them: HOLDFAST_PRETEND names their file.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.base.board import Phase
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment, Patient
from holdfast.state.torch_private import TorchDispatchMode, in_backward

if TYPE_CHECKING:
    from holdfast.injection.trained import Trained

NAME = "pretend"
DEVICE = torch.device("cpu", 0)
"""Where its tensors are: on the CPU for torch, and still not equal to `torch.device("cpu")`."""


class PretendMemory:
    """Room for so many samples, as long as the session computes on the pretend device."""

    def __init__(self, session: Trained, samples: int) -> None:
        self.session = session
        self.samples = samples

    def hold(self, batch: Any) -> None:
        """Raise what torch raises if the batch does not fit; on the CPU proper everything does."""
        from holdfast.data.batch import batch_size  # it needs numpy, which probes do without

        asked = batch_size(batch) or 0
        if self.session.device == DEVICE and asked > self.samples:
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory. Tried to allocate room for {asked} samples; there is room for {self.samples}."
            )


# -- ailments -----------------------------------------------------------------------------------------------


def arm(session: Trained, label: str, named: str | None) -> None:
    """Let the device of this worker fail as its ailments say; one that has none, or is none of ours, is well."""
    path = ailments.find(named)
    if path is None or not label.startswith(NAME):
        return
    patient = Patient(path, label)
    os.environ[ailments.VARIABLE] = str(path)  # for processes of this worker that use the device, too
    if patient.ailments:
        ailing = _Ailing(session, patient)
        session._phase_hooks.append(ailing)
        if any(each.kind == "wrong" for each in patient.ailments.values()):
            for before in _armed:  # a rank that stays in its process has a session for each of its groups
                before.wrong = lambda: None
            _armed[:] = [WrongKernels(ailing.wrong_here)]
            _armed[0].__enter__()  # type: ignore[no-untyped-call]  # for the life of this worker


class _Ailing:
    """Watches the phases of one worker on a pretend device."""

    def __init__(self, session: Trained, patient: Patient) -> None:
        self.session = session
        self.patient = patient
        self.wrong = patient.is_ill_with("wrong")
        """What is wrong with the numbers now: with those of the next replay on the device as well."""
        self._first: int | None = None

    def wrong_here(self) -> Ailment | None:
        return self.wrong if self.session.device == DEVICE else None

    def __call__(self, phase: Phase) -> None:
        if self.session.device != DEVICE:  # a batch that is computed on the CPU proper
            return
        step = self.session.step_count + 1
        self._first = step if self._first is None else self._first
        ailment = self.patient.falls_ill(step=step, age=step - self._first, phase=phase.label)
        if ailment is not None and ailment.kind != "wrong":
            suffer(ailment)
        elif ailment is not None or self.patient.is_ill_with("wrong") is None:
            self.wrong = ailment


class WrongKernels(TorchDispatchMode):
    """A device whose kernels of backward compute wrongly, as long as `wrong` says so."""

    def __init__(self, wrong: Callable[[], Ailment | None], *, anywhere: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wrong = wrong
        self.anywhere = anywhere
        """In forward as well: where one operator is computed by itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inside = self.anywhere or in_backward() or "backward" in ailments.repeating
        ailment = self.wrong() if inside and isinstance(out, Tensor) and out.is_floating_point() else None
        name = func._schema.name.partition("::")[2]
        if ailment is None or name not in WRONG_KERNELS[ailment.how]:
            return out
        return spoil(out, ailment.how)


_armed: list[WrongKernels] = []
"""Those of the session before, in this process."""
WRONG_KERNELS = {"scale": ("mm", "sum", "convolution_backward"), "zero": ("mm",), "bit": ("mm",), "nan": ("mm",)}
"""The kernels that each ailment spoils."""


def be_wrong(label: str) -> None:
    """This process computes one operator by itself on a pretend device: wrongly, if it is ill where probes see it."""
    path = ailments.find()
    ailment = Patient(path, label).is_ill_with("wrong") if path is not None else None
    if ailment is not None and ailment.probes:
        WrongKernels(lambda: ailment, anywhere=True).__enter__()  # type: ignore[no-untyped-call]


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
    while ailment.kind == "hang":
        ctypes.CDLL(None).sleep(1000)
    raise RuntimeError("CUDA error: an illegal memory access was encountered (a pretend device, holdfast.testing)")
