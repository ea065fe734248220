"""How windows are made: every parameter in one place, since all of them are part of a cache's key.

Recipe(kind="challenge1")                         # 2 s from 0.5 s after the stimulus, 0.5-45 Hz, mains notch
Recipe(kind="challenge2", band=None, notch=None)  # as the competition serves them
recipe.key(recordings)                            # changes with content, parameters, and the code that does it
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import filters
from holdfast.workloads.eeg.cache import FORMAT, KINDS
from holdfast.workloads.eeg.channels import HOW
from holdfast.workloads.eeg.mains import Mains, can_hold
from holdfast.workloads.eeg.windowing import Names

AUTO = "auto"
EXCLUDED = (
    "NDARWV769JM7",
    "NDARME789TD2",
    "NDARUA442ZVF",
    "NDARJP304NK1",
    "NDARTY128YLU",
    "NDARDW550GU6",
    "NDARLD243KRE",
    "NDARUJ292JXV",
    "NDARBA381JGH",
)
"""Subjects that the competition's starter kit leaves out."""
_SIZES = {
    "challenge1": (2.0, 2.0),
    "challenge2": (4.0, 2.0),
    "pretrain": (2.0, 2.0),
    "events": (1.0, 1.0),
    "labelled": (1.0, 4.0),
}
_TASKS: dict[str, tuple[str, ...]] = {"challenge1": ("contrastChangeDetection",), "challenge2": ("RestingState",)}
"""Tasks of a kind; of the others, all."""
_CODE = (
    "bdf", "bids", "channels", "eeglab", "filters", "mains", "making", "reading", "recipe", "sidecars",
    "windowing"
)  # fmt: skip
"""Modules that decide what is in a cache."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what the windows of a recording are."""

    kind: str
    rate: float = 100.0
    band: tuple[float, float] | None = (0.5, 45.0)
    notch: float | str | None = AUTO
    """Hertz; "auto" is the mains frequency of each recording, where it holds that, and none where not."""
    size: float = 0.0
    """Seconds of a window; 0 is the usual one of its kind."""
    stride: float = 0.0
    """Seconds from one window to the next, where they are cut one after the other."""
    shift: float | None = None
    """Seconds from an event to the first sample of its window; None is chosen from the response times."""
    tasks: tuple[str, ...] = ()
    """Tasks to take; none named are the usual ones of the kind, `*` are all."""
    channels: tuple[str, ...] = ()
    """Channels to take, in this order; none named are those that most recordings have."""
    bad: str = "zero"
    """What is done to bad channels: zero, interpolate or keep."""
    exclude: tuple[str, ...] = EXCLUDED
    names: Names = field(default_factory=Names)
    values: tuple[str, ...] = ()
    """Events to cut around, for the kind "events"; of a column, for the kind "labelled"."""
    column: str = ""
    """Of events.tsv, for the kind "labelled": what stands there is the label."""
    labels: tuple[tuple[str, str], ...] = ()
    """Subjects and their label, for the kind "labelled" without a column."""

    def settled(self) -> Recipe:
        """With the usual values where none were given; UserError where it cannot be."""
        if self.kind not in KINDS:
            raise UserError(f"unknown kind of windows `{self.kind}`", hints=[f"kinds are {', '.join(KINDS)}"])
        if self.bad not in HOW:
            raise UserError(f"unknown treatment of bad channels `{self.bad}`", hints=[f"there are {', '.join(HOW)}"])
        if self.kind == "events" and not self.values:
            raise UserError("no events were named to cut around", hints=["name them, as in `--events stim_1,stim_2`"])
        size, stride = _SIZES[self.kind]
        settled = replace(
            self,
            rate=float(self.rate),
            size=self.size or size,
            stride=self.stride or stride,
            tasks=self.tasks or _TASKS.get(self.kind, ()),
        )
        if not (settled.samples >= 1 and round(settled.stride * settled.rate) >= 1):
            raise UserError(f"a window of {self.size:g} s every {self.stride:g} s is impossible")
        return settled

    @property
    def samples(self) -> int:
        return round(self.size * self.rate)

    def takes(self, task: str) -> bool:
        return not self.tasks or "*" in self.tasks or task in self.tasks

    def chain(self, rate: float, mains: Mains | None = None) -> filters.Chain:
        """The filters for recordings at this rate and mains; Impossible if what was asked for cannot be."""
        notch, why = self.notch, ""
        if notch == AUTO:
            notch, why = (mains.frequency, mains.basis) if mains is not None else (None, "")
            if notch is not None and not can_hold(rate, notch):
                notch, why = None, f"{notch:g} Hz mains, but data at {rate:g} Hz end at {rate / 2:g} Hz"
        return filters.plan(rate, self.rate, band=self.band, notch=None if notch is None else float(notch), why=why)

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    def key(self, content: Any) -> str:
        """What identifies a cache: content of the recordings, parameters, and the code that makes windows of them."""
        whole = {"format": FORMAT, "code": code_version(), "recipe": self.to_json(), "content": content}
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


@cache
def code_version() -> str:
    """A digest of the modules that decide what is in a cache: a change in them makes another one."""
    digest, here = hashlib.sha256(), Path(__file__).parent
    for name in _CODE:
        digest.update(f"{name}\n".encode() + (here / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
