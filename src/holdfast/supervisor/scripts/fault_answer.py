"""What follows when a script ends: its own decision is passed on, a fault is answered by the ladder.

    answering.begin()                                    # the first process
    answering.ended(script, code, words, oom_kills)      # passed on, or a fault
    answering.lost(script, fault, words, stacks)         # it hung and was ended
    answering.tick()                                     # is a disk free again, may a device be returned to?

Where it begins again is found by continuation.py; how a run is over is in script_end.py; disk_space.py waits for a
full disk. What is the same for `holdfast train` is in fault_response.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import cgroup
from holdfast.base.board import Board
from holdfast.base.errors import ScriptFailed
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move, Past, Rung
from holdfast.faults.terms import Action
from holdfast.run.states import RunState
from holdfast.supervisor.device_trust import Trusting
from holdfast.supervisor.fault_response import Crisis, FaultResponse, Loss
from holdfast.supervisor.scripts import batches, hook_notes
from holdfast.supervisor.scripts.continuation import GoingOn, Start, short
from holdfast.supervisor.scripts.disk_space import DiskSpace
from holdfast.supervisor.scripts.repetition import BY_ITSELF, ends_by_itself
from holdfast.supervisor.scripts.script_end import Ending
from holdfast.supervisor.scripts.script_setup import Process
from holdfast.supervisor.scripts.script_start import Script
from holdfast.supervisor.scripts.words import fault_sentence

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_parts import ScriptRun

RETURN_EVERY = 5.0
"""Seconds between two looks for a checkpoint to return to a device with."""
LIVES = 60.0
"""Seconds after which a program that makes no steps and says nothing counts as back."""
_PEOPLE = tuple(getattr(signal, name) for name in ("SIGINT", "SIGQUIT", "SIGHUP") if hasattr(signal, name))
"""Signals that come from somebody at a keyboard: an end by one of them is wanted."""


class Answering(FaultResponse):
    """What is done about the faults of a script, and about its end."""

    def __init__(self, supervisor: ScriptRun) -> None:
        super().__init__(supervisor.context, Trusting(supervisor.context, self._board, compares=False))
        self.supervisor = supervisor
        self._ending = Ending(supervisor)
        self.going_on = GoingOn(supervisor)
        self._restarts = 0
        self._trains = False
        """It was seen to use torch: then steps say where it is, and not what it prints."""
        self._farthest = 0
        self._disk = DiskSpace(supervisor.order, supervisor.settings.external.room)
        self._looked_back = 0.0

    @property
    def ending(self) -> Ending:
        return self._ending

    def _board(self) -> Board | None:
        """Of the attached process, which can be asked to stop at its next commit; no other can."""
        supervisor = self.supervisor
        return supervisor.notes.board if supervisor.attached.alive and supervisor.notes is not None else None

    def pids(self) -> set[int]:
        """Probes that are under way."""
        probe = self.trusting._probe
        return {probe[1].pid} if probe is not None else set()

    def begin(self, first: Process | None = None) -> None:
        """The first process of the run; it may be on its way already."""
        self.trusting.begin()
        self.trusting.blind = True
        order = self.supervisor.order
        for text in order.notes:
            self.context.teller.emit("note", text=text)
        if first is not None:
            self._enter()
            self.supervisor.take(first, step=0)
            return
        start = Start(list(order.command), {}, self.context.newest_step, "")
        if order.going_on and order.resume is None:
            start = self.going_on.where([])
            self.context.teller.emit("note", text=start.text)
        self._go(start)

    def _go(self, start: Start) -> None:
        self._enter()
        self.supervisor.start(start.command, start.env, step=start.step)

    def _enter(self) -> None:
        self.trusting.entering()
        self.trusting.blind = True

    # -- how it ended --------------------------------------------------------------------------------------

    def ended(self, script: Script, code: int, words: str, *, oom_kills: int) -> None:
        """By itself, or was it a fault?"""
        supervisor = self.supervisor
        assert supervisor.notes is not None
        device = supervisor.device
        self._account()
        if supervisor.stopping is not None or -code in _PEOPLE:
            self.ending.stopped(supervisor.stopping or -code, code)
            return
        if supervisor.exact.not_led(code):
            self._restart(Move(Action.REPLACE, self.context.rung, reason="not exact", new_worker=True))
            return
        returning = self.trusting.returned()
        if returning is not None and code != 0:
            self._return_to(returning)
            return
        limit = cgroup.exhausted() if oom_kills > 0 else None
        fault = hook_notes.judge(supervisor.notes, code, words, device=device, oom_kills=oom_kills, limit=limit)
        if fault is not None and self._refuses_cpu(fault, words):
            self.ending.gave_up(fault, "the script does not run without its device", self.history.tries(fault))
        elif fault is None and code > 0 and self._did_not_begin():
            self._try_another()
        elif fault is None:
            self._note_device_words(code, words)
            self._passed_on(code)
        else:
            beat = supervisor.notes.board.read()
            fault = fault.at(step=beat.at if beat.attempts else None, pid=script.pid)
            self.lost(script, fault, words, {}, counted=True)

    def _note_device_words(self, code: int, words: str) -> None:
        """A script that computes on the CPU fails with the words of a device: passed on, and not without a line."""
        assert self.supervisor.notes is not None
        said = hook_notes.device_words(self.supervisor.notes, words) if code > 0 else None
        if said is not None:
            text = f'its last message is a device error, "{said}", while it computed on {self.supervisor.device}'
            self.context.teller.emit(
                "note", text=f"{text}: holdfast takes this as the script's own error and does not retry"
            )

    def _refuses_cpu(self, fault: Fault, words: str) -> bool:
        """On the last rung no device is visible: a script that insists on one cannot be helped."""
        rung = self.supervisor.rung
        said = ("No CUDA GPUs are available", "Torch not compiled with CUDA enabled", "Found no NVIDIA driver")
        return bool(self.history.past) and rung.on_cpu and any(text in words for text in said)

    def _did_not_begin(self) -> bool:
        """Started from a checkpoint that we chose, it ended before its first step: it may be none it can go on from."""
        seen = self.supervisor.notes
        return self.going_on.chose is not None and seen is not None and seen.board.read().attempts == 0

    def _try_another(self) -> None:
        assert self.supervisor.notes is not None
        own = hook_notes.own_error(self.supervisor.notes)
        text = f"{short(self.going_on.failed())} is skipped: the script cannot resume from it"
        self.context.teller.emit("note", text=f"{text} ({own[0]})" if own else text)
        self._restart(Move(Action.REPLACE, self.context.rung, reason="from another checkpoint", new_worker=True))

    def _passed_on(self, code: int) -> None:
        """The script itself decided to end."""
        supervisor, context = self.supervisor, self.context
        assert supervisor.notes is not None
        self._recovered()
        if code == 0:
            supervisor.attached.save_last(["final"])
            self.ending.end(RunState.FINISHED, 0, None)
            return
        supervisor.attached.save_last()
        context.accounts.fault(Kind.USER_ERROR.value)
        own = hook_notes.own_error(supervisor.notes)
        name = Path(supervisor.order.command[0]).name
        sentence = f"the script raised {own[0]}" if own else f"{name} ended with exit status {code}"
        error = ScriptFailed(sentence, cause=own[1] if own else None)
        self.ending.end(RunState.FAILED, code, error)

    def _account(self) -> None:
        """The steps of the process that is gone."""
        supervisor, accounts = self.supervisor, self.context.accounts
        assert supervisor.notes is not None
        beat = supervisor.notes.board.read()
        supervisor.silence.watch.learn(beat)
        self._trains = self._trains or supervisor.notes.torch_seen
        supervisor.steps.process_ended(supervisor.notes)
        accounts.attempts += beat.attempts
        if supervisor.attached.exact:
            accounts.steps = self.context.newest_step
        self.context.keep_accounts()

    # -- a fault -------------------------------------------------------------------------------------------

    def lost(self, script: Script, fault: Fault, words: str, stacks: dict[str, str], *, counted: bool = False) -> None:
        """Count it, keep the evidence, ask the ladder, do what it says."""
        supervisor = self.supervisor
        assert supervisor.notes is not None
        if not counted:
            self._account()
        if fault.kind is Kind.OUT_OF_MEMORY:
            fault = fault.at(pieces=self.going_on.pieces)
        beat = supervisor.notes.board.read()
        sentence = fault_sentence(fault, script, time.monotonic() - script.started)
        move, folder = self.tell(Loss(fault, beat, words, stacks, supervisor.notes.crash(), sentence))
        self._begin_crisis(beat.silence)
        self.carry_out(fault, move, folder)

    def ask(self, fault: Fault) -> Move:
        """One batch on the CPU is nothing an unknown script can do: the next entry is asked."""
        supervisor = self.supervisor
        batch = batches.divisible(supervisor.order.command, supervisor.notes)
        done: list[Past] = []
        while True:
            move = self.history.ask(
                fault,
                past=done,
                rungs=self._usable_rungs(),
                batch=batch,
                splittable=batch is not None,
                probation=self.trusting.on_probation(),
            )
            if move.action is not Action.CPU_BATCH:
                break
            done.append(Past(fault, move, self.context.rung))
        if ends_by_itself(fault, self.history.past) >= BY_ITSELF and move.action is not Action.FAIL:
            status = fault.evidence.get("exitcode")
            return Move(Action.GIVE_UP, self.context.rung, reason=f"it ended with code {status}, {BY_ITSELF} times")
        starts = (Action.RETRY, Action.SPLIT, Action.REPLACE, Action.NEXT_RUNG)
        if not supervisor.settings.external.restart and move.action in starts:
            return Move(Action.GIVE_UP, self.context.rung, reason="external.restart is off")
        return move

    def _usable_rungs(self) -> Sequence[Rung]:
        """Other devices are of no use to a program that never touched torch."""
        notes_, every = self.supervisor.notes, self.supervisor.order.rungs
        if notes_ is not None and not notes_.torch_seen and self.context.rung == 0:
            return every[:1]
        return every

    def go_on(self, fault: Fault, move: Move) -> None:
        if fault.kind is Kind.DISK_FULL:
            self._disk.wait(move)
        else:
            self._restart(move)

    def replace(self, move: Move) -> None:
        """The process was ended by us, and another one takes its place: no fault."""
        self._account()
        self._restart(move)

    def _restart(self, move: Move) -> None:
        context = self.context
        context.set_state(RunState.RECOVERING)
        if move.action is Action.SPLIT:
            self.going_on.pieces = move.pieces
        if move.rung != context.rung:
            context.change_rung(move.rung, context.accounts.steps)
        start = self.going_on.where(self.history.past)
        self._restarts += move.reason != "rehearsal"
        context.teller.emit("restart", step=start.step, text=start.text, reason=move.reason, tries=self._restarts)
        self._go(start)

    # -- progress ------------------------------------------------------------------------------------------

    def progressed(self, step: int) -> None:
        """The script is at this step now. Only steps nobody had made before are progress for the ladder."""
        new = step - max(self._farthest, 0)
        if new > 0:
            self._farthest = step
            self.history.progressed(new)
            self.trusting.committed(new)
        if self.crisis is not None and step > self.crisis.reached:
            self._recovered()

    def _begin_crisis(self, silence: float) -> None:
        """It is over when the step that was under way is done."""
        if self.crisis is None:
            steps = self.context.accounts.steps
            self.crisis = Crisis(time.monotonic() - (silence if steps else 0.0), max(0, steps - 1))

    def _recovered(self) -> None:
        """It is again where it was, or it is over: that was the time it cost."""
        self.end_crisis(self.context.accounts.steps)

    def tick(self) -> None:
        if self._disk.waiting:
            self._look_for_room()
        elif self.supervisor.stopping is None:
            self.trusting.tick()
            self._look_back()
        self._note_life()

    def _note_life(self) -> None:
        """A program that makes no steps is back when it has lived and said something."""
        script, crisis = self.supervisor.script, self.crisis
        if crisis is None or script is None or self._trains or self.context.accounts.steps or crisis.reached:
            return
        streams, lived = self.supervisor.streams, time.monotonic() - script.started
        if lived > LIVES or (streams is not None and streams.last_output > script.started + 0.2):
            self._recovered()

    def _look_for_room(self) -> None:
        if self.supervisor.stopping is not None:
            self._disk.forget()
            self.ending.stopped(self.supervisor.stopping)
            return
        move = self._disk.look(lambda text: self.context.teller.emit("note", text=text))
        if move is not None:
            self._restart(move)
        elif self._disk.over:
            fault = self.history.past[-1].fault
            self.ending.gave_up(fault, "the disk is still full", self.history.tries(fault))

    # -- the way back to a device --------------------------------------------------------------------------

    def _look_back(self) -> None:
        """A device works again: at the script's next checkpoint it goes back there, and not before."""
        trusting, supervisor = self.trusting, self.supervisor
        if trusting.returning is None or supervisor.script is None or supervisor.attached.alive:
            return
        now = time.monotonic()
        if now - self._looked_back < RETURN_EVERY:
            return
        self._looked_back = now
        if not self.going_on.newer_than(supervisor.script.started_ns):
            return
        rung = trusting.returned()
        supervisor.end_process()
        supervisor.drop()
        self._account()
        assert rung is not None
        self._return_to(rung)

    def _return_to(self, rung: int) -> None:
        device = self.supervisor.order.rungs[rung].device
        self._restart(Move(Action.NEXT_RUNG, rung, reason=f"{device} works again", new_worker=True))

    def close(self) -> None:
        self.trusting.close(self.ending.how_left(by_device=self.history.left_by_device))
