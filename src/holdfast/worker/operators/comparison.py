"""One operator, device against fp64: does every element lie where roundings can have brought it?

finding = compare(case)
finding.agrees, finding.error, finding.allowed, finding.text
finding.skipped                                  # why nothing could be said; then it agrees
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.devices.ledger_summary import METHOD
from holdfast.worker.operators import bounds, reference
from holdfast.worker.operators.case import Case
from holdfast.worker.operators.reference import Unknown, doubled


@dataclass(frozen=True, slots=True)
class Finding:
    """What a comparison gave."""

    agrees: bool
    operator: str = ""
    """`mm in backward, float32 [64, 32] x [32, 8]`."""
    key: str = ""
    error: float = 0.0
    """Of the worst element: its distance from fp64."""
    allowed: float = 0.0
    """What roundings explain there."""
    share: float = 0.0
    """Of elements that are off by more than that."""
    place: tuple[int, ...] = ()
    got: float = 0.0
    right: float = 0.0
    skipped: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        if self.skipped:
            return f"{self.operator}: not compared ({self.skipped})"
        where = f"element {list(self.place)} is {self.got:.6g}, the CPU says {self.right:.6g}"
        explained = f"{self.error:.2g} off where rounding explains {self.allowed:.2g}"
        return f"{self.operator}: {where}, {explained}; {self.share:.2%} of the elements are off"

    def to_json(self) -> dict[str, Any]:
        numbers = ("error", "allowed", "share", "got", "right")
        return {
            name: (value if math.isfinite(value) else None) if name in numbers else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        numbers = ("error", "allowed", "share", "got", "right")
        given: dict[str, Any] = {
            name: math.inf if name in numbers and value is None else value for name, value in data.items()
        }
        given["place"] = tuple(given.get("place") or ())
        return cls(**given)


def compare(case: Case) -> Finding:
    """The worst element of all outputs. What cannot be computed or bounded is skipped, and says so."""
    operator, key = case.described(), case.kind
    try:
        right = reference.compute(case, doubled(case.tensors), exact=True)
        limits = bounds.allowed(case, right)
    except Unknown as error:
        return Finding(True, operator, key, skipped=str(error))
    except (RuntimeError, ValueError, TypeError, LookupError, IndexError) as error:  # an operator we do not understand
        return Finding(True, operator, key, skipped=f"{type(error).__name__}: {str(error)[:120]}")
    worst = Finding(True, operator, key)
    compared = False
    for number, out in case.outputs.items():
        if number >= len(right) or right[number] is None or limits[number] is None:
            continue
        answer, limit = right[number], limits[number]
        assert answer is not None and limit is not None
        if out.shape != answer.shape or not out.is_floating_point():
            continue
        compared = True
        found = _worst(out, answer, limit)
        if found is not None and (worst.agrees or found["share"] > worst.share):
            worst = Finding(False, operator, key, **found)
    if not compared:
        return Finding(True, operator, key, skipped="it gives no numbers that can be compared")
    if not worst.agrees and _is_too_narrow(case, right, limits):
        return Finding(
            True, operator, key, skipped="the bound is too narrow: in this precision the CPU breaks it as well"
        )
    return worst


def _is_too_narrow(case: Case, right: list[Tensor | None], limits: list[Tensor | None]) -> bool:
    """Whether the CPU, in the device's own precision, lies outside of the bound too: then the bound is wrong."""
    try:
        here = reference.compute(case, case.tensors)
    except (Unknown, RuntimeError, ValueError, TypeError, LookupError):
        return False  # the CPU has no such operator in this precision
    for out, answer, limit in zip(here, right, limits, strict=False):
        if out is None or answer is None or limit is None or out.shape != answer.shape or not out.is_floating_point():
            continue
        if _worst(out, answer, limit) is not None:
            return True
    return False


def _worst(out: Tensor, right: Tensor, limit: Tensor) -> dict[str, Any] | None:
    """The element that is furthest off, in units of what is allowed; None if all are where they may be."""
    room = torch.finfo(out.dtype).max
    told = torch.isfinite(right) & torch.isfinite(limit) & (right.abs() + limit < 0.5 * room)
    distance = (out.double() - right).abs()
    distance = torch.where(torch.isnan(distance), math.inf, distance)
    off = told & (distance > limit)
    count = int(off.sum())
    if count == 0:
        return None
    ratio = torch.where(off, distance / limit.clamp_min(1e-300), 0.0).reshape(-1)
    index = int(ratio.argmax())
    place = tuple(int(each) for each in torch.unravel_index(torch.tensor(index), right.shape))
    flat = (out.reshape(-1), right.reshape(-1), limit.reshape(-1), distance.reshape(-1))
    got, answer, most, error = (float(each[index]) for each in flat)
    share = count / max(1, int(told.sum()))
    return {"error": error, "allowed": most, "share": share, "place": place, "got": got, "right": answer}


__all__ = ["METHOD", "Finding", "compare"]
