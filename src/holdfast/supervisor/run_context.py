"""The context of one run: what every part of the supervisor works on. No torch here.

    context = RunContext.open(run_folder, plan, settings, face)
    context.device                                        # of the rung the run is on now
    context.set_state(RunState.RUNNING)                   # run.json, for whoever looks
    folder = context.tell_fault(fault, move, beat)        # its evidence kept, its event told

Folder, plan, settings, memory, keeper, accounts and teller each know nothing of a supervisor. What follows from
them is decided elsewhere: workers.py starts and ends workers, recovery.py answers a death, run_end.py ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.base import dataclass_json, processes
from holdfast.base.board import Beat
from holdfast.base.errors import HoldfastError, UserError
from holdfast.base.scratch import Scratch
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move, Rung
from holdfast.record import evidence
from holdfast.record.receipt import Accounts
from holdfast.record.reporter import Face, Teller
from holdfast.run.folder import RunFolder
from holdfast.run.reference import handle
from holdfast.run.settings import Settings
from holdfast.run.states import RunState
from holdfast.state import checkpoint
from holdfast.state.slot_memory import Memory
from holdfast.state.slots import Commit
from holdfast.supervisor.keeper_client import Keeping


@dataclass(slots=True)
class Plan:
    """What to run."""

    script: Path
    argv: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    rungs: list[Rung] = field(default_factory=list)
    rung: int = 0
    seed: int = 0
    threads: int | None = None
    chaos: dict[str, Any] | None = None
    resume: checkpoint.Checkpoint | None = None
    crashed_ns: int | None = None
    """When the supervisor before this one last committed, if it died: from then on time was lost."""
    preload: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """How it ended."""

    state: RunState
    exit_code: int
    error: HoldfastError | None = None
    receipt: dict[str, Any] = field(default_factory=dict)


class Rungs(Protocol):
    """The part of a plan that the ladder climbs."""

    @property
    def rungs(self) -> Sequence[Rung]: ...


class Emits(Protocol):
    """Whoever writes events down."""

    def emit(self, what: str, /, **data: Any) -> None: ...


class Named(Protocol):
    """A run folder, by its name."""

    @property
    def name(self) -> str: ...


class OnLadder(Protocol):
    """What has a rung, faults and trust in devices: a run, or one rank of a run."""

    rung: int

    @property
    def plan(self) -> Rungs: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def teller(self) -> Emits: ...
    @property
    def run_folder(self) -> Named: ...
    @property
    def accounts(self) -> Accounts: ...


@dataclass(slots=True)
class RunContext:
    """Everything about the run that outlives its workers."""

    run_folder: RunFolder
    plan: Plan
    settings: Settings
    teller: Teller
    memory: Memory
    scratch: Scratch
    keeping: Keeping
    accounts: Accounts
    gathering: evidence.Gathering
    portable: bool
    rung: int
    """Where the run is now, of the plan's rungs."""

    @classmethod
    def open(cls, run: RunFolder, plan: Plan, settings: Settings, face: Face) -> RunContext:
        portable = processes.cannot_fork() or settings.run.portable
        teller = Teller(run, face, settings.checkpoint.best)
        teller.scalars.resume(plan.resume.step if plan.resume else 0)
        memory = Memory(run, settings, portable=portable, say=teller.emit)
        scratch = Scratch.create()
        return cls(
            run_folder=run,
            plan=plan,
            settings=settings,
            teller=teller,
            memory=memory,
            scratch=scratch,
            keeping=Keeping(run, settings, memory, scratch, portable=portable),
            accounts=Accounts.from_json(run.info.get("accounts") or {}),
            gathering=evidence.Gathering(),
            portable=portable,
            rung=plan.rung,
        )

    @property
    def device(self) -> str:
        return self.plan.rungs[self.rung].device

    @property
    def newest_step(self) -> int:
        """The step a worker that is started now goes on from."""
        newest = self.memory.newest()
        if newest is not None:
            return newest.step
        return self.plan.resume.step if self.plan.resume else 0

    def set_state(self, state: RunState, **more: Any) -> None:
        self.run_folder.update_info(state=state, device=self.device, rung=self.plan.rungs[self.rung].label, **more)

    def keep_accounts(self, **more: Any) -> None:
        self.run_folder.update_info(**more, accounts=self.accounts.to_json())

    def recovered(self, step: int, seconds: float, lost_s: float) -> None:
        """The run is again where it was."""
        self.accounts.recovered(seconds, lost_s)
        self.teller.emit("recovered", step=step, seconds=round(seconds, 3), lost_s=round(lost_s, 3))
        self.set_state(RunState.RUNNING)

    def change_rung(self, rung: int, step: int) -> tuple[Rung, Rung]:
        """The next process is on another rung: the one before, and that one."""
        before, after = self.plan.rungs[self.rung], self.plan.rungs[rung]
        self.rung = rung
        self.teller.emit("moved", step=step, device=after.device, before=before.label, after=after.label)
        return before, after

    def newest_commit(self) -> Commit | None:
        """The newest snapshot; slots that the state has outgrown are let go."""
        newest = self.memory.newest()
        if newest is not None and self.memory.drop_outgrown():
            self.keeping.tell_arenas()
        return newest

    def give_slots(self, capacity: int, answer: Callable[..., None], *, by_path: bool) -> None:
        """A process waits for slots of this size. `by_path`: no descriptor can be passed to it."""
        try:
            arena = self.memory.grow(capacity)
        except UserError as error:
            answer(error.to_json())
            return
        answer(dataclass_json.write(arena.at(by_path=by_path)), *([] if by_path else [arena.fds]))
        self.keeping.tell_arenas()

    def tell_fault(
        self,
        fault: Fault,
        move: Move,
        beat: Beat | None,
        *,
        words: str = "",
        stacks: dict[str, str] | None = None,
        crash: str = "",
        sentence: str | None = None,
    ) -> Path:
        """Keep the evidence, tell the fault and the move that answers it; returns the folder of the evidence."""
        folder = evidence.collect(
            self.run_folder, fault, move, beat, words, stacks or {}, crash, gathering=self.gathering
        )
        self.teller.emit_fault(fault, move, folder, sentence=sentence)
        return folder

    def tell_abandoned(self, pid: int, so: str = "the run continues without it", **more: Any) -> None:
        """A process cannot be killed; `so` says what follows."""
        self.teller.emit("abandoned", pid=pid, **more, text=f"process {pid} cannot be killed; {so}")

    def resume_hint(self, flags: str = "") -> str:
        return f"continue with `holdfast resume {handle(self.run_folder)}{flags}`"

    def saved(self) -> str | None:
        """What the keeper wrote last, for the error that ends the run."""
        saved = self.keeping.saved
        return f"step {saved['step']} in {saved['path']}" if saved else None
