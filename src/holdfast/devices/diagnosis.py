"""From results to findings: what a person should read about a device, each once, with its evidence. Pure.

    of_results("cuda:0", results, found)      # [Finding("D024", ...), Finding("D049", ...)]

Ten probes may fail for one reason; they become one finding, with the worst of them as its evidence and the names of
the others in `also`. What was cured says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.devices import findings as registry
from holdfast.devices.findings import Finding
from holdfast.devices.remedies import BAD, Cure, Found
from holdfast.devices.traits import CRASHED, FAILED, HUNG, PASSED, Result, Traits, easier, froze, traits
from holdfast.devices.verdict import BAD_INDEX, KNOWN_ANSWERS, lowers_the_limit


def of_results(device: str, results: Sequence[Result], found: Found | None = None) -> list[Finding]:
    """One finding for each kind of failure, the worst first in each kind."""
    found = Found() if found is None else found
    groups: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        slug = slug_of(each, results)
        if slug is not None:
            about = traits(each)
            apart = {"wrong-in-low-precision": about.precision, "attention-kernel-fails": about.sdpa}
            groups.setdefault((slug, apart.get(slug, "")), []).append(each)
    made = [_finding(device, slug, group, results, found) for (slug, _), group in groups.items()]
    return [*made, *(_with_a_remedy(device, cure) for cure in found.cures if cure.remedy.tried)]


def slug_of(result: Result, results: Sequence[Result]) -> str | None:
    """The kind of finding a result is; None for one that passed, or was left out for a good reason."""
    if froze(result):
        return "froze-the-machine"
    if result.status not in BAD:
        return None
    if result.evidence.get("abandoned"):
        return "probe-cannot-be-killed"
    about = traits(result)
    for applies, slug in TABLE:
        if applies(result, about, results):
            return slug
    return "probe-raised"


Row = Callable[[Result, Traits, Sequence[Result]], bool]


def _off(result: Result, about: Traits, results: Sequence[Result]) -> bool:
    """It ended, and its numbers are wrong; where they are not finite there is a bound and no error."""
    return result.status == FAILED and result.bound is not None


def _situation(name: str) -> Row:
    return lambda result, about, results: about.situation == name


def _only_in(name: str) -> Row:
    """It fails in this situation and is right otherwise; what is wrong anyway is not the situation's fault."""

    def row(result: Result, about: Traits, results: Sequence[Result]) -> bool:
        return about.situation == name and not any(
            each.status in BAD and _plain(traits(each), about) for each in results if each is not result
        )

    return row


def _plain(other: Traits, about: Traits) -> bool:
    """The same work in no special situation; what is done in company or compiled is a whole network."""
    same_work = other.family == about.family or about.family in ("training", "compile")
    earlier = other.phase in ("", "forward", about.phase or "backward")
    return same_work and earlier and not other.situation and other.low == about.low


def _off_in(name: str) -> Row:
    only = _only_in(name)
    return lambda result, about, results: only(result, about, results) and _off(result, about, results)


def _family(*names: str) -> Row:
    return lambda result, about, results: result.status == FAILED and about.family in names


def _easier_passes(avoid: str) -> Row:
    """What does without that has passed: then that is the reason."""

    def row(result: Result, about: Traits, results: Sequence[Result]) -> bool:
        simpler = easier(result, results, avoid)
        return result.status == FAILED and any(each.status == PASSED for each in simpler)

    return row


def _missing(result: Result, about: Traits, results: Sequence[Result]) -> bool:
    said = str(result.evidence.get("why") or "")
    return result.status == FAILED and ("not currently implemented" in said or "not implemented for" in said)


TABLE: tuple[tuple[Row, str], ...] = (
    (lambda result, about, results: about.family == "model" and _off(result, about, results), "own-step-is-wrong"),
    (lambda result, about, results: about.family == "model", "own-step-fails"),
    (lambda result, about, results: result.probe == BAD_INDEX, "no-checks-in-kernels"),
    (
        lambda result, about, results: result.probe in KNOWN_ANSWERS and "silent" in result.evidence,
        "kernels-write-nothing",
    ),
    (lambda result, about, results: about.family == "launch" and _off(result, about, results), "slow-first-launch"),
    (_family("launch"), "device-does-not-start"),
    (lambda result, about, results: lowers_the_limit(result), "less-memory-than-reported"),
    (_only_in("company"), "fails-with-a-second-process"),
    (_off_in("sustained"), "wrong-under-load"),
    (_only_in("sustained"), "fails-under-load"),
    (_situation("recovery"), "no-recovery-after-out-of-memory"),
    (_situation("deterministic"), "not-deterministic"),
    (lambda result, about, results: result.status == CRASHED, "probe-crashed"),
    (lambda result, about, results: result.status == HUNG, "probe-hung"),
    (_missing, "operation-missing"),
    (lambda result, about, results: about.sdpa not in ("", "math"), "attention-kernel-fails"),
    (_off_in("compile"), "wrong-when-compiled"),
    (_only_in("compile"), "cannot-compile"),
    (_only_in("double backward"), "not-finite-in-double-backward"),
    (_off_in("shapes"), "wrong-after-a-change-of-shape"),
    (_family("memory", "transfer"), "wrong-copies"),
    (_family("random"), "wrong-random-numbers"),
    (_easier_passes("precision"), "wrong-in-low-precision"),
    (_easier_passes("channels_last"), "wrong-in-channels-last"),
    (_easier_passes("batch"), "wrong-at-some-batch-sizes"),
    (lambda result, about, results: _off(result, about, results) and about.phase == "training", "wrong-training"),
    (
        lambda result, about, results: _off(result, about, results) and _forward_passes(result, results),
        "wrong-backward",
    ),
    (_off, "wrong-forward"),
)
"""Read from the top: the first that applies names the finding."""


def _forward_passes(result: Result, results: Sequence[Result]) -> bool:
    """The same probe, one check earlier."""
    if traits(result).phase != "backward":
        return False
    name = result.probe.removesuffix("backward") + "forward"
    return any(each.probe == name and each.status == PASSED for each in results)


# Evidence -----------------------------------------------------------------------------------------------------------


def _finding(device: str, slug: str, group: list[Result], results: Sequence[Result], found: Found) -> Finding:
    worst = max(group, key=lambda each: _PHASES.get(traits(each).phase, 0))  # of equals the first: it is the simplest
    also = [each.probe for each in group if each is not worst]
    cure = found.cure_of(worst.probe)
    evidence = {**_evidence(worst, results), **({"also": also} if also else {})}
    advice = _as_remedy(cure) if cure else None
    if slug == "froze-the-machine":
        advice = registry.Cure("does it again, at your risk", (f"holdfast doctor --again --device {device}",))
    return registry.finding(slug, device, evidence, advice)


_PHASES = {"forward": 3, "backward": 2, "training": 1}
"""What is wrong from the first pass on explains the rest."""


def _evidence(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    """What the sentence of a finding may need, and everything the probe said itself."""
    said = dict(result.evidence)
    about = traits(result)
    right = [traits(each).batch for each in easier(result, results, "batch") if each.status == PASSED]
    words = str(said.get("why") or "").partition("\n")[0][:200] or (
        "wrong numbers" if result.error is not None else result.status
    )
    mine: dict[str, Any] = {
        "probe": result.probe,
        "error": result.error,
        "bound": result.bound,
        "seconds": result.seconds,
        "how": said.get("signal") or words,
        "why": words,
        "dtype": about.precision or None,
        "backend": about.sdpa or None,
        "right": max((each for each in right if each is not None), default=None),
        "count": said.get("wrong_words"),
        "of": said.get("words"),
        "pid": said.get("abandoned"),
        "usable_bytes": said.get("reached_bytes"),
        "later_s": said.get("second_s"),
        "act": result.probe,
        "when": str(said.get("time") or "")[:10] or None,
    }
    return {**{name: value for name, value in mine.items() if value is not None}, **said, "probe": result.probe}


def _as_remedy(cure: Cure) -> registry.Cure:
    text = f"do without {cure.without}" if cure.without else cure.remedy.text
    return registry.Cure(text, tuple(cure.remedy.commands()), dict(cure.remedy.env))


def _with_a_remedy(device: str, cure: Cure) -> Finding:
    first, *others = cure.cured
    failed = f"{first} and {len(others)} more" if others else first
    evidence = {
        "failed": failed,
        "remedy": cure.remedy.text,
        "name": cure.remedy.name,
        "cost": cure.remedy.cost,
        "cured": [*cure.cured],
    }
    return registry.finding("trains-with-a-remedy", device, evidence, _as_remedy(cure))
