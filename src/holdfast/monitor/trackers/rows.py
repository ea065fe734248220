"""The journal of a run as numbered rows for a tracker.

    rows = Rows()
    for row in rows.read({"time": …, "event": "log", "step": 30, "epoch": 1, "values": {"valid_loss": 0.61}}): …
    row.number                    # 1, 2, 3, …: the same journal always gives the same rows with the same numbers

A number that comes again for the same step is left out if it is the same: a restored worker computes it again. If it
differs (steps that were undone, a resume with other settings), it becomes a row that is marked as a correction. So a
tracker that skips the rows it has already gets each number once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.base.control_characters import without_control
from holdfast.base.human import count, duration
from holdfast.monitor.story import amount, seconds, text, whole

REMEMBERED = 200_000
"""Values of each metric that are compared with those that come again; older ones are not expected back."""
_LONGEST = 1000
_METRICS = 2000
"""Metrics with different names. A run with more is broken, and a tracker would be flooded."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line for a tracker: numbers of a step, or words about it."""

    number: int
    time: float
    step: int
    epoch: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    repeated: dict[str, float] = field(default_factory=dict)
    """Values that were sent for this step before: only a tracker that has dropped them wants them again."""
    words: str = ""
    """What happened: a fault, a move, a resume. Empty in a row of numbers."""
    alert: bool = False
    """The event is a fault."""
    corrects: bool = False
    """The step was sent before with other values, which do not count any more."""
    undone: tuple[int, int] | None = None
    """First and last step that do not count any more."""
    back_to: int | None = None
    """The run goes on after this step: it was resumed there, or the steps after it were undone."""


class Rows:
    """What was read of the journal so far."""

    def __init__(self) -> None:
        self.count = 0
        """Rows so far."""
        self.sittings = 0
        """How often the run was started or resumed."""
        self.undone: list[tuple[int, int]] = []
        """Ranges of steps that were computed wrongly, the first and the last step of each."""
        self.faults = 0
        self.own: set[str] = set()
        """Trackers that the script itself writes to."""
        self.trained = False
        """A worker has begun to train, so that the script has said which trackers it uses."""
        self._sent: dict[str, _Sent] = {}
        self._time = 0.0

    def read(self, record: dict[str, Any]) -> Iterator[Row]:
        """The rows that one line of the journal makes."""
        kind = record.get("event")
        now = seconds(record.get("time"))
        self._time = now if now is not None else self._time
        if kind == "log":
            yield from self._numbers(record)
            return
        if kind in ("epoch", "checkpoint", "end", "recovered"):
            self.trained = True
        reader = _EVENTS.get(kind) if isinstance(kind, str) else None
        said = reader(self, record) if reader is not None else None
        if said is not None:
            self.count += 1
            yield replace(said, number=self.count, time=self._time, words=without_control(said.words)[:_LONGEST])

    def _numbers(self, record: dict[str, Any]) -> Iterator[Row]:
        self.trained = True
        values, step = record.get("values"), whole(record.get("step"))
        if not isinstance(values, dict) or step is None or step < 0:
            return
        fresh: dict[str, float] = {}
        changed: dict[str, float] = {}
        repeated: dict[str, float] = {}
        for name, value in values.items():
            known = amount(value) if value == value else value
            if not isinstance(known, float) or not self._takes(name):
                continue
            sent = self._sent.setdefault(name, _Sent())
            if step not in sent.values:
                fresh[name] = known
            elif not _same(sent.values[step], known):
                changed[name] = known
            else:
                repeated[name] = known
            sent.add(step, known)
        epoch = whole(record.get("epoch"))
        if changed or repeated:
            self.count += 1
            yield Row(self.count, self._time, step, epoch, values=changed, repeated=repeated, corrects=bool(changed))
        if fresh:
            self.count += 1
            yield Row(self.count, self._time, step, epoch, values=fresh)

    def _takes(self, name: object) -> bool:
        return isinstance(name, str) and 0 < len(name) <= 200 and (name in self._sent or len(self._sent) < _METRICS)

    # -- events --------------------------------------------------------------------------------------------

    def _start(self, record: dict[str, Any]) -> Row | None:
        self.sittings += 1
        if self.sittings == 1:
            return None
        device, step = text(record.get("device")), max(0, whole(record.get("step")) or 0)
        words = f"resumed at step {count(step)}" + (f" on {device}" if device else "")
        return Row(0, 0.0, step, words=words, back_to=step)

    def _fault(self, record: dict[str, Any]) -> Row:
        self.faults += 1
        said = " ".join(filter(None, (text(record.get("code")), text(record.get("sentence")))))
        reason = text(record.get("reason"))
        return Row(0, 0.0, _step(record), words=f"{said}: {reason}" if reason else said, alert=True)

    def _recovered(self, record: dict[str, Any]) -> Row | None:
        took = amount(record.get("seconds"))
        return None if took is None else Row(0, 0.0, _step(record), words=f"training again after {duration(took)}")

    def _moved(self, record: dict[str, Any]) -> Row:
        before, after = text(record.get("before")), text(record.get("after")) or text(record.get("device"))
        return Row(0, 0.0, _step(record), words=f"moved from {before} to {after}" if before else f"moved to {after}")

    def _undone(self, record: dict[str, Any]) -> Row | None:
        back, last = whole(record.get("to_step")), whole(record.get("from_step"))
        if back is None or last is None or not 0 <= back < last:
            return None
        steps = back + 1, last
        self.undone.append(steps)
        words = f"steps {count(steps[0])} to {count(steps[1])} were computed wrongly; they do not count and come again"
        return Row(0, 0.0, back, words=words, alert=True, undone=steps, back_to=back)

    def _quarantined(self, record: dict[str, Any]) -> Row:
        return Row(0, 0.0, _step(record), words=f"sample {whole(record.get('index'))} is left out from here on")

    def _end(self, record: dict[str, Any]) -> Row:
        return Row(0, 0.0, _step(record), words=f"ended: {text(record.get('state')) or 'unknown'}")

    def _loggers(self, record: dict[str, Any]) -> None:
        names = record.get("names")
        self.own |= {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


_EVENTS: dict[str, Callable[[Rows, dict[str, Any]], Row | None]] = {
    "start": Rows._start,
    "fault": Rows._fault,
    "recovered": Rows._recovered,
    "moved": Rows._moved,
    "undone": Rows._undone,
    "quarantined": Rows._quarantined,
    "end": Rows._end,
    "loggers": Rows._loggers,
}


class _Sent:
    """The newest values of one metric, by step."""

    __slots__ = ("order", "values")

    def __init__(self) -> None:
        self.values: dict[int, float] = {}
        self.order: deque[int] = deque()

    def add(self, step: int, value: float) -> None:
        if step not in self.values:
            self.order.append(step)
            if len(self.order) > REMEMBERED:
                del self.values[self.order.popleft()]
        self.values[step] = value


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


def _step(record: dict[str, Any]) -> int:
    return max(0, whole(record.get("step")) or 0)
