"""What is worth a word beside what failed: slower when warm, slower than the CPU, errors counted, checks left out.

    of_results("cuda:0", results, cpu=results_of_the_cpu)      # [Finding("D040", …), Finding("D043", …)]

Pure, no torch. None of this decides about a device; all of it is taken from what the probes measured anyway. The
limits leave room for noise: a remark that is wrong is worse than one that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.devices.findings import Finding, finding
from holdfast.devices.traits import CRASHED, HUNG, PASSED, SKIPPED, Result, froze, traits

SLOWER_WARM = 1.25
"""Steps at the end of a load against those at its beginning, by medians."""
SLOWER_LOW = 3.0
"""A training in fp16 or bf16 against fp32. Small ones pay for casts; a card without a fast path is worse."""
LONG_ENOUGH = 0.05
"""Seconds of the fp32 training: below that, the clock and the scheduler are what is measured."""
_NOT_THE_LAYER = ("fp32", "tf32", "fp16", "bf16", "batch")
_COUNTERS = {"errors": "uncorrected memory errors", "link_errors": "errors of the link"}


def of_results(device: str, results: Sequence[Result], cpu: Sequence[Result] = ()) -> list[Finding]:
    """All remarks on one device; with the results of the CPU, how the two compare."""
    of_one = (*_load(device, results), *_memory(device, results), *_low_precisions(device, results))
    return [*of_one, *_against(device, results, cpu), *_left_out(device, results)]


def _load(device: str, results: Sequence[Result]) -> Iterator[Finding]:
    """What sensors and steps said under sustained load."""
    for each in results:
        if traits(each).situation != "sustained":
            continue
        read = each.evidence.get("sensors")
        before, most = (_reading(read, name) for name in ("before", "most"))
        for name, words in _COUNTERS.items():
            first, last = before.get(name), most.get(name)
            if first is not None and last is not None and last > first:
                evidence = {"counter": words, "before": int(first), "after": int(last), "probe": each.probe}
                yield finding("errors-were-counted", device, evidence)
        slower = _number(each.evidence.get("slower"))
        if slower is not None and slower > SLOWER_WARM and each.status == PASSED:
            evidence = {
                "share": 1 - 1 / slower,
                "temperature_c": most.get("temperature_c"),
                "why": "steps took longer at the end than at the beginning",
                "sensors": read,
            }
            yield finding("throttles", device, evidence)


def _memory(device: str, results: Sequence[Result]) -> Iterator[Finding]:
    """Filling it did not end in an error, as it should have, but in a death or a hang."""
    for each in results:
        about = traits(each)
        if about.family == "memory" and not about.situation and each.status in (CRASHED, HUNG):
            reached = {"failed_bytes": each.evidence.get("reached_bytes")}
            evidence = {**reached, "reported_bytes": each.evidence.get("reported_bytes"), "probe": each.probe}
            yield finding("device-reset-near-full-memory", device, evidence)


def _left_out(device: str, results: Sequence[Result]) -> Iterator[Finding]:
    """One for each reason; what took the machine down has a finding of its own."""
    reasons: dict[str, list[str]] = {}
    for each in results:
        if each.status == SKIPPED and not froze(each):
            reasons.setdefault(str(each.evidence.get("why") or "no reason was given"), []).append(each.probe)
    for why, (first, *others) in reasons.items():
        evidence = {"probe": first, "why": why, **({"also": others} if others else {})}
        yield finding("probe-skipped", device, evidence)


def _low_precisions(device: str, results: Sequence[Result]) -> Iterator[Finding]:
    """The worst of each precision that takes much longer than fp32 in the same training."""
    plain = {_same(each): each for each in results if _is_training(each) and not traits(each).low}
    worst: dict[str, tuple[float, Result]] = {}
    for each in results:
        about, right = traits(each), plain.get(_same(each))
        if right is None or not _is_training(each) or not about.low or right.seconds < LONG_ENOUGH:
            continue
        ratio = each.seconds / right.seconds
        if ratio > max(SLOWER_LOW, worst.get(about.precision, (0.0, each))[0]):
            worst[about.precision] = (ratio, each)
    for precision, (ratio, each) in worst.items():
        evidence = {"dtype": precision, "ratio": round(ratio, 2), "probe": each.probe, "seconds": each.seconds}
        yield finding("low-precision-is-slower", device, evidence)


def _against(device: str, results: Sequence[Result], cpu: Sequence[Result]) -> Iterator[Finding]:
    mine, theirs = _step(results), _step(cpu)
    if device != "cpu" and mine is not None and theirs is not None and mine > theirs:
        yield finding("slower-than-the-cpu", device, {"device_s": mine, "cpu_s": theirs})


def _is_training(result: Result) -> bool:
    return result.status == PASSED and traits(result).phase == "training"


def _same(result: Result) -> tuple[Any, ...]:
    """What has to be equal for two trainings to be the same but for their precision."""
    about = traits(result)
    # The layer is in the name alone. The precision and the batch, which are in it too, are not part of it.
    words = tuple(word for word in result.probe.split() if word not in _NOT_THE_LAYER and not word.isdigit())
    return (about.family, about.batch, about.channels_last, about.sdpa, about.situation, words)


def _step(results: Sequence[Result]) -> float | None:
    """Seconds of a step of the network under load, alone on the device."""
    loads = [each for each in results if traits(each).situation == "sustained" and each.status == PASSED]
    times = [_number(each.evidence.get("step_ms")) for each in loads]
    return next((time / 1e3 for time in times if time is not None), None)


def _reading(read: object, name: str) -> Mapping[str, float]:
    values = read.get(name) if isinstance(read, dict) else None
    pairs = values.items() if isinstance(values, dict) else ()
    return {str(key): number for key, value in pairs if (number := _number(value)) is not None}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
