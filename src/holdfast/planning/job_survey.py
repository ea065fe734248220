"""Looking around and trying: what is here, and how fast the job runs on it. No torch in this process.

    world = look(jobs, settings, presets=…)              # devices, history, prices: milliseconds
    measurements = trials(jobs, world, bench)            # within the time of the bench

What is tried, in this order: the job on each device that may train; then smaller forms of it, for which a part of the
time is kept; then other numbers of threads where the script has no tuner of its own, and fp32 alone.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.devices import inventory
from holdfast.devices.ledger import Ledger
from holdfast.devices.saved_verdicts import Verdicts
from holdfast.faults.terms import Level
from holdfast.planning import history
from holdfast.planning.measured_jobs import LEAST_S, Bench, Job, Way
from holdfast.planning.measurement import MEASURED, Measurement
from holdfast.planning.presets import Preset
from holdfast.planning.prices import Price
from holdfast.planning.world import Device, JobFacts, World
from holdfast.run import machine
from holdfast.run.settings import Settings

if TYPE_CHECKING:
    from holdfast.devices.findings import Finding
    from holdfast.devices.survey.records import Inventory

Tell = Callable[[str], None]

ALONE, FIRST = 0.9, 0.6
"""Of the time that is left: what the job as it was asked for may take, without and with smaller forms to be tried."""


def look(
    jobs: Sequence[Job],
    parameters: Sequence[tuple[str, ...]],
    settings: Settings,
    *,
    prices: Iterable[Price] = (),
    presets: Sequence[Preset] = (),
    only: str | None = None,
    score: tuple[float, str, str] | None = None,
    steps: int | None = None,
    larger: int = 1,
) -> World:
    """Everything but the measurements."""
    names = [only] if only else inventory.candidates()
    value, name, basis = score if score is not None else (None, "", "")
    price = settings.plan.electricity
    return World(
        jobs=tuple(_facts(job, known) for job, known in zip(jobs, parameters, strict=True)),
        devices=tuple(device(each) for each in names),
        cores=machine.usable_cpus() or 1,
        cpu=platform.processor() or platform.machine(),
        system=_system(),
        cards=_cards(),
        prices=tuple(prices),
        electricity=price,
        electricity_from=settings.source("plan.electricity"),
        presets=tuple(presets),
        score=value,
        score_name=name,
        score_basis=basis,
        past=tuple(history.recall(*(job.name for job in jobs))),
        steps=steps,
        larger=larger,
        save_every_s=settings.checkpoint.every,
    )


def _facts(job: Job, parameters: tuple[str, ...]) -> JobFacts:
    return JobFacts(job.name, parameters, tuple(sorted((key, str(value)) for key, value in job.arguments.items())))


def recorded(world: World, here: Inventory, found: Sequence[Finding]) -> World:
    """The same job on a machine that was written down: its devices as the doctor would refuse them, none measured."""
    devices = []
    for each in sorted(here.devices, key=lambda each: each.kind == "cpu"):
        errors = [one for one in found if one.device == each.id and one.level == Level.ERROR]
        why = errors[0].sentence() if errors else "" if each.visible else "; ".join(each.notes)
        verdict = "refused" if errors or not each.visible else "trusted" if each.kind == "cpu" else ""
        devices.append(Device(each.id, each.name or "", verdict, why, tuple(one.code for one in errors)))
    cpu = here.cpu
    return dataclasses.replace(
        world,
        devices=tuple(devices),
        cores=cpu.threads_allowed or cpu.threads or cpu.cores or 1,
        cpu=cpu.name or here.system.machine or "",
        system="wsl" if here.system.wsl else here.system.os,
        cards=tuple(each.name or each.id for each in here.gpus) if here.system.os == "windows" else (),
        past=(),
    )


def device(label: str) -> Device:
    """What doctor and ledger know about a device."""
    ledger = Ledger()
    kept = Verdicts(ledger=ledger).get(label)
    verdict = kept.verdict
    past = ledger.history(label)
    return Device(
        id=label,
        name=(verdict.name if verdict else None) or ledger.identify(label).name or "",
        verdict=verdict.state if verdict else "",
        why=verdict.why if verdict else "",
        codes=tuple(each.code for each in verdict.findings if each.code) if verdict else (),
        trust=ledger.trust(label, label).state,
        hours=round(past.hours, 3),
        faults=past.faults,
        freezes=past.freezes,
    )


def _system() -> str:
    if sys.platform == "win32":
        return "windows"
    return "wsl" if "microsoft" in platform.release().lower() else sys.platform


def _cards() -> tuple[str, ...]:
    """Cards that are in the machine whether or not torch can use them; where that makes a difference to the advice."""
    if sys.platform != "win32":
        return ()
    from holdfast.devices.survey.collect import take

    return tuple(each.name or each.id for each in take().gpus)


def ways(world: World, threads: int) -> list[Way]:
    """How each device that may train is used, as `holdfast train` would."""
    found = []
    for each in world.devices:
        if each.refused:
            continue
        verdict = Verdicts().get(each.id).verdict
        env = tuple(verdict.policy.env.items()) if verdict else ()
        only_fp32 = verdict is not None and verdict.policy.dtype == "float32"
        found.append(Way(each.id, "fp32" if only_fp32 else "", threads, env))
    return found


def trials(
    jobs: Sequence[Job], world: World, bench: Bench, threads: int, tell: Tell = lambda text: None
) -> list[Measurement]:
    """The measurements, as many as the time allows; a device that fails in one job is not tried in the next."""
    here = ways(world, threads)
    found: list[Measurement] = []
    dead: set[Way] = set()
    wanted = [(job, way) for job in jobs for way in here]
    first = FIRST if list(_smaller(jobs, world)) else ALONE
    for number, (job, way) in enumerate(wanted):
        if way in dead:
            continue
        tell(f"{job.name} on {way.label}")
        once = _tried(bench, job, way, first / (len(wanted) - number))
        found.append(once)
        if not once.usable and not (once.slow and way.device == "cpu"):  # on a card it may as well hang
            dead.add(way)
    alive = [way for way in here if way not in dead]
    if alive:
        _with_what_is_left(jobs, world, bench, alive, found, tell)
    return found


def _tried(bench: Bench, job: Job, way: Way, share: float) -> Measurement:
    """Once; and once more, if most of it was preparation that the run will find done."""
    first = bench.measure(job, way, share)
    if first.usable and first.prepared_s > 1.0 and bench.left_s > 2 * LEAST_S:
        again = bench.measure(job, way, share)
        return both(first, again) if again.usable else first
    return first


def both(first: Measurement, again: Measurement) -> Measurement:
    """Set-up as it is the second time; of everything else what was seen more of."""
    more, less = (first, again) if first.steps_seen > again.steps_seen else (again, first)

    def either(name: str) -> Any:
        value = getattr(more, name)
        return getattr(less, name) if value is None else value

    seen = {name: either(name) for name in ("between_s", "closing_s", "save_s", "state_bytes", "memory_bytes")}
    status = MEASURED if MEASURED in (first.status, again.status) else more.status
    took = first.took_s + again.took_s
    return dataclasses.replace(more, **seen, status=status, setup_s=again.setup_s, prepared_s=0.0, took_s=took)


def _with_what_is_left(
    jobs: Sequence[Job], world: World, bench: Bench, alive: list[Way], found: list[Measurement], tell: Tell
) -> None:
    fastest = min(alive, key=lambda way: sum(each.step_s or math.inf for each in found if _is(each, way)))
    smaller = list(_smaller(jobs, world))
    for number, job in enumerate(smaller):
        if bench.left_s > 2 * LEAST_S:
            tell(f"{job.name}, {job.preset}, on {fastest.label}")
            found.append(bench.measure(job, fastest, max(FIRST, ALONE / (len(smaller) - number))))
    for way in (each for each in alive if any(_is(one, each) and one.usable for one in found)):
        for other in _others(way, [each for each in found if _is(each, way)]):
            for job in jobs:
                if bench.left_s > 2 * LEAST_S:
                    tell(f"{job.name} on {other.label}, {other.threads} threads")
                    found.append(bench.measure(job, other, 0.5))


def _smaller(jobs: Sequence[Job], world: World) -> Iterator[Job]:
    """Forms of the jobs that have to be tried before anybody knows how fast they are."""
    for preset in world.presets:
        for job, facts in zip(jobs, world.jobs, strict=True):
            mine = {key: value for key, value in preset.arguments if key in facts.parameters}
            if mine:
                yield job.reduced(preset.name, mine)


def _is(found: Measurement, way: Way) -> bool:
    return (found.device, found.precision, found.threads) == (
        way.device,
        way.precision,
        way.threads,
    ) and not found.preset


def _others(way: Way, found: list[Measurement]) -> list[Way]:
    """Other policies for a device: fewer threads on a CPU where nothing tunes them; fp32 alone on an accelerator."""
    if way.device != "cpu":
        return [] if way.precision else [dataclasses.replace(way, precision="fp32")]
    if any(each.tuner for each in found) or way.threads < 2:
        return []
    return [dataclasses.replace(way, threads=each) for each in dict.fromkeys((max(1, way.threads // 2), 1))]
