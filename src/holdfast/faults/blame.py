"""Whose fault was it? A verdict from what replays showed, never from a message alone. No torch here.

    case = Case(fault, on_cpu=False)             # a worker was lost in a step
    case.passed() / case.failed_again(fault)     # its successor tried that step on the device
    case.replayed(finding)                       # a process beside it computed the step on the CPU
    verdict = case.verdict()                     # Verdict(Blame.DEVICE, repeatable=False, why=…)

`judge` is the whole rule, a pure function. "unknown" is an answer: it is given where a replay was not possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.text_enum import TextEnum
from holdfast.faults.classification import Fault, Kind


class Blame(TextEnum):
    """Who is at fault. The value is the word on the screen, in JSON and in the docs."""

    DEVICE = "device"
    PRECISION = "precision"
    """The device is right and the number format is too small."""
    DATA = "data"
    CODE = "code"
    """The script, or a library it calls."""
    MEMORY = "memory"
    OUTSIDE = "outside"
    """Somebody or something else ended a process."""
    UNKNOWN = "unknown"


class Cpu(TextEnum):
    """What the CPU made of the step."""

    FINE = "fine"
    RAISED = "raised"
    NOT_FINITE = "not_finite"
    CRASHED = "crashed"
    """The process ended in it, or never came back."""
    UNKNOWN = "unknown"
    """It could not be computed there, or not in time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the replay of a step showed."""

    cpu: Cpu = Cpu.UNKNOWN
    why: str = ""
    error: str | None = None
    """What the CPU raised."""
    samples: tuple[dict[str, Any], ...] = ()
    """The samples that do it by themselves, `{"index": …, "source": …}`; the others of the batch do not."""
    every_sample: bool = False
    """Each sample does it."""
    tensor: str | None = None
    """The first tensor that is not finite."""
    device_finite: bool | None = None
    """On the device: as the script computes, was it finite this time?"""
    plain_finite: bool | None = None
    """On the device, in fp32."""

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who, how sure, and why."""

    blame: Blame
    why: str
    repeatable: bool | None = None
    """Whether it comes again at the same place; None where that was not tried."""
    samples: tuple[dict[str, Any], ...] = ()
    tensor: str | None = None

    def sentence(self) -> str:
        """One line for people: "the data are at fault: sample 4711 (sub-01_eeg.set): …"."""
        who = {
            Blame.DEVICE: "the device is at fault",
            Blame.PRECISION: "the precision is at fault",
            Blame.DATA: "the data are at fault",
            Blame.CODE: "the script is at fault",
            Blame.MEMORY: "memory ran out",
            Blame.OUTSIDE: "it came from outside",
            Blame.UNKNOWN: "the cause is not known yet",
        }[self.blame]
        if self.blame is Blame.DEVICE and self.repeatable is not None:
            who += ", each time" if self.repeatable else ", once"
        named = f"{_named(self.samples)}: " if self.samples else ""
        return f"{who}: {named}{self.why}"

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)


def _named(samples: tuple[dict[str, Any], ...]) -> str:
    shown = [f"{each['index']}" + (f" ({each['source']})" if each.get("source") else "") for each in samples[:3]]
    more = f" and {len(samples) - 3} more" if len(samples) > 3 else ""
    what = "row" if samples[0].get("row") else "sample"  # of a batch whose rows are not its samples
    return f"{what}{'s' if len(samples) > 1 else ''} {', '.join(shown)}{more}"


IN_STEP = ("to-device", "forward", "backward", "optimizer", "compile", "replay", "sentinel")
"""Phases in which a step is computed: what happened there can be computed again."""
REPLAYED = frozenset({Kind.CRASH, Kind.DEVICE_LOST, Kind.HANG, Kind.TRANSIENT, Kind.EXIT, Kind.NON_FINITE})
"""What is not plainly memory or a signal from outside."""
_MEMORY = frozenset({Kind.OUT_OF_MEMORY, Kind.HOST_MEMORY})
_OUTSIDE = frozenset({Kind.KILLED, Kind.NURSERY_DIED, Kind.KEEPER_DIED, Kind.SUPERVISOR_DIED})


def worth_a_replay(fault: Fault) -> bool:
    """Whether the step should be computed again to find out whose fault it was."""
    return fault.kind in REPLAYED and fault.phase in IN_STEP and fault.step is not None


@dataclass(slots=True)
class Case:
    """One fault under inquiry, from the death of a worker to the verdict."""

    fault: Fault
    on_cpu: bool
    """The device was the CPU itself: there is no other to compare with."""
    finding: Finding | None = None
    again: str | None = None
    """What the second try on the device gave: "passed" or "failed"; "elsewhere" if it passed on another rung."""
    moved: bool = False
    """The run left the rung at once: nothing is tried there a second time."""
    leave_out: dict[str, Any] | None = None
    """Which samples of which batch the step may be computed without, if they are at fault."""

    def replayed(self, finding: Finding) -> None:
        self.finding = finding

    def passed(self) -> None:
        self.again = "elsewhere" if self.moved else "passed"

    def failed_again(self, fault: Fault) -> None:
        """Another fault at the same place. One inside the replay on the CPU is the CPU's own word."""
        if fault.phase == "replay" and fault.kind in (Kind.CRASH, Kind.EXIT):
            self.finding = Finding(Cpu.CRASHED, fault.sentence())
        else:
            self.again = "failed"

    @property
    def step(self) -> int | None:
        return self.fault.step

    def verdict(self) -> Verdict:
        return judge(self.fault, self.finding, self.again, on_cpu=self.on_cpu)


def judge(fault: Fault, finding: Finding | None, again: str | None, *, on_cpu: bool = False) -> Verdict:
    """The rule."""
    said = fault.evidence.get("verdict")
    if isinstance(said, dict) and "blame" in said:
        return dataclass_json.read_strictly(Verdict, said)
    if fault.kind in _MEMORY:
        return Verdict(Blame.MEMORY, fault.cause() or fault.sentence())
    if fault.kind in _OUTSIDE:
        return Verdict(Blame.OUTSIDE, fault.sentence())
    if fault.kind in (Kind.UNSUPPORTED, Kind.DRIVER):
        return Verdict(Blame.DEVICE, fault.cause() or fault.sentence(), repeatable=True)
    if fault.kind is Kind.WRONG_NUMBERS:
        return Verdict(Blame.DEVICE, fault.message, repeatable=True, tensor=_text(fault.evidence.get("tensor")))
    if fault.kind is Kind.NON_FINITE:
        return _judge_numbers(finding, again, on_cpu=on_cpu)
    if _reading(fault) and again != "failed":
        return _judge_reading(fault, again)
    by_cpu = _judge_by_cpu(finding, again)
    if by_cpu is not None:
        return by_cpu
    if on_cpu:
        return _judge_on_cpu(again)
    fine = finding is not None and finding.cpu is Cpu.FINE
    if again == "passed":
        return Verdict(Blame.DEVICE, "the same step passed in a new worker" + _and_cpu(fine), repeatable=False)
    if again == "elsewhere":
        return Verdict(Blame.DEVICE, "the same step passed on another rung" + _and_cpu(fine))
    if again == "failed" and fine:
        return Verdict(Blame.DEVICE, "it failed again at the same step, and the CPU computes it", repeatable=True)
    if again == "failed":
        why = finding.why if finding is not None and finding.why else "the CPU could not repeat the step"
        return Verdict(Blame.UNKNOWN, f"it failed again at the same step; {why}", repeatable=True)
    return Verdict(Blame.UNKNOWN, "the step was not tried again")


def _reading(fault: Fault) -> bool:
    """Whether a process ended or hung over the data: with them the device has nothing to do."""
    if fault.kind in (Kind.LOADER_DIED, Kind.LOADER_STUCK):
        return True
    return fault.phase == "data" and fault.kind in (Kind.CRASH, Kind.EXIT, Kind.HANG)


def _judge_reading(fault: Fault, again: str | None) -> Verdict:
    """No sample was found guilty, or it would have been said above."""
    if again not in ("passed", "elsewhere"):
        return Verdict(Blame.UNKNOWN, "the data were not read again")
    if fault.evidence.get("signal") in ("SIGKILL", "SIGTERM") or fault.evidence.get("stopped"):
        return Verdict(Blame.OUTSIDE, fault.sentence())
    return Verdict(Blame.UNKNOWN, "the same data could be read the second time", repeatable=False)


def _judge_by_cpu(finding: Finding | None, again: str | None) -> Verdict | None:
    """The CPU cannot compute the step either: then it is not the device.

    An error for every sample may mean that the code is for the device alone; it counts once the device failed again.
    """
    if finding is None or finding.cpu not in (Cpu.RAISED, Cpu.CRASHED):
        return None
    if finding.cpu is Cpu.CRASHED:
        if again in ("passed", "elsewhere"):
            return None  # the step can be computed: the crash is of the code for the CPU
        return Verdict(Blame.CODE, "the CPU cannot compute this step either: its process ends in it", repeatable=True)
    error = finding.error or "an error"
    if finding.samples:
        return Verdict(Blame.DATA, f"the CPU raises {error} for it alone", repeatable=True, samples=finding.samples)
    if not finding.every_sample or again != "failed":
        return None
    return Verdict(Blame.CODE, f"the CPU raises {error} too, for every sample", repeatable=True)


def _judge_on_cpu(again: str | None) -> Verdict:
    if again == "failed":
        return Verdict(Blame.CODE, "it failed again at the same step, on the CPU", repeatable=True)
    if again == "passed":
        return Verdict(Blame.UNKNOWN, "the same step passed in a new worker on the CPU", repeatable=False)
    return Verdict(Blame.UNKNOWN, "the step was not tried again")


def _judge_numbers(finding: Finding | None, again: str | None, *, on_cpu: bool) -> Verdict:
    """Numbers that are not finite: data, code, precision, device, each after what would explain it too."""
    if finding is None or finding.cpu in (Cpu.UNKNOWN, Cpu.CRASHED):
        if again == "passed":
            return Verdict(Blame.UNKNOWN, "the numbers of the same step were finite in a new worker", repeatable=False)
        return Verdict(Blame.UNKNOWN, finding.why if finding and finding.why else "the CPU could not repeat the step")
    where = f"{finding.tensor} is not finite" if finding.tensor else "the loss is not finite"
    if finding.cpu in (Cpu.NOT_FINITE, Cpu.RAISED):
        said = f"{where} on the CPU too" if finding.cpu is Cpu.NOT_FINITE else f"the CPU raises {finding.error}"
        if finding.samples:
            return Verdict(Blame.DATA, said, repeatable=True, samples=finding.samples, tensor=finding.tensor)
        if finding.cpu is Cpu.RAISED or not finding.every_sample:
            return Verdict(Blame.UNKNOWN, said, tensor=finding.tensor)
        return Verdict(Blame.CODE, f"{said}, whatever the sample", repeatable=True, tensor=finding.tensor)
    if finding.device_finite:
        if on_cpu:
            return Verdict(Blame.UNKNOWN, "the numbers of the same step were finite in a new worker", repeatable=False)
        return Verdict(Blame.DEVICE, "the same step gave finite numbers the second time", repeatable=False)
    if finding.plain_finite:
        return Verdict(Blame.PRECISION, f"{where}; in fp32 it is", repeatable=True, tensor=finding.tensor)
    if finding.plain_finite is False and not on_cpu:
        return Verdict(Blame.DEVICE, f"{where} on the device; on the CPU it is", repeatable=True, tensor=finding.tensor)
    return Verdict(Blame.UNKNOWN, f"{where}, and a replay gives finite numbers", tensor=finding.tensor)


def blamed(fault: Fault, verdict: Verdict) -> Fault | None:
    """The fault again, with a verdict that decides what follows; None where the step is simply tried again."""
    decides = verdict.blame in (Blame.DATA, Blame.CODE) or (
        fault.kind is Kind.NON_FINITE and verdict.blame in (Blame.PRECISION, Blame.DEVICE) and verdict.repeatable
    )
    return fault.at(verdict=verdict.to_json()) if decides else None


def _and_cpu(fine: bool) -> str:
    return ", and the CPU computes it" if fine else ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
