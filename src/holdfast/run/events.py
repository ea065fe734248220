"""What happens in a run, as one JSON object a line: the only source every face renders.

event = Event.now("fault", code="F006", step=3862, device="cuda:0")
line = event.to_line()
Event.from_line(line)          # None for a torn or foreign line: a run folder is untrusted input
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

DURABLE = frozenset({"start", "fault", "recovered", "moved", "checkpoint", "stopping", "end", "arena", "quarantined"})
"""Events that are flushed to the disk before the run goes on: what must survive a power cut."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, when, and what is known about it."""

    kind: str
    time: str
    """UTC, ISO 8601, milliseconds."""
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def now(cls, kind: str, /, **data: Any) -> Event:
        return cls(kind, utc_now(), data)

    def to_line(self) -> str:
        return json.dumps({"time": self.time, "event": self.kind, **self.data}, default=str)

    @classmethod
    def from_line(cls, line: str) -> Event | None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            return None
        kind, time = record.pop("event"), str(record.pop("time", ""))
        return cls(kind, time, record)

    def seconds(self) -> float | None:
        """When, as seconds since the epoch; None if the time is not one."""
        try:
            return datetime.fromisoformat(self.time.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return None


def utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
