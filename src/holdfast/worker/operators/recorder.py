"""Notes what a device computes: the inputs and outputs of some operators of one ordinary step.

    recorder = Recorder(device, label="cuda:0", samples=4)
    with recorder.look(step=120):
        loss = fn(batch); loss.backward()
    cases = recorder.taken()                       # on the host; on a GPU once `recorder.ready()`

It sits below autograd, so that forward and backward operators are both seen, and changes nothing: inputs are copied
before the operator runs, outputs after it, on the stream of the step. choice.py chooses them; look.py is one look.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.state.torch_private import TorchDispatchMode
from holdfast.worker.operators.case import Case
from holdfast.worker.operators.choice import Choice
from holdfast.worker.operators.look import Look

WARMED = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
"""Formats whose copies are tried before the training: a GPU loads the code of each when it is used first."""
WHOLE, PARTS = "whole", ("forward", "backward", "optimizer")
"""What a look can be at."""


class Recorder(Choice):
    """Looks at steps, one after the other, and keeps what the chosen operators did."""

    def __init__(self, device: torch.device, *, label: str = "", samples: int = 4, seed: int | None = None) -> None:
        super().__init__(device, label=label, samples=samples, seed=seed)
        self._open: Look | None = None
        self._event: Any = None
        self._warm()

    def _warm(self) -> None:
        """What is slow the first time happens before the training, not in the step that is looked at."""
        room = self.room()
        if room is None:
            return
        for kind in WARMED:
            some = torch.zeros(8, 8, dtype=kind, device=self.device)[1::2, ::3]
            room[: some.numel() * some.element_size()].view(kind).view(some.shape).copy_(some, non_blocking=True)
        torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def look(self, step: int = 0, *, parts: bool = False) -> Iterator[None]:
        """Around one step. With `parts`, `enters` says what comes, and the look is at one part: it costs less."""
        self.cases = []
        mode = self._open = Look(self, step, self._part() if parts and not self.everything else WHOLE)
        if mode.part == WHOLE:
            mode.__enter__()
        try:
            yield
        finally:
            self._open = None
            mode.leave()
        self._ends(mode)
        if self.device.type == "cuda":
            here = torch.cuda.current_stream(self.device)
            for stream in mode.streams - {here}:
                here.wait_stream(stream)
            self._event = torch.cuda.Event()
            self._event.record()

    def enters(self, part: str) -> None:
        """The step comes to its forward, backward or optimizer, or to something else."""
        mode = self._open
        if mode is None or mode.part == WHOLE:
            return
        if mode.part == part:
            mode.__enter__()
        else:
            mode.leave()

    def _part(self) -> str:
        """Every other time what is suspected; then parts that nobody has looked at yet; then all by their size."""
        if self.wanted and self.chance.random() < 0.5:
            kind = self.chance.choice(sorted(self.wanted))
            return "backward" if kind.startswith("backward") else self.chance.choice(("forward", "optimizer"))
        new = [part for part in PARTS if part not in self.met]
        return new[0] if new else self.chance.choices(PARTS, [len(self.met[part]) + 1 for part in PARTS])[0]

    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def taken(self) -> list[Case]:
        cases, self.cases = self.cases, []
        return cases

    def _ends(self, look: Look) -> None:
        """What a look has shown of the step: the next one is planned with it."""
        if look.chosen is None:
            self.met[look.part] = look.met
            self._places[look.part] = look.calls, look.places
        elif look.shifted or look.calls != self._places[look.part][0]:
            del self._places[look.part]  # the next look lists the calls anew
        if look.kinds:
            self._bytes += 0.5 * ((self.budget - look.left) / len(look.kinds) - self._bytes)


def changes_compiled_code() -> bool:
    """Whether a look would make compiled code run uncompiled, with other roundings: so it is in older versions."""
    if hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return False
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["ok"])
