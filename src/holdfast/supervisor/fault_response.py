"""What `holdfast train` and `holdfast run` both do about a fault: ask the ladder, tell it, act on it. No torch here.

    class Recovery(FaultResponse): ...       # recovery.py for workers, scripts/fault_answer.py for a script
    move, folder = response.tell(loss)       # counted, its evidence kept, its event told, the ledger knows
    response.carry_out(fault, move, folder)  # the run ends as the ladder says, or `go_on` starts the next process

From a fault until the run is again where it was it is in a crisis: that is the time it lost.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.board import Beat
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.fault_history import FaultHistory
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.run_loop import RunEnd


@dataclass(slots=True)
class Crisis:
    """From a fault until the run is again where it was."""

    since: float
    reached: int
    """What the run had reached: the crisis ends with more. A snapshot's sequence for a worker, a step for a script."""
    last_commit_ns: int | None = None
    """When the last snapshot was made; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A process that was lost, and what it left."""

    fault: Fault
    beat: Beat
    words: str
    stacks: dict[str, str] | None
    crash: str
    sentence: str | None = None
    """What is said of it, if not what the fault says."""


class FaultResponse:
    """The faults of a run so far, and the crisis it may be in."""

    def __init__(self, context: RunContext, trusting: Trusting) -> None:
        self.context = context
        self.trusting = trusting
        self.history = FaultHistory(context)
        self.crisis: Crisis | None = None

    @property
    def ending(self) -> RunEnd:
        raise NotImplementedError

    def ask(self, fault: Fault) -> Move:
        """The ladder's answer."""
        raise NotImplementedError

    def told(self, fault: Fault, move: Move, folder: Path) -> None:
        """The fault is in the journal; the ledger does not know yet."""

    def go_on(self, fault: Fault, move: Move) -> None:
        """The next process, as the ladder decided."""
        raise NotImplementedError

    def tell(self, loss: Loss) -> tuple[Move, Path]:
        """The fault is counted and written down, with the ladder's answer and the folder of its evidence."""
        fault = loss.fault
        move = self.ask(fault)  # which belongs to the history it is asked about the next time
        self.history.remember(fault, move)
        folder = self.context.tell_fault(
            fault,
            move,
            loss.beat,
            words=loss.words,
            stacks=loss.stacks,
            crash=loss.crash,
            sentence=loss.sentence,
        )
        self.told(fault, move, folder)
        self.trusting.lost(fault, move)
        return move, folder

    def carry_out(self, fault: Fault, move: Move, folder: Path) -> None:
        """Do what the ladder says. A run that was asked to stop does so instead."""
        ending = self.ending
        if ending.stopping is not None:
            ending.stopped(ending.stopping)
        elif move.action is Action.GIVE_UP:
            ending.gave_up(fault, move.reason, self.history.tries(fault))
        elif move.action is Action.FAIL:
            ending.script_is_at_fault(fault, move.reason, self.history.tries(fault), folder)
        else:
            self.go_on(fault, move)

    def end_crisis(self, step: int, commit_ns: int | None = None) -> None:
        """The run is again where it was, with a snapshot made at `commit_ns`. Without a crisis nothing is told."""
        crisis, self.crisis = self.crisis, None
        if crisis is None:
            return
        seconds = lost = time.monotonic() - crisis.since
        if commit_ns is not None and crisis.last_commit_ns is not None:
            lost = (commit_ns - crisis.last_commit_ns) / 1e9
        self.context.recovered(step, seconds, lost)
