"""Remedies: what may cure a device, what each costs, and the search for those that do.

    suited("rocm", traits(result), "crashed", os.environ)      # [Remedy("miopen-fast-find"), Remedy("sdma-off"), …]
    found = search(results, backend="rocm", run=run)           # run(probe, env) -> Result, in a fresh process
    found.cures                                                # [Cure(remedy, cured=("conv2d fp16 backward",))]
    environment(cure.remedy for cure in found.cures)           # {"HSA_ENABLE_SDMA": "0"}

A remedy either changes how a device is used (variables, switches) and is then tried: the probe that failed runs again
with it. Or it does without something (a precision, a layout, a large batch), and then the probe that does without
has passed already, or has not. What is known is in remedies.toml, a row each; a file of your own may add to them
(holdfast.base.additions). No torch here.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.base import additions, toml_file
from holdfast.base.errors import UserError
from holdfast.devices import flags as switches
from holdfast.devices.traits import CRASHED, FAILED, FP32, HUNG, PASSED, Result, Traits, easier, traits
from holdfast.faults.classification import Kind, match_text

BACKENDS = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", "apple": "mps", "cpu": "cpu"}
"""By the kind of a device. One that is not here, such as a pretend device, may be given any remedy."""
BAD = (FAILED, CRASHED, HUNG)
_SEVERITY = {CRASHED: 0, HUNG: 1, FAILED: 2}


@dataclass(frozen=True, slots=True)
class Remedy:
    """One row of remedies.toml."""

    name: str
    text: str
    """What it does, in words that can follow "holdfast will"."""
    cost: str
    source: str
    backends: tuple[str, ...]
    families: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    avoid: str = ""
    needs: tuple[str, ...] = ()
    needs_text: str = ""

    @property
    def tried(self) -> bool:
        """By running the probe again with it."""
        return not self.avoid

    def suits(self, backend: str | None, about: Traits, status: str, env: Mapping[str, str]) -> bool:
        """Is it worth a try?"""
        low = about.precision if about.precision else FP32
        return (
            (backend is None or backend in self.backends)
            and (not self.families or about.family in self.families)
            and (not self.states or status in self.states)
            and (not self.precisions or low in self.precisions)
            and (not self.needs or any(self.needs_text in env[name] for name in self.needs if name in env))
        )

    def commands(self) -> list[str]:
        """What a user types to have it without holdfast; nothing where it is no matter of the environment."""
        if "no-masquerade" in self.flags:
            return [_unset(switches.MASQUERADE)]
        return [_export(name, value) for name, value in self.env]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "cost": self.cost, "env": dict(self.env), "flags": [*self.flags]}


@functools.lru_cache(maxsize=1)
def catalogue() -> tuple[Remedy, ...]:
    """Every remedy there is, in the order in which they are tried."""
    rows = toml_file.load(Path(__file__).with_name("remedies.toml"))
    ours = [_remedy(name, row) for name, row in rows.items()]
    return (*ours, *_added({remedy.name for remedy in ours}))


_FIELDS: Mapping[str, type] = {
    **dict.fromkeys(("text", "cost", "source", "avoid", "needs", "needs_text"), str),
    **dict.fromkeys(("backends", "families", "states", "precisions", "flags"), list),
    "env": dict,
}


def _added(known: set[str]) -> Iterator[Remedy]:
    """Those of files from outside; they come after ours."""
    for file in additions.files("remedies", "*.toml"):
        for name, row in additions.tables(file).items():
            where = f"the remedy `{name}` in {file}"
            additions.check_fields(where, row, _FIELDS, ("text", "cost", "source", "backends"))
            if name in known:
                raise UserError(f"{where} has a name that another has already")
            if not (row.get("env") or row.get("flags") or row.get("avoid")):
                raise UserError(f"{where} changes nothing", hints=["give it `env`, `flags` or `avoid`"])
            known.add(name)
            yield _remedy(name, row)


def _remedy(name: str, row: Mapping[str, Any]) -> Remedy:
    lists = {key: tuple(row.get(key, ())) for key in ("backends", "families", "states", "precisions", "flags")}
    return Remedy(
        name=name,
        text=row["text"],
        cost=row["cost"],
        source=row["source"],
        env=tuple(row.get("env", {}).items()),
        avoid=row.get("avoid", ""),
        needs=tuple(row.get("needs", "").split()),
        needs_text=row.get("needs_text", ""),
        **lists,
    )


def named(name: str) -> Remedy | None:
    """The remedy of that name; None for one of another version of holdfast."""
    return next((remedy for remedy in catalogue() if remedy.name == name), None)


def suited(backend: str | None, about: Traits, status: str, env: Mapping[str, str] | None = None) -> list[Remedy]:
    """What to try for a probe that ended so, what costs least first. A `backend` of None takes any."""
    env = os.environ if env is None else env
    return [remedy for remedy in catalogue() if remedy.suits(backend, about, status, env)]


def environment(remedies: Iterable[Remedy], more: Iterable[str] = ()) -> dict[str, str]:
    """The variables of a process that has these remedies; switches, and `more` of them, are in one variable of ours."""
    chosen = list(remedies)
    env = {name: value for remedy in chosen for name, value in remedy.env}
    flags = list(dict.fromkeys([*(flag for remedy in chosen for flag in remedy.flags), *more]))
    return {**env, **({switches.VARIABLE: ",".join(flags)} if flags else {})}


def known_environment(env: Mapping[Any, Any]) -> dict[str, str]:
    """Of variables that a file names, those that are a remedy's: a file must not bring a worker just any variable."""
    ours = {pair for remedy in catalogue() for pair in remedy.env}
    pairs = [(name, value) for name, value in env.items() if isinstance(name, str) and isinstance(value, str)]
    return {name: value for name, value in pairs if (name, value) in ours or name == switches.VARIABLE}


# The search ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt:
    """One remedy that was tried on one probe."""

    remedy: Remedy
    probe: str
    result: Result

    @property
    def cured(self) -> bool:
        return self.result.status == PASSED


@dataclass(frozen=True, slots=True)
class Cure:
    """A remedy that helped."""

    remedy: Remedy
    cured: tuple[str, ...]
    """The probes that pass with it, or that it makes needless."""
    without: str = ""
    """What is done without: "fp16", "batch 8 and more", …"""
    keep: int | None = None
    """The largest batch that passed, where batches are to be smaller."""
    switch: str = ""
    """The switch of devices/flags.py that does without it."""

    def to_json(self) -> dict[str, Any]:
        return {**self.remedy.to_json(), "cured": [*self.cured], "without": self.without or None}


@dataclass(slots=True)
class Found:
    """What a search came to."""

    cures: list[Cure] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    uncured: list[Result] = field(default_factory=list)
    unsearched: bool = False
    """Time ran out before everything was tried."""

    def cure_of(self, probe: str) -> Cure | None:
        return next((cure for cure in self.cures if probe in cure.cured), None)


Run = Callable[[str, Mapping[str, str]], Result]
"""A probe by its name, in a fresh process with these variables on top."""


def search(
    results: Sequence[Result],
    *,
    backend: str | None,
    run: Run,
    env: Mapping[str, str] | None = None,
    budget_s: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[Remedy, str], None] = lambda remedy, probe: None,
    before: Found | None = None,
) -> Found:
    """For everything that failed on one device: remedies one by one, until one helps or none is left.

    What helped is kept while the next failure is looked at, and is tried on every other failure first. In the end
    everything that passed by way of several remedies runs once more with all of them: two cures may not agree.
    `before` is what an earlier search came to: its cures are kept, and what it could not cure is not tried again.
    """
    found = Found() if before is None else Found(list(before.cures), list(before.attempts), list(before.uncured))
    known = {name for cure in found.cures for name in cure.cured} | {each.probe for each in found.uncured}
    until = clock() + budget_s
    left = sorted((each for each in results if each.status in BAD and each.probe not in known), key=_most_telling)
    while left:
        worst = left.pop(0)
        cure = _try_each(worst, found, backend, run, env, until, clock, tell) or _do_without(worst, results, backend)
        if cure is None:
            found.uncured.append(worst)
            continue
        if cure.remedy.tried:
            also = [each for each in left if _passes(each, [*found.cures, cure], run, until, clock)]
        else:
            also = [each for each in left if _like(_do_without(each, results, backend), cure)]
        left = [each for each in left if each not in also]
        found.cures.append(replace(cure, cured=(*cure.cured, *(each.probe for each in also))))
    _check_together(found, results, run, until, clock)
    found.unsearched = clock() >= until and bool(found.uncured)
    return found


def _most_telling(result: Result) -> tuple[int, int, float]:
    """What dies before what is wrong, fp32 before less, the quickest first: the search runs it often."""
    return (_SEVERITY[result.status], int(traits(result).low), result.seconds)


def _try_each(
    worst: Result,
    found: Found,
    backend: str | None,
    run: Run,
    env: Mapping[str, str] | None,
    until: float,
    clock: Callable[[], float],
    tell: Callable[[Remedy, str], None],
) -> Cure | None:
    kept = [cure.remedy for cure in found.cures if cure.remedy.tried]
    useful = suited(backend, traits(worst), worst.status, env)
    if hopeless(worst):
        useful = [remedy for remedy in useful if "no-masquerade" in remedy.flags]
    for remedy in useful:
        if not remedy.tried or remedy in kept or clock() >= until:
            continue
        tell(remedy, worst.probe)
        attempt = Attempt(remedy, worst.probe, run(worst.probe, environment([*kept, remedy])))
        found.attempts.append(attempt)
        if attempt.cured:
            return Cure(remedy, (worst.probe,))
    return None


def hopeless(result: Result) -> bool:
    """It said that there is no code for the card, or no driver: no setting changes that; the card's true name may."""
    if result.status == HUNG:
        return False
    said = [result.evidence.get("why"), *(result.evidence.get("last_words") or ())]
    known = match_text("\n".join(str(line) for line in said if line))
    return known is not None and known.kind in (Kind.UNSUPPORTED, Kind.DRIVER)


def _passes(result: Result, cures: Sequence[Cure], run: Run, until: float, clock: Callable[[], float]) -> bool:
    if clock() >= until:
        return False
    kept = [cure.remedy for cure in cures if cure.remedy.tried]
    return run(result.probe, environment(kept)).status == PASSED


def _do_without(result: Result, results: Sequence[Result], backend: str | None) -> Cure | None:
    """What the probe shows can be avoided, and everything that avoids it has passed."""
    about = traits(result)
    for remedy in catalogue():
        fits = remedy.avoid and remedy.suits(backend, about, result.status, {})
        simpler = easier(result, results, remedy.avoid) if fits else []
        passed = [each for each in simpler if each.status == PASSED]
        enough = bool(passed) if remedy.avoid in ("batch", "sdpa") else bool(simpler) and len(passed) == len(simpler)
        if enough:
            batches = [each for each in (traits(other).batch for other in passed) if each is not None]
            keep = max(batches, default=None) if remedy.avoid == "batch" else None
            given_up = _given_up(remedy.avoid, about, keep)
            return Cure(remedy, (result.probe,), given_up, keep, _switch(remedy.avoid, about))
    return None


def _switch(avoid: str, about: Traits) -> str:
    if avoid == "precision":
        return f"{about.precision}-off"
    return f"sdpa-no-{about.sdpa}" if avoid == "sdpa" else ""


def _given_up(avoid: str, about: Traits, keep: int | None) -> str:
    if avoid == "precision":
        return about.precision
    if avoid == "batch":
        return f"more than {keep} at once"
    if avoid == "sdpa":
        return f"{about.sdpa} attention"
    return {"company": "a second process", "shapes": "changing shapes"}.get(avoid, avoid)


def _like(other: Cure | None, cure: Cure) -> bool:
    return other is not None and (other.remedy, other.without) == (cure.remedy, cure.without)


def _check_together(
    found: Found, results: Sequence[Result], run: Run, until: float, clock: Callable[[], float]
) -> None:
    """With several remedies at once each cure has to hold still; one that does not is no cure."""
    tried = [cure for cure in found.cures if cure.remedy.tried]
    if len(tried) < 2 or clock() >= until:
        return
    by_name = {each.probe: each for each in results}
    env = environment(cure.remedy for cure in tried)
    for cure in tried[:-1]:  # the last was found with all the others in place
        if run(cure.cured[0], env).status != PASSED:
            found.cures.remove(cure)
            found.uncured += [by_name[name] for name in cure.cured]


# Words --------------------------------------------------------------------------------------------------------------


def _export(name: str, value: str) -> str:
    return f"$env:{name} = '{value}'" if sys.platform == "win32" else f"export {name}={value}"


def _unset(name: str) -> str:
    return f"Remove-Item Env:{name}" if sys.platform == "win32" else f"unset {name}"
