"""The states of a run, as `run.json`, the journal, JSON and the screen have them."""

from __future__ import annotations

from holdfast.base.text_enum import TextEnum


class RunState(TextEnum):
    """What a run is doing, or how it ended."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    """A worker was lost, and the next one has not committed yet."""
    MOVED = "MOVED"
    """It runs on another device than the one it began on. Readers say so; it is never written."""
    PAUSED = "PAUSED"
    """A limit (heat, memory) holds it."""
    STOPPED = "STOPPED"
    """Somebody asked it to stop; it can be resumed."""
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    """By an error of the script's own, or of what was asked for."""
    CRASHED = "CRASHED"
    """Its supervisor is gone without a word."""
    GAVE_UP = "GAVE_UP"
    """The ladder had nothing left to try."""


class RunKind(TextEnum):
    """Who supervised the run: `kind` in run.json, which a run of `holdfast train` does not have."""

    SCRIPT = "external"
    """`holdfast run`: seed, steps and checkpoints are the script's own business."""


LIVE_STATES = frozenset({RunState.STARTING, RunState.RUNNING, RunState.RECOVERING, RunState.MOVED, RunState.PAUSED})
ENDED_STATES = frozenset({RunState.STOPPED, RunState.FINISHED, RunState.FAILED, RunState.GAVE_UP})
"""Those in which a run has written its receipt."""
UNFINISHED_STATES = ENDED_STATES - {RunState.FINISHED} | {RunState.CRASHED}
"""Those from which `holdfast resume` goes on."""
