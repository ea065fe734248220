"""Trust in a device during a run: lost by faults, earned back by a probe and steps that agree. No clock, no device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.devices.trust_rules import (
    DeviceTrust,
    State,
    after_agreed_step,
    after_fault,
    after_probe,
    after_step,
    begin,
    begin_probe,
    due,
)
from holdfast.run.setting_groups import ProbationSettings
from holdfast.run.settings import Settings

RULES = ProbationSettings(first_delay=60.0, factor=2.0, max_delay=600.0, steps=3, steady=10, returns=3)


def come_back(trust: DeviceTrust, steps: int | None = None) -> DeviceTrust:
    """Wait, pass the probe, and agree with the CPU for so many steps (all of them)."""
    assert trust.until is not None
    trust = after_probe(begin_probe(trust), True, trust.until)
    for _ in range(trust.rules.steps if steps is None else steps):
        trust = after_agreed_step(trust)
    return trust


def test_a_device_fails_is_probed_checked_and_trusted_again() -> None:
    trust = begin("cuda:0", Settings().probation)
    assert (trust.state, trust.usable, trust.checked, trust.says) == (State.TRUSTED, True, False, "")
    trust = after_fault(trust, 100.0, "it stopped answering")
    assert trust.says == "cuda:0: it stopped answering; tried again in 1m 00s"
    assert (trust.usable, due(trust, 159.9), due(trust, 160.0)) == (False, False, True)
    trust = begin_probe(trust)
    assert (trust.says, due(trust, 9999.0)) == ("cuda:0: a probe tries it", False)
    trust = after_probe(trust, True, 165.0)
    assert trust.says == "cuda:0: probe passed; 20 steps will also be computed on the CPU"
    assert (trust.usable, trust.checked) == (True, True)
    for number in range(19):
        trust = after_agreed_step(trust)
        assert (trust.checked, trust.to_go, trust.says) == (True, 19 - number, "")
    trust = after_agreed_step(trust)
    assert trust.says == "cuda:0: trusted again; 20 steps agreed with the CPU"
    assert (trust.state, trust.checked) == (State.TRUSTED, False)


def test_the_delay_grows_with_each_probe_that_fails() -> None:
    trust, now, waits = after_fault(begin("cuda:0", RULES), 0.0), 0.0, []
    for _ in range(6):
        assert trust.until is not None
        waits.append(trust.until - now)
        now = trust.until
        trust = after_probe(begin_probe(trust), False, now, "it ended with SIGSEGV")
    assert waits == [60, 120, 240, 480, 600, 600]
    assert trust.says == "cuda:0: probe failed (it ended with SIGSEGV); tried again in 10m 00s"
    assert trust.returns == 0, "it never came back, so it never failed to"


def test_a_device_that_flaps_waits_longer_each_time_and_is_then_left() -> None:
    trust, delays = after_fault(begin("cuda:0", RULES), 0.0), []
    for _ in range(3):
        delays.append(trust.delay)
        assert trust.until is not None
        trust = after_fault(come_back(trust, steps=2), trust.until, "wrong numbers")
    assert delays == [60, 120, 240]
    assert trust.state is State.LEFT
    assert trust.says == "cuda:0: wrong numbers 3 times soon after it came back; it is not used again in this run"
    assert not due(trust, 1e12)
    assert after_fault(trust, 0.0) is trust


def test_what_is_said_of_a_return_that_failed() -> None:
    trust = after_fault(come_back(after_fault(begin("cuda:0", RULES), 0.0)), 100.0, "it crashed")
    assert trust.says == "cuda:0: it crashed, 1 time soon after it came back; tried again in 2m 00s"


@pytest.mark.parametrize(("steps", "returns", "delay"), [(6, 1, 120.0), (7, 0, 60.0), (500, 0, 60.0)])
def test_a_device_that_was_steady_starts_anew(steps: int, returns: int, delay: float) -> None:
    """Three agreed steps and then `steps` more: ten are steady."""
    trust = after_step(come_back(after_fault(begin("cuda:0", RULES), 0.0)), steps)
    trust = after_fault(trust, 1000.0)
    assert (trust.returns, trust.delay) == (returns, delay)


def test_switched_off_the_first_fault_is_the_last() -> None:
    trust = after_fault(begin("cuda:0", ProbationSettings(enabled=False)), 0.0)
    assert trust.state is State.LEFT
    assert trust.says == "cuda:0: it failed; it is not used again in this run"


def test_what_the_ledger_knows_at_the_start() -> None:
    assert begin("cuda:0", RULES, "trusted").state is State.TRUSTED
    assert begin("cuda:0", RULES, "unknown").state is State.TRUSTED
    trust = begin("cuda:0", RULES, "probation", "the machine went down while it was in use", now=50.0)
    assert due(trust, 50.0), "a probe comes first, and at once"
    assert trust.says == (
        "cuda:0 is on probation: the machine went down while it was in use; it is probed before it is used"
    )
    trust = begin("cuda:0", RULES, "quarantined", "the machine went down 2 times while it was in use")
    assert trust.state is State.LEFT
    assert trust.says == "cuda:0 is in quarantine: the machine went down 2 times while it was in use"
    off = ProbationSettings(enabled=False)
    assert begin("cuda:0", off, "probation").usable, "who switches probation off wants the device used"


# Whatever happens -------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0.0, 4000.0)),
        st.tuples(st.sampled_from(["fault", "probe passes", "probe fails", "step"]), st.just(0.0)),
    ),
    max_size=80,
)
RULES_OF_ANY_KIND = st.builds(
    ProbationSettings,
    first_delay=st.floats(0.1, 100.0),
    factor=st.floats(1.0, 4.0),
    max_delay=st.floats(100.0, 3600.0),
    steps=st.integers(1, 5),
    steady=st.integers(1, 20),
    returns=st.integers(1, 4),
)


@pytest.mark.all
@given(RULES_OF_ANY_KIND, EVENTS)
def test_whatever_happens_trust_is_earned_and_never_given(
    rules: ProbationSettings, events: list[tuple[str, float]]
) -> None:
    trust, now = begin("cuda:0", rules), 0.0
    agreed, passed, faults = 0, True, 0
    for what, amount in events:
        before = trust
        if what == "wait":
            now += amount
        elif what == "fault" and trust.usable:
            trust, agreed, passed, faults = after_fault(trust, now), 0, False, faults + 1
        elif what.startswith("probe") and due(trust, now):
            passed, agreed = what == "probe passes", 0
            trust = after_probe(begin_probe(trust), passed, now)
        elif what == "step" and trust.usable:
            agreed += 1
            trust = after_agreed_step(trust) if trust.checked else after_step(trust)
        if trust.state is State.TRUSTED:
            assert faults == 0 or (passed and agreed >= rules.steps)
        if trust.state is State.PROBATION:
            assert passed and trust.to_go == rules.steps - agreed > 0
        if trust.state is State.FAILED:
            assert trust.until is not None and trust.until <= now + rules.max_delay
            assert min(rules.first_delay, rules.max_delay) <= trust.delay <= rules.max_delay
        if trust.state is State.LEFT:
            assert trust.returns == rules.returns
        assert trust.returns <= min(faults, rules.returns)
        assert bool(trust.says) or trust.state is before.state, "every change is told"
        if before.state is State.LEFT:
            assert trust is before


@given(st.integers(0, 8))
def test_a_device_that_heals_is_trusted_in_the_end(failures: int) -> None:
    """It fails n probes and then works: the waits add up to what the delays say, and it comes back."""
    trust, now = after_fault(begin("cuda:0", RULES), 0.0), 0.0
    for _ in range(failures):
        assert trust.until is not None
        now = trust.until
        trust = after_probe(begin_probe(trust), False, now)
    assert come_back(trust).state is State.TRUSTED
    assert trust.until == sum(min(600.0, 60.0 * 2**number) for number in range(failures + 1))


def test_a_device_that_never_heals_is_probed_ever_less() -> None:
    trust, now, probes = after_fault(begin("cuda:0", Settings().probation), 0.0), 0.0, 0
    while trust.until is not None and trust.until <= 24 * 3600:
        now, probes = trust.until, probes + 1
        trust = after_probe(begin_probe(trust), False, now)
    assert trust.state is State.FAILED
    assert probes == 6 + 22, "six in the 63 minutes in which the delay grows to an hour, then one an hour"
