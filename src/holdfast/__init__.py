"""Holdfast trains PyTorch models on hardware you cannot trust.

    import holdfast

    def train(session: holdfast.Session) -> None: ...

    if __name__ == "__main__":
        holdfast.main(train)

Importing holdfast imports no torch and changes nothing in the process; the names below load what they need
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ExitCode, GaveUp, HoldfastError, InternalError, ScriptFailed, Stopped, UserError

if TYPE_CHECKING:
    from holdfast.data.loader import Loader
    from holdfast.faults.bad_samples import BadSamples
    from holdfast.integrations.attach import attach
    from holdfast.monitor.notebook import watch
    from holdfast.programs.calling import find, train
    from holdfast.programs.training_run import TrainingRun
    from holdfast.worker.script_entry import main
    from holdfast.worker.session import Run, Session
    from holdfast.worker.step import Loss

__version__ = "0.1.0"

__all__ = [
    "BadSamples",
    "ExitCode",
    "GaveUp",
    "HoldfastError",
    "InternalError",
    "Loader",
    "Loss",
    "Run",
    "ScriptFailed",
    "Session",
    "Stopped",
    "TrainingRun",
    "UserError",
    "__version__",
    "attach",
    "find",
    "main",
    "train",
    "watch",
]

_LAZY = {
    "attach": "holdfast.integrations.attach",
    "BadSamples": "holdfast.faults.bad_samples",
    "Loader": "holdfast.data.loader",
    "Loss": "holdfast.worker.step",
    "Run": "holdfast.worker.session",
    "Session": "holdfast.worker.session",
    "TrainingRun": "holdfast.programs.training_run",
    "find": "holdfast.programs.calling",
    "main": "holdfast.worker.script_entry",
    "train": "holdfast.programs.calling",
    "watch": "holdfast.monitor.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
