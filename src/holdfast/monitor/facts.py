"""Small records that the reader gives: progress, settings with who set them, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import UserError


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    step: int | None = None
    of: int | None = None
    epoch: int | None = None
    """Counted from 1."""
    epochs: int | None = None
    rate: float | None = None
    """Steps a second."""
    time_left_s: float | None = None
    phase: str | None = None
    setup: tuple[int, int, str] | None = None
    """Long preparation: done, of, and what."""

    @property
    def share(self) -> float | None:
        return min(1.0, self.step / self.of) if self.step is not None and self.of else None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a run, and who set it."""

    key: str
    value: Any
    shown: str
    source: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One on disk; `resume` and `fsck` verify it, here it is only seen."""

    step: int
    name: str
    bytes: int


def settings_of(saved: object) -> Iterator[Setting]:
    """What run.json keeps of the settings; a folder from elsewhere may hold anything."""
    from holdfast.run.settings import DEFAULT, known

    found = saved if isinstance(saved, dict) else {}
    said = found.get("sources")
    sources = said if isinstance(said, dict) else {}
    for section, values in found.items():
        if section == "sources" or not isinstance(values, dict):
            continue
        for name, value in values.items():
            key = f"{section}.{name}"
            try:
                shown = known(key).show(value)
            except (UserError, LookupError, TypeError, ValueError, AttributeError):
                shown = json.dumps(value)[:200]
            yield Setting(key, value, shown, str(sources.get(key, DEFAULT))[:200])
