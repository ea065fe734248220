"""The ladder of each rank: which device it is on, and when it comes back to one that has failed. No torch.

    ladder = RankLadder(job, run_folder, settings, devices=["cuda:0", "cuda:1"], cards=["cuda:0", "cuda:1", "cuda:2"])
    ladder.starting(1)                               # the ledger knows, and the new process is told its device
    ladder.ended(1, pid, code, generation=3)         # a fault: the same device again, another card, or the CPU
    ladder.tick()                                    # what ranks say, probes, verdicts
    ladder.leaves(1)                                 # its process is to be replaced at the next commit: it comes back
    ladder.close("finished")

A rank is to its ladder what a run in one process is: the rules of faults (faults/ladder.py), trust, probes and the
ledger (supervisor/device_trust.py) are the same, with a list of rungs for each seat. The others keep their processes.
What is decided is noted in the job's folder. The rank that writes the journal tells it after the fault it belongs to.

Of several machines each judges its own ranks, with its own ledger. One that does not keep the run folder gathers what
it has to say in `outbox`; its agent sends that to the first machine (far_ladders.py), which writes it into the journal.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.board import Beat, Board
from holdfast.base.errors import GaveUp
from holdfast.devices.ledger import Ledger
from holdfast.distributed import rank_devices, rank_undo
from holdfast.distributed.job import Job
from holdfast.distributed.machine_link import TrustTold, VerdictTold
from holdfast.distributed.rank_devices import IN_PARTS, Told
from holdfast.distributed.rank_mail import Mail
from holdfast.distributed.rank_undo import Undone
from holdfast.faults.blame import Blame, Case, Verdict, judge
from holdfast.faults.classification import Fault, Kind, classify_exit
from holdfast.faults.ladder import Move, Rung
from holdfast.faults.terms import Action
from holdfast.record import evidence
from holdfast.record.receipt import Accounts
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.messages import Agreed, Blind, Suspicion
from holdfast.run.settings import Settings
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.fault_history import FaultHistory

TICK = 0.1
"""Seconds between two looks at boards and mail."""
_MOST_WAITING = 256
"""Messages for the first machine that are kept while there is no connection; older ones go."""
_CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided about a process that ended with a fault, for the rank that writes the journal."""

    fault: Fault
    move: Move
    before: str
    after: str
    undone: Undone | None = None
    """After wrong numbers: where all go back to."""

    @property
    def final(self) -> bool:
        """The device computes wrong numbers and there is no other: no process of this seat would be of use."""
        return self.fault.kind is Kind.WRONG_NUMBERS and self.after == self.before


def answer(job: Job, pid: int) -> Answer | None:
    """The decision about that process; None if it ended for another reason, or no ladder is kept."""
    found = job.noted(f"answer-{pid}")
    return dataclass_json.read_strictly(Answer, found) if found else None


def note_answer(job: Job, pid: int, made: Answer) -> None:
    job.note(f"answer-{pid}", dataclass_json.write(made))


def forget(job: Job, pid: int) -> None:
    """A new process has this number: nothing is known of it, whatever was of another one that had it before."""
    for name in ("answer", "told"):
        job.forget(f"{name}-{pid}")


_NOT_OF_DEVICE = (Kind.KILLED, Kind.HOST_MEMORY, Kind.DISK_FULL, Kind.NON_FINITE)
"""Faults that come again on any card."""


def say_told(job: Job, pid: int, folder: Path) -> None:
    """The fault of that process is in the journal, with its evidence in this folder: the verdict may follow."""
    job.note(f"told-{pid}", {"folder": str(folder)})


def told_in(job: Job, pid: int) -> Path | None:
    """Where the evidence of that process's fault is; None while the fault is not in the journal."""
    folder = job.noted(f"told-{pid}").get("folder")
    return Path(folder) if isinstance(folder, str) else None


def fault_of(
    job: Job, seat: int, pid: int, left: dict[str, Any] | None, *, device: str, exit_code: Callable[[], int]
) -> Fault | None:
    """Why a process of a rank has ended, by what it or the watchdog has left; None for one that only followed others.

    `exit_code` is asked where it left nothing.
    """
    if left is None:
        return classify_exit(exitcode=exit_code(), last_words="", oom_kills=0, device=device)
    why = left.get("why")
    if why == "hung":
        return Fault(Kind.HANG, device, message=str(left.get("text", "")), evidence={"rank": seat, "pid": pid})
    if why == "lost" and isinstance(left.get("fault"), dict):
        fault = Fault.from_json(left["fault"])
        return replace(fault, device=device, evidence={**fault.evidence, "device": fault.device, "pid": pid})
    if why == "device" and device != _CPU and not device.startswith("rank"):
        return Fault(Kind.DEVICE_LOST, device, message=str(left.get("text", "")), evidence={"rank": seat, "pid": pid})
    return None


@dataclass(slots=True)
class _Rungs:
    rungs: list[Rung]


@dataclass(slots=True)
class _Folder:
    name: str


@dataclass(slots=True)
class _Teller:
    """Events of one rank in the journal of the run, or on the way to it."""

    run: RunFolder | None
    seat: int
    outbox: deque[TrustTold | VerdictTold]

    def emit(self, what: str, /, **data: Any) -> None:
        """What is thought of a device."""
        if self.run is None:  # the first machine keeps the run folder; the ledger is here
            fields = {name: data[name] for name in ("device", "state", "suspicion") if name in data}
            self.outbox.append(TrustTold(self.seat, str(data.get("text", "")), **fields))
            return
        append_trust(self.run, self.seat, what, data)


def append_trust(run: RunFolder, seat: int, what: str, data: dict[str, Any]) -> None:
    """What is thought of the device of this rank, into the journal. A rank of another machine has a `host`."""
    if isinstance(data.get("text"), str):
        who = f"rank {seat} on {data['host']}" if "host" in data else f"rank {seat}"
        data = {**data, "text": f"{who}, {data['text']}"}
    with contextlib.suppress(OSError):
        run.append(Event.now(what, **data, rank=seat))


def append_verdict(run: RunFolder, told: VerdictTold, folder: Path) -> None:
    """A verdict into the journal, and to the evidence of its fault in this folder."""
    said = replace(told.verdict, why=f"rank {told.seat} ({told.device} on {told.host}): {told.verdict.why}")
    with contextlib.suppress(OSError):
        evidence.add_verdict(folder, {**said.to_json(), "sentence": said.sentence()})
    with contextlib.suppress(OSError):
        run.append(
            Event.now(
                "verdict",
                step=told.step,
                code=told.code,
                device=told.device,
                host=told.host,
                blame=said.blame.value,
                repeatable=said.repeatable,
                sentence=said.sentence(),
                folder=str(folder),
                rank=told.seat,
            )
        )


@dataclass(slots=True)
class SeatContext:
    """A rank, as the parts of a supervisor see a run."""

    plan: _Rungs
    settings: Settings
    teller: _Teller
    run_folder: _Folder
    accounts: Accounts = field(default_factory=Accounts)
    rung: int = 0

    @property
    def device(self) -> str:
        return self.plan.rungs[self.rung].device


class _Seat:
    """One rank, whichever process it is."""

    def __init__(self, number: int, context: SeatContext, ledger: Ledger) -> None:
        self.number = number
        self.context = context
        self.history = FaultHistory(context)
        self.trusting = Trusting(context, lambda: None, ledger=ledger)
        self.pid = 0
        self.device = ""
        """That its process was started on."""
        self.before = ""
        """That the process before was on."""
        self.mail: Mail | None = None
        self.board: Board | None = None
        self.case: tuple[int, Case] | None = None
        """The process that was lost, until it is known whose fault that was."""
        self.told: Told | None = None

    @property
    def home(self) -> str:
        return self.context.plan.rungs[0].device

    def close_board(self) -> None:
        if self.board is not None:
            self.board.close(unlink=False)
            self.board = None


class RankLadder:
    """The ladders of all seats of one machine."""

    def __init__(
        self,
        job: Job,
        run: RunFolder | None,
        settings: Settings,
        *,
        devices: Sequence[str],
        cards: Sequence[str] = (),
        seats: Sequence[int] | None = None,
    ) -> None:
        """`devices` by seat; `cards` are all there are, of which a rank may take one that no other has. `seats`: their
        numbers, where those of other machines come before them. `run` is None where another machine keeps it."""
        self.job = job
        self.host = platform.node() or "this machine"
        self.ledger = Ledger()
        self.outbox: deque[TrustTold | VerdictTold] = deque(maxlen=_MOST_WAITING)
        """For the first machine; empty on that one."""
        self._verdicts: list[tuple[_Seat, int, Fault, Verdict]] = []
        """Reached, and told once the fault itself is in the journal."""
        self._looked = 0.0
        self._run = run
        self._folder = _Folder(run.name if run is not None else "a run of several machines")
        self._seats: dict[int, _Seat] = {}
        for seat, device in zip(range(len(devices)) if seats is None else seats, devices, strict=True):
            free = [card for card in cards if card not in devices and _kind(card) == _kind(device)]
            rungs = [Rung(each) for each in dict.fromkeys([device, *free, _CPU])]
            context = SeatContext(_Rungs(rungs), settings, _Teller(run, seat, self.outbox), self._folder)
            self._seats[seat] = _Seat(seat, context, self.ledger)
        for each in self._seats.values():
            each.trusting.begin()
            self._keep_apart(each)

    def _keep_apart(self, seat: _Seat) -> None:
        """Two ranks whose cards are in quarantine do not begin on the same free one."""
        if seat.context.rung and not seat.context.plan.rungs[seat.context.rung].on_cpu:
            barred = self._barred(seat)
            ways = range(seat.context.rung, len(seat.context.plan.rungs))
            seat.context.rung = next((rung for rung in ways if rung not in barred), seat.context.rung)

    def name_run(self, name: str) -> None:
        """The first machine has said which run this is: the ledger names it."""
        self._folder.name = name

    # -- processes -----------------------------------------------------------------------------------------

    def starting(self, number: int) -> None:
        """A process for this seat is about to be started: the ledger knows before the device does."""
        seat = self._seats.get(number)
        if seat is None:  # the first machine has more seats for this one than were asked for here
            return
        seat.before, seat.device = seat.device, seat.context.device
        seat.trusting.entering()
        self._tell(seat)

    def started(self, number: int, pid: int) -> None:
        seat = self._seats.get(number)
        if seat is not None:
            forget(self.job, pid)
            seat.pid, seat.mail = pid, Mail(self.job, number, pid)
            seat.close_board()

    def _tell(self, seat: _Seat) -> None:
        came_back = seat.before == _CPU and seat.device != _CPU
        said = Told(seat.context.device, seat.trusting.probation, from_cpu=came_back)
        if said != seat.told:
            seat.told = said
            rank_devices.tell(self.job, seat.number, said)

    def device_of(self, number: int) -> str:
        """That the process of this seat was started on; empty if there is no ladder for it."""
        seat = self._seats.get(number)
        return "" if seat is None else seat.device

    def leaves(self, number: int) -> bool:
        """Whether the process of this seat has to make room for one on another device, at the next commit."""
        seat = self._seats.get(number)
        return seat is not None and bool(seat.pid) and seat.device != seat.context.device

    # -- faults --------------------------------------------------------------------------------------------

    def ended(self, number: int, pid: int, code: int, *, generation: int, counts: bool = True) -> GaveUp | None:
        """A process of this seat has ended: the next one is on the device that the ladder says.

        One that does not count is no fault of its device. Returns why no other process would get further.
        """
        seat = self._seats.get(number)
        if seat is None:
            return None
        beat = self._look(seat)
        self._read_mail(seat)
        if seat.mail is not None:
            seat.mail.forget()
        seat.pid, seat.mail = 0, None
        seat.close_board()
        left = self.job.left(number, pid)
        fault = fault_of(self.job, number, pid, left, device=seat.device, exit_code=lambda: code) if code else None
        return None if fault is None or not counts else self._answer(seat, pid, _placed(fault, beat), generation)

    def _answer(self, seat: _Seat, pid: int, fault: Fault, generation: int) -> GaveUp | None:
        context, trusting = seat.context, seat.trusting
        if context.device != seat.device:  # it was on its way back to a device, and is lost where it was
            self._note_answer(seat, pid, fault, _same(seat))
            return None
        fault = trusting.known_loss(fault)
        self._close_case(seat, fault)
        move = seat.history.ask(fault, probation=trusting.on_probation(), barred=self._barred(seat))
        seat.history.remember(fault, move, counted=False)
        trusting.lost(fault, move)
        stuck = self._stuck(seat, fault, move)
        if move.action is Action.NEXT_RUNG:
            context.rung = move.rung
        else:  # how often ranks are started anew is counted by the ranks themselves (retry.without_progress)
            move = _same(seat)
        undone = None
        if fault.kind is Kind.WRONG_NUMBERS:
            undone = rank_undo.find(self.job, seat=seat.number, generation=generation)
            if self._run is not None:  # else the first machine notes it, when it hears of this answer
                undone = rank_undo.note(self.job, undone)
        self._note_answer(seat, pid, fault, move, undone)
        self._open_case(seat, pid, fault, move)
        return stuck

    def _stuck(self, seat: _Seat, fault: Fault, move: Move) -> GaveUp | None:
        """A rank that holds a part of the model and can go nowhere else: it has met the same fault in each process, or
        its device computes wrong numbers."""
        if move.action not in (Action.GIVE_UP, Action.FAIL) or not self.job.noted(IN_PARTS):
            return None
        if fault.kind in _NOT_OF_DEVICE:  # another card would not help, and the ranks count how often they begin anew
            return None
        met = replace(fault, device=f"rank {seat.number}").sentence()
        often = "" if fault.kind is Kind.WRONG_NUMBERS else ", each time"
        return GaveUp(
            f"{met}{often}, and there is no other card for it on {self.host}",
            cause=f"it is on {seat.device}; ranks that hold parts of a model (FSDP2) are all on one kind of device",
            hints=[
                "`--min-ranks` lets the others go on without it",
                f"continue with fewer processes: `holdfast launch --resume {self._folder.name}`",
            ],
        )

    def _note_answer(self, seat: _Seat, pid: int, fault: Fault, move: Move, undone: Undone | None = None) -> None:
        """As users know it: by the rank, with its host and device."""
        facts = {**fault.evidence, "rank": seat.number, "host": self.host, "device": seat.device}
        named = replace(fault, device=f"rank {seat.number}", evidence=facts)
        made = Answer(named, move, before=seat.device, after=seat.context.device, undone=undone)
        note_answer(self.job, pid, made)

    def _barred(self, seat: _Seat) -> frozenset[int]:
        """Rungs that are not to be used, by what is known of them or because another rank is there."""
        others = {each.context.device for each in self._seats.values() if each is not seat} - {_CPU}
        if self.job.noted(IN_PARTS):  # a mesh of FSDP2 has devices of one kind
            others.add(_CPU)
        rungs = enumerate(seat.context.plan.rungs)
        return seat.trusting.barred() | {number for number, rung in rungs if number and rung.device in others}

    # -- verdicts ------------------------------------------------------------------------------------------

    def _open_case(self, seat: _Seat, pid: int, fault: Fault, move: Move) -> None:
        plain = judge(fault, None, None)
        if plain.blame is not Blame.UNKNOWN or fault.step is None:
            self._verdicts.append((seat, pid, fault, plain))
        else:
            seat.case = pid, Case(fault, on_cpu=seat.device == _CPU, moved=move.action is Action.NEXT_RUNG)

    def _close_case(self, seat: _Seat, fault: Fault | None = None) -> None:
        """Another fault, or the end of the run: what is known by now is the verdict."""
        if seat.case is None:
            return
        (pid, case), seat.case = seat.case, None
        if fault is not None and fault.step == case.step:
            case.failed_again(fault)
        self._verdicts.append((seat, pid, case.fault, case.verdict()))

    def _tell_verdicts(self, *, last: bool = False) -> None:
        """Where the run folder is kept, each one once the fault it belongs to is in the journal."""
        waiting = []
        for each in self._verdicts:
            seat, pid, fault, verdict = each
            folder = told_in(self.job, pid)
            if self._run is not None and folder is None and not last:
                waiting.append(each)
                continue
            seat.trusting.blamed(fault, verdict)
            said = VerdictTold(
                seat.number, pid, verdict, self.host, fault.device or "", code=fault.code, step=fault.step
            )
            if self._run is None:
                self.outbox.append(said)
            elif folder is not None:  # else no rank was left to write the fault down
                append_verdict(self._run, said, folder)
        self._verdicts = waiting

    # -- while they train ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """What ranks say about their devices; probes of devices that were left; verdicts."""
        if time.monotonic() - self._looked < TICK:
            return
        self._looked = time.monotonic()
        for seat in self._seats.values():
            self._look(seat)
            self._read_mail(seat)
            seat.trusting.tick()
            back = seat.trusting.returned()
            if back is not None:
                seat.context.rung = back
                self._tell(seat)
        self._tell_verdicts()

    def _look(self, seat: _Seat) -> Beat | None:
        """Steps that its process has committed since the last look."""
        if seat.board is None and seat.pid:
            path = self.job.path / f"board-{seat.number}-{seat.pid}"
            with contextlib.suppress(OSError, ValueError):
                seat.board = Board.open_path(path)
        if seat.board is None:
            return None
        beat = seat.board.read()
        done = beat.step - seat.context.accounts.steps
        seat.context.accounts.steps = beat.step
        if done > 0:
            seat.history.progressed(done)
            seat.trusting.committed(done)
        if seat.case is not None and seat.case[0] != seat.pid and beat.step >= (seat.case[1].step or 0):
            seat.case[1].passed()
            self._close_case(seat)
        return beat

    def _read_mail(self, seat: _Seat) -> None:
        for message in seat.mail.news() if seat.mail is not None else ():
            if isinstance(message, Agreed):
                seat.trusting.agreed()
            elif isinstance(message, Suspicion):
                seat.trusting.suspected(message)
            elif isinstance(message, Blind):
                seat.trusting.blind = True
        if seat.pid and seat.device == seat.context.device:
            self._tell(seat)  # fewer steps are left of its probation

    def close(self, how: str = "finished") -> None:
        """The launch is over."""
        for seat in self._seats.values():
            self._look(seat)
            self._close_case(seat)
            seat.close_board()
        self._tell_verdicts(last=True)
        for seat in self._seats.values():
            seat.trusting.close(how)


def _placed(fault: Fault, beat: Beat | None) -> Fault:
    """With the place its process had come to, where it does not know one itself."""
    if beat is None or fault.step is not None:
        return fault
    return fault.at(step=beat.at, phase=beat.phase.label)


def _same(seat: _Seat) -> Move:
    return Move(Action.REPLACE, seat.context.rung, new_worker=True)


def _kind(device: str) -> str:
    return device.partition(":")[0]
