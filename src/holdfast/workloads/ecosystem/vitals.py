"""How are they? Catch rate, attempts, survival, populations. Never the return alone: doing nothing looks like progress.

    vitals = Vitals()
    numbers = vitals.of(gathered, {"predators": {"entropy": 1.9}})      # for session.log
    warning = vitals.warning(numbers)                                    # words, or "" if all is well

A predator that is punished for every miss learns not to try: its return rises to 0 while hunting ends. So attempts are
watched, against what they were at the beginning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.workloads.ecosystem.rollout import Gathered
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, SPECIES

COLLAPSED = 0.2
"""Attempts below this part of what they were at the beginning have collapsed."""
BEGINNING = 3
"""The updates that are the beginning."""


class Vitals:
    """Remembers what the beginning was like. Protected."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.warned = False

    def of(self, gathered: Gathered, learned: dict[str, dict[str, float]]) -> dict[str, float]:
        """Rates are per 100 steps of one animal."""
        counts, hunted, lived = gathered.counts, gathered.steps_of[PREDATOR], gathered.steps_of[PREY]
        numbers = {
            "catch_rate": _rate(counts["catches"], hunted),
            "attempts": _rate(counts["attempts"], hunted),
            "hits": counts["catches"] / max(1, counts["attempts"]),
            "survival": (1.0 - counts["catches"] / max(1, lived)) ** 100 if lived else 0.0,
            "prey": float(gathered.population[PREY]),
            "predators": float(gathered.population[PREDATOR]),
            "births": float(counts["births"]),
            "starved": float(counts["starved"]),
            "extinctions": float(counts["extinctions"]),
        }
        room = gathered.room
        for species, part in ((PREY, np.s_[:, :, :room]), (PREDATOR, np.s_[:, :, room:])):
            there = gathered.there[part]
            total = float(gathered.rewards[part][there].sum())
            numbers[f"{SPECIES[species]}_return"] = 100.0 * total / max(1, int(there.sum()))
        for name, told in learned.items():
            for key in ("entropy", "kl", "value_loss"):
                if key in told:
                    numbers[f"{name}_{key}"] = told[key]
        if len(self.first) < BEGINNING and hunted:
            self.first.append(numbers["attempts"])
        return numbers

    def warning(self, numbers: dict[str, float]) -> str:
        """Said once, when it happens."""
        if len(self.first) < BEGINNING or self.warned:
            return ""
        before = sum(self.first) / len(self.first)
        if numbers["attempts"] >= COLLAPSED * before or before <= 0:
            return ""
        self.warned = True
        return (
            f"warning: predators have stopped trying: {numbers['attempts']:.2f} attempts in 100 steps, {before:.2f} at "
            f"the beginning. Their return ({numbers['predators_return']:+.2f}) may still rise: doing nothing costs "
            "nothing. A smaller attempt_cost helps."
        )

    @property
    def note(self) -> str:
        """For whoever looks at the world later: it was said once, and stays so."""
        return "Predators have stopped trying: a rising return may mean that they do nothing." if self.warned else ""

    def state_dict(self) -> dict[str, Any]:
        return {"first": list(self.first), "warned": self.warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first, self.warned = [float(each) for each in state["first"]], bool(state["warned"])


def _rate(count: int, steps: int) -> float:
    return 100.0 * count / steps if steps else 0.0
