"""What the journal says, folded as it is read: sittings, lanes, faults and how each ended.

    story = Story()
    story.tell({"time": …, "event": "fault", "code": "F002", …})
    story.lanes        # one stretch a worker: device, from, to, steps
    story.faults       # each with its blame and what it took to recover, once that is known

It grows with what went wrong, not with the number of lines, and it is JSON, so that an index can keep it. The journal
may be anybody's: a field that is not what it should be counts as unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.base import dataclass_json

MOST = 2000
"""Faults and lanes that are kept, the newest; all of them are counted."""
_TEXT = 2000
"""Characters of a sentence."""
_IN_PROCESS = frozenset({"retry", "split", "cpu_batch"})
"""What a worker does about a fault by itself, and lives on."""


@dataclass(slots=True)
class Fault:
    """Something that went wrong, and what became of it."""

    code: str = ""
    kind: str = ""
    time: float | None = None
    step: int | None = None
    device: str | None = None
    phase: str | None = None
    sentence: str = ""
    action: str = ""
    reason: str = ""
    folder: str | None = None
    """faults/NN, where the evidence is; below the run folder."""
    blame: str | None = None
    """device, data, code or unknown; None as long as nobody has said."""
    blame_sentence: str | None = None
    recovered: bool = False
    recovered_s: float | None = None
    """From its detection to the next commit; None if that is not known, or was within the step."""
    lost_s: float | None = None


@dataclass(slots=True)
class Lane:
    """One worker on one device, from when to when."""

    device: str = ""
    since: float | None = None
    until: float | None = None
    """None while it works; for a run that was cut off, the reader says when it was last seen."""
    from_step: int | None = None
    to_step: int | None = None
    worker: int | None = None
    """Process number."""
    generation: int | None = None
    ended_by: str | None = None
    """Code of the fault that ended it."""


@dataclass(slots=True)
class Story:
    """The journal so far."""

    events: int = 0
    first: float | None = None
    last: float | None = None
    began: float | None = None
    """Of the present sitting."""
    sat_s: float = 0.0
    """Seconds of all sittings before it."""
    sittings: int = 0
    step: int = 0
    epochs_done: int = 0
    best_step: int | None = None
    """The end of the best epoch so far."""
    best_epoch: int | None = None
    device: str | None = None
    first_device: str | None = None
    torch: str | None = None
    recoveries: int = 0
    moves: int = 0
    checkpoint_step: int | None = None
    checkpoint_time: float | None = None
    quarantined: int = 0
    unsaved_since: float | None = None
    """From when on the run folder has taken nothing."""
    faults_total: int = 0
    faults_by: Counter[str] = field(default_factory=Counter)
    """`code device` to how often."""
    faults: list[Fault] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    hit: dict[str, Any] | None = None
    """The fault that the worker on the last lane has met, until it is known what became of it."""
    ended: dict[str, Any] | None = None
    """The last word of the last sitting, None while it goes on."""

    def tell(self, record: dict[str, Any]) -> None:
        """One event."""
        kind = record.get("event")
        if not isinstance(kind, str):
            return
        now = seconds(record.get("time"))
        self.events += 1
        if kind == "start":
            self._start(record, now)
        if now is not None:
            self.first = now if self.first is None else self.first
            self.last = now
        teller = _TELLERS.get(kind)
        if teller is not None:
            teller(self, record, now)

    def _start(self, record: dict[str, Any], now: float | None) -> None:
        if self.began is not None and self.last is not None:
            self.sat_s += max(0.0, self.last - self.began)
        self._close(self.last)
        self.began = now if now is not None else self.last
        self.sittings += 1
        self.ended = None
        self.step = whole(record.get("step")) or 0
        self._on(record)

    def _on(self, record: dict[str, Any]) -> None:
        device = text(record.get("device"))
        if device:
            self.device = device
            self.first_device = self.first_device or device

    def _worker(self, record: dict[str, Any], now: float | None) -> None:
        self._close(now)
        self._on(record)
        self.torch = text(record.get("torch")) or self.torch
        lane = Lane(
            device=text(record.get("device")) or "",
            since=now,
            from_step=self.step,
            worker=whole(record.get("pid")),
            generation=whole(record.get("generation")),
        )
        self.lanes.append(lane)
        del self.lanes[:-MOST]

    def _close(self, now: float | None) -> None:
        """The last worker's lane ends now, or when a fault took it."""
        lane, hit, self.hit = self.lanes[-1] if self.lanes else None, self.hit, None
        if lane is not None and lane.until is None:
            lane.until, lane.to_step = now, self.step
            if hit is not None:
                lane.until, lane.ended_by = hit["time"], hit["code"]

    def _fault(self, record: dict[str, Any], now: float | None) -> None:
        fault = Fault(
            code=text(record.get("code")) or "",
            kind=text(record.get("kind")) or "",
            time=now,
            step=whole(record.get("step")),
            device=text(record.get("device")),
            phase=text(record.get("phase")),
            sentence=text(record.get("sentence")) or text(record.get("kind")) or "",
            action=text(record.get("action")) or "",
            reason=text(record.get("reason")) or "",
            folder=evidence_folder(record.get("folder")),
        )
        self.faults_total += 1
        self.faults_by[f"{fault.code or '-'} {fault.device or '-'}"[:80]] += 1
        if len(self.faults_by) > MOST:  # nobody has so many devices
            self.faults_by.popitem()
        self.faults.append(fault)
        del self.faults[:-MOST]
        if fault.step is not None:
            self.step = max(self.step, fault.step - 1)
        if fault.action not in _IN_PROCESS and self.hit is None:
            self.hit = {"time": now, "code": fault.code}

    def _verdict(self, record: dict[str, Any], now: float | None) -> None:
        folder, code = evidence_folder(record.get("folder")), text(record.get("code"))
        for fault in reversed(self.faults[-50:]):
            if (folder and fault.folder == folder) or (not folder and fault.code == code):
                fault.blame = text(record.get("blame"))
                fault.blame_sentence = text(record.get("sentence"))
                return

    def _recovered(self, record: dict[str, Any], now: float | None) -> None:
        took, lost = amount(record.get("seconds")), amount(record.get("lost_s"))
        if took is not None:
            self.recoveries += 1
        self.hit = None
        for at, fault in enumerate(reversed(self.faults[-200:])):
            if fault.recovered:
                break
            fault.recovered = True
            if at == 0:
                fault.recovered_s, fault.lost_s = took, lost
        self._stepped(record, now)

    def _moved(self, record: dict[str, Any], now: float | None) -> None:
        self.moves += 1
        self._close(now)
        self._on(record)

    def _stepped(self, record: dict[str, Any], now: float | None) -> None:
        step = whole(record.get("step"))
        self.step = max(self.step, step) if step is not None else self.step

    def _epoch(self, record: dict[str, Any], now: float | None) -> None:
        epoch = whole(record.get("epoch"))
        if epoch is not None:
            self.epochs_done = max(self.epochs_done, epoch + 1)
            if record.get("best") is True:
                self.best_epoch, self.best_step = epoch, whole(record.get("step"))
        self._stepped(record, now)

    def _checkpoint(self, record: dict[str, Any], now: float | None) -> None:
        self.checkpoint_step, self.checkpoint_time = whole(record.get("step")), now
        self._stepped(record, now)

    def _undone(self, record: dict[str, Any], now: float | None) -> None:
        step = whole(record.get("to_step"))
        if step is not None:
            self.step = step
            if self.best_step is not None and self.best_step > step:
                self.best_step = self.best_epoch = None

    def _quarantined(self, record: dict[str, Any], now: float | None) -> None:
        self.quarantined += 1

    def _not_saved(self, record: dict[str, Any], now: float | None) -> None:
        self.unsaved_since = now

    def _saved_again(self, record: dict[str, Any], now: float | None) -> None:
        self.unsaved_since = None

    def _end(self, record: dict[str, Any], now: float | None) -> None:
        self._stepped(record, now)
        self._close(now)
        self.ended = {key: record.get(key) for key in ("state", "exit_code", "step")}

    # -- for the index -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Story:
        """What `to_json` gave; ValueError if it is not that."""
        return dataclass_json.read_strictly(cls, saved)


_TELLERS = {
    "worker": Story._worker,
    "fault": Story._fault,
    "verdict": Story._verdict,
    "recovered": Story._recovered,
    "moved": Story._moved,
    "epoch": Story._epoch,
    "checkpoint": Story._checkpoint,
    "undone": Story._undone,
    "quarantined": Story._quarantined,
    "not_saved": Story._not_saved,
    "saved_again": Story._saved_again,
    "end": Story._end,
}


def evidence_folder(said: object) -> str | None:
    """faults/01, from whatever path the run was in when it happened; None if that is no such folder."""
    match = re.search(r"(?:^|[/\\])faults[/\\](\d{1,6})[/\\]?$", said) if isinstance(said, str) else None
    return f"faults/{match[1]}" if match else None


def seconds(stamp: object) -> float | None:
    """Since 1970, from what `utc_now` wrote; None if it is not a time."""
    if not isinstance(stamp, str):
        return None
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def text(value: object) -> str | None:
    return value[:_TEXT] if isinstance(value, str) else None


def whole(value: object) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62
    return value if good else None  # type: ignore[return-value]


def amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None
