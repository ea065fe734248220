"""Trust in one device during one run: how it is lost, and how it is earned back, as pure functions.

    trust = begin("cuda:0", rules)                     # trusted; or as the ledger left it
    trust = after_fault(trust, now)                    # failed: tried again after a growing delay
    if due(trust, now):
        trust = begin_probe(trust)                     # a probe runs in a child of its own
    trust = after_probe(trust, ok, now)                # probation: its steps are also computed on the CPU
    trust = after_agreed_step(trust)                   # one less to go; then trusted
    print(trust.says)                                  # "cuda:0: probe passed; 20 steps will also be ..."

         ┌────────────────────────────── fault, wrong numbers ──────────────────────────────┐
         ▼                                                                                  │
      failed ── delay over ──▶ probing ── passed ──▶ probation ── steps agreed ──▶ trusted ─┘
         ▲                        │                      │
         └──────── failed ◀───────┴──── fault ◀──────────┘          left: came back too often, or quarantined

A device that fails soon after it came back is flapping: its delay goes on growing where it had been, and after
`returns` such failures it is left for the rest of the run. One that was steady for long starts anew.
There is no clock here: `now` is the caller's, in seconds, and must only never go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.base.human import counted, duration
from holdfast.base.text_enum import TextEnum
from holdfast.devices.ledger_summary import LedgerState
from holdfast.run.setting_groups import ProbationSettings


class State(TextEnum):
    """Where a device stands in this run."""

    TRUSTED = "trusted"
    FAILED = "failed"
    """Not used; tried again when its delay is over."""
    PROBING = "probing"
    """Not used; a probe is under way."""
    PROBATION = "probation"
    """Used, and every step is also computed on the CPU."""
    LEFT = "left"
    """Not used any more in this run."""


@dataclass(frozen=True, slots=True)
class DeviceTrust:
    """A device's standing in this run, and what is to be said about its last change."""

    device: str
    rules: ProbationSettings = field(default_factory=ProbationSettings)
    state: State = State.TRUSTED
    until: float | None = None
    """When it may be probed, while it is FAILED."""
    to_go: int = 0
    """Steps that must still agree with the CPU, while it is on PROBATION."""
    delay: float = 0.0
    """The last delay, from which the next one grows; 0 while it never failed."""
    returns: int = 0
    """How often it came back and failed again before it was steady."""
    steps_back: int | None = None
    """Steps since it came back; None if it never left."""
    says: str = ""
    """The last change in one line, for the journal and the screen."""

    @property
    def usable(self) -> bool:
        """A worker may be on it now."""
        return self.state in (State.TRUSTED, State.PROBATION)

    @property
    def checked(self) -> bool:
        """Its steps have to be computed on the CPU as well."""
        return self.state is State.PROBATION


def begin(
    device: str, rules: ProbationSettings, known: str = LedgerState.UNKNOWN, why: str = "", *, now: float = 0.0
) -> DeviceTrust:
    """A device at the start of a run; `known` is what the ledger says."""
    reason = f": {why}" if why else ""
    trust = DeviceTrust(device, rules)
    if known == LedgerState.QUARANTINED:
        return replace(trust, state=State.LEFT, says=f"{device} is in quarantine{reason}")
    if known == LedgerState.PROBATION and rules.enabled:
        return replace(
            trust,
            state=State.FAILED,
            until=now,
            says=f"{device} is on probation{reason}; it is probed before it is used",
        )
    return trust


def after_fault(trust: DeviceTrust, now: float, why: str = "it failed") -> DeviceTrust:
    """The device failed, or its numbers were wrong: wait, longer each time."""
    if trust.state is State.LEFT:
        return trust
    flapping = trust.usable and trust.steps_back is not None and trust.steps_back < trust.rules.steady
    steady = trust.usable and not flapping
    returns = trust.returns + flapping
    if not trust.rules.enabled or returns >= trust.rules.returns:
        return _left(trust, why, returns)
    delay = _longer(trust.rules, 0.0 if steady else trust.delay)
    again = f", {counted(returns, 'time')} soon after it came back" if returns else ""
    return replace(
        trust,
        state=State.FAILED,
        until=now + delay,
        to_go=0,
        delay=delay,
        returns=returns,
        says=f"{trust.device}: {why}{again}; tried again in {duration(delay)}",
    )


def acquit(before: DeviceTrust, now: float, culprit: str) -> DeviceTrust:
    """Its last fault was somebody else's: it may come back at once, and nothing is counted against it."""
    says = f"{before.device}: it was the fault of the {culprit}; it may be tried again now"
    return replace(before, state=State.FAILED, until=now, to_go=0, says=says)


def leave(trust: DeviceTrust, why: str) -> DeviceTrust:
    """Something else than a fault says that it cannot be used any more."""
    return _left(trust, why, 0)


def _left(trust: DeviceTrust, why: str, returns: int) -> DeviceTrust:
    often = f" {counted(returns, 'time')} soon after it came back" if returns else ""
    return replace(
        trust,
        state=State.LEFT,
        until=None,
        to_go=0,
        returns=returns,
        says=f"{trust.device}: {why}{often}; it is not used again in this run",
    )


def _longer(rules: ProbationSettings, delay: float) -> float:
    return min(rules.max_delay, delay * rules.factor if delay else rules.first_delay)


def due(trust: DeviceTrust, now: float) -> bool:
    """The delay is over: a probe may begin."""
    return trust.state is State.FAILED and trust.until is not None and now >= trust.until


def begin_probe(trust: DeviceTrust) -> DeviceTrust:
    """A probe has been started."""
    assert trust.state is State.FAILED, trust.state
    return replace(trust, state=State.PROBING, until=None, says=f"{trust.device}: a probe tries it")


def after_probe(trust: DeviceTrust, ok: bool, now: float, why: str = "", *, compared: bool = True) -> DeviceTrust:
    """What the probe found; a device whose probe fails waits again, longer."""
    assert trust.state is State.PROBING, trust.state
    if not ok:
        delay = _longer(trust.rules, trust.delay)
        reason = f" ({why})" if why else ""
        says = f"{trust.device}: probe failed{reason}; tried again in {duration(delay)}"
        return replace(trust, state=State.FAILED, until=now + delay, delay=delay, says=says)
    steps = trust.rules.steps
    next_ = f"{counted(steps, 'step')} will also be computed on the CPU" if compared else "the script goes back to it"
    return replace(
        trust,
        state=State.PROBATION,
        to_go=steps,
        steps_back=0,
        says=f"{trust.device}: probe passed; {next_}",
    )


def after_agreed_step(trust: DeviceTrust, steps: int = 1, *, compared: bool = True) -> DeviceTrust:
    """Steps on the device whose numbers the CPU agrees with."""
    assert trust.state is State.PROBATION, trust.state
    back = (trust.steps_back or 0) + steps
    if trust.to_go > steps:
        return replace(trust, to_go=trust.to_go - steps, steps_back=back, says="")
    done = "agreed with the CPU" if compared else "went through"
    agreed = f"{counted(trust.rules.steps, 'step')} {done}"
    return replace(
        trust,
        state=State.TRUSTED,
        to_go=0,
        steps_back=back,
        says=f"{trust.device}: trusted again; {agreed}",
    )


def after_step(trust: DeviceTrust, steps: int = 1) -> DeviceTrust:
    """Steps on a trusted device. One that fails `steady` steps after its return is no longer flapping."""
    if trust.state is not State.TRUSTED or trust.steps_back is None:
        return trust
    return replace(trust, steps_back=trust.steps_back + steps, says="")
