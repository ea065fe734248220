"""The verdict on a device: what may be done with it, from what its probes showed. Pure: results in, verdict out.

    verdict = judge("cuda:0", results, found, findings=[...], trust=ledger.trust("cuda:0", "cuda:0"))
    verdict.state               # "use_with_care"
    verdict.why                 # "conv2d fp16 backward fails; cured"
    verdict.policy.env          # {"HSA_ENABLE_SDMA": "0", "HOLDFAST_REMEDIES": "fp16-off"}: a rung of `holdfast train`

`RULES` is the whole of it, read from the top: the first that applies decides. What is known about a card from books
explains a result and never overrules it, so knowledge appears among the findings and in no rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.dataclass_json import Count
from holdfast.devices import flags, remedies
from holdfast.devices.findings import Finding
from holdfast.devices.ledger_summary import LedgerState, Trust
from holdfast.devices.remedies import BAD, Cure, Found
from holdfast.devices.traits import FAILED, FP32, LOW, PASSED, STATUSES, Result, froze, traits
from holdfast.faults.terms import Level

TRUSTED, CARE, INFERENCE, REFUSED = STATES = ("trusted", "use_with_care", "inference_only", "refused")
TRAINABLE = (TRUSTED, CARE)
_BASIC = ("memory", "transfer", "launch")
"""Without these nothing else is worth a look."""
_AVOIDABLE = ("double backward", "recovery", "company", "compile", "shapes", "deterministic")
"""Situations that a run need not get into."""
BAD_INDEX = "index out of bounds"
"""A probe that does what a script should never do; how a device takes it is good to know."""
KNOWN_ANSWERS = ("known answers", "known answers bf16", "known answers of Triton")
"""Probes whose failure is no question of opening the device, though the first counts as much."""
_SPARE = 64 << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """How a device is to be used."""

    precisions: tuple[str, ...] = ()
    """Those that were checked and are right; the script chooses among them."""
    sdpa_off: tuple[str, ...] = ()
    memory_headroom_bytes: Count | None = None
    """Kept free."""
    microbatch: Count | None = None
    """The most samples at once."""
    avoid: tuple[str, ...] = ()
    """channels_last, compile, a second process, changing shapes, double backward."""
    remedies: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """What a worker starts with."""

    @property
    def plain(self) -> bool:
        """Nothing has to be done differently."""
        return self == Policy(precisions=self.precisions)

    @property
    def dtype(self) -> str | None:
        """float32 where less was tried and nothing less is right; None leaves it to the script."""
        return "float32" if self.precisions == (FP32,) and self.off else None

    @property
    def off(self) -> tuple[str, ...]:
        """Precisions that are switched off."""
        asked = self.env.get(flags.VARIABLE, "").split(",")
        return tuple(name for name in LOW if f"{name}-off" in asked)

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, **dataclass_json.write(self)}

    @classmethod
    def from_json(cls, data: object) -> Policy:
        """From a file that anybody may have edited: what is not of the right type is left out."""
        found = dataclass_json.read(cls, data) or cls()
        return replace(found, env=remedies.known_environment(found.env))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one device, and on what."""

    device: str
    state: str
    why: str = ""
    """In words that can stand after the state."""
    policy: Policy = field(default_factory=Policy)
    findings: tuple[Finding, ...] = ()
    probes: Mapping[str, Count] = field(default_factory=dict)
    """How many ended in which way."""
    measured_at: str | None = None
    valid_while: Mapping[str, Any] = field(default_factory=dict)
    full: bool = False
    """By the full battery."""
    name: str | None = None
    arch: str | None = None

    @property
    def trainable(self) -> bool:
        return self.state in TRAINABLE

    @property
    def words(self) -> str:
        """The state as on the screen."""
        return self.state.replace("_", " ")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.device,
            "name": self.name,
            "arch": self.arch,
            "verdict": self.state,
            "why": self.why or None,
            "policy": self.policy.to_json(),
            "probes": {status: self.probes.get(status, 0) for status in STATUSES},
            "findings": [each.to_json() for each in self.findings],
            "measured_at": self.measured_at,
            "valid_while": dict(self.valid_while),
            "full": self.full,
        }

    @classmethod
    def from_json(cls, data: object) -> Verdict | None:
        """None for what is no verdict."""
        if not isinstance(data, dict) or data.get("verdict") not in STATES or not isinstance(data.get("id"), str):
            return None
        device, listed = data["id"], data.get("findings")
        found = [Finding.from_json(device, each) for each in (listed if isinstance(listed, list) else [])]
        verdict = dataclass_json.read(cls, {**data, "device": device, "state": data["verdict"], "findings": []})
        if verdict is None:
            return None
        probes = {name: count for name, count in verdict.probes.items() if name in STATUSES}
        return replace(verdict, findings=tuple(each for each in found if each is not None), probes=probes)


# Judging ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is known about one device."""

    results: Sequence[Result]
    found: Found = field(default_factory=Found)
    trust: Trust = field(default_factory=Trust)
    """What the ledger says."""
    unusable: str = ""
    """Why nothing could be probed: no driver, another torch needed, hidden."""

    @property
    def failures(self) -> list[Result]:
        """What failed, was not cured, and counts."""
        cured = {name for cure in self.found.cures for name in cure.cured}
        return [each for each in self.results if each.status in BAD and each.probe not in cured]

    def counted(self, status: str) -> int:
        return sum(each.status == status for each in self.results)


Rule = Callable[[Case], str | None]
"""Why it applies, or None."""


def _cannot_be_used(case: Case) -> str | None:
    return case.unusable or None


def _is_quarantined(case: Case) -> str | None:
    return case.trust.why if case.trust.state == LedgerState.QUARANTINED else None


def _froze_the_machine(case: Case) -> str | None:
    """A probe that took the machine down is not run again; what it stands for is not used either."""
    frozen = [each for each in case.results if froze(each) and not traits(each).low]
    return f"{frozen[0].probe} took the machine down" if frozen else None


def _nothing_passed(case: Case) -> str | None:
    return None if case.counted(PASSED) else "no probe passed"


def _basics_fail(case: Case) -> str | None:
    return _first(case, lambda each: traits(each).family in _BASIC and _counts(each))


def _fp32_is_wrong(case: Case) -> str | None:
    """What is not said to be of a phase or of a precision counts as the forward pass in fp32."""
    return _first(case, lambda each: _counts(each) and traits(each).phase in ("", "forward"))


def _gradients_are_wrong(case: Case) -> str | None:
    return _first(case, _counts)


def _something_fails(case: Case) -> str | None:
    return _first(case, lambda each: not harmless(each))


def _was_cured(case: Case) -> str | None:
    cures = case.found.cures
    return f"{cures[0].cured[0]} fails unless holdfast takes care" if cures else None


def _is_on_probation(case: Case) -> str | None:
    return case.trust.why if case.trust.state == LedgerState.PROBATION else None


def _low_precision_froze(case: Case) -> str | None:
    frozen = [each for each in case.results if froze(each)]
    return f"{frozen[0].probe} took the machine down" if frozen else None


RULES: tuple[tuple[Rule, str], ...] = (
    (_cannot_be_used, REFUSED),
    (_is_quarantined, REFUSED),
    (_froze_the_machine, REFUSED),
    (_nothing_passed, REFUSED),
    (_basics_fail, REFUSED),
    (_fp32_is_wrong, REFUSED),
    (_gradients_are_wrong, INFERENCE),
    (_something_fails, CARE),
    (_was_cured, CARE),
    (_low_precision_froze, CARE),
    (_is_on_probation, CARE),
)


def decide(case: Case) -> tuple[str, str]:
    """The state and why."""
    for rule, state in RULES:
        why = rule(case)
        if why is not None:
            return state, why
    return TRUSTED, ""


def judge(device: str, case: Case, findings: Iterable[Finding] = (), **about: Any) -> Verdict:
    """The verdict with its policy; `about` are further fields of it."""
    state, why = decide(case)
    return Verdict(
        device,
        state,
        why,
        policy_for(case),
        tuple(sorted(findings, key=lambda each: (-list(Level).index(each.level), each.code))),
        Counter(each.status for each in case.results),
        **about,
    )


def _first(case: Case, matters: Callable[[Result], bool]) -> str | None:
    bad = sorted((each for each in case.failures if matters(each)), key=lambda each: BAD[::-1].index(each.status))
    return f"{bad[0].probe} {_ENDED[bad[0].status]}" if bad else None


_ENDED = {"failed": "is wrong", "crashed": "kills its process", "hung": "hangs"}


def _counts(result: Result) -> bool:
    """In fp32, and nothing that a run can avoid."""
    about = traits(result)
    avoidable = about.low or about.situation in _AVOIDABLE or lowers_the_limit(result)
    return not avoidable and not harmless(result)


def harmless(result: Result) -> bool:
    """Good to know, and no reason to do anything differently."""
    about = traits(result)
    slow = about.family == "launch" and result.status == FAILED and result.bound is not None
    return slow or about.situation == "deterministic" or result.probe == BAD_INDEX


def lowers_the_limit(result: Result) -> bool:
    """There is less memory than the device says, what there is holds, and it is known how much."""
    reached, wrong = (_natural(result.evidence.get(name)) for name in ("reached_bytes", "wrong_words"))
    return result.status == FAILED and reached is not None and not wrong


# The policy ---------------------------------------------------------------------------------------------------------


def policy_for(case: Case) -> Policy:
    """How the device is to be used, if it is."""
    cures = case.found.cures
    wrong = {traits(each).precision for each in case.failures if _spoils_its_precision(each)}
    wrong |= {cure.without for cure in cures if cure.remedy.avoid == "precision"}
    wrong |= {traits(each).precision for each in case.results if froze(each)}
    checked = {traits(each).precision for each in case.results if each.status == PASSED}
    off = [f"{name}-off" for name in LOW if name in wrong]
    kept = [cure.remedy for cure in cures if cure.remedy.avoid != "precision"]
    microbatch = min((cure.keep for cure in cures if cure.keep is not None), default=None)
    headroom = _headroom(case)
    numbers = [f"{name}={value}" for name, value in (("microbatch", microbatch), ("headroom", headroom)) if value]
    kernels = [cure.switch for cure in cures if cure.switch.startswith("sdpa")]
    avoided = [cure.without or cure.remedy.avoid for cure in cures if cure.remedy.avoid in _AVOIDED]
    avoided += [traits(each).situation for each in case.failures if traits(each).situation in _AVOIDABLE[:4]]
    return Policy(
        precisions=tuple(name for name in (FP32, *LOW) if name in checked - wrong),
        sdpa_off=tuple(_kernel(cure) for cure in cures if cure.switch.startswith("sdpa-no-")),
        memory_headroom_bytes=headroom,
        microbatch=microbatch,
        avoid=tuple(dict.fromkeys(avoided)),
        remedies=tuple(dict.fromkeys(cure.remedy.name for cure in cures)),
        env=remedies.environment(kept, [*off, *kernels, *numbers]),
    )


_AVOIDED = ("channels_last", "company", "shapes", "compile")


def _spoils_its_precision(result: Result) -> bool:
    return traits(result).low and traits(result).situation not in _AVOIDABLE


def _kernel(cure: Cure) -> str:
    return cure.switch.removeprefix("sdpa-no-")


def _headroom(case: Case) -> int | None:
    """What lies between the memory the device has and the most that could be used, and a little more."""
    for each in case.results:
        total, reached = (_natural(each.evidence.get(name)) for name in ("reported_bytes", "reached_bytes"))
        if lowers_the_limit(each) and total is not None and reached is not None and reached < total:
            return total - reached + _SPARE
    return None


# Untrusted input ----------------------------------------------------------------------------------------------------


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
