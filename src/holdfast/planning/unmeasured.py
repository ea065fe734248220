"""What can be said of a job whose trial came to no step: by earlier runs, by a smaller form, by arithmetic. No torch.

    known = answer(world, device, job, trial, smaller)      # None where nothing is known at all
    known.time_s, known.low_s, known.high_s, known.notes    # high_s is infinite where only a lower end is known
    usual_steps(world, job, device)                         # how many steps the same job took here before

The first of these that there is: the same job finished here; a smaller form of it was measured, and how much more work
the whole is can be reckoned; it finished here with other arguments, so that a step is known; the first step had taken
so long when it was ended. Each says in `notes` what it goes by. The intervals are wide: these are no measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from holdfast.base.human import duration
from holdfast.planning.estimate import Estimate
from holdfast.planning.history import Past
from holdfast.planning.measurement import Measurement
from holdfast.planning.presets import SIDES, Preset
from holdfast.planning.world import Device, JobFacts, World

WIDE = 3.0
"""A step with other arguments may take this much more or less."""
OVER = 2.0
"""Work that grows with the number of pixels may take this much more than that says: it leaves the caches."""

SQUARED = (*SIDES, "shrink")
"""Arguments that are a side of the input: the work grows with their square."""
REMEMBERED, ESTIMATED = "remembered", "estimated"


def answer(
    world: World,
    device: Device,
    job: JobFacts,
    trial: Measurement,
    smaller: Sequence[tuple[Preset, Measurement, Estimate]],
) -> tuple[Estimate, str] | None:
    """An estimate, and the word for its basis."""
    runs = [each for each in world.past if each.job == job.name and each.device == device.id]
    same = [each for each in runs if each.arguments == job.arguments]
    if same:
        return _as_before(same), REMEMBERED
    for preset, measured, estimate in smaller:
        times = _times_the_work(preset, job)
        if times is not None:
            return _scaled(preset, measured, estimate, times), ESTIMATED
    count = trial.steps or world.steps
    others = [each for each in runs if each.steps > 0]
    if count and others:
        return _by_the_step(others, count), REMEMBERED
    if smaller:
        preset, _, estimate = min(smaller, key=lambda each: each[2].time_s)
        told = f"at least as long as the form `{preset.name}`, which was measured"
        return Estimate(estimate.time_s, estimate.low_s, math.inf, notes=(told,)), ESTIMATED
    if count and trial.unended_s > 0:
        return _at_least(trial, count), ESTIMATED
    return None


def usual_steps(world: World, job: JobFacts, device: Device) -> int | None:
    """The steps of the last run of the same job here, for a script that does not say how many it takes."""
    same = [
        each
        for each in world.past
        if (each.job, each.device, each.arguments) == (job.name, device.id, job.arguments) and each.steps > 0
    ]
    return same[-1].steps if same else None


def _as_before(runs: Sequence[Past]) -> Estimate:
    times = [each.took_s for each in runs[-10:]]
    told = f"{len(runs)} run{'s' * (len(runs) != 1)} of the same that finished here; the trial came to no step"
    return Estimate(statistics.median(times), 0.8 * min(times), 1.25 * max(times), notes=(told,))


def _scaled(preset: Preset, measured: Measurement, estimate: Estimate, times: float) -> Estimate:
    steps = estimate.parts.get("steps", 0.0) + estimate.parts.get("evaluation", 0.0)
    rest = estimate.time_s - steps
    told = (
        f"the form `{preset.name}` was measured ({measured.steps_seen} steps) and takes {duration(estimate.time_s)}; "
        f"the job as asked has {times:.3g} times the work in a step"
    )
    time_s = rest + times * steps
    return Estimate(time_s, estimate.low_s, OVER * max(time_s, estimate.high_s), notes=(told,))


def _by_the_step(runs: Sequence[Past], count: int) -> Estimate:
    each = statistics.median((run.took_s - run.lost_s) / run.steps for run in runs[-10:])
    told = (
        f"{len(runs)} run{'s' * (len(runs) != 1)} with other arguments that finished here took {each:.3g} s a step; "
        f"this one has {count:,} steps, and its own may take {WIDE:.0f} times as long, or a third"
    )
    return Estimate(each * count, each * count / WIDE, each * count * WIDE, notes=(told,))


def _at_least(trial: Measurement, count: int) -> Estimate:
    """Not quite a lower end: the first step is the slowest of all where memory is new and kernels are chosen in it."""
    told = (
        f"its first step had taken {trial.unended_s:.0f} s when it was ended; {count:,} steps of that length take "
        f"{duration(count * trial.unended_s)}"
    )
    return Estimate(count * trial.unended_s, trial.took_s, math.inf, notes=(told,))


def _times_the_work(preset: Preset, job: JobFacts) -> float | None:
    """How much more work a step of the whole is than one of the form; None where its arguments do not tell."""
    asked = {**dict(preset.instead_of), **dict(job.arguments)}
    times = 1.0
    for key, value in preset.arguments:
        if key not in job.parameters:
            continue
        try:
            ratio = float(asked[key]) / float(value)
        except (KeyError, ValueError, ZeroDivisionError):
            return None
        if not 0 < ratio < math.inf:
            return None
        times *= ratio**2 if key in SQUARED else ratio
    return times
