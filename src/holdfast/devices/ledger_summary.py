"""What the lines of a ledger add up to: how far a device is trusted, how long it was used, how often it failed.

    standings = fold(lines)                                   # one Standing for each rung of each device
    trust_of(standings, key, rung, software)                  # Trust(state="probation", why="it froze ...", ...)
    history_of(standings, key)                                # History(hours=22.1, faults=14, freezes=1, ...)

Pure: lines in, answers out. A standing can be written down as a line itself and folded on from there, which is
how a ledger that has grown large is made small without forgetting anything that counts.

Two freezes of the machine put a rung in quarantine, one puts it on probation. Freezes are counted by boot, and
only those under the same driver, torch and kernel count; a day of use without another one forgives them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.text_enum import TextEnum
from holdfast.run.folder import number, whole

KINDS = ("open", "close", "note", "settled", "forget", "pardon", "total")
METHOD = 2
"""Of judging a device's numbers. 1 compared whole steps, and accused healthy devices; its verdicts count no longer."""
WRONG_NUMBERS = "F018"
INNOCENT = frozenset({"data", "code", "precision", "memory", "outside"})
"""Blame that is not the device's, in the words of faults/blame.py."""
QUARANTINE_AT = 2
FORGIVEN_AFTER = 24 * 3600.0
"""Seconds of use of a rung after which its freezes count no longer."""
_SOFTWARE = ("driver", "torch", "kernel")
_MOST = 50
"""Boots remembered by name in one standing."""


class LedgerState(TextEnum):
    """What the ledger says about a device on a rung."""

    TRUSTED = "trusted"
    PROBATION = "probation"
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"


class Decision(TextEnum):
    """What an entry that an earlier boot left open means for the device."""

    CLEAN = "clean"
    MACHINE = "machine"
    OTHER = "other"
    POWER = "power"
    DOWN = "down"
    BESIDE = "beside"
    PROBATION = "probation"
    QUARANTINE = "quarantine"
    KILLED = "killed"


BLAMED = (Decision.PROBATION, Decision.QUARANTINE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger that could be understood."""

    kind: str
    """One of KINDS."""
    id: str
    time: str
    machine: str
    device: str
    """The key of the device, which outlives its label."""
    label: str
    rung: str
    """Without the device's label in front, which may change: "fp32 HSA_ENABLE_INTERRUPT=0"."""
    boot: str | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in _OWN}
        return {**own, **self.data}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Line | None:
        """None for what is no line of ours: the file may have been torn, or edited."""
        texts = {name: record.get(name) for name in _OWN if name != "boot"}
        boot = record.get("boot")
        if not all(isinstance(text, str) for text in texts.values()) or not isinstance(boot, (str, type(None))):
            return None
        rest = {name: value for name, value in record.items() if name not in _OWN}
        return cls(boot=boot, data=rest, **texts)  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        facts = self.data.get("facts")
        return facts if isinstance(facts, dict) else {}

    def text(self, name: str, default: str = "") -> str:
        value = self.data.get(name)
        return value if isinstance(value, str) else default


_OWN = ("kind", "id", "time", "machine", "device", "label", "rung", "boot")


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a rung of a device is trusted, across runs."""

    state: str = LedgerState.UNKNOWN.value
    """trusted, probation, quarantined, or unknown."""
    since: str | None = None
    until: str | None = None
    """What ends it, in words."""
    why: str = ""
    faults: int = 0
    hours: float = 0.0
    """Of use on this rung, by what was closed."""


@dataclass(frozen=True, slots=True)
class History:
    """A device over all its rungs and runs, for a plan."""

    uses: int = 0
    hours: float = 0.0
    steps: int = 0
    faults: int = 0
    freezes: int = 0

    @property
    def faults_per_hour(self) -> float | None:
        """None where it was never used."""
        return self.faults / self.hours if self.hours > 0 else None


@dataclass(slots=True)
class Standing:
    """Everything the lines say about one rung of one device on one machine."""

    device: str = ""
    label: str = ""
    name: str = ""
    rung: str = ""
    last: str = ""
    """When the last line about it was written."""
    uses: int = 0
    seconds: float = 0.0
    steps: int = 0
    faults: int = 0
    freezes: list[dict[str, Any]] = field(default_factory=list)
    """{boot, time, software, act} of each boot it is blamed for, and `forgiven` where that no longer counts."""
    seconds_since_freeze: float = 0.0
    downs: list[str] = field(default_factory=list)
    """Boots that ended uncleanly with this device in use and not blamed: for the CPU, with nothing else in use."""
    state: str = LedgerState.UNKNOWN.value
    since: str = ""
    why: str = ""
    software: dict[str, Any] = field(default_factory=dict)
    """Of its last use."""
    decided_under: dict[str, Any] = field(default_factory=dict)
    """The software when `state` was last set."""
    fault_noted: bool = False
    """Since it was last opened."""
    suspicions: list[dict[str, Any]] = field(default_factory=list)
    """{time, why, confirmed, by, method} of each operator that disagreed with the CPU, and `pardoned`, when it was."""
    method: int = 0
    """Of the verdict on its numbers that `state` comes from; 0 if it comes from something else."""
    outdated: bool = False
    """The last fault came from an older method: neither it nor the verdict that follows it counts."""
    before: list[list[str]] = field(default_factory=list)
    """(state, since, why) before each fault without a verdict: brought back if it turns out to be somebody else's."""

    @property
    def _steady(self) -> bool:
        """It was used long enough without another freeze."""
        return self.seconds_since_freeze >= FORGIVEN_AFTER

    def apply(self, line: Line) -> None:
        """Add one line, the next in time."""
        self.last = line.time
        self.label = line.label or self.label
        self.name = line.text("name") or self.name
        if line.kind in KINDS:  # never a name from the file itself
            getattr(self, f"_{line.kind}")(line)

    def _open(self, line: Line) -> None:
        self.uses += 1
        self.fault_noted = False
        software = line.data.get("software")
        if isinstance(software, dict):
            self.software = {name: software.get(name) for name in _SOFTWARE}

    def _close(self, line: Line) -> None:
        seconds, steps = number(line.data.get("seconds")), whole(line.data.get("steps"))
        seconds = seconds if math.isfinite(seconds) and seconds > 0 else 0.0
        self.seconds += seconds
        self.seconds_since_freeze += seconds
        self.steps += steps
        if line.data.get("how") == "fault" and not self.fault_noted:
            self._fault(line, "it failed")
        elif steps and self.state == LedgerState.UNKNOWN:
            self._set(LedgerState.TRUSTED, line, "it was used without a fault")

    def _note(self, line: Line) -> None:
        what, facts = line.text("what"), line.facts()
        said = str(facts.get("why") or facts.get("sentence") or facts.get("code") or "")
        if what == "fault":
            self.fault_noted = True
            method = whole(facts.get("method"))
            self.outdated = facts.get("code") == WRONG_NUMBERS and method < METHOD
            if facts.get("blame") not in INNOCENT and not self.outdated:
                self._fault(line, said or "it failed")
                self.method = method if facts.get("code") == WRONG_NUMBERS else 0
        elif what == "suspicion":
            told = {"time": line.time, "why": said, "confirmed": facts.get("confirmed") is True}
            told |= {"by": str(facts.get("by") or ""), "method": whole(facts.get("method"))}
            self.suspicions = [*self.suspicions, told][-_MOST:]
        elif what == "blame":
            if not self.outdated:
                self._blame(line, str(facts.get("verdict")), said)
            self.outdated = False
        elif what == "probe" and facts.get("ok") is False:
            self._set(LedgerState.PROBATION, line, f"its probe failed{f': {said}' if said else ''}")
        elif what == "trust" and facts.get("state") in tuple(LedgerState):
            self._set(str(facts["state"]), line, said)

    def _fault(self, line: Line, why: str) -> None:
        self.faults += 1
        self.before = [*self.before, [self.state, self.since, self.why]][-_MOST:]
        if self.state != LedgerState.QUARANTINED:
            self._set(LedgerState.PROBATION, line, why)

    def _blame(self, line: Line, verdict: str, said: str) -> None:
        if verdict not in INNOCENT:
            self.why = said or self.why
            self.before = []
        elif self.before:
            self.faults -= 1
            *self.before, (self.state, self.since, self.why) = self.before

    def _settled(self, line: Line) -> None:
        decision, boot = line.text("decision"), line.boot or ""
        if decision in BLAMED:
            if all(freeze.get("boot") != boot for freeze in self.freezes):
                software = line.data.get("software")
                under = software if isinstance(software, dict) else self.software
                before = [{**freeze, "forgiven": True} for freeze in self.freezes] if self._steady else self.freezes
                act = line.text("act") or None
                self.freezes = [*before, {"boot": boot, "time": line.time, "software": under, "act": act}][-_MOST:]
                self.seconds_since_freeze = 0.0
            self._set(LedgerState.PROBATION, line, line.text("why") or "the machine went down while it was in use")
        elif decision in ("power", "down") and boot not in self.downs:
            self.downs = [*self.downs, boot][-_MOST:]

    def _pardon(self, line: Line) -> None:
        """The verdict on its numbers is taken back; that there was one stays."""
        self.suspicions = [{"pardoned": line.time, **each} for each in self.suspicions]
        if self.method:
            self.faults = max(0, self.faults - 1)
            self.method, self.before = 0, []
            self._set(LedgerState.UNKNOWN, line, "pardoned on request")

    def _forget(self, line: Line) -> None:
        self.freezes = []
        self.method = 0
        self._set(LedgerState.UNKNOWN, line, "forgotten on request")

    def _total(self, line: Line) -> None:
        """A standing that was written down: it takes this one's place."""
        saved = line.data.get("standing")
        if isinstance(saved, dict):
            for name, value in _checked(saved).items():
                setattr(self, name, value)
            if (
                "method" not in saved
                and _of_whole_steps(self.why)
                and self.state in (LedgerState.PROBATION, LedgerState.QUARANTINED)
            ):
                self._set(LedgerState.UNKNOWN, line, "what was held against it came from an older way to compare")

    def _set(self, state: str, line: Line, why: str) -> None:
        self.state, self.since, self.why = str(state), line.time, why
        self.decided_under = self.software

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)


def _of_whole_steps(why: str) -> bool:
    """Words of method 1, in a ledger that was made small when there was no other."""
    return "computes wrong numbers" in why or " of its size; " in why


def _checked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have the type they should have; a ledger may have been edited."""
    blank = asdict(Standing())
    right: dict[str, Any] = {}
    for item in fields(Standing):
        value = saved.get(item.name)
        expected = (int, float) if isinstance(blank[item.name], float) else type(blank[item.name])
        if isinstance(value, expected) and not (isinstance(value, bool) and expected is not bool):
            right[item.name] = value
    for name, kind in (("freezes", dict), ("downs", str), ("before", list), ("suspicions", dict)):
        right[name] = [value for value in right.get(name, []) if isinstance(value, kind)]
    right["before"] = [each for each in right["before"] if [type(word) for word in each] == [str] * 3]
    if right.get("state") not in tuple(LedgerState):
        right["state"] = LedgerState.UNKNOWN.value
    return right


Standings = dict[tuple[str, str], Standing]
"""By device key and rung."""


def fold(lines: Iterable[Line], machine: str) -> Standings:
    """The standing of every rung of every device of this machine."""
    found: Standings = {}
    for line in lines:
        if line.machine != machine:
            continue
        if line.kind in ("forget", "pardon") and not line.rung:  # the device with all its rungs
            for (key, _), standing in found.items():
                if key == line.device:
                    standing.apply(line)
            continue
        place = (line.device, line.rung)
        standing = found.setdefault(place, Standing(device=line.device, rung=line.rung))
        standing.apply(line)
    return found


def same_software(one: object, other: object) -> bool:
    """What is not known on one side is taken for equal."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return True
    pairs = [(one.get(name), other.get(name)) for name in _SOFTWARE]
    return all(left is None or right is None or left == right for left, right in pairs)


def freezes_that_count(standing: Standing, software: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of the same software, unless a day of use has forgiven them."""
    if standing._steady:
        return []
    counted = [freeze for freeze in standing.freezes if not freeze.get("forgiven")]
    return [freeze for freeze in counted if same_software(freeze.get("software"), dict(software))]


def trust_of(standings: Standings, device: str, rung: str, software: Mapping[str, Any]) -> Trust:
    """What the lines say about one rung; a rung never used inherits the caution about its device."""
    standing = standings.get((device, rung), Standing())
    faults, hours = standing.faults, standing.seconds / 3600
    if device == "cpu":
        return Trust(LedgerState.TRUSTED, None, None, "what is left when everything else fails", faults, hours)
    state, why, since = standing.state, standing.why, standing.since or None
    until = None
    frozen = freezes_that_count(standing, software)
    changed = not same_software(standing.decided_under, dict(software))
    if len(frozen) >= QUARANTINE_AT:
        state, since = LedgerState.QUARANTINED, str(frozen[-1].get("time"))
        why = f"the machine went down {len(frozen)} times while it was in use"
    elif state == LedgerState.QUARANTINED and changed:
        state, why = LedgerState.PROBATION, f"the software has changed since its quarantine: {why}"
    elsewhere = [
        other
        for (key, name), other in standings.items()
        if key == device and name != rung and freezes_that_count(other, software)
    ]
    if state in (LedgerState.TRUSTED, LedgerState.UNKNOWN) and elsewhere and not frozen:
        other = elsewhere[-1]
        state, since = LedgerState.PROBATION, str(other.freezes[-1].get("time"))
        why = f"the machine went down while it was in use with {other.rung or 'another rung'}"
    if state == LedgerState.QUARANTINED:
        until = f"driver, torch or kernel changes, or `holdfast ledger --forget {standing.label or device}`"
    elif state == LedgerState.PROBATION:
        until = "a probe passes and its steps agree with the CPU"
    return Trust(state, since, until, why, faults, hours)


def history_of(standings: Standings, device: str) -> History:
    """All rungs of a device together."""
    rungs = [standing for (key, _), standing in standings.items() if key == device]
    return History(
        uses=sum(each.uses for each in rungs),
        hours=sum(each.seconds for each in rungs) / 3600,
        steps=sum(each.steps for each in rungs),
        faults=sum(each.faults for each in rungs),
        freezes=len({str(freeze.get("boot")) for each in rungs for freeze in each.freezes}),
    )
