"""The inquest into one fault: opened when a worker is lost, closed with a verdict the user can read. No torch here.

    fault = inquest.hear(fault)                  # a second fault at the same step says something about the first
    inquest.begin(fault, move, folder)           # what is not plain is computed again
    inquest.trial                                # what the next worker is told about that
    inquest.tick(worker)                         # begins the process that asks the CPU, and hears it
    inquest.committed(step)                      # it passed on the device

The next worker goes on at once. The CPU is asked beside it (opinions.py), and the verdict waits for both: whether the
step passed on the device, and what the CPU made of it. Numbers that are not finite are looked into by the next worker
itself, because the answer needs the device; so is everything where no process can be forked or memory is short.

The verdict goes into the fault's folder, the journal and the ledger. The rule itself is `blame.judge`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.faults.blame import REPLAYED, Blame, Case, Cpu, Finding, Verdict, judge, worth_a_replay
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.record import evidence
from holdfast.run.messages import Found, Quarantined
from holdfast.supervisor.opinions import Opinion
from holdfast.supervisor.process_start import WorkerProcess
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.workers import Workers

_TRIES = (Action.RETRY, Action.REPLACE, Action.SPLIT, Action.CPU_BATCH, Action.NEXT_RUNG)
"""Moves after which the same step is computed again, where it failed or elsewhere."""


MOST_BEGUN = 2
"""Times that the CPU is asked about one fault: a process that is ended from outside has said nothing."""
MOST_LATE = 2
"""Steps that have passed and that the CPU is computing. With one more, the oldest is closed with what is known."""


@dataclass(slots=True)
class Late:
    """A case that waits for the CPU alone."""

    case: Case
    folder: Path
    opinion: Opinion


class Inquest:
    """At most one case in which the device may still speak: the next fault closes it, or leaves it to the CPU."""

    def __init__(self, context: RunContext, workers: Workers, note: Callable[[Fault, Verdict], None]) -> None:
        self.context = context
        self.case: Case | None = None
        self.decided: list[tuple[Fault, Path, Opinion]] = []
        """Faults of the data that are known only now, when the run is past the step: recovery.py goes back."""
        self._workers = workers
        self._folder: Path | None = None
        self._beside = False
        """Whether the CPU is asked beside the worker."""
        self._kept: int | None = None
        """The sequence of the snapshot that is held for the CPU, until a process is there that looks after it."""
        self._opinion: Opinion | None = None
        """Of the case."""
        self._late: list[Late] = []
        self._note = note
        """Tells the ledger."""

    # -- asking the CPU ------------------------------------------------------------------------------------

    @property
    def _asks(self) -> bool:
        """Whether what the CPU makes of the step is wanted, and not known."""
        case = self.case
        if case is None or not self.context.settings.blame.replay or not worth_a_replay(case.fault):
            return False
        if case.on_cpu and case.fault.kind is not Kind.NON_FINITE:
            return False  # it would only do what it does anyway
        return case.finding is None

    @property
    def trial(self) -> dict[str, Any] | None:
        """What the next worker is told: to keep the state before the step for the CPU, or to ask the CPU itself."""
        case = self.case
        if case is None or case.step is None or not self._asks:
            return None
        return {"keep": case.step - 1} if self._beside else {"fault": case.fault.to_json()}

    def prepare(self) -> None:
        """The next worker is about to start: the CPU is asked beside it, where that is possible."""
        case = self.case
        if self._opinion is not None:
            return
        self._beside = False
        if case is None or case.step is None or not self._asks:
            return
        if case.fault.kind is Kind.NON_FINITE or self.context.portable:
            return
        self._beside = Opinion.fits(self._workers)
        if self._beside:
            found = self.context.memory.keep_step(case.step - 1)  # if a slot holds it already
            self._kept = None if found is None else found[1].sequence
        elif Opinion.can_fork(self._workers):
            text = "memory for another copy of the state is short: the failed step is computed on the CPU first"
            self.context.teller.emit("note", text=text)

    @property
    def pending(self) -> list[Opinion]:
        """What the CPU is computing."""
        current = [self._opinion] if self._opinion is not None else []
        return [*current, *(late.opinion for late in self._late)]

    @property
    def open(self) -> bool:
        """There is a case, or the CPU is computing something."""
        return self.case is not None or bool(self.pending)

    @property
    def waits(self) -> bool:
        """Whether the CPU is computing the step of the case."""
        return self._opinion is not None

    def must_wait(self, fault: Fault, setup_s: float) -> bool:
        """The same step has failed again, and what to do about it depends on what the CPU makes of it."""
        case = self.case
        if case is None or fault.step != case.step or not (self._beside and self._asks):
            return False
        if fault.kind not in REPLAYED or fault.blame is not None or self._another(fault):
            return False
        self._begin_opinion(setup_s)
        return self.waits

    def tick(self, worker: WorkerProcess | None, *, waiting: bool) -> None:
        """The CPU is asked once the worker has come to the step that failed; what it says is heard.

        `waiting`: the step has failed again, and the fault waits for this.
        """
        case = self.case
        born = worker if worker is not None and worker.pid else None
        if case is not None and case.step is not None and born and born.board.read().attempt >= case.step:
            self._begin_opinion(time.monotonic() - born.started)
        if self._opinion is not None and self._opinion.over():
            self._hear_opinion(waiting=waiting)
        for late in [late for late in self._late if late.opinion.over()]:
            again = self._ask_again(late.opinion)
            if again is not None:
                late.opinion = again
                continue
            self._late.remove(late)
            self._take(late.case, late.opinion)
            self._decide(late)

    def _begin_opinion(self, setup_s: float) -> None:
        if self._opinion is not None or not (self._beside and self._asks):
            return
        assert self.case is not None
        self._opinion = Opinion.begin(self._workers, self.case.fault, setup_s=setup_s)
        self._beside = self._opinion is not None
        self._let_kept_go()

    def _let_kept_go(self) -> None:
        """The snapshot that was held at first is not the one that is used, or none is."""
        kept, self._kept = self._kept, None
        if kept is not None and kept not in [opinion.commit.sequence for opinion in self.pending]:
            self.context.memory.let_evidence_go(kept)

    def _ask_again(self, opinion: Opinion) -> Opinion | None:
        """A process that was ended from outside has said nothing: another one is asked, once."""
        if not opinion.cut_short or opinion.number >= MOST_BEGUN or not Opinion.fits(self._workers):
            return None
        return Opinion.begin(self._workers, opinion.fault, setup_s=opinion.setup_s, number=opinion.number + 1)

    def _hear_opinion(self, *, waiting: bool) -> None:
        opinion, case, folder = self._opinion, self.case, self._folder
        assert opinion is not None and case is not None and folder is not None
        self._opinion = self._ask_again(opinion)
        if self._opinion is not None:
            return
        self._take(case, opinion)
        if waiting or case.verdict().blame is not Blame.DATA:
            opinion.end()  # with the second try on the device, or with the fault that waits, the case is closed
            return
        self.case = self._folder = None
        self._decide(Late(case, folder, opinion))

    def _take(self, case: Case, opinion: Opinion) -> None:
        assert opinion.finding is not None
        case.replayed(opinion.finding)
        case.leave_out = opinion.leave_out
        self.context.teller.emit("replayed", step=case.step, **opinion.finding.to_json())

    def _decide(self, late: Late) -> None:
        """The CPU has spoken: the verdict. If the data are at fault, the run goes back to before the step."""
        verdict = late.case.verdict()
        self._tell(late.case.fault, verdict, late.folder)
        if verdict.blame is not Blame.DATA:
            late.opinion.end()
            return
        fault = late.case.fault.at(verdict=verdict.to_json(), told=True)
        fault = fault if late.case.leave_out is None else fault.at(leave_out=late.case.leave_out)
        self.decided.append((fault, late.folder, late.opinion))

    def _leave_to_cpu(self) -> bool:
        """The device has nothing more to say in this case: it is closed when the CPU has spoken, if it was asked."""
        opinion, case, folder = self._opinion, self.case, self._folder
        if opinion is None or case is None or folder is None:
            return False
        self.case = self._folder = self._opinion = None
        self._late.append(Late(case, folder, opinion))
        while len(self._late) > MOST_LATE:
            self._give_up(self._late.pop(0))
        return True

    def _give_up(self, late: Late) -> None:
        """Nobody waits for the CPU any longer."""
        late.opinion.end()
        text = f"step {late.case.step}: what the CPU makes of it was not waited for any longer"
        self.context.teller.emit("note", text=text)
        self._tell(late.case.fault, late.case.verdict(), late.folder)

    # -- the case ------------------------------------------------------------------------------------------

    def hear(self, fault: Fault) -> Fault:
        """Another fault. At the same place it is part of the same case, and may carry its verdict."""
        case = self.case
        if case is None:
            return fault
        if fault.step != case.step or self._another(fault):
            if not self._leave_to_cpu():
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
        fault = fault.at(verdict=verdict.to_json(), told=True)
        leaves_out = case.leave_out is not None and verdict.blame is Blame.DATA
        return fault.at(leave_out=case.leave_out) if leaves_out else fault

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
            rung = self.context.plan.rungs[self.context.rung]
            self.case, self._folder = Case(fault, on_cpu=rung.on_cpu, moved=move.action is Action.NEXT_RUNG), folder
        else:
            self._tell(fault, plain, folder)

    def found(self, message: Found) -> None:
        """What the CPU made of the step."""
        if self.case is not None:
            self.case.replayed(message.finding)
            self.context.teller.emit("replayed", step=self.case.step, **message.told)

    def quarantined(self, message: Quarantined) -> None:
        """A sample has ended a process that was there to try it: then it has ended the one before, too."""
        if self.case is not None and message.fatal and _while_reading(self.case.fault):
            sample = {"index": message.index, "source": message.source}
            verdict = Verdict(Blame.DATA, message.why, repeatable=True, samples=(sample,))
            self.case.fault = self.case.fault.at(verdict=verdict.to_json())

    def committed(self, step: int) -> None:
        """Steps up to this one are done: the one that failed has passed."""
        if self.case is not None and self.case.step is not None and step >= self.case.step:
            worker = self._workers.worker  # a fast one may be past the step before anybody has looked
            self._begin_opinion(time.monotonic() - worker.started if worker is not None else 0.0)
            self.case.passed()
            if not self._leave_to_cpu():
                self._close()

    def close(self) -> None:
        """The run ends: what is known is the verdict."""
        for late in self._late:
            self._give_up(late)
        self._late = []
        if self.case is not None:
            self._close()

    def _close(self) -> Verdict:
        case, folder = self.case, self._folder
        assert case is not None and folder is not None
        self.case = self._folder = None
        if self._opinion is not None:
            self._opinion.end()
            self._opinion = None
        self._let_kept_go()
        verdict = case.verdict()
        self._tell(case.fault, verdict, folder)
        return verdict

    def _tell(self, fault: Fault, verdict: Verdict, folder: Path) -> None:
        evidence.add_verdict(folder, {**verdict.to_json(), "sentence": verdict.sentence()})
        self.context.teller.emit(
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
