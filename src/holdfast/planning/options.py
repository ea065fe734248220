"""The ways to get a job done, as rows: local devices and policies, smaller forms, rented GPUs, advice. Pure, no torch.

    rows = options(world, measurements)
    rows[0].where, rows[0].time_s, rows[0].low_s, rows[0].high_s, rows[0].cost_usd, rows[0].risk, rows[0].basis
    rows[0].origin                       # every number with where it comes from, in lines: `holdfast plan --why`

`decide.py` chooses among them. A row that cannot be taken says by what it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.base.human import duration
from holdfast.devices.ledger_summary import LedgerState
from holdfast.planning import history, rented_options, unmeasured
from holdfast.planning.estimate import Estimate, in_a_row, whole_run
from holdfast.planning.measurement import PARTLY, Measurement, grown
from holdfast.planning.option import Option, Part
from holdfast.planning.presets import AS_ASKED, Preset
from holdfast.planning.prices import card
from holdfast.planning.world import Device, JobFacts, World


def options(world: World, measurements: Sequence[Measurement]) -> list[Option]:
    """All rows, in the order in which they are shown."""
    if world.larger > 1:  # runs that finished here were of the small set
        measurements = [grown(each, world.larger) for each in measurements]
        world = replace(world, past=())
    local = [row for device in world.devices for row in _of_device(world, device, measurements)]
    local.sort(key=lambda row: (bool(row.refused_by), row.rank, row.time_s or 0.0))
    taken, refused = [r for r in local if not r.refused_by], [r for r in local if r.refused_by]
    best = _best_measured(world, measurements)
    return [*taken, *rented_options.rows(world, best), *refused, *rented_options.advice(world, best)]


def _of_device(world: World, device: Device, measurements: Sequence[Measurement]) -> list[Option]:
    if device.refused:
        return [Option("local", device.id, device=device.id, preset="-", basis="refused", refused_by=device.refused)]
    mine = [each for each in measurements if each.device == device.id]
    ways = list(dict.fromkeys((each.precision, each.threads) for each in mine))
    rows: list[Option] = []
    for precision, threads in ways:
        found = {
            (each.job, each.preset): each for each in mine if (each.precision, each.threads) == (precision, threads)
        }
        rows += [
            row
            for rank, preset in enumerate((None, *world.presets))
            if (row := _row(world, device, found, preset, rank)) is not None
        ]
    if not ways:
        remembered = _remembered(world, device)
        rows = [remembered] if remembered else []
    return rows


def _row(
    world: World, device: Device, found: dict[tuple[str, str], Measurement], preset: Preset | None, rank: int
) -> Option | None:
    """One device, one policy, one form of the job. None for a form that this job does not have."""
    name = preset.name if preset else AS_ASKED
    tried = [_of_job(world, job, found, preset) for job in world.jobs]
    if preset is not None and not any(changed for _, changed in tried):
        return None
    seen = [measurement for measurement, _ in tried if measurement is not None]
    if not seen:
        return None
    first = seen[0]
    base = Option("local", _where(first), preset=name, device=device.id, precision=first.precision,
                  threads=first.threads, risk=_risk(device, 0.0), rank=rank, score=_score(world, preset))  # fmt: skip
    bad = next((measurement for measurement in seen if not measurement.usable), None)
    if preset is not None and (len(seen) < len(tried) or (bad is not None and not bad.preset)):
        return None
    if bad is not None or len(seen) < len(tried):
        return _unmeasured(world, device, base, found, [each for each, _ in tried], bad)
    estimates = [_estimate(world, device, each, changed) for each, changed in tried if each is not None]
    known = [each for each in estimates if each is not None]
    if len(known) < len(estimates):
        return replace(base, refused_by=_endless(seen, estimates), basis="measured")
    whole = in_a_row(known)
    energy, energy_from = _energy(device, first, whole.time_s)
    parts = tuple(
        Part(job.name, each.time_s, each.low_s, each.high_s, each.raw_s, changed or {})
        for job, each, (_, changed) in zip(world.jobs, known, tried, strict=True)
    )
    return replace(
        base,
        time_s=whole.time_s, low_s=whole.low_s, high_s=whole.high_s,
        cost_usd=None if energy is None or world.electricity is None else energy / 1000 * world.electricity,
        energy_wh=energy, faults=whole.faults, risk=_risk(device, whole.faults), parts=parts, spends=whole.parts,
        memory_bytes=max((each.memory_bytes or 0 for each in seen), default=0) or None,
        origin=tuple(_origin(world, device, seen, whole, energy_from, preset)),
    )  # fmt: skip


def _endless(seen: Sequence[Measurement], estimates: Sequence[Estimate | None]) -> str:
    """A step is known, their number is not: that is something."""
    one = next((each.step_s for each, known in zip(seen, estimates, strict=True) if known is None), None) or 0.0
    return f"the script does not say how many steps it takes: give --steps; 1,000 of them take {duration(1000 * one)}"


def _unmeasured(
    world: World,
    device: Device,
    base: Option,
    found: dict[tuple[str, str], Measurement],
    tried: Sequence[Measurement | None],
    bad: Measurement | None,
) -> Option:
    """The job as asked came to no step in its time. Whatever else is known makes the row, with its basis."""
    refused = replace(base, refused_by=bad.why if bad is not None else "not measured", basis="not measured")
    if base.rank or any(each is not None and not each.usable and not each.slow for each in tried):
        return refused
    known: list[tuple[Estimate, str]] = []
    for job, each in zip(world.jobs, tried, strict=True):
        trial = each if each is not None else Measurement(job.name, device.id, slow=True)
        measured = _estimate(world, device, trial, None)
        answer = (
            (measured, "measured")
            if measured
            else unmeasured.answer(world, device, job, trial, _smaller(world, device, found, job))
        )
        if answer is None:
            return replace(refused, low_s=sum(one.took_s for one in tried if one is not None) or None)
        known.append(answer)
    whole = in_a_row([estimate for estimate, _ in known])
    why = next(each.why for each in tried if each is not None and each.why)
    bases = {basis for _, basis in known}
    return replace(
        base, time_s=whole.time_s, low_s=whole.low_s, high_s=whole.high_s if math.isfinite(whole.high_s) else None,
        basis="estimated" if "estimated" in bases else "remembered", origin=(f"not measured: {why}", *whole.notes),
    )  # fmt: skip


def _smaller(
    world: World, device: Device, found: dict[tuple[str, str], Measurement], job: JobFacts
) -> list[tuple[Preset, Measurement, Estimate]]:
    """The forms of a job that were measured, with what they take."""
    rows = []
    for preset in world.presets:
        measured = found.get((job.name, preset.name))
        estimate = _estimate(world, device, measured, None) if measured is not None else None
        if measured is not None and estimate is not None:
            rows.append((preset, measured, estimate))
    return rows


def _of_job(
    world: World, job: JobFacts, found: dict[tuple[str, str], Measurement], preset: Preset | None
) -> tuple[Measurement | None, dict[str, str] | None]:
    """The measurement that this form of the job goes by, and what it changes."""
    plain = found.get((job.name, ""))
    if preset is None:
        return plain, None
    changed = preset.for_job(job.parameters, plain.epochs if plain else None)
    if changed is None:
        return plain, None
    if preset.needs_trial and any(key in job.parameters for key, _ in preset.arguments):
        return found.get((job.name, preset.name)), changed
    return plain, changed


def _estimate(world: World, device: Device, found: Measurement, changed: dict[str, str] | None) -> Estimate | None:
    epochs = None
    if changed and found.preset == "":
        epochs = next((int(value) for value in changed.values() if value.isdigit()), None)
    job = next((each for each in world.jobs if each.name == found.job), None)
    return whole_run(
        found,
        history.correction(list(world.past), found.job, device.id),
        epochs=epochs,
        steps=world.steps or (unmeasured.usual_steps(world, job, device) if job is not None else None),
        rate=device.rate,
        fault_s=history.seconds_per_fault(list(world.past)),
        save_every_s=world.save_every_s,
        cores=world.cores,
    )


def _where(found: Measurement) -> str:
    """cpu, 2 threads · cuda:0 bf16"""
    words = " ".join(filter(None, (found.device, found.precision)))
    tuned = [each for each in found.tuned.split(", ") if each]
    if found.device == "cpu" and not any("thread" in each for each in tuned) and found.threads:
        tuned.insert(0, f"{found.threads} thread{'s' * (found.threads != 1)}")
    return ", ".join([words, *tuned])


def _score(world: World, preset: Preset | None) -> float | None:
    return world.score if preset is None else preset.score


def _risk(device: Device, faults: float) -> str:
    """By the doctor's verdict, the ledger, and the faults that are to be expected in this run."""
    if device.freezes or faults >= 5:
        return "high"
    if device.verdict == "use_with_care" or device.trust == LedgerState.PROBATION or faults >= 0.5:
        return "medium"
    return "low"


def _energy(device: Device, found: Measurement, time_s: float) -> tuple[float | None, str]:
    """Watt-hours, by what the device drew in the trial or by what its maker says it may."""
    if found.power_w:
        return found.power_w * time_s / 3600, f"{found.power_w:.0f} W measured in the trial"
    known = card(device.name)
    if known is not None and known.rated_w:
        return known.rated_w * time_s / 3600, f"{known.rated_w:.0f} W, the rated power of {known.gpu}"
    return None, "not known: this device does not tell its power"


def _remembered(world: World, device: Device) -> Option | None:
    """No trial, but the same job finished here before."""
    runs = [[p for p in world.past if p.job == job.name and p.device == device.id] for job in world.jobs]
    if not all(runs):
        return None
    times = [sorted(each.took_s for each in mine[-10:]) for mine in runs]
    time_s = sum(each[len(each) // 2] for each in times)
    low, high = sum(each[0] for each in times) * 0.8, sum(each[-1] for each in times) * 1.25
    told = f"{sum(map(len, runs))} run{'s' * (sum(map(len, runs)) != 1)} that finished here; no trial was made now"
    return Option("local", device.id, device=device.id, time_s=time_s, low_s=low, high_s=high, basis="remembered",
                  risk=_risk(device, device.rate * time_s / 3600), score=world.score, origin=(told,))  # fmt: skip


def _best_measured(world: World, measurements: Sequence[Measurement]) -> list[Measurement]:
    """One device's measurements of the whole job, for comparison with hardware that is not here: the fastest's."""
    by_way: dict[tuple[str, str, int], list[Measurement]] = {}
    for each in measurements:
        if each.usable and not each.preset:
            by_way.setdefault((each.device, each.precision, each.threads), []).append(each)
    whole = [found for found in by_way.values() if {each.job for each in found} >= {job.name for job in world.jobs}]
    return min(whole, key=lambda found: sum(each.step_s or 0.0 for each in found)) if whole else []


# --why ----------------------------------------------------------------------------------------------------------


def _origin(
    world: World, device: Device, seen: Sequence[Measurement], whole: Estimate, energy_from: str, preset: Preset | None
) -> Iterable[str]:
    for each in seen:
        name = f"{each.job}: " if len(seen) > 1 else ""
        unit = "epochs" if each.batches is None and each.epochs is not None else "steps"
        one = (each.step_s or 0.0) * 1000
        yield (
            f"{name}{each.steps_seen} {unit} measured in {each.took_s:.1f} s: {one:.4g} ms each, spread "
            f"{100 * each.spread:.0f} %" + ("; not all of the script was seen" if each.status == PARTLY else "")
        )
        if each.epochs is not None:
            of = f" of {each.batches} steps" if each.batches else ""
            yield f"{name}{each.epochs} epochs{of}: the script says so"
        if world.larger > 1:
            yield (
                f"{name}of a set {world.larger:,} times as large as the one that was measured (--times): steps,"
                " evaluation, the end and the check of the data as many times, a step and the rest as measured"
            )
        if each.tuned:
            yield f"{name}its tuner took: {each.tuned}"
        if each.pieces > 1:
            yield f"{name}a batch does not fit as a whole: computed in {each.pieces} pieces"
        if each.memory_bytes:
            yield f"{name}memory: {each.memory_bytes / 1e9:.2f} GB at most" + (
                f", {each.device_memory_bytes / 1e9:.2f} GB on the device" if each.device_memory_bytes else ""
            )
    yield "time: " + " + ".join(f"{name} {seconds:.1f} s" for name, seconds in whole.parts.items() if seconds >= 0.05)
    if whole.correction.runs:
        runs = whole.correction.runs
        told = f"times {whole.correction.factor:.2f}: " if len(seen) == 1 else ""
        yield f"{told}{runs} run{'s' * (runs != 1)} that finished here took that much of what was measured"
    else:
        yield "no run of this finished here yet: the interval is a first guess, 20 % to each side"
    yield from whole.notes
    if device.hours:
        yield f"faults: {device.faults} in {device.hours:.1f} h of use here (ledger), {whole.faults:.1f} expected"
    yield f"energy: {energy_from}"
    score = _score(world, preset)
    if score is not None:
        yield f"score: {world.score_name} {score:g} ({preset.basis if preset else world.score_basis})"
