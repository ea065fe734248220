"""What the parts of a script's supervisor may ask of it and of each other.

The supervisor (script_supervisor.py) has the loop and makes the parts: attached.py, exact.py, silence.py, and
fault_answer.py with continuation.py and script_end.py. Each part knows the others only as they are written down here,
so that none of them imports another.
"""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move, Rung
from holdfast.run.folder import RunFolder
from holdfast.run.messages import OfExact
from holdfast.run.settings import Settings
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.script_order import Order
from holdfast.supervisor.scripts.script_processes import ScriptProcesses
from holdfast.supervisor.scripts.script_record import Record
from holdfast.supervisor.scripts.script_setup import Process, ScriptSetup
from holdfast.supervisor.scripts.script_start import Script
from holdfast.supervisor.scripts.steps import Steps
from holdfast.supervisor.scripts.streams import Streams
from holdfast.supervisor.worker_watch import Watch


class ScriptRun(Protocol):
    """One run of a script, as its parts see it."""

    context: RunContext
    order: Order
    settings: Settings
    run_folder: RunFolder
    setup: ScriptSetup
    record: Record
    script_processes: ScriptProcesses
    steps: Steps
    script: Script | None
    """The process that runs now, with its notes and streams; None between two processes."""
    notes: Notes | None
    streams: Streams | None

    @property
    def stopping(self) -> int | None:
        """The signal somebody asked the script to end with."""
        ...

    @property
    def rung(self) -> Rung: ...
    @property
    def device(self) -> str: ...

    @property
    def attached(self) -> AttachedPart: ...
    @property
    def exact(self) -> ExactPart: ...
    @property
    def silence(self) -> SilencePart: ...
    @property
    def answering(self) -> AnswerPart: ...

    def start(self, command: list[str], env: dict[str, str], *, step: int) -> None: ...
    def take(self, started: Process, *, step: int) -> None: ...
    def end_process(self, *, term: float | None = None) -> list[int]: ...
    def drop(self) -> None: ...


class AttachedPart(Protocol):
    """attached.py: the state that the script hands out."""

    exact: bool
    alive: bool

    def hear(self, supervisor: ScriptRun) -> None: ...
    def forget(self) -> None: ...
    def save_last(self, weights: list[str] | None = None) -> None: ...


class ExactPart(Protocol):
    """exact.py: what `--exact` does."""

    def heed(self, message: OfExact) -> dict[str, Any] | None: ...
    def told(self) -> dict[str, Any] | None: ...
    def receipt(self) -> dict[str, Any]: ...
    def not_led(self, code: int) -> bool: ...


class SilencePart(Protocol):
    """silence.py: how long the script may be silent."""

    watch: Watch


class Continued(Protocol):
    """continuation.py: where the next process begins, and what was done again."""

    repeated_s: float
    repeated_bytes: int
    at_most: bool

    def newest_time(self) -> int | None: ...


class AnswerPart(Protocol):
    """fault_answer.py: what follows when a process of the script ends."""

    @property
    def going_on(self) -> Continued: ...
    def lost(self, script: Script, fault: Fault, words: str, stacks: dict[str, str]) -> None: ...
    def progressed(self, step: int) -> None: ...
    def replace(self, move: Move) -> None: ...
