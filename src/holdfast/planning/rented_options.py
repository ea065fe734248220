"""Rows for hardware that is not here: rented GPUs by relative speed and price, and advice. Always estimated. Pure.

    rows(world, measured)            # one per card with a known speed and price: the cheapest offer, and the best spot
    advice(world, measured)          # WSL2 or Linux, a new card: with their basis

The time is what was measured here, divided by how much faster such a card trains elsewhere. Published figures disagree
by a factor of two for the same card, so the interval is as wide, and wider where only a CPU is here to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.planning.estimate import whole_run
from holdfast.planning.measurement import Measurement
from holdfast.planning.option import Option
from holdfast.planning.prices import Card, Price, card, cards
from holdfast.planning.world import World

READY_S = 300.0
"""Assumed: until a rented machine runs and has the data; half or double of it may be so as well."""
APART = 2.0
"""The factor by which sources disagree on a card; the ends of an interval are so far from its middle."""
PER_CORE = 0.0019
"""A CPU core in the same units: 0.028 for 16 cores of a Ryzen 5950X, 0.004 for 2 of a Colab machine (apxml.com)."""
LAUNCH_S = 0.003
"""Assumed: a step on any GPU takes at least so long, because its kernels have to be started one by one."""


def rows(world: World, measured: Sequence[Measurement]) -> list[Option]:
    """Rented GPUs, the cheapest run first."""
    offers: dict[tuple[str, bool], Price] = {}
    for price in world.prices:
        for spot in (False, True):
            usd = price.spot_usd_per_hour if spot else price.usd_per_hour
            known = offers.get((price.gpu, spot))
            if usd is None or card(price.gpu) is None:
                continue
            if known is None or usd < (_rate(known, spot) or math.inf):
                offers[price.gpu, spot] = price
    found = [row for (gpu, spot), price in offers.items() if (row := _row(world, measured, price, spot))]
    return sorted(found, key=lambda row: (row.cost_usd or math.inf, row.time_s or math.inf))


def _rate(price: Price, spot: bool) -> float | None:
    return price.spot_usd_per_hour if spot else price.usd_per_hour


def _row(world: World, measured: Sequence[Measurement], price: Price, spot: bool) -> Option | None:
    there = card(price.gpu)
    usd = _rate(price, spot)
    if there is None or usd is None:
        return None
    where = f"{price.cloud} {price.gpu}{' spot' if spot else ''}"
    old = f"{price.age_days} days old" if price.age_days is not None else "of unknown age"
    told = f"${usd:.2f} an hour: {price.source}, {price.date or 'no date'} ({old})"
    base = {"kind": "cloud", "where": where, "risk": "medium" if spot else "low", "score": world.score,
            "basis": "estimated"}  # fmt: skip
    guess = elsewhere(world, measured, there)
    if guess is None:
        return Option(**base, refused_by="nothing was measured here to compare with", origin=(told,))  # type: ignore[arg-type]
    time_s = READY_S + guess.time_s
    ready = f"{READY_S / 60:.0f} min until the machine is ready (assumed, half to double)"
    spots = ["a spot machine may be taken away; the run goes on from its last checkpoint"] if spot else []
    return Option(
        **base,  # type: ignore[arg-type]
        time_s=time_s,
        low_s=READY_S / APART + guess.low_s,
        high_s=READY_S * APART + guess.high_s,
        cost_usd=usd * time_s / 3600,
        origin=(
            told,
            *guess.how,
            ready,
            *spots,
        ),
    )


@dataclass(frozen=True, slots=True)
class Guess:
    """The time on a card that is not here, and how it was come by."""

    time_s: float
    low_s: float
    high_s: float
    how: tuple[str, ...]


def elsewhere(world: World, measured: Sequence[Measurement], there: Card) -> Guess | None:
    """What the device does is divided by how much faster the card is; reading data and the script's own code are not.

    Where an epoch is one transaction, nobody can tell one from the other: from all of it being faster to none.
    """
    if not measured:
        return None
    here, apart, known_by = _speed_here(world, measured[0].device)
    faster = here / there.speed
    ends = [0.0, 0.0, 0.0]
    kept = 0.0
    for each in measured:
        found = whole_run(each, steps=world.steps, save_every_s=world.save_every_s, cores=world.cores)
        if found is None:
            return None
        count = each.steps or world.steps or 0
        after = found.parts.get("evaluation", 0.0) + found.parts.get("closing", 0.0)
        kept += found.parts["start"] + found.parts["set-up"] + found.parts.get("saves", 0.0)
        for number, off in enumerate((1.0, 1.0 / apart, apart)):
            ends[number] += count * _step_there(each, faster * off, LAUNCH_S * off) + after * min(faster * off, 1.0)
        if each.batches is None and each.epochs is not None:
            slow = found.parts["steps"] + after
            ends[0], ends[2] = math.sqrt(ends[0] * slow), max(ends[2], slow)
    shares = [each.compute for each in measured if each.compute is not None]
    part = f"; {100 * min(shares):.0f} % of a step is the device's" if shares else ""
    how = (
        f"speed {there.speed:g} of an RTX 3090 ({there.source}), here {here:.3g} ({known_by})",
        f"steps, evaluation and end {ends[0]:.0f} s there{part}; no step under {LAUNCH_S * 1000:.0f} ms (assumed)",
        f"{kept:.0f} s for start, set-up and saves, as here; speeds within a factor of {apart:.1f}: sources disagree",
    )
    return Guess(kept + ends[0], kept + ends[1], kept + ends[2], how)


def _step_there(found: Measurement, scale: float, least_s: float) -> float:
    compute = 1.0 if found.compute is None else found.compute
    one = (found.step_s or 0.0) * (1.0 - compute + compute * scale)
    return max(one, least_s) if found.batches is not None else one


def _speed_here(world: World, device: str) -> tuple[float, float, str]:
    mine = next((each for each in world.devices if each.id == device), None)
    known = card(mine.name) if mine is not None else None
    if known is not None:
        return known.speed, APART, known.source
    return PER_CORE * world.cores, APART ** math.hypot(1, 1), f"{world.cores} CPU cores by {PER_CORE:g} each"


def advice(world: World, measured: Sequence[Measurement]) -> list[Option]:
    """What could be changed about the machine."""
    found: list[Option] = []
    usable = [each for each in world.devices if each.id != "cpu" and not each.refused]
    if world.system == "windows" and world.cards and not usable:
        why = "the same card there: this torch cannot train on it under Windows; builds for Linux support more cards"
        basis = (why, "not measured: `holdfast doctor` there will say")
        where = "WSL2 or Linux"
        found.append(Option("advice", where, preset="-", basis="advice", refused_by="advice", origin=basis))
    if usable:
        return found
    new = next(each for each in cards() if each.gpu == "RTX 4060 Ti")
    guess = elsewhere(world, measured, new)
    row = Option("advice", f"a new card ({new.gpu})", basis="estimated", refused_by="advice", risk="low")
    if guess is None:
        return [*found, replace(row, origin=("nothing was measured here to compare with",))]
    row = replace(row, time_s=guess.time_s, low_s=guess.low_s, high_s=guess.high_s, score=world.score)
    return [*found, replace(row, origin=(*guess.how, "its price is not in any table here"))]
