"""Who took the machine down? A pure function over the evidence, written as a table of reasons.

    judge(Case(device=..., ended=Ended("unclean", ...), named=[...], downs=0, excused=0, froze_before=0))
    # Judgement("probation", "the machine went down while it was in use", [evidence...])

A device that was in use when a boot ended is a suspect, no more: power cuts exist. In this order: a clean
shutdown acquits it; what the kernel wrote last names it, another card, or the machine; a machine that also goes
down with nothing but the CPU in use has another cause, once for each time it did so; otherwise the first
time is probation and the second is quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.devices.ledger_summary import BLAMED, QUARANTINE_AT, Decision


@dataclass(frozen=True, slots=True)
class Ended:
    """How a boot ended: clean, unclean or unknown, and what says so."""

    how: str = "unknown"
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """Something the kernel wrote before the end that may be the cause."""

    whose: str
    """gpu or machine."""
    text: str
    pci: str | None = None
    """The address of the card it names, if it names one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A device that was in use when a boot ended, and all that is known about that end."""

    pci: str | None = None
    on_cpu: bool = False
    others: Sequence[str] = ()
    """Labels of the other devices in use in that moment, the CPU left out."""
    ended: Ended = field(default_factory=Ended)
    named: Sequence[Named] = ()
    """In the order of time."""
    downs: int = 0
    """Boots that ended uncleanly with nothing but the CPU in use."""
    excused: int = 0
    """Boots with an accelerator in use that those have already explained."""
    froze_before: int = 0
    """Other boots this rung is blamed for, under the same software."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision with its reason and its evidence."""

    decision: Decision
    """KILLED is decided without a case."""
    why: str
    evidence: tuple[str, ...] = ()

    @property
    def blamed(self) -> bool:
        return self.decision in BLAMED


def judge(case: Case) -> Judgement:
    """What an open entry of an earlier boot means."""
    seen = [case.ended.evidence] if case.ended.evidence else []
    if case.ended.how == "clean":
        return Judgement(Decision.CLEAN, "the machine was shut down while it was in use", tuple(seen))
    if case.on_cpu:
        return _of_the_cpu(case, seen)
    first = next(iter(case.named), None)
    if first is not None and first.whose == "machine":
        return Judgement(Decision.MACHINE, "the machine itself failed while it was in use", (*seen, first.text))
    if first is not None and _another(first.pci, case.pci):
        return Judgement(Decision.OTHER, "another card failed while it was in use", (*seen, first.text))
    if first is None and case.downs > case.excused:
        times = "once" if case.downs == 1 else f"{case.downs} times"
        text = f"this machine also went down {times} with nothing but the CPU in use"
        return Judgement(Decision.POWER, "a power cut is as likely as the device", (*seen, text))
    if first is not None:
        seen.append(first.text)
        why = "the machine went down while it was in use, and the kernel named it"
    else:
        why = "the machine went down while it was in use"
        seen += [f"also in use: {', '.join(case.others)}"] if case.others else []
    return Judgement(
        Decision.QUARANTINE if case.froze_before + 1 >= QUARANTINE_AT else Decision.PROBATION, why, tuple(seen)
    )


def _of_the_cpu(case: Case, seen: list[str]) -> Judgement:
    """The CPU is never blamed; that the machine went down with nothing else in use is worth knowing."""
    if case.others:
        text = f"also in use: {', '.join(case.others)}"
        return Judgement(Decision.BESIDE, "the machine went down with other devices in use", (*seen, text))
    named = [each.text for each in case.named[:1]]
    return Judgement(Decision.DOWN, "the machine went down with nothing but the CPU in use", (*seen, *named))


def _another(named: str | None, ours: str | None) -> bool:
    """Both addresses are known, and they differ. The function behind the dot is left out by some drivers."""
    if named is None or ours is None:
        return False
    return named.partition(".")[0].lower() != ours.partition(".")[0].lower()
