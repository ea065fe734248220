"""Where a run is: its step and epoch, and the loop over epochs that it is in. Both are saved with every snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.base import dataclass_json


@dataclass(slots=True)
class Position:
    """Where the run is. Saved with every snapshot."""

    step: int = 0
    epoch: int = 0
    samples: int = 0

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Position:
        session = meta["session"]
        return cls(int(session["step"]), int(session["epoch"]), int(session["samples"]))


@dataclass(slots=True)
class Loop:
    """The loop over epochs that the run is in, or was in last. Saved with every snapshot."""

    number: int
    """How many came before it."""
    total: int
    left: bool = False
    """Before its end, and the script has gone on."""
    caught: bool = False
    """By an error that the script has caught: a loop after that is the same one."""
    key: str = "#1"
    """Its name, or which of those without one it is."""
    first: int = 0
    """The epoch of the run in which it began."""
    before: list[str] = field(default_factory=list)
    """The loops that are over."""

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Loop | None:
        said = meta["session"].get("loop")
        if not isinstance(said, dict):
            return None
        number = int(said["number"])
        return Loop(
            number,
            int(said["total"]),
            bool(said["left"]),
            bool(said.get("caught")),
            str(said.get("key", f"#{number + 1}")),
            int(said.get("first", 0)),
            [str(each) for each in said.get("before", [])],
        )

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)
