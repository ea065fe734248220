"""What happened in a run, a line each, in words for a person.

for note in notes(run): print(note.when, note.sign, note.text, note.code)      # the newest first
clean("\\x1b[2Jhello")            # "hello": text of a run folder may be anybody's, and must not move a cursor
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from holdfast.base.control_characters import one_line
from holdfast.base.human import count, duration
from holdfast.monitor.reader import Run
from holdfast.run.events import Event

_LONGEST = 300


def clean(text: object) -> str:
    """Text of a run that cannot move a cursor, on one line."""
    return one_line(str(text))[:_LONGEST]


@dataclass(frozen=True)
class Note:
    """One event as a line: a time of day, a sign, a sentence, a code to ask about."""

    when: str
    sign: str
    text: str
    code: str = ""
    fault: int | None = None
    """Which fault of the run, to tell why."""


def notes(run: Run, last: int = 200) -> list[Note]:
    """What happened, the newest first: every event that has something to say to a person."""
    found = []
    numbered = run.faults_total
    for event in reversed(run.events(last=last)):
        fault = None
        if event.kind == "fault":
            numbered -= 1
            fault = numbered
        note = note_of(event, fault)
        if note is not None:
            found.append(note)
    return found


def note_of(event: Event, fault: int | None = None) -> Note | None:
    """One event as a line; None for those that are only for machines."""
    data, when = event.data, clock(event.seconds())
    step = data.get("step")
    at = f" at step {count(step)}" if isinstance(step, int) and not isinstance(step, bool) else ""
    kind = event.kind
    if kind == "fault":
        text = data.get("sentence") or data.get("kind")
        return Note(when, "!", clean(text), clean(data.get("code") or ""), fault)
    if kind == "recovered":
        seconds = number(data.get("seconds"))
        return Note(when, "✓", "training again" + (f" after {duration(seconds)}" if seconds is not None else at))
    if kind == "limit":
        sign = {"resume": "✓", "clear": "✓", "slow": "↺", "pause": "↺"}.get(str(data.get("action")), "!")
        return Note(when, sign, clean(data.get("text")))
    if kind == "epoch":
        epoch = data.get("epoch")
        which = epoch + 1 if isinstance(epoch, int) else "?"
        return Note(when, "·", f"epoch {which} done{', the best so far' if data.get('best') else ''}")
    words = {
        "start": ("▸", f"started on {data.get('device')}"),
        "moved": ("↺", f"{data.get('before')} → {data.get('after')}{at}"),
        "verdict": ("⇒", data.get("sentence")),
        "undone": ("↺", f"back to step {data.get('to_step')}: what came after is not believed"),
        "not_saved": ("!", f"not saved: {data.get('text')}"),
        "saved_again": ("✓", "saving again"),
        "quarantined": ("!", data.get("text") or "a sample is left out"),
        "stopping": ("•", f"asked to stop by {data.get('signal')}{at}"),
        "end": ("■", f"{str(data.get('state') or 'over').lower()}{at}"),
        "checkpoint": ("·", f"saved step {count(step) if isinstance(step, int) else '?'}"),
    }.get(kind)
    if words is None:
        text = data.get("text")
        return Note(when, "•", clean(text)) if isinstance(text, str) else None
    return Note(when, words[0], clean(words[1]))


def clock(seconds: float | None) -> str:
    try:
        return "--:--:--" if seconds is None else datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "--:--:--"


def number(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None  # type: ignore[arg-type]
