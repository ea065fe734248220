"""Limits that act: past one the run warns, then slows down or pauses, and goes on when it is kept again.

    limits = Limits(settings.limits)
    for change in limits.look(readings, "cuda:0", now):     # pure: readings of the sensors in, changes out
        teller.emit("limit", **change)
    limits.rest                                             # thousandths of the time to rest: 1000 is a pause

A limit counts as kept again a little below it, so that a run does not flutter. Nothing happens silently: every
change is an event, and so is a limit that cannot be watched because this machine has no such sensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.base.human import size
from holdfast.run.setting_groups import LimitsSettings

PAUSE = 1000
SLOW = (500, 750, 900)
"""Thousandths of the time to rest, one after the other while a limit stays passed."""
MARGIN = 0.03
"""A limit is kept again this share below it."""
BLIND_AFTER = 60.0
"""Seconds without a reading after which a run is not held back any more by what was read before."""


class _Rule(NamedTuple):
    key: str
    """The setting, and the name of the limit."""
    words: str
    unit: str
    by_resting: bool
    """Whether doing less makes it better: heat and power, not what is full."""


RULES = (
    _Rule("cpu_c", "the CPU is at", "°C", True),
    _Rule("gpu_c", "{device} is at", "°C", True),
    _Rule("cpu_w", "the CPU draws", "W", True),
    _Rule("gpu_w", "{device} draws", "W", True),
    _Rule("memory", "the memory is full to", "%", False),
    _Rule("gpu_memory", "the memory of {device} is full to", "%", False),
    _Rule("disk_free", "free on the disk:", "bytes", False),
)


@dataclass(slots=True)
class _Standing:
    """How one limit stands."""

    over_since: float | None = None
    under_since: float | None = None
    warned: bool = False
    missing: bool = False
    value: float | None = None


class Limits:
    """The limits of one run, and what they ask for now."""

    def __init__(self, settings: LimitsSettings) -> None:
        self.settings = settings
        self.rest = 0
        self._rules = [rule for rule in RULES if getattr(settings, rule.key) is not None]
        self._standing = {rule.key: _Standing() for rule in self._rules}
        self._acted = 0.0
        """When more rest was last asked for."""
        self._read_at: float | None = None

    @property
    def any(self) -> bool:
        return bool(self._rules)

    @property
    def paused(self) -> bool:
        return self.rest >= PAUSE

    def look(self, readings: dict[str, Any] | None, device: str, now: float) -> list[dict[str, Any]]:
        """What changes, as the data of `limit` events. The action is warn, slow, pause, resume, clear or blind."""
        if not self._rules:
            return []
        if readings is None:
            return list(self._blind(now))
        self._read_at = now
        changes: list[dict[str, Any]] = []
        for rule in self._rules:
            changes += self._judge(rule, value_of(rule.key, readings, device), device, now)
        return changes + list(self._act(device, now))

    def _judge(self, rule: _Rule, value: float | None, device: str, now: float) -> Iterator[dict[str, Any]]:
        standing, limit = self._standing[rule.key], float(getattr(self.settings, rule.key))
        standing.value = value
        if value is None:
            if not standing.missing:
                standing.missing = True
                yield _change(rule, "blind", f"limits.{rule.key} is set, but nothing here measures it for this run")
            standing.over_since = None
            return
        standing.missing = False
        if _past(rule, value, limit):
            standing.under_since = None
            standing.over_since = now if standing.over_since is None else standing.over_since
            if not standing.warned:
                standing.warned = True
                yield _change(rule, "warn", f"{_said(rule, value, device)}, {_limit(rule, limit)}", value, limit)
        elif _kept(rule, value, limit):
            standing.over_since = None
            standing.under_since = now if standing.under_since is None else standing.under_since
            if standing.warned and not self.rest and now - standing.under_since >= self.settings.patience:
                standing.warned = False
                yield _change(rule, "clear", f"{_said(rule, value, device)} again", value, limit)

    def _act(self, device: str, now: float) -> Iterator[dict[str, Any]]:
        """More rest while a limit stays passed, none once all are kept."""
        patience = self.settings.patience
        over = [rule for rule in self._rules if self._passed_for(rule, now) >= patience]
        if over and now - self._acted >= patience:
            wanted = self._more_rest(over)
            if wanted > self.rest:
                self.rest, self._acted = wanted, now
                yield self._changed(over[0], device)
        elif self.rest and not over and all(self._kept_for(rule, now) >= patience for rule in self._rules):
            self.rest = 0
            for rule in self._rules:
                if self._standing[rule.key].warned:
                    self._standing[rule.key].warned = False
                    value, limit = self._standing[rule.key].value, float(getattr(self.settings, rule.key))
                    said = "" if value is None else f": {_said(rule, value, device)}"
                    yield _change(rule, "resume", f"going on at full speed{said}", value, limit)

    def _more_rest(self, over: list[_Rule]) -> int:
        action = self.settings.action
        if action == "warn":
            return 0
        if action == "pause" or (action == "auto" and any(not rule.by_resting for rule in over)):
            return PAUSE
        deeper = next((step for step in SLOW if step > self.rest), None)
        return deeper if deeper is not None else (PAUSE if action == "auto" else self.rest)

    def _changed(self, rule: _Rule, device: str) -> dict[str, Any]:
        value, limit = self._standing[rule.key].value, float(getattr(self.settings, rule.key))
        said = "" if value is None else _said(rule, value, device)
        how = "paused" if self.paused else f"slowed down, resting {self.rest / 10:g} % of the time"
        why = f"{said}, {_limit(rule, limit)}"
        return {**_change(rule, "pause" if self.paused else "slow", f"{how}: {why}", value, limit), "rest": self.rest}

    def _passed_for(self, rule: _Rule, now: float) -> float:
        since = self._standing[rule.key].over_since
        return -1.0 if since is None else now - since

    def _kept_for(self, rule: _Rule, now: float) -> float:
        standing = self._standing[rule.key]
        if standing.value is None:  # it cannot be read any more: it holds nobody back
            return float("inf")
        return -1.0 if standing.under_since is None else now - standing.under_since

    def _blind(self, now: float) -> Iterator[dict[str, Any]]:
        """The sensors are silent. What was read long ago must not hold a run for ever."""
        if self._read_at is None or now - self._read_at < BLIND_AFTER:
            return
        self._read_at = None
        held, self.rest = self.rest, 0
        for standing in self._standing.values():
            standing.over_since = standing.under_since = None
            standing.warned = False
        text = f"the sensors have not answered for {BLIND_AFTER:.0f} s: limits are not watched now"
        yield {"limit": None, "action": "blind", "text": f"{text}, and the run goes on" if held else text}


def value_of(key: str, readings: dict[str, Any], device: str) -> float | None:
    """What the sensors say about one limit; None is unknown."""
    if key == "disk_free":
        return _float(readings.get("disk_free_bytes"))
    kind, _, what = key.partition("_")
    if key == "memory":
        kind, what = "cpu", "memory"
    wanted = "cpu" if kind == "cpu" else device
    if kind == "gpu" and device.startswith("cpu"):
        return None
    rows = readings.get("devices")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("device") == wanted:
            if what == "memory":
                used, total = _float(row.get("memory_used_bytes")), _float(row.get("memory_total_bytes"))
                return None if used is None or not total else 100 * used / total
            return _float(row.get({"c": "temperature_c", "w": "power_w"}[what]))
    return None


def _past(rule: _Rule, value: float, limit: float) -> bool:
    return value < limit if rule.key == "disk_free" else value > limit


def _kept(rule: _Rule, value: float, limit: float) -> bool:
    return value >= limit * (1 + MARGIN) if rule.key == "disk_free" else value <= limit * (1 - MARGIN)


def _said(rule: _Rule, value: float, device: str) -> str:
    shown = size(value) if rule.unit == "bytes" else f"{value:.0f} {rule.unit}"
    return f"{rule.words.format(device=device)} {shown}"


def _limit(rule: _Rule, limit: float) -> str:
    shown = size(limit) if rule.unit == "bytes" else f"{limit:g} {rule.unit}"
    return f"limits.{rule.key} is {shown}"


def _change(
    rule: _Rule, action: str, text: str, value: float | None = None, limit: float | None = None
) -> dict[str, Any]:
    return {"limit": rule.key, "action": action, "text": text, "value": value, "at": limit}


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
