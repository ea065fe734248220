"""From measured steps to the time until a run is over, with an interval. Pure functions, no torch.

    found = whole_run(measurement, Correction(), rate=0.6, fault_s=20.0, save_every_s=60.0, cores=2)
    found.time_s, found.low_s, found.high_s         # nine of ten runs are meant to end inside
    found.parts                                     # {"start": 3.1, "set-up": 0.4, "steps": 171.0, …}

The middle is a sum of parts, each measured or marked in `notes` as not seen, times what earlier runs of the job on this
device show. The width comes from the spread of the steps and from how far earlier runs were off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.planning.history import Correction
from holdfast.planning.measurement import Measurement

NONE = Correction()
"""No run of the job has finished here yet."""
NINE_IN_TEN = 1.645
"""Standard deviations to each side of the middle."""
MAY_BE_TUNED = 0.75
"""How much of the time is left where a tuner finds what it found on machines of ours: 1.3 times the speed."""
FAULT_S = 20.0
"""What a fault costs where none was seen here yet: a hang is noticed after at least five seconds."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a run takes, and why."""

    time_s: float
    low_s: float
    high_s: float
    raw_s: float = 0.0
    """Before what earlier runs say, and without faults."""
    parts: dict[str, float] = field(default_factory=dict)
    faults: float = 0.0
    """How many are to be expected."""
    notes: tuple[str, ...] = ()
    correction: Correction = NONE


def whole_run(
    found: Measurement,
    correction: Correction = NONE,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    rate: float = 0.0,
    fault_s: float | None = None,
    save_every_s: float = 60.0,
    cores: int = 1,
) -> Estimate | None:
    """None if the length of the run is not known, or no step was seen.

    `epochs` replaces those of the measurement, `steps` says the number where the script does not. `rate` is faults an
    hour on this device, `fault_s` what one takes.
    """
    if not found.usable or found.step_s is None:
        return None
    rounds = epochs if epochs is not None else found.epochs
    count = steps if rounds is None else rounds * (1 if found.batches is None else found.batches)
    if not count:
        return None
    rounds = rounds or 0
    notes: list[str] = []
    wider = 0.0
    parts = {
        "start": found.start_s or 0.0,
        "set-up": _set_up(found),
        "steps": count * found.step_s,
        "evaluation": rounds * (found.between_s or 0.0),
    }
    if found.between_s is None and rounds:
        notes.append("no epoch ended in the trial: what an evaluation takes was not seen")
        wider += 0.5 * parts["steps"]
    if found.closing_s is not None:
        parts["closing"] = found.closing_s
    elif rounds:
        parts["closing"] = found.between_s or 0.0
        notes.append("the end of the script was not seen: taken to last as long as one evaluation")
        wider += max(2.0 * parts["closing"], 0.1 * sum(parts.values()))
    low = 1.0
    if found.tuner_s:
        low = MAY_BE_TUNED
        notes.append("its tuner had too little time in the trial: the run tunes itself, and may be faster than this")
    parts["saves"] = _saves(found, sum(parts.values()), rounds, save_every_s, cores)
    raw = sum(parts.values())
    time_s = raw * correction.factor
    expected = rate * time_s / 3600
    each = FAULT_S if fault_s is None else fault_s
    if expected:
        parts["faults"] = expected * each
    unsure = found.spread / math.sqrt(max(1, found.steps_seen)) * parts["steps"] / raw
    sigma = math.hypot(correction.sigma, unsure)
    factor = math.exp(NINE_IN_TEN * sigma)
    lost = parts.get("faults", 0.0)
    return Estimate(
        time_s=time_s + lost,
        low_s=low * time_s / factor,
        high_s=time_s * factor + wider + lost + NINE_IN_TEN * math.sqrt(expected) * each,
        raw_s=raw,
        parts=parts,
        faults=expected,
        notes=tuple(notes),
        correction=correction,
    )


def _set_up(found: Measurement) -> float:
    """Without what was prepared in the trial: the run finds that done."""
    return max(0.0, (found.setup_s or 0.0) - found.prepared_s)


def _saves(found: Measurement, time_s: float, rounds: int, every_s: float, cores: int) -> float:
    """The last save is waited for, with the weights alone after it. The others are made by a process beside the
    training, which on a CPU takes one of its cores meanwhile."""
    if found.save_s is None:
        return 0.0
    beside = min(rounds, time_s / 5.0) + time_s / every_s
    share = 1.0 / max(1, cores) if found.device == "cpu" else 0.0
    return found.save_s * (2.0 + share * beside)


def in_a_row(parts: Sequence[Estimate]) -> Estimate:
    """Several runs one after the other. They are off together, not each its own way: the ends add up."""
    summed: dict[str, float] = {}
    for each in parts:
        for name, seconds in each.parts.items():
            summed[name] = summed.get(name, 0.0) + seconds
    return Estimate(
        time_s=sum(each.time_s for each in parts),
        low_s=sum(each.low_s for each in parts),
        high_s=sum(each.high_s for each in parts),
        raw_s=sum(each.raw_s for each in parts),
        parts=summed,
        faults=sum(each.faults for each in parts),
        notes=tuple(dict.fromkeys(note for each in parts for note in each.notes)),
        correction=parts[0].correction if len(parts) == 1 else Correction(runs=min(p.correction.runs for p in parts)),
    )
