"""Messages that drivers and libraries print, and what each means: the rows of `signatures.json`. No torch here.

    known = match_text("CUDA error: device-side assert triggered", device="cuda:0")
    known.kind, known.health, known.means       # Kind.DEVICE_LOST, Health.DEAD, "…"

The file is in order, most telling first. A row is found in a text; whether the text counts (a script may quote it) is
decided where faults are recognised (faults.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.faults.kinds import Kind, added
from holdfast.faults.terms import Health

_FILE = Path(__file__).with_name("signatures.json")


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of `signatures.json`: a message, what it means and what helps."""

    id: str
    kind: Kind | None
    """None: worth telling, no fault by itself."""
    health: Health
    backends: tuple[str, ...]
    """cuda, rocm, mps, xpu; "device": each of them; "any": the CPU too."""
    means: str
    action: str
    text: tuple[str, ...] = ()
    """Any one of these, letter by letter."""
    regex: str | None = None
    observed: str | None = None
    """What is seen instead of a message; such a row never matches a text."""
    codes: tuple[int, ...] = ()
    """CUDA and HIP error numbers; the two agree for those listed."""
    raised_as: tuple[str, ...] = ("RuntimeError",)
    """The families of exception in which the text counts."""
    warning: bool = False
    """Printed by a process that goes on: tells about a fault, never is one."""
    aborts: bool = False
    """The process may end by it, although it need not."""
    exit_only: bool = False
    """Printed by a dying process, never raised."""

    def found_in(self, message: str) -> bool:
        if any(part in message for part in self.text):
            return True
        return self.regex is not None and re.search(self.regex, message) is not None

    def on(self, device: str | None) -> bool:
        """Could this come from that device? `cuda` is ROCm's name in torch, too."""
        backends = _backends(device)
        return backends is None or not backends.isdisjoint(self.backends)


def _backends(device: str | None) -> frozenset[str] | None:
    """The values of `Signature.backends` a device can show; None where anything is possible."""
    name = (device or "").partition(":")[0]
    if name == "cpu":
        return frozenset({"any"})
    if name == "cuda":
        return frozenset({"any", "device", "cuda", "rocm"})
    if name in ("mps", "xpu"):
        return frozenset({"any", "device", name})
    return None


@lru_cache(maxsize=1)
def signatures() -> tuple[Signature, ...]:
    """All known messages, most telling first. Read on first use: the file is not needed until a fault."""
    import json

    rows = json.loads(_FILE.read_text(encoding="utf-8"))
    more = [{**message, "kind": name} for name, row in added().items() for message in row.messages]
    return tuple(_signature(row) for row in [*more, *rows])


def _signature(row: dict[str, Any]) -> Signature:
    fields = {name: value for name, value in row.items() if name != "row"}
    for name in ("backends", "text", "codes", "raised_as"):
        if name in fields:
            fields[name] = tuple(fields[name])
    fields["kind"] = Kind(row["kind"]) if row["kind"] else None
    fields["health"] = Health(row["health"])
    return Signature(**fields)


@lru_cache(maxsize=1)
def _by_id() -> dict[str, Signature]:
    return {known.id: known for known in signatures()}


def signature(id: str) -> Signature | None:
    """The row with this id."""
    return _by_id().get(id)


def match_text(text: str, *, device: str | None = None) -> Signature | None:
    """The most telling known message in `text`; a warning only where nothing else is found."""
    found = [known for known in signatures() if known.on(device) and known.found_in(text)]
    return min(found, key=lambda known: known.warning, default=None)
