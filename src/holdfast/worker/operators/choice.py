"""Which operators of a step are looked at: those that were looked at the least, forward and backward alike.

    choice.plan("forward")                     # kinds for a look at this part of a step, and which call of each
    choice.takes(kind); choice.never(kind, why)

A look has a budget of bytes and of operators, and takes no longer than a step does.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from holdfast.worker.operators.case import Case
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
KINDS = 4096
"""Kinds that are remembered; a script with ever new shapes would fill the memory otherwise."""


class Choice:
    """What earlier looks have seen, and what the next one is to take."""

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
        self._bytes = 0.0
        """What an operator takes of the budget, about."""
        self.most_s = 0.5 * LONGEST_S
        """After so much time of its own a look takes nothing more."""

    def room(self) -> Tensor | None:
        """Locked memory for the copies of one look. It goes back to torch, which keeps it, with the last of them."""
        if self.device.type != "cuda":
            return None
        return torch.empty(self.budget + SPARE, dtype=torch.uint8, pin_memory=True)

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
