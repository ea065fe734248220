"""Notes what a device computes: the inputs and outputs of some operators of one ordinary step.

    recorder = Recorder(device, label="cuda:0", samples=4)
    with recorder.look(step=120):
        loss = fn(batch); loss.backward()
    cases = recorder.taken()                       # on the host; on a GPU once `recorder.ready()`

It sits below autograd, so that forward and backward operators are both seen, and changes nothing: inputs are copied
before the operator runs, outputs after it, on the stream of the step. Which operators: those that were looked at the
least, forward and backward alike. A look has a budget of bytes and of operators.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.worker.operators.case import Case
from holdfast.worker.operators.look import KINDS, Look
from holdfast.worker.operators.parts import Limits

BUDGET = 16 << 20
"""Bytes of a look."""
OPERATORS = 24
"""Operators of a look."""
SPARE = 16 << 20
"""Bytes beyond the budget that the last operator of a look may take."""
LEAST = 4
"""Of which so many are wanted, however large they are."""
LONGEST_S = 0.05
"""Of what a look may add to a short step."""
WARMED = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
"""Formats whose copies are tried before the training: a GPU loads the code of each when it is used first."""
WHOLE, PARTS = "whole", ("forward", "backward", "optimizer")
"""What a look can be at."""


class Recorder:
    """Chooses operators, look by look, and keeps what they did."""

    def __init__(self, device: torch.device, *, label: str = "", samples: int = 4, seed: int | None = None) -> None:
        self.device = device
        self.label = label or str(device)
        self.limits = Limits(samples=samples)
        self.operators, self.budget = OPERATORS, BUDGET
        self.everything = False
        """Each kind once, in this look: a device that has to prove itself."""
        self.wanted: set[str] = set()
        """Kinds under suspicion: always looked at."""
        self.seen: Counter[str] = Counter()
        """Looks at each kind of operator."""
        self.left_alone: Counter[str] = Counter()
        """Operators that cannot be compared, by the reason."""
        self.looked = 0
        """Operators that were looked at, in all."""
        self.cannot: set[str] = set()
        """Kinds that cannot be compared."""
        self._kinds: dict[tuple[Any, ...], str] = {}
        self.chance = random.Random(seed)
        self.cases: list[Case] = []
        self.met: dict[str, Counter[str]] = {}
        """By the part of a step: how often each kind was called when its calls were listed last."""
        self._places: dict[str, tuple[int, dict[str, list[int]]]] = {}
        """By the part of a step: how many calls it has, and which of them are of which kind."""
        self._open: Look | None = None
        self._bytes = 0.0
        """What an operator takes of the budget, about."""
        self._event: Any = None
        self.most_s = 0.5 * LONGEST_S
        """After so much time of its own a look takes nothing more."""
        self._warm()

    def room(self) -> Tensor | None:
        """Locked memory for the copies of one look. It goes back to torch, which keeps it, with the last of them."""
        if self.device.type != "cuda":
            return None
        return torch.empty(self.budget + SPARE, dtype=torch.uint8, pin_memory=True)

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

    def ours(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == self.device.type

    def plan(self, part: str) -> dict[str, int] | None:
        """Kinds for this look, those that were looked at the least first, and which of its calls; None: all are new."""
        met = self.met.get(part)
        if not met or self.everything:
            return None
        room = max(LEAST, int(self.budget / max(1.0, self._bytes)))
        can = [kind for kind in met if kind not in self.cannot]
        order = sorted(can, key=lambda kind: (self.seen[kind], self.chance.random()))
        chosen = {*order[: min(self.operators, room)], *self.wanted}
        return {kind: self.chance.randrange(max(1, met[kind])) for kind in chosen}

    def chosen(self, part: str, plan: dict[str, int] | None) -> dict[int, str] | None:
        """The plan as numbers of calls: a step makes the same calls as the one before it, nearly always."""
        if plan is None or part not in self._places:
            return None
        places = self._places[part][1]
        return {places[kind][call]: kind for kind, call in plan.items() if call < len(places.get(kind, ()))}

    def spent(self, seconds: float, usual: float) -> None:
        """A look made a step this much longer. It takes fewer until the step takes no more than two steps, or 50 ms."""
        most = max(usual, LONGEST_S - usual)
        self.most_s = 0.5 * most
        if seconds > 0.8 * most:
            self.operators = max(LEAST, self.operators // 2)
        elif seconds < 0.3 * most:
            self.operators = min(OPERATORS, self.operators + 2)

    def kind_of(self, title: str, back: bool, tensors: list[Tensor]) -> str:
        """The operator with its shapes and formats, in words; the words are made once."""
        key = (title, back, *[part for each in tensors for part in (each.dtype, each.shape)])
        kind = self._kinds.get(key)
        if kind is None:
            words = " ".join(f"{each.dtype}{list(each.shape)}" for each in tensors)
            kind = f"{'backward' if back else 'forward'} {title} {words}"
            if len(self._kinds) < KINDS:
                self._kinds[key] = kind
        return kind

    def takes(self, kind: str) -> None:
        self.looked += 1
        if len(self.seen) < KINDS or kind in self.seen:
            self.seen[kind] += 1

    def never(self, kind: str, why: str) -> None:
        """It cannot be compared: no look has room for it again."""
        if why != "on another device":
            self.left_alone[why] += 1
        if len(self.cannot) < KINDS:
            self.cannot.add(kind)

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
