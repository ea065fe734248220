"""What became of every recording: windows, what was left out of it and why. A person and a program can read it.

report.windows, report.drops            # 1 843, {"no response": 96, "past the end": 3}
print("\\n".join(report.lines()))
report.to_json()
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.human import count, counted, table
from holdfast.workloads.eeg.faults import REASONS

_NAMED = 5
"""Recordings named for a reason, before "and 12 more"."""


@dataclass
class Outcome:
    """One recording: how many windows it gave, or why it gave none."""

    recording: str
    windows: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    left_out: str = ""
    """The reason why nothing of it is used; empty if something is."""
    detail: str = ""
    bad_channels: dict[str, str] = field(default_factory=dict)
    """Channels that are not used as they are: flat, noisy, marked, not finite."""
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "left_out": self.left_out or None, "detail": self.detail or None}


@dataclass
class Report:
    """What `prepare` did."""

    folder: Path
    kind: str
    rate: float
    channels: int
    samples: int
    simulated: bool
    key: str
    chain: list[str]
    outcomes: list[Outcome]
    placed: str = ""
    """Where windows begin and how that was chosen, for windows around a response."""
    warning: str = ""
    reused: bool = False
    """The cache was there already and was made of the same data in the same way."""

    @property
    def windows(self) -> int:
        return sum(each.windows for each in self.outcomes)

    @property
    def drops(self) -> dict[str, int]:
        """Windows left out, by reason."""
        total: Counter[str] = Counter()
        for each in self.outcomes:
            total.update(each.drops)
        return dict(total.most_common())

    @property
    def left_out(self) -> dict[str, list[str]]:
        """Recordings left out, by reason."""
        found: dict[str, list[str]] = {}
        for each in self.outcomes:
            if each.left_out:
                found.setdefault(each.left_out, []).append(each.recording)
        return found

    @property
    def notes(self) -> dict[str, list[str]]:
        """What is odd about recordings that are used all the same."""
        found: dict[str, list[str]] = {}
        for each in self.outcomes:
            for note in each.notes:
                found.setdefault(note, []).append(each.recording)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "rate_hz": self.rate,
            "channels": self.channels,
            "samples": self.samples,
            "simulated": self.simulated,
            "key": self.key,
            "chain": self.chain,
            "placed": self.placed or None,
            "warning": self.warning or None,
            "notes": {note: len(names) for note, names in self.notes.items()},
            "reused": self.reused,
            "windows": self.windows,
            "drops": self.drops,
            "left_out": {reason: len(names) for reason, names in self.left_out.items()},
            "recordings": [each.to_json() for each in self.outcomes],
        }

    def lines(self, *, everything: bool = False) -> list[str]:
        """The page a person reads."""
        used = sum(1 for each in self.outcomes if not each.left_out)
        told = "SIMULATED · " if self.simulated else ""
        seconds = self.samples / self.rate
        return [
            f"{told}{self.kind} · {counted(self.windows, 'window')} of {seconds:g} s x {self.channels} channels "
            f"at {self.rate:g} Hz · {used} of {counted(len(self.outcomes), 'recording')}",
            *(f"  {'done' if not number else '':<10} {each}" for number, each in enumerate(self.chain or ["nothing"])),
            *([f"  windows    {self.placed}"] if self.placed else []),
            *self._channel_lines(),
            *([f"  warning    {self.warning}"] if self.warning else []),
            *self._note_lines(everything),
            *self._drop_lines(everything),
            *self._left_out_lines(everything),
        ]

    def _channel_lines(self) -> list[str]:
        kinds: Counter[str] = Counter(kind for each in self.outcomes for kind in each.bad_channels.values())
        if not kinds:
            return []
        return [f"  channels   {', '.join(f'{count(number)} {kind}' for kind, number in kinds.most_common())}"]

    def _note_lines(self, everything: bool) -> list[str]:
        return [f"  note       {note}: {_some(names, everything)}" for note, names in self.notes.items()]

    def _drop_lines(self, everything: bool) -> list[str]:
        rows = []
        for reason, number in self.drops.items():
            where = [each for each in self.outcomes if each.drops.get(reason)]
            where.sort(key=lambda each: -each.drops[reason])
            rows.append((count(number), reason, f"in {_some([e.recording for e in where], everything)}"))
        return ["", "Windows left out", *(f"  {line}" for line in table(rows, right=(0,)))] if rows else []

    def _left_out_lines(self, everything: bool) -> list[str]:
        rows = []
        for reason, names in self.left_out.items():
            rows.append((count(len(names)), reason, _some(names, everything)))
            detail = next((each.detail for each in self.outcomes if each.left_out == reason and each.detail), "")
            rows.append(("", "", detail or REASONS.get(reason, "")))
        return ["", "Recordings left out", *(f"  {line}" for line in table(rows, right=(0,)))] if rows else []


def _some(names: list[str], everything: bool) -> str:
    shown = names if everything else names[: _NAMED if len(names) <= _NAMED else 2]
    hidden = len(names) - len(shown)
    return ", ".join(shown) + (f" and {count(hidden)} more" if hidden else "")
