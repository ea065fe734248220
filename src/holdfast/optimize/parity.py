"""Are these still the answers of the original? Outputs and scores against fp32 eager, in plain numpy.

    refused = judge(reference, outputs, {"r": 0.61}, {"r": 0.40}, max_loss=0.005)
    refused.reason          # "r falls from 0.6100 to 0.4000: a loss of 34.4 %, allowed are 0.5 %"
    refused.agreement       # 1 - the share of the variance that is not the original's

A candidate that is refused is not chosen, however fast it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_AGREEMENT = 0.9
"""With an equal score by luck: below this, the answers are others."""
ORDER_LOST = 0.5
"""Above this the answers are still those of their inputs, however rough; below it their order is looked at."""
SMALLEST = 0.02
"""A score nearer to zero than this is compared as if it were this large: shares of nothing say nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What parity says about a candidate."""

    reason: str
    """Why it is refused; empty if it is not."""
    agreement: float | None
    largest_error: float | None
    loss: float | None
    """The largest share of a score that is lost; negative if it gained."""

    @property
    def ok(self) -> bool:
        return not self.reason


def unfit(outputs: Sequence[NDArray[Any]]) -> str:
    """What is wrong with a model's own answers, before anything is compared; empty if nothing is."""
    for each in outputs:
        bad = int((~np.isfinite(each)).reshape(len(each), -1).any(axis=1).sum())
        if bad:
            return f"the answers hold NaN or infinity for {bad} of {len(each)} inputs"
    if len(outputs[0]) > 1 and all(_constant(each) for each in outputs):
        return f"the answer is the same for all {len(outputs[0])} inputs"
    return ""


def judge(
    reference: Sequence[NDArray[Any]],
    outputs: Sequence[NDArray[Any]],
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    max_loss: float = 0.005,
    compared: Sequence[int] = (),
    higher_is_worse: Mapping[str, int] | None = None,
) -> Judged:
    """Compare. `compared` names the outputs that count, all if empty."""
    if [each.shape for each in reference] != [each.shape for each in outputs]:
        shapes = [each.shape for each in outputs], [each.shape for each in reference]
        return Judged(f"the answers have the shapes {shapes[0]} instead of {shapes[1]}", None, None, None)
    wrong = unfit(outputs)
    if wrong:
        return Judged(wrong, None, None, None)
    chosen = list(compared) or range(len(reference))
    agreement = min(_agreement(reference[number], outputs[number]) for number in chosen)
    largest = max(float(np.abs(reference[number] - outputs[number]).max(initial=0.0)) for number in chosen)
    loss = _loss(before, after, higher_is_worse or {})
    share = None if loss is None else loss[1]
    found = Judged("", agreement, largest, share)
    if agreement < ORDER_LOST and all(_shuffled(reference[number], outputs[number]) for number in chosen):
        return _refused(found, "the answers are those of other inputs: they come out shuffled")
    if before and not after:
        return _refused(found, "its answers cannot be scored")
    if loss is not None and loss[1] > max_loss:
        name = loss[0]
        return _refused(found, f"{name} goes from {before[name]:.4f} to {after[name]:.4f}: a loss of "
                               f"{100 * loss[1]:.1f} %, allowed are {100 * max_loss:g} %")  # fmt: skip
    least = 1 - max_loss if loss is None else LEAST_AGREEMENT
    if agreement < least:
        return _refused(found, f"the answers agree with the original's to {agreement:.4f} only, {least:.4f} is needed")
    return found


def _refused(found: Judged, reason: str) -> Judged:
    return Judged(reason, found.agreement, found.largest_error, found.loss)


def _loss(
    before: Mapping[str, float], after: Mapping[str, float], signs: Mapping[str, int]
) -> tuple[str, float] | None:
    """The score that lost most, and the share it lost. What a score's own noise explains is no loss."""
    losses = []
    for name, value in before.items():
        if name.endswith("_spread") or name not in after:
            continue
        lost = (value - after[name]) * signs.get(name, 1)
        noise = 2.0 * float(np.hypot(before.get(f"{name}_spread", 0.0), after.get(f"{name}_spread", 0.0)))
        losses.append((name, max(0.0, lost - noise) / max(abs(value), SMALLEST) if lost > 0 else 0.0))
    return max(losses, key=lambda each: each[1]) if losses else None


def _constant(output: NDArray[Any]) -> bool:
    flat = output.reshape(len(output), -1).astype(np.float64)
    return bool(np.ptp(flat, axis=0).max(initial=0.0) <= 1e-7 * max(1e-30, float(np.abs(flat).max(initial=0.0))))


def _agreement(reference: NDArray[Any], output: NDArray[Any]) -> float:
    wanted, got = reference.astype(np.float64), output.astype(np.float64)
    spread = float(((wanted - wanted.mean(axis=0)) ** 2).sum()) if len(wanted) > 1 else float((wanted**2).sum())
    error = float(((wanted - got) ** 2).sum())
    if spread <= 0:
        return 1.0 if error == 0 else 0.0
    return 1.0 - error / spread


def _shuffled(reference: NDArray[Any], output: NDArray[Any]) -> bool:
    """The same answers in another order: alike once both are sorted."""
    if len(reference) < 3:
        return False
    wanted, got = (np.sort(each.reshape(len(each), -1).astype(np.float64), axis=0) for each in (reference, output))
    return _agreement(wanted, got) > 0.99
