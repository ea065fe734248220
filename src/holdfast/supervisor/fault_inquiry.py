"""The inquest into one fault: opened when a worker is lost, closed with a verdict the user can read. No torch here.

    fault = inquest.hear(fault)                  # a second fault at the same step says something about the first
    inquest.begin(fault, move, folder)           # what is not plain is computed again by the next worker
    inquest.trial                                # what that worker is told to compute
    inquest.found(message)                       # what the CPU made of it
    inquest.committed(step)                      # it passed on the device

The verdict goes into the fault's folder, the journal and the ledger. The rule itself is `blame.judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.faults.blame import REPLAYED, Blame, Case, Cpu, Finding, Verdict, judge, worth_a_replay
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Action, Move
from holdfast.record import evidence
from holdfast.supervisor.run_state import Affairs

_TRIES = (Action.RETRY, Action.REPLACE, Action.SPLIT, Action.CPU_BATCH, Action.NEXT_RUNG)
"""Moves after which the same step is computed again, where it failed or elsewhere."""


class Inquest:
    """At most one case at a time: the next fault closes it."""

    def __init__(self, affairs: Affairs, note: Callable[[Fault, Verdict], None]) -> None:
        self.affairs = affairs
        self.case: Case | None = None
        self._folder: Path | None = None
        self._note = note
        """Tells the ledger."""

    @property
    def trial(self) -> dict[str, Any] | None:
        """What the next worker computes on the CPU before it does anything else."""
        case = self.case
        if case is None or not self.affairs.settings.blame.replay or not worth_a_replay(case.fault):
            return None
        if case.on_cpu and case.fault.kind is not Kind.NON_FINITE:
            return None  # it would only do what it does anyway
        if case.finding is not None:
            return None  # that has been done
        return {"fault": case.fault.to_json()}

    def hear(self, fault: Fault) -> Fault:
        """Another fault. At the same place it is part of the same case, and may carry its verdict."""
        case = self.case
        if case is None:
            return fault
        if fault.step != case.step or self._another(fault):
            self._close()
            return fault
        if fault.kind not in REPLAYED and fault.blame is None:
            return fault  # it came from somewhere else, and says nothing about this
        if fault.phase == "replay" and fault.kind is Kind.HANG:
            case.replayed(Finding(Cpu.UNKNOWN, "the CPU did not get through the batch in time"))
            return fault
        case.failed_again(fault)
        if case.on_cpu and case.finding is None:
            return fault  # nothing to compare with: it is tried as often as the ladder allows
        verdict = self._close()
        if verdict.blame is Blame.UNKNOWN or fault.blame is not None:
            return fault
        return fault.at(verdict=verdict.to_json(), told=True)

    def concludes(self, fault: Fault) -> bool:
        """The worker that computed the step again has reached a verdict: no fault of its own."""
        if self.case is None or fault.blame is None or fault.step != self.case.step:
            return False
        return not self._another(fault)

    def _another(self, fault: Fault) -> bool:
        """A sample that cannot be read says nothing about a step that failed in the computing."""
        reading = fault.kind is Kind.BAD_DATA and _while_reading(fault)
        return reading and self.case is not None and not _while_reading(self.case.fault)

    def conclude(self, fault: Fault) -> Path:
        """Close the case with the verdict the worker sent; returns the folder of the fault it is about."""
        folder = self._folder
        assert self.case is not None and folder is not None
        self.case.fault = fault
        self._close()
        return folder

    def begin(self, fault: Fault, move: Move, folder: Path) -> None:
        """Plain: the verdict at once. Otherwise it is computed again, if the step is tried again at all."""
        plain = judge(fault, None, None)
        if fault.evidence.get("told"):  # with the case it closed
            evidence.add_verdict(folder, {**plain.to_json(), "sentence": plain.sentence()})
            return
        if self.case is not None:  # one more of the same, or something plain beside it
            if plain.blame is not Blame.UNKNOWN:
                self._tell(fault, plain, folder)
            return
        if move.action in _TRIES and fault.step is not None and fault.blame is None and _open(fault):
            rung = self.affairs.plan.rungs[self.affairs.rung]
            self.case, self._folder = Case(fault, on_cpu=rung.on_cpu, moved=move.action is Action.NEXT_RUNG), folder
        else:
            self._tell(fault, plain, folder)

    def found(self, message: dict[str, Any]) -> None:
        """What the CPU made of the step."""
        if self.case is not None:
            self.case.replayed(Finding.from_json(message))
            self.affairs.teller.emit("replayed", step=self.case.step, **message)

    def quarantined(self, message: dict[str, Any]) -> None:
        """A sample has ended a process that was there to try it: then it has ended the one before, too."""
        if self.case is not None and message.get("fatal") and _while_reading(self.case.fault):
            sample = {"index": message.get("index"), "source": message.get("source")}
            verdict = Verdict(Blame.DATA, str(message.get("why")), repeatable=True, samples=(sample,))
            self.case.fault = self.case.fault.at(verdict=verdict.to_json())

    def committed(self, step: int) -> None:
        """Steps up to this one are done: the one that failed has passed."""
        if self.case is not None and self.case.step is not None and step >= self.case.step:
            self.case.passed()
            self._close()

    def close(self) -> None:
        """The run ends: what is known is the verdict."""
        if self.case is not None:
            self._close()

    def _close(self) -> Verdict:
        case, folder = self.case, self._folder
        assert case is not None and folder is not None
        self.case = self._folder = None
        verdict = case.verdict()
        self._tell(case.fault, verdict, folder)
        return verdict

    def _tell(self, fault: Fault, verdict: Verdict, folder: Path) -> None:
        evidence.add_verdict(folder, {**verdict.to_json(), "sentence": verdict.sentence()})
        self.affairs.teller.emit(
            "verdict",
            step=fault.step,
            code=fault.code,
            device=fault.device,
            blame=verdict.blame.value,
            repeatable=verdict.repeatable,
            sentence=verdict.sentence(),
            folder=str(folder),
        )
        self._note(fault, verdict)


def _while_reading(fault: Fault) -> bool:
    """Whether somebody was lost while data were read: whatever it was, also in an evaluation. Wider than blame's."""
    return fault.kind in (Kind.LOADER_DIED, Kind.LOADER_STUCK) or fault.phase in ("data", "evaluate")


def _open(fault: Fault) -> bool:
    """Whether the fault alone does not say whose it is."""
    return judge(fault, None, None).blame is Blame.UNKNOWN
