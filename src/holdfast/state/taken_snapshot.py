"""One snapshot that was taken: the slot it is in, what it is of, and whether it has arrived there.

snapshot.py makes and follows it; the device side of a copy (cuda_copies.py, holdfast.injection.late) notes in it when
the copy has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from holdfast.state import layout as layouts
from holdfast.state.slots import Slot


@dataclass(slots=True)
class Taken:
    """One snapshot, in a slot, perhaps still on its way."""

    slot: Slot
    plan: layouts.Layout
    sequence: int
    step: int
    resumable: bool
    samples: int
    hold: bool = False
    again: bool = False
    event: Any = None
    lazy: bool = False
    """Its copy reads straight from the state, which must not change until it has arrived."""
    torn: bool = False
    done: bool = False
    agreed: bool = False
    """Device and CPU computed the same just after it."""
    considered: bool = False
    """A look at what was computed just after it is under way."""
    reads: list[Tensor] = field(default_factory=list)
    """What it reads straight, until an optimizer may write to it again."""
    versions: int = 0
    """How often those had been written to."""
    losses: Sequence[tuple[int, Tensor]] = ()
    """Of the steps since the take before."""
    scaled: bool = False
    """A GradScaler looks after the gradients: it skips steps that are not finite."""
