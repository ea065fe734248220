"""A program that ends in the same way each time it is started: how often it may."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Past

BY_ITSELF = 3
"""Starts of a program that ends with the same code above 128 each time, and makes no step: it would do so for ever."""


def ends_by_itself(fault: Fault, history: Sequence[Past]) -> int:
    """How often in a row, without a new step between, it ended with this code above 128, this time included.

    A shell says 137 where a signal has ended its child; a program may end with it by itself, each time.
    """
    code = fault.evidence.get("exitcode")
    if not isinstance(code, int) or code <= 128:
        return 0
    times = 1
    for past in reversed(history):
        if past.committed > 0 or past.fault.evidence.get("exitcode") != code:
            break
        times += 1
    return times
