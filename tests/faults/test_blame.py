"""The rule of blame, as a table: what was seen, and who is at fault."""

from __future__ import annotations

import pytest

from holdfast.base import dataclass_json
from holdfast.faults.blame import Blame, Case, Cpu, Finding, Verdict, judge, worth_a_replay
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import NEAR, Past, Rung, next_move
from holdfast.faults.terms import Action

ONE = ({"index": 4711, "source": "sub-01_eeg.set"},)
FINE = Finding(Cpu.FINE)
RAISED = Finding(Cpu.RAISED, error="IndexError: Target 99 is out of bounds.", samples=ONE)
ALL_RAISE = Finding(Cpu.RAISED, error="TypeError: no", every_sample=True)
CRASHED = Finding(Cpu.CRASHED)
UNKNOWN = Finding(Cpu.UNKNOWN, "the step uses tensors that stay on the device")

TABLE = [
    # kind, what the CPU made of it, the second try on the device -> who, repeatable
    (Kind.CRASH, FINE, "passed", Blame.DEVICE, False),
    (Kind.CRASH, FINE, "failed", Blame.DEVICE, True),
    (Kind.CRASH, None, "passed", Blame.DEVICE, False),
    (Kind.CRASH, UNKNOWN, "failed", Blame.UNKNOWN, True),
    (Kind.CRASH, CRASHED, "failed", Blame.CODE, True),
    (Kind.CRASH, FINE, None, Blame.UNKNOWN, None),
    (Kind.DEVICE_LOST, RAISED, None, Blame.DATA, True),
    (Kind.DEVICE_LOST, ALL_RAISE, None, Blame.UNKNOWN, None),
    (Kind.DEVICE_LOST, ALL_RAISE, "failed", Blame.CODE, True),
    (Kind.DEVICE_LOST, ALL_RAISE, "passed", Blame.DEVICE, False),
    (Kind.HANG, RAISED, None, Blame.DATA, True),
    (Kind.HANG, FINE, "failed", Blame.DEVICE, True),
    (Kind.OUT_OF_MEMORY, None, None, Blame.MEMORY, None),
    (Kind.HOST_MEMORY, None, None, Blame.MEMORY, None),
    (Kind.KILLED, None, None, Blame.OUTSIDE, None),
    (Kind.NURSERY_DIED, None, None, Blame.OUTSIDE, None),
    (Kind.UNSUPPORTED, None, None, Blame.DEVICE, True),
    (Kind.WRONG_NUMBERS, None, None, Blame.DEVICE, True),
    (Kind.NON_FINITE, None, None, Blame.UNKNOWN, None),
    (Kind.NON_FINITE, Finding(Cpu.NOT_FINITE, samples=ONE), None, Blame.DATA, True),
    (Kind.NON_FINITE, Finding(Cpu.NOT_FINITE, every_sample=True), None, Blame.CODE, True),
    (Kind.NON_FINITE, RAISED, None, Blame.DATA, True),
    (Kind.NON_FINITE, ALL_RAISE, None, Blame.UNKNOWN, None),
    (Kind.NON_FINITE, Finding(Cpu.NOT_FINITE), None, Blame.UNKNOWN, None),
    (Kind.NON_FINITE, Finding(Cpu.FINE, device_finite=True, plain_finite=True), None, Blame.DEVICE, False),
    (Kind.NON_FINITE, Finding(Cpu.FINE, device_finite=False, plain_finite=True), None, Blame.PRECISION, True),
    (Kind.NON_FINITE, Finding(Cpu.FINE, device_finite=False, plain_finite=False), None, Blame.DEVICE, True),
    (Kind.NON_FINITE, Finding(Cpu.FINE, device_finite=None, plain_finite=None), None, Blame.UNKNOWN, None),
]


@pytest.mark.parametrize(("kind", "finding", "again", "blame", "repeatable"), TABLE)
def test_who_is_at_fault(
    kind: Kind, finding: Finding | None, again: str | None, blame: Blame, repeatable: bool | None
) -> None:
    verdict = judge(Fault(kind, "cuda:0", 7, "backward", "said so"), finding, again)
    assert (verdict.blame, verdict.repeatable) == (blame, repeatable), verdict
    assert verdict.why
    assert dataclass_json.read_strictly(Verdict, verdict.to_json()) == verdict


def test_the_cpu_itself_has_nobody_to_be_compared_with() -> None:
    fault = Fault(Kind.CRASH, "cpu", 7, "backward")
    assert judge(fault, None, "passed", on_cpu=True).blame is Blame.UNKNOWN
    assert judge(fault, None, "failed", on_cpu=True).blame is Blame.CODE


def test_a_verdict_reached_elsewhere_counts() -> None:
    said = Verdict(Blame.DATA, "ValueError: arange: cannot compute length", True, ONE)
    fault = Fault(Kind.BAD_DATA, evidence={"verdict": said.to_json()})
    assert judge(fault, None, None) == said
    assert said.sentence() == (
        "the data are at fault: sample 4711 (sub-01_eeg.set): ValueError: arange: cannot compute length"
    )


def test_a_crash_inside_the_replay_is_the_cpus_own_word() -> None:
    case = Case(Fault(Kind.CRASH, "cuda:0", 7, "backward"), on_cpu=False)
    case.failed_again(Fault(Kind.CRASH, "cuda:0", 7, "replay"))
    assert case.verdict().blame is Blame.CODE


@pytest.mark.parametrize(
    ("kind", "phase", "worth"),
    [
        (Kind.CRASH, "backward", True),
        (Kind.HANG, "forward", True),
        (Kind.HANG, "evaluate", False),
        (Kind.KILLED, "backward", False),
        (Kind.OUT_OF_MEMORY, "backward", False),
        (Kind.NON_FINITE, "optimizer", True),
    ],
)
def test_what_is_plain_is_not_replayed(kind: Kind, phase: str, worth: bool) -> None:
    assert worth_a_replay(Fault(kind, "cuda:0", 3, phase)) is worth


def test_many_samples_are_counted_not_listed() -> None:
    many = tuple({"index": number, "source": None} for number in range(12))
    assert Verdict(Blame.DATA, "why", True, many).sentence() == (
        "the data are at fault: samples 0, 1, 2 and 9 more: why"
    )


# What the ladder makes of a verdict --------------------------------------------------------------------------

RUNGS = [Rung("cuda:0"), Rung("cuda:0", "fp32"), Rung("cpu")]


def _blamed(kind: Kind, blame: Blame) -> Fault:
    return Fault(kind, "cuda:0", 7, "backward", evidence={"verdict": Verdict(blame, "why").to_json()})


@pytest.mark.parametrize(
    ("fault", "action", "rung"),
    [
        (Fault(Kind.NON_FINITE, "cuda:0", 7, "backward"), Action.REPLACE, 0),
        (_blamed(Kind.NON_FINITE, Blame.PRECISION), Action.NEXT_RUNG, 1),
        (_blamed(Kind.NON_FINITE, Blame.DEVICE), Action.NEXT_RUNG, 2),
        (_blamed(Kind.NON_FINITE, Blame.DATA), Action.FAIL, 0),
        (_blamed(Kind.NON_FINITE, Blame.CODE), Action.FAIL, 0),
        (_blamed(Kind.DEVICE_LOST, Blame.DATA), Action.FAIL, 0),
        (_blamed(Kind.HANG, Blame.CODE), Action.FAIL, 0),
        (Fault(Kind.WRONG_NUMBERS, "cuda:0", 7, "backward"), Action.NEXT_RUNG, 2),
        (Fault(Kind.CRASH, "cuda:0", 7, "backward"), Action.REPLACE, 0),
    ],
)
def test_a_verdict_decides_what_is_tried(fault: Fault, action: Action, rung: int) -> None:
    move = next_move(fault, [], RUNGS, 0)
    assert (move.action, move.rung) == (action, rung), move


def test_a_device_on_probation_has_one_try() -> None:
    move = next_move(Fault(Kind.CRASH, "cuda:0", 7, "backward"), [], RUNGS, 0, probation=True)
    assert (move.action, move.rung) == (Action.NEXT_RUNG, 2)
    alone = next_move(Fault(Kind.CRASH, "cpu", 7, "backward"), [], [Rung("cpu")], 0, probation=True)
    assert alone.action is Action.REPLACE


def test_a_device_that_fails_again_and_again_is_left() -> None:
    """Each time one step further: no place has a second fault, and still it gets nowhere."""
    history: list[Past] = []
    for step in range(5, 8):
        fault = Fault(Kind.HANG, "cuda:0", step, "backward")
        move = next_move(fault, history, RUNGS, 0)
        assert move.action is Action.REPLACE
        history.append(Past(fault, move, 0, committed=1))
    last = Fault(Kind.HANG, "cuda:0", 8, "backward")
    assert (next_move(last, history, RUNGS, 0).action, next_move(last, history, RUNGS, 0).rung) == (Action.NEXT_RUNG, 2)
    spread = [Past(past.fault, past.move, 0, committed=NEAR + 1) for past in history]
    assert next_move(last, spread, RUNGS, 0).action is Action.REPLACE


def test_what_cannot_be_killed_keeps_its_device() -> None:
    fault = Fault(Kind.HANG, "cuda:0", 7, "backward", evidence={"abandoned": 4242})
    rungs = [Rung("cuda:0"), Rung("cuda:0", env=(("A", "1"),)), Rung("cpu")]
    move = next_move(fault, [], rungs, 0)
    assert (move.action, move.rung) == (Action.NEXT_RUNG, 2)
