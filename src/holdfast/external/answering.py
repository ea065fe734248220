"""What follows when a script ends: its own decision is passed on, a fault is answered by the ladder.

    answering.begin()                                    # the first process
    answering.ended(script, code, words, oom_kills)      # passed on, or a fault
    answering.lost(script, fault, words, stacks)         # it hung and was ended
    answering.tick()                                     # is a disk free again, may a device be returned to?

From the beginning or from its newest checkpoint that is whole, on the rung the ladder chose: what it goes on from, and
how many steps it has to repeat, is said each time.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import ExitCode, GaveUp, HoldfastError, ScriptFailed, Stopped
from holdfast.events import utc_now
from holdfast.external import frameworks, notes, rungs
from holdfast.external.checkpoints import Found, newest_whole, search
from holdfast.external.frameworks import Way
from holdfast.external.launching import Script
from holdfast.external.words import fault_sentence, repeats
from holdfast.runfolder import whole
from holdfast.runtime import evidence
from holdfast.runtime.affairs import Outcome
from holdfast.runtime.faults import Fault, Kind
from holdfast.runtime.ladder import FAMILIES, Action, Limits, Move, Past, Rung, next_move
from holdfast.runtime.trusting import Trusting

if TYPE_CHECKING:
    from holdfast.external.supervising import ScriptSupervisor
    from holdfast.runtime.crew import Crew

RETURN_EVERY = 5.0
"""Seconds between two looks for a checkpoint to return to a device with."""
ROOM = 64 << 20
"""Bytes that must be free beside a checkpoint before a script is started again on a disk that was full."""
_PEOPLE = tuple(getattr(signal, name) for name in ("SIGINT", "SIGQUIT", "SIGHUP") if hasattr(signal, name))
"""Signals that come from somebody at a keyboard: an end by one of them is wanted."""


@dataclass(slots=True)
class Crisis:
    """From a fault until the script is again where it was."""

    since: float
    step: int


@dataclass(slots=True)
class Start:
    """How the next process begins."""

    command: list[str]
    env: dict[str, str]
    step: int
    text: str


class Answering:
    """The faults of a run so far, and what was done about them."""

    def __init__(self, supervisor: ScriptSupervisor) -> None:
        self.supervisor = supervisor
        self.affairs = supervisor.affairs
        self.outcome: Outcome | None = None
        self.history: list[Past] = []
        self.framework: str | None = None
        self.hurry: float | None = None
        """Seconds until the next look, if it must not be late."""
        self._trusting = Trusting(self.affairs, cast("Crew", _Hands(supervisor)))
        self._crisis: Crisis | None = None
        self._farthest = 0
        self._waiting: tuple[Move, float, float] | None = None
        """A start that waits for room on a disk: the move, until when, the last look."""
        self._looked_back = 0.0
        self._last_found: Path | None = None
        self._began_from: Path | None = None
        """The checkpoint the process that runs now was told to begin at."""
        self._unfit: set[Path] = set()
        """Checkpoints the script could not begin at."""

    def pids(self) -> set[int]:
        """Probes that are under way."""
        probe = self._trusting._probe
        return {probe[1].pid} if probe is not None else set()

    def begin(self) -> None:
        """The first process of the run."""
        self._trusting.begin()
        self._trusting.blind = True
        order = self.supervisor.order
        start = Start(list(order.command), {}, self.affairs.newest_step, "")
        if order.going_on and order.resume is None:
            start = self._where_to_begin([])
            self.affairs.teller.emit("note", text=start.text)
        self._go(start)

    def _go(self, start: Start) -> None:
        self._trusting.entering()
        self._trusting.blind = True
        self.supervisor.start(start.command, start.env, step=start.step)

    # -- how it ended --------------------------------------------------------------------------------------

    def ended(self, script: Script, code: int, words: str, *, oom_kills: int) -> None:
        """By itself, or was it a fault?"""
        supervisor = self.supervisor
        assert supervisor.notes is not None
        device = supervisor.device
        self._account()
        if supervisor.stopping is not None or -code in _PEOPLE:
            self.stopped(supervisor.stopping or -code, code)
            return
        returning = self._trusting.returned()
        if returning is not None and code != 0:
            self._return_to(returning)
            return
        fault = notes.judge(supervisor.notes, code, words, device=device, oom_kills=oom_kills)
        if fault is not None and self._refuses_cpu(fault, words):
            self._gave_up(fault, "the script does not run without its device")
        elif fault is None and code > 0 and self._did_not_begin():
            self._try_another()
        elif fault is None:
            self._passed_on(code)
        else:
            beat = supervisor.notes.board.read()
            fault = fault.at(step=beat.at if beat.attempts else None, pid=script.pid)
            self.lost(script, fault, words, {}, counted=True)

    def _refuses_cpu(self, fault: Fault, words: str) -> bool:
        """On the last rung no device is visible: a script that insists on one cannot be helped."""
        rung = self.supervisor.rung
        said = ("No CUDA GPUs are available", "Torch not compiled with CUDA enabled", "Found no NVIDIA driver")
        return bool(self.history) and rung.on_cpu and any(text in words for text in said)

    def _did_not_begin(self) -> bool:
        """Started from a checkpoint that we chose, it ended before its first step: it may be none it can go on from."""
        seen = self.supervisor.notes
        return self._began_from is not None and seen is not None and seen.board.read().attempts == 0

    def _try_another(self) -> None:
        assert self._began_from is not None and self.supervisor.notes is not None
        own = notes.own_error(self.supervisor.notes)
        self._unfit.add(self._began_from)
        text = f"{_short(self._began_from)} is passed over: the script does not go on from it"
        self.affairs.teller.emit("note", text=f"{text} ({own[0]})" if own else text)
        self._restart(Move(Action.REPLACE, self.affairs.rung, reason="from another checkpoint", new_worker=True))

    def _passed_on(self, code: int) -> None:
        """The script itself decided to end."""
        supervisor, affairs = self.supervisor, self.affairs
        assert supervisor.notes is not None
        self._recovered()
        if code == 0:
            supervisor.attached.save_last(["final"])
            self.end("FINISHED", 0, None)
            return
        supervisor.attached.save_last()
        affairs.accounts.fault(Kind.USER_ERROR.value)
        own = notes.own_error(supervisor.notes)
        name = Path(supervisor.order.command[0]).name
        sentence = f"the script raised {own[0]}" if own else f"{name} ended with exit status {code}"
        error = ScriptFailed(sentence, cause=own[1] if own else None)
        self.end("FAILED", code, error)

    def _account(self) -> None:
        """The steps of the process that is gone."""
        supervisor, accounts = self.supervisor, self.affairs.accounts
        assert supervisor.notes is not None
        beat = supervisor.notes.board.read()
        supervisor.watch.learn(beat)
        supervisor.steps.process_ended(supervisor.notes)
        accounts.attempts += beat.attempts
        if supervisor.attached.exact:
            accounts.steps = self.affairs.newest_step
        self.affairs.keep_accounts()

    # -- a fault -------------------------------------------------------------------------------------------

    def lost(self, script: Script, fault: Fault, words: str, stacks: dict[str, str], *, counted: bool = False) -> None:
        """Count it, keep the evidence, ask the ladder, do what it says."""
        supervisor, affairs = self.supervisor, self.affairs
        assert supervisor.notes is not None
        if not counted:
            self._account()
        affairs.accounts.fault(fault.kind.value)
        move = self._ask(fault)
        self.history.append(Past(fault, move, affairs.rung))
        beat = supervisor.notes.board.read()
        folder = evidence.collect(
            supervisor.run_folder,
            fault,
            move,
            beat,
            words,
            stacks,
            supervisor.notes.crash(),
            gathering=affairs.gathering,
        )
        affairs.teller.emit(
            "fault",
            code=fault.code,
            kind=fault.kind.value,
            device=fault.device,
            step=fault.step,
            phase=fault.phase,
            sentence=fault_sentence(fault, script, time.monotonic() - script.began),
            action=move.action.value,
            reason=move.reason,
            folder=str(folder),
        )
        self._trusting.lost(fault, move)
        self._begin_crisis(beat.silence)
        self._carry_out(fault, move)

    def _ask(self, fault: Fault) -> Move:
        """The ladder's answer. One batch on the CPU is nothing an unknown script can do: the next entry is asked."""
        retry, supervisor = self.affairs.settings.retry, self.supervisor
        limits = Limits(tries=retry.same_step, outside=retry.without_progress, crowd=retry.in_a_row)
        known = list(self.history)
        while True:
            move = next_move(
                fault,
                known,
                self._usable_rungs(),
                self.affairs.rung,
                splittable=False,
                probation=self._trusting.on_probation(),
                limits=limits,
            )
            if move.action is not Action.CPU_BATCH:
                break
            known.append(Past(fault, move, self.affairs.rung))
        if not supervisor.settings.external.restart and move.action in (Action.REPLACE, Action.NEXT_RUNG):
            return Move(Action.GIVE_UP, self.affairs.rung, reason="external.restart is off")
        return move

    def _usable_rungs(self) -> Sequence[Rung]:
        """Other devices are of no use to a program that never touched torch."""
        notes_, every = self.supervisor.notes, self.supervisor.order.rungs
        if notes_ is not None and not notes_.torch_seen and self.affairs.rung == 0:
            return every[:1]
        return every

    def _carry_out(self, fault: Fault, move: Move) -> None:
        if self.supervisor.stopping is not None:
            self.stopped(self.supervisor.stopping)
        elif move.action in (Action.GIVE_UP, Action.FAIL):
            self._gave_up(fault, move.reason)
        elif fault.kind is Kind.DISK_FULL:
            now = time.monotonic()
            self._waiting = (move, now + self.affairs.settings.external.room, 0.0)
        else:
            self._restart(move)

    def _restart(self, move: Move) -> None:
        affairs = self.affairs
        affairs.set_state("RECOVERING")
        if move.rung != affairs.rung:
            before, after = self.supervisor.rung, self.supervisor.order.rungs[move.rung]
            affairs.rung = move.rung
            shown = {"before": rungs.shown(before), "after": rungs.shown(after)}
            affairs.teller.emit("moved", step=affairs.accounts.steps, device=after.device, **shown)
        start = self._where_to_begin(self.history)
        tries = sum(past.move.new_worker for past in self.history)
        affairs.teller.emit("restart", step=start.step, text=start.text, reason=move.reason, tries=tries)
        self._go(start)

    # -- where to go on ------------------------------------------------------------------------------------

    def _where_to_begin(self, history: Sequence[Past]) -> Start:
        """The newest state there is: a snapshot, a checkpoint of the script's own, or nothing."""
        supervisor, affairs = self.supervisor, self.affairs
        order, steps = supervisor.order, affairs.accounts.steps
        reached = max(steps, history[-1].fault.step - 1 if history and history[-1].fault.step else 0)
        if supervisor.attached.exact:
            step = affairs.newest_step
            return Start(list(order.command), {}, step, f"from step {step}; {repeats(max(0, reached - step) + 1)}")
        way, found = self._newest_checkpoint()
        self._began_from = found.path if way is not None and found is not None and not way.chooses else None
        if way is None or found is None:
            why = "no checkpoint was found" if way is not None else "nobody knows how it goes on"
            text = f"from the beginning ({why}); {repeats(reached)}"
            return Start(list(order.command), {}, 0, text)
        command, env = way.begin(list(order.command), found.path)
        step, sure = supervisor.steps.of(found, supervisor.notes)
        about = "" if sure else "about "
        self._last_found = found.path
        return Start(
            command, env, step, f"from {_short(found.path)} by {way.name}; {repeats(max(0, reached - step), about)}"
        )

    def _newest_checkpoint(self, since_ns: int | None = None) -> tuple[Way | None, Found | None]:
        supervisor = self.supervisor
        order, seen = supervisor.order, supervisor.notes
        info = self.affairs.run_folder.info  # of a run that goes on: what its last process was seen to use
        known = info.get("frameworks")
        way = frameworks.find_way(
            order.command,
            seen=seen.frameworks if seen is not None else known if isinstance(known, list) else (),
            fits=seen.fits if seen is not None else whole(info.get("fits")),
            resume_with=order.resume_with,
        )
        self.framework = way.framework if way is not None else None
        if way is None:
            return None, None
        places = frameworks.places(order.command, order.cwd)
        found = search(places, way.patterns, since_ns or order.since_ns)
        newest, passed = newest_whole([each for each in found if each.path not in self._unfit])
        for each, why in passed:
            self.affairs.teller.emit("note", text=f"{_short(each.path)} is passed over: {why}")
        if way.chooses and passed:
            return way, None
        return way, newest

    # -- progress ------------------------------------------------------------------------------------------

    def progressed(self, step: int) -> None:
        """The script is at this step now. Only steps nobody had made before are progress for the ladder."""
        new = step - max(self._farthest, 0)
        if new > 0:
            self._farthest = step
            if self.history:
                past = self.history[-1]
                self.history[-1] = Past(past.fault, past.move, past.rung, past.committed + new)
            self._trusting.committed(new)
        if self._crisis is not None and step >= self._crisis.step:
            self._recovered()

    def _begin_crisis(self, silence: float) -> None:
        if self._crisis is None:
            steps = self.affairs.accounts.steps
            self._crisis = Crisis(time.monotonic() - (silence if steps else 0.0), max(1, steps))

    def _recovered(self) -> None:
        """It is again where it was, or it is over: that was the time it cost."""
        crisis, self._crisis = self._crisis, None
        if crisis is None:
            return
        lost = time.monotonic() - crisis.since
        self.affairs.accounts.recovered(lost, lost)
        step = self.affairs.accounts.steps
        self.affairs.teller.emit("recovered", step=step, seconds=round(lost, 3), lost_s=round(lost, 3))
        self.affairs.set_state("RUNNING")

    def tick(self) -> None:
        if self._waiting is not None:
            self._look_for_room()
        elif self.supervisor.stopping is None:
            self._trusting.tick()
            self._look_back()
        self._note_life()

    def _note_life(self) -> None:
        """A program that makes no steps is back when it has lived and said something."""
        script, crisis = self.supervisor.script, self._crisis
        if crisis is None or script is None or self.affairs.accounts.steps or crisis.step > 1:
            return
        streams = self.supervisor.streams
        if streams is not None and streams.last_output > script.began + 0.2:
            self._recovered()

    # -- a full disk ---------------------------------------------------------------------------------------

    def _look_for_room(self) -> None:
        assert self._waiting is not None
        move, until, looked = self._waiting
        now = time.monotonic()
        if self.supervisor.stopping is not None:
            self._waiting = None
            self.stopped(self.supervisor.stopping)
            return
        if now - looked < 1.0:
            return
        first = looked == 0.0
        free, need = self._room()
        if free >= need:
            self._waiting = None
            self._restart(move)
        elif now > until:
            self._waiting = None
            self._gave_up(self.history[-1].fault, "there is still no room on the disk")
        else:
            self._waiting = (move, until, now)
            if first:
                text = f"waiting for room on the disk: {free >> 20} MiB are free, {need >> 20} MiB are needed"
                self.affairs.teller.emit("note", text=text)

    def _room(self) -> tuple[int, int]:
        """Bytes free where the script writes, and what it needs: the size of what it wrote before, and some."""
        order = self.supervisor.order
        places = frameworks.places(order.command, order.cwd)
        found = search(places, (*frameworks.FILES, *frameworks.FOLDERS), order.since_ns)
        size = max((_size(each.path) for each in found[:5]), default=0)
        where = [found[0].path] if found else places
        free = min((shutil.disk_usage(path).free for path in where if path.exists()), default=ROOM)
        total = min((shutil.disk_usage(path).total for path in where if path.exists()), default=ROOM)
        return free, min(2 * size + ROOM, total // 20 + size)

    # -- the way back to a device --------------------------------------------------------------------------

    def _look_back(self) -> None:
        """A device is well again: at the script's next checkpoint it goes back there, and not before."""
        trusting, supervisor = self._trusting, self.supervisor
        if trusting.returning is None or supervisor.script is None or supervisor.attached.alive:
            return
        now = time.monotonic()
        if now - self._looked_back < RETURN_EVERY:
            return
        self._looked_back = now
        _, found = self._newest_checkpoint(supervisor.script.began_ns)
        if found is None or found.path == self._last_found:
            return
        rung = trusting.returned()
        script, grace = supervisor.script, supervisor.settings.watchdog
        supervisor.kin.end(script, term=grace.term_grace, kill=grace.kill_grace)
        script.poll()
        if supervisor.streams is not None:
            supervisor.streams.finish(0.1)
        supervisor._drop()
        self._account()
        assert rung is not None
        self._return_to(rung)

    def _return_to(self, rung: int) -> None:
        device = self.supervisor.order.rungs[rung].device
        self._restart(Move(Action.NEXT_RUNG, rung, reason=f"{device} is well again", new_worker=True))

    # -- the end -------------------------------------------------------------------------------------------

    def stopped(self, number: int, code: int | None = None) -> None:
        """Somebody wanted it to end. Its own code counts, as it would without us."""
        self.supervisor.attached.save_last()
        exact = self.supervisor.attached.exact
        if code is None or code < 0:
            ending = 128 + (number if code is None else -code)
        else:
            ending = code
        if exact and ending in (128 + signal.SIGTERM, 75):
            ending = int(ExitCode.RESUME_ME)
        hints = [self.affairs.resume_hint()]
        error = Stopped(f"stopped at step {self.affairs.accounts.steps}", saved=self.affairs.saved(), hints=hints)
        self.end("STOPPED", ending, error)

    def _gave_up(self, fault: Fault, reason: str) -> None:
        self.supervisor.attached.save_last()
        tries = sum(past.fault.step == fault.step for past in self.history)
        times = f", {tries} times" if tries > 1 else ""
        error = GaveUp(
            f"gave up: {fault.sentence()}{times}",
            cause=f"{fault.code}; {reason}",
            saved=self.affairs.saved(),
            hints=[
                f"`holdfast explain {fault.code}` says what this means",
                f"what was found is in {self.affairs.run_folder.path / 'faults'}",
            ],
        )
        self.end("GAVE_UP", ExitCode.GAVE_UP, error)

    def end(self, state: str, code: int, error: HoldfastError | None) -> None:
        """The receipt, and the outcome. The first one counts."""
        if self.outcome is not None:
            return
        affairs, accounts = self.affairs, self.affairs.accounts
        if accounts.timeline:
            accounts.timeline[-1]["to_step"] = accounts.steps
        receipt = accounts.receipt(
            steps=accounts.steps,
            survived=state in ("FINISHED", "STOPPED"),
            skipped=0,
            repeated=0,
            sha256=affairs.keeping.final.get("weights_sha256") if state == "FINISHED" else None,
        )
        receipt["exact"] = self.supervisor.attached.exact
        affairs.run_folder.put("receipt.json", receipt)
        self.outcome = Outcome(state, int(code), error, receipt)
        affairs.set_state(
            state, exit_code=int(code), ended=utc_now(), accounts=accounts.to_json(), best=affairs.teller.best
        )
        data = error.to_json() if error else {}
        affairs.teller.emit("end", state=state, exit_code=int(code), step=accounts.steps, error=data or None)

    def close(self) -> None:
        state = self.outcome.state if self.outcome else "CRASHED"
        by_device = bool(self.history) and FAMILIES[self.history[-1].fault.kind] == "device"
        how = "fault" if state == "GAVE_UP" and by_device else "finished" if state == "FINISHED" else "stopped"
        self._trusting.close(how)


class _Hands:
    """What the trust in devices needs of whoever starts workers."""

    def __init__(self, supervisor: ScriptSupervisor) -> None:
        self._supervisor = supervisor

    @property
    def worker(self) -> Any:
        """The attached process, which can be asked to stop at its next commit; no other can."""
        return self._supervisor.notes if self._supervisor.attached.alive else None


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    return path.stat().st_size if path.exists() else 0


def _short(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)
