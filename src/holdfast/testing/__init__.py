"""Faults on purpose: what our own tests use, and users may.

    from holdfast.testing import FaultPlan, InjectedFault
    plan = FaultPlan.random(60, steps=200, seed=7)

`holdfast chaos SCRIPT` does the same from the command line. Importing this imports no torch.
"""

from holdfast.injection.chaos import KINDS, FaultPlan, InjectedFault

__all__ = ["KINDS", "FaultPlan", "InjectedFault"]
