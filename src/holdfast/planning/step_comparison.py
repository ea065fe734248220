"""Which way to take a step is the fastest: candidates in turns, compared in pairs, within a time that is kept.

    result = tune(make, [Knob("threads", (2, 1))], budget_s=10.0)     # make(choice) returns one real step
    result.choice, result.speedup, result.low, result.high, result.rows

Steps of two candidates are taken in turns, so that a busy machine disturbs both alike. The number of threads comes
first: the fastest of those is the best plain setting, and every other ratio is against that one. The winner is compared
with it once more, until it was faster in so many pairs that chance is unlikely (a sign test). Where that is not shown,
the best plain setting it is.

The time is kept twice: nothing is begun that does not fit into what is left, and an alarm ends a candidate whose step
takes longer than that (not on Windows, nor outside of the main thread, where the step under way is waited for).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from holdfast.planning.choice import Choice, Knob
from holdfast.planning.records import Result, Row, load

CLEARLY = 0.03
"""A candidate has to take so much less time than the best so far."""
HOPELESS = 1.15
"""One that was never less than so much slower in two rounds is not measured further."""
ROUNDS = 5
"""Pairs of steps for each candidate. One that is faster in all five is so by chance in one of 32 cases."""
CHANCE = 0.05
"""The winner is taken where so many wins are less likely than this for two that are alike."""
SEARCH = 0.7
"""Of the time: for all candidates; the rest is for the comparison of the winner with the best plain setting."""
NEEDED = 2 + 2 * ROUNDS
"""Steps that it takes to compare one candidate: two cold ones, and the pairs."""
COMPILING_S = 15.0
"""Compiling is not begun with less time than this: it would be cut."""
PLAIN = "threads"
"""The knob that makes no other computation of a step: its fastest value is the best plain setting."""

Step = Callable[[], float]
"""One real step; returns its loss, which also waits for the device."""


def tune(
    make: Callable[[Choice], Step],
    knobs: Sequence[Knob],
    *,
    start: Choice | None = None,
    rounds: int = ROUNDS,
    budget_s: float = 20.0,
    trying: Callable[[Choice | None], None] = lambda _: None,
    forbidden: Sequence[Choice] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Turn one knob after the other, keep what is clearly faster, compare the winner with the best plain setting."""
    began = clock()
    bench = _Bench(make, trying, tuple(forbidden), clock)
    plain = start or Choice()
    busy = load()
    bench.build(plain)
    bench.steps[plain]()
    base = best = plain
    rows: list[Row] = []
    for knob in sorted(knobs, key=lambda each: each.name != PLAIN):
        candidates = [dataclasses.replace(best, **{knob.name: value}) for value in knob.values]
        found = []
        for each in (one for one in dict.fromkeys(candidates) if one != best):
            if bench.fits(best, began + SEARCH * budget_s - COMPILING_S * each.compile):
                found.append(bench.against(each, best, rounds, began + SEARCH * budget_s))
        rows += found
        good = [row for row in found if _better(row) and (knob.name != PLAIN or _sure(row))]
        if good:
            best = min(good, key=lambda row: row.ratio or math.inf).choice
        if knob.name == PLAIN:
            base = best
        bench.let_go(all_but=(plain, base, best))
    shown = next((row for row in rows if row.choice == base and row.against == plain), None)
    if best != base:
        best, shown = _confirmed(bench, best, base, rounds, rows, began + budget_s)
    trying(None)
    return _result(bench, plain, base, best, shown, rows, clock() - began, max(busy, load()))


def _confirmed(
    bench: _Bench, best: Choice, base: Choice, rounds: int, rows: list[Row], deadline: float
) -> tuple[Choice, Row | None]:
    """The winner, if it is surely faster than the best plain setting; else one that was so when it was tried."""
    if bench.fits(best, deadline, 2 * rounds):
        last = bench.against(best, base, 3 * rounds, deadline, until_sure=True)
        rows.append(last)
        if _better(last) and _sure(last):
            return best, last
        if last.refused or not _better(last) or last.pairs >= rounds:
            return base, None
    direct = [row for row in rows if row.against == base and row.choice != base and _better(row) and _sure(row)]
    if direct:
        good = min(direct, key=lambda row: row.ratio or math.inf)
        return good.choice, good
    return base, None


def _result(
    bench: _Bench, plain: Choice, base: Choice, best: Choice, shown: Row | None, rows: list[Row], took_s: float,
    busy: float,
) -> Result:  # fmt: skip
    speeds = (1.0, 1.0, 1.0)
    if shown is not None and shown.ratio and shown.low and shown.high and best != plain:
        speeds = (1.0 / shown.ratio, 1.0 / shown.high, 1.0 / shown.low)
    return Result(
        best, speeds[0], bench.median(plain), took_s, tuple(rows), low=speeds[1], high=speeds[2], base=base, load=busy,
        pairs=shown.pairs if shown and best != plain else 0, wins=shown.wins if shown and best != plain else 0,
    )  # fmt: skip


def _better(row: Row) -> bool:
    return row.ratio is not None and row.ratio < 1.0 - CLEARLY


def _sure(row: Row) -> bool:
    return by_chance(row.wins, row.pairs) <= CHANCE


def by_chance(wins: int, pairs: int) -> float:
    """How likely so many wins or more are if both are alike."""
    return sum(math.comb(pairs, count) for count in range(wins, pairs + 1)) / 2.0**pairs


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between these the median lies, nine times of ten, whatever the distribution; all of them if fewer than five."""
    ordered = sorted(values)
    outside = 0
    while by_chance(len(ordered) - outside - 1, len(ordered)) <= CHANCE:
        outside += 1
    return ordered[outside], ordered[-1 - outside]


class TimeOver(BaseException):
    """The time for comparing is over. Not an Exception: a script may catch those."""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """TimeOver after so long, also in the middle of a step; nothing where there is no alarm. One that somebody else has
    set goes on afterwards, and is not touched where it comes first."""
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    theirs = signal.getitimer(signal.ITIMER_REAL) if able else (0.0, 0.0)
    if not able or not math.isfinite(seconds) or 0.0 < theirs[0] <= seconds:
        yield
        return

    def over(*_: object) -> None:
        raise TimeOver

    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, over)
    # Again and again: what is raised inside of a destructor or a callback of C is lost.
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds), 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if theirs[0]:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, theirs[0] - (time.monotonic() - began)), theirs[1])


class _Bench:
    """The candidates that were built, and their times."""

    def __init__(
        self,
        make: Callable[[Choice], Step],
        trying: Callable[[Choice | None], None],
        forbidden: tuple[Choice, ...],
        clock: Callable[[], float],
    ) -> None:
        self.make, self.trying, self.forbidden, self.clock = make, trying, forbidden, clock
        self.steps: dict[Choice, Step] = {}
        self.losses: dict[Choice, float] = {}
        self.times: dict[Choice, list[float]] = {}
        self.cold: dict[Choice, float] = {}
        """What the first step took: caches are cold, memory is new, and compiling happens there."""

    def build(self, choice: Choice) -> None:
        """Make it and take its first step, which does not count."""
        if choice not in self.steps:
            step = self.make(choice)
            began = self.clock()
            self.losses[choice] = step()
            self.cold[choice] = self.clock() - began
            self.steps[choice] = step

    def fits(self, best: Choice, deadline: float, steps: int = NEEDED) -> bool:
        """Whether there is time for so many steps like those of the best."""
        one = self.median(best) or self.cold[best]
        return self.clock() + steps * one <= deadline

    def let_go(self, all_but: tuple[Choice, ...]) -> None:
        """Each candidate holds a copy of the model, and maybe loader processes."""
        for choice in [each for each in self.steps if each not in all_but]:
            del self.steps[choice]

    def against(self, choice: Choice, best: Choice, rounds: int, deadline: float, *, until_sure: bool = False) -> Row:
        if choice in self.forbidden:
            return Row(choice, None, None, "it ended an earlier worker", best)
        self.trying(choice)
        ratios: list[float] = []
        refused = ""
        try:
            with alarm(deadline - self.clock() if self.clock is time.perf_counter else math.inf):
                refused = self._begun(choice, best)
                if not refused:
                    self._in_turns(choice, best, rounds, deadline, ratios, until_sure)
        except TimeOver:
            refused = "" if ratios else "the time was over"
            choice.forget()
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            refused = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if refused or not ratios:
            return Row(choice, self.cold.get(choice), None, refused or "the time was over", best)
        low, high = interval(ratios)
        wins = sum(each < 1.0 for each in ratios)
        return Row(
            choice, self.median(choice), statistics.median(ratios), "", best, low, high, pairs=len(ratios), wins=wins
        )

    def _begun(self, choice: Choice, best: Choice) -> str:
        """Its first steps; why it is refused after them, or nothing."""
        self.build(choice)
        wrong = self._wrong(choice)
        if not wrong and not choice.compile and self.cold[choice] > 3.0 * self.cold[best] + 1.0:
            wrong = "its first step was far slower"
        if not wrong and len(self.times.get(choice, ())) == 0:
            self.steps[choice]()
        return wrong

    def _in_turns(
        self, choice: Choice, best: Choice, rounds: int, deadline: float, ratios: list[float], until_sure: bool
    ) -> None:
        for number in range(rounds):
            order = (choice, best) if number % 2 else (best, choice)
            began = self.clock()
            took = {each: self._timed(each) for each in order}
            ratios.append(took[choice] / took[best])
            if number >= 1 and min(ratios) > HOPELESS:
                return
            sure = until_sure and by_chance(sum(each < 1.0 for each in ratios), len(ratios)) <= CHANCE
            if sure or self.clock() + (self.clock() - began) > deadline:
                return

    def _timed(self, choice: Choice) -> float:
        began = self.clock()
        self.steps[choice]()
        took = self.clock() - began
        self.times.setdefault(choice, []).append(took)
        return took

    def _wrong(self, choice: Choice) -> str:
        mine, theirs = self.losses[choice], next(iter(self.losses.values()))  # plain was built first
        if not math.isfinite(mine) and math.isfinite(theirs):
            return "its loss is not finite"
        if abs(mine - theirs) > 0.05 * max(abs(theirs), 1e-3):
            return f"its loss is {mine:.5g}, not {theirs:.5g}"
        return ""

    def median(self, choice: Choice) -> float | None:
        return statistics.median(self.times[choice]) if self.times.get(choice) else None
