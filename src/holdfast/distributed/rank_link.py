"""A rank's way to what outlives it: its snapshots in the job's folder, and for one of the ranks the run folder.

    link = Follower(job, place, settings, board)                # most ranks
    link = Writer(job, place, settings, board, run_folder)      # the one that keeps journal and checkpoints
    link.find_start(group)                                      # the snapshot all go on from, or the newest checkpoint

A snapshot is the same state in all ranks, so one rank's is enough for a checkpoint, for a rank on a machine that is
new, and for a run that goes on with another number of ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Board, Phase
from holdfast.base.errors import GaveUp
from holdfast.base.files import open_regular, read_json
from holdfast.base.human import duration
from holdfast.distributed import rank_devices, rank_ladder, rank_mail, rank_numbers, rank_undo, roster
from holdfast.distributed.group import PIECES, Group
from holdfast.distributed.job import GONE, Job
from holdfast.distributed.joined_ranks import PeerLost
from holdfast.distributed.machine_link import LONGEST, TIMES
from holdfast.distributed.part_copies import NOT_KEPT
from holdfast.distributed.place import Place
from holdfast.distributed.rank_numbers import Case
from holdfast.distributed.rank_snapshots import Snapshots, of_this_process
from holdfast.distributed.torchrun import AGENT_LOG
from holdfast.faults.blame import Verdict
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.record import evidence
from holdfast.record.reporter import Face
from holdfast.run.folder import RunFolder
from holdfast.run.messages import EpochEnded, Found, Log, Message, Quarantined, Weights
from holdfast.run.settings import Settings
from holdfast.run.states import RunState
from holdfast.state import checkpoint
from holdfast.state.layout import read_meta
from holdfast.state.shards import parts_of
from holdfast.state.slots import Arena
from holdfast.supervisor.undo import set_aside
from holdfast.worker.local_run import LocalLink

_WRITER, _EMPTY, _DEVICES, _NUMBERS = "writer", "empty", "devices", "numbers"
"""Notes in the job's folder: which process writes, which seats were empty when it began, which devices ranks had, and
which fault of numbers that are not finite was told last."""
_AWAIT_PARTS = 0.005
"""Seconds between two looks at the snapshots of other ranks."""
_EXIT = re.compile(r"\(exitcode: (-?\d+)\) local_rank: \d+ \(pid: (\d+)\)")


class Follower:
    """A rank that trains and tells nobody."""

    def __init__(
        self, job: Job, place: Place, settings: Settings, board: Board, snapshots: Snapshots | None = None
    ) -> None:
        self.job = job
        self.board = board
        self.generation = place.restarts
        self.advanced = False
        """A step was committed in this group."""
        self.snapshots = of_this_process(snapshots, job, place, settings)

    def pause(self) -> None:
        """This process leaves its group and waits for the next."""

    def rejoin(self, place: Place) -> None:
        """The same process in another group."""
        self.generation, self.advanced = place.restarts, False
        self.snapshots.rejoin()

    def find_start(self, group: Group) -> None:
        rank_undo.give_up(rank_undo.known_to(group, self.job), self.snapshots.memory)
        self.snapshots.find(group, None)

    def arena(self, capacity: int) -> Arena:
        return self.snapshots.arena(capacity)

    def newest(self) -> memoryview | None:
        return self.snapshots.start

    def whole(self) -> memoryview | None:
        return self.snapshots.all_parts()

    def committed(self, step: int) -> None:
        if not self.advanced:
            roster.say_trained(self.job)
        self.advanced = True
        self.snapshots.memory.drop_outgrown()

    def send(self, message: Message) -> None:
        if isinstance(message, rank_mail.OF_TRUST):
            rank_mail.post(self.job, self.snapshots.seat, message)
        if isinstance(message, Log | EpochEnded):
            self.board.hear()  # the writing rank says the same to somebody
        if isinstance(message, EpochEnded | Weights):
            self.snapshots.memory.let_go(message.sequence)


class Writer(LocalLink):
    """The rank that keeps the run folder: journal, numbers, checkpoints, the receipt."""

    def __init__(
        self,
        job: Job,
        place: Place,
        settings: Settings,
        board: Board,
        run: RunFolder,
        snapshots: Snapshots | None = None,
    ) -> None:
        super().__init__(run, settings, Face())
        self.board.close()
        self.board = board
        self.job = job
        self.place = place
        self.generation = place.restarts
        self.advanced = False
        self.snapshots = of_this_process(snapshots, job, place, settings)
        self.memory = self.snapshots.memory
        self._recovering: float | None = None
        self._counted = board.read().attempts
        """Attempts on this process's board that are in the accounts, or that the rank before it has counted."""
        self._stalled: tuple[Any, ...] | None = None
        """What the slots of the others showed when a wait for copies of their parts ended in vain."""
        self._longest_wait = 0.0
        self._quarantined: set[Quarantined] = set()
        """Samples that are left out, and that were told."""
        self._case: tuple[Case, Path] | None = None
        """The step that is looked into, and the folder of its fault, until it is known whose fault it was."""
        self._predecessor = job.noted(_WRITER)
        self._sign()
        if place.restarts > int(place.stays):  # the first roster of ranks that stay has the number 1
            self.teller.remember()

    @classmethod
    def of_the_last(
        cls, job: Job, place: Place, settings: Settings, board: Board, snapshots: Snapshots
    ) -> Writer | None:
        """Where the run is given up and the process that wrote is gone: the first of those that are left saves.

        None in the others.
        """
        writer, roster_now = job.noted(_WRITER).get("pid"), place.roster
        if roster_now is None or place.run is None or (isinstance(writer, int) and processes.exists(writer)):
            return None
        left = [pid for pid in roster_now.here if processes.exists(pid)]
        newest = snapshots.memory.newest()
        if newest is None or left[:1] != [os.getpid()]:
            return None
        run = RunFolder.open(Path(place.run))
        run.share_lock()
        made = cls(job, place, settings, board, run, snapshots)
        made.accounts.steps = newest.step
        return made

    def send(self, message: Message) -> None:
        """The end of an epoch may have been told by a rank that was ahead of the others, and comes again."""
        if isinstance(message, EpochEnded) and self.teller.told(message.epoch, message.step):
            message = replace(message, again=True)
        if isinstance(message, Quarantined):
            if message in self._quarantined:  # each group that begins before its batch leaves it out once more
                return
            self._quarantined.add(message)
        if isinstance(message, rank_mail.OF_TRUST):
            rank_mail.post(self.job, self.snapshots.seat, message)
        elif not isinstance(message, Found):  # what one rank finds is no verdict of all of them
            super().send(message)

    # -- numbers that are not finite -----------------------------------------------------------------------

    def tell_case(self, case: Case) -> None:
        """A step is looked into by all ranks, whose numbers were not finite: the fault is told, and once."""
        told, key = self.job.noted(_NUMBERS), [case.group, case.step]
        if told.get("case") == key:  # this group is another one because a rank was lost meanwhile
            self._case = None if case.again else (case, Path(str(told.get("folder"))))
            return
        fault = case.named()
        move = Move(Action.REPLACE, 0, reason="all ranks go back, and each looks at its part of the batch")
        folder = evidence.collect(self.run, fault, move, None, "", {}, "")
        self.job.note(_NUMBERS, {"case": key, "folder": str(folder)})
        self._case = case, folder
        self._recovering = self._recovering or time.monotonic()
        self.accounts.fault(fault.kind.value)
        self.teller.emit_fault(fault, move, folder)

    def tell_verdict(self, verdict: Verdict) -> None:
        """Whose fault it was, once for each case."""
        if self._case is None:
            return
        (case, folder), self._case = self._case, None
        with contextlib.suppress(OSError):
            evidence.add_verdict(folder, {**verdict.to_json(), "sentence": verdict.sentence()})
        self.teller.emit(
            "verdict",
            step=case.step,
            code=case.fault.code,
            device=case.named().device,
            blame=verdict.blame.value,
            repeatable=verdict.repeatable,
            sentence=verdict.sentence(),
            folder=str(folder),
        )

    def _sign(self) -> None:
        """Who writes, and how far its attempts are counted: for the rank that writes after it."""
        self.job.note(_WRITER, {"pid": os.getpid(), "counted": self._counted})

    def count_attempts(self) -> None:
        """Steps that this process has begun since the last call."""
        attempts = self.board.read().attempts
        self.accounts.attempts += attempts - self._counted
        self._counted = attempts

    def pause(self) -> None:
        """This process leaves its group and waits for the next, in which another may write: the books are in order."""
        self.count_attempts()
        self._sign()
        self.run.update_info(accounts=self.accounts.to_json(), best=self.teller.best.known)

    def rejoin(self, place: Place) -> None:
        """The same process in another group."""
        self.place, self.generation, self.advanced = place, place.restarts, False
        self.snapshots.rejoin()

    def find_start(self, group: Group) -> None:
        known = rank_undo.known_to(group, self.job)
        rank_undo.give_up(known, self.memory)
        undone = self._set_aside(known)
        saved, passed_over = checkpoint.newest_good(self.run.path / "checkpoints")
        for path, reason in passed_over:
            self.teller.emit("note", text=f"checkpoint {path.name} is skipped: {reason}")
        self.checkpoint = self.saved = saved
        self.snapshots.find(group, saved)
        rank_undo.begin(self.job, self.snapshots.step)
        self._tell_who_was_lost()
        for each in undone:
            self._tell_undone(each, min(each.step, self.snapshots.step))
        self._tell_who_was_full()
        self._tell_how_many()
        self._tell_who_is_back()
        if self.place.stays and self.snapshots.whole:  # a step is one that all have; this rank may be one ahead
            self.accounts.steps = min(self.accounts.steps, self.snapshots.step)
        self.accounts.restored(self.accounts.steps, self.snapshots.step)
        self.accounts.steps = self.snapshots.step
        self.run.update_info(accounts=self.accounts.to_json())

    def _set_aside(self, known: Iterable[rank_undo.Undone]) -> list[rank_undo.Undone]:
        """Checkpoints and best weights since the numbers of a rank went wrong; returns the ways back that are new."""
        undone = rank_undo.news(self.job, known)
        for each in undone:
            set_aside(self.run.path, each.step, best=self.teller.undo(each.step))
        return undone

    def set_doubtful_aside(self) -> None:
        """The run ends here, perhaps because there is no other card for a rank that computes wrong numbers."""
        undone = self._set_aside(rank_undo.noted(self.job))
        for each in undone:
            self._tell_undone(each, each.step)
        newest = self.memory.newest()
        if undone and newest is not None:
            self.accounts.steps = newest.step

    def arena(self, capacity: int) -> Arena:
        return self.snapshots.arena(capacity)

    def newest(self) -> memoryview | None:
        return self.snapshots.start

    def whole(self) -> memoryview | None:
        return self.snapshots.all_parts()

    def _payload(self) -> memoryview | None:
        """The newest snapshot; if a rank was lost before its part of it was there, the newest that is whole."""
        found = self.memory.newest_slot()
        if found is None:
            return None
        payload = self._with_all_parts(super()._payload(), found[1].sequence)
        if payload is None:
            older = self.snapshots.newest_whole()
            payload = None if older is None else self.snapshots.all_parts(older)
        return payload

    def _step_of(self, payload: memoryview) -> int:
        return int(read_meta(payload)["session"]["step"])

    def finish(self) -> str | None:
        newest = self.memory.newest()
        payload = None if newest is None else self._payload()
        if newest is not None and (payload is None or self._step_of(payload) != newest.step):
            if self._stalled is not None:
                self.save()
                raise GaveUp(
                    "training is over, but its result could not be saved",
                    cause="parts of the state are on other machines, and are not copied to this one",
                    saved=str(self.saved.path) if self.saved else None,
                    hints=[f"free memory in {self.job.path.parent}, then continue with `--resume {self.run.name}`"],
                )
            raise PeerLost("a rank was lost before its part of the last snapshot was there")
        return super().finish()

    def _save_weights(self, name: str, best: dict[str, Any] | None = None, sequence: int | None = None) -> None:
        newest = self.memory.newest_slot()
        in_parts = newest is not None and int(parts_of(super()._payload() or b"").get("count", 1)) > 1
        if sequence is not None and in_parts and self._held(sequence) is None:
            self.teller.emit("note", text=f"{name} weights were not saved: a rank was lost before its part was there")
            return
        super()._save_weights(name, best, sequence)

    def _held(self, sequence: int) -> tuple[memoryview, int] | None:
        held = super()._held(sequence)
        payload = None if held is None else self._with_all_parts(held[0], sequence)
        return None if held is None or payload is None else (payload, held[1])

    def _with_all_parts(self, payload: memoryview | None, sequence: int) -> memoryview | None:
        """Where each rank holds a part: those of the others are waited for, as long as all of them live."""
        if payload is None or int(parts_of(payload).get("count", 1)) == 1:
            return payload
        self.board.enter(Phase.PEERS)  # waiting for others is no hang of this rank
        began = changed = time.monotonic()
        seen = self.snapshots.pulses()
        # After one wait in vain there is no other until something comes.
        patience = 0.0 if seen == self._stalled else max(LONGEST, TIMES * self._longest_wait)
        while True:
            gone = self.place.roster is None or any(not processes.exists(pid) for pid in self.place.roster.here)
            gone = gone or roster.is_left(self.job, self.place.restarts)  # those of other machines
            whole = self.snapshots.all_parts(sequence)
            now = time.monotonic()
            if whole is not None or gone:
                self._longest_wait = max(self._longest_wait, now - began) if whole is not None else self._longest_wait
                self._stalled = None
                return whole
            pulses = self.snapshots.pulses()
            if pulses != seen:
                seen, changed, patience = pulses, now, max(patience, LONGEST)
            elif self.place.roster is not None and self.place.roster.spans and now - changed > patience:
                if self._stalled is None:
                    why = self.job.noted(NOT_KEPT).get("why") or f"nothing came for {duration(now - changed)}"
                    text = (
                        f"parts of the state on other machines do not come to this one ({why}): an older one is saved"
                    )
                    self.teller.emit("note", text=text)
                self._stalled = seen
                return None
            time.sleep(_AWAIT_PARTS)

    def committed(self, step: int) -> None:
        super().committed(step)
        if not self.advanced:
            roster.say_trained(self.job)
        self.advanced = True
        self.memory.drop_outgrown()
        if self._case is not None and step >= self._case[0].step:
            self.tell_verdict(rank_numbers.finite_again(self._case[0]))
        if self._recovering is not None and self._case is None:
            seconds, self._recovering = time.monotonic() - self._recovering, None
            self.accounts.recovered(seconds, seconds)
            self.teller.emit("recovered", step=step, seconds=round(seconds, 3), lost_s=round(seconds, 3))
            self.run.update_info(state=RunState.RUNNING, accounts=self.accounts.to_json())

    def _tell_undone(self, undone: rank_undo.Undone, to: int) -> None:
        before = self.accounts.steps
        if not undone.agreed:
            text = "no snapshot is left from before the numbers went wrong: the run goes on from where it was launched"
            self.teller.emit("note", text=text)
        self.accounts.undo(to)
        self.teller.emit("undone", from_step=before, to_step=to, rank=undone.seat)

    def _tell_how_many(self) -> None:
        """Which seats are empty now, and which are filled again."""
        group = self.place.roster
        if group is None:
            return
        before, now = set(self.job.noted(_EMPTY).get("seats", ())), set(group.empty)
        if before == now:
            return
        self.job.note(_EMPTY, {"seats": sorted(now)})
        many = f"{group.ranks} of {group.wanted} ranks train"
        for seat in sorted(now - before):
            why = str(self.job.noted(f"away-{seat}").get("why") or "it could not be replaced in time")
            self.teller.emit("note", text=f"rank {seat} is away ({why}): {many}, with the same batches", away=seat)
        for seat in sorted(before - now):
            self.teller.emit("note", text=f"rank {seat} is back: {many}", back=seat)

    def _tell_who_is_back(self) -> None:
        """Which ranks are again on the device that they began on."""
        group, seen = self.place.roster, self.job.noted(_DEVICES)
        if group is None:
            return
        now = dict(zip(map(str, group.seats), rank_devices.of_group(self.job, group.number), strict=False))
        home, before = {**now, **seen.get("home", {})}, seen.get("now", {})
        if now != before:
            self.job.note(_DEVICES, {"home": home, "now": {**before, **now}})
        for seat, device in sorted(now.items()):
            if before.get(seat, device) != device == home[seat]:
                self.teller.emit("note", text=f"rank {seat} is back on {device}", returned=int(seat))

    # -- what happened before ------------------------------------------------------------------------------

    def _tell_who_was_lost(self) -> None:
        """The boards of processes that are gone: which of them ended by themselves, or were ended by us, and where."""
        committed = []
        for (rank, pid), path in sorted(self.job.boards().items()):
            if processes.exists(pid):
                continue
            board = Board.open_path(path)
            beat = board.read()
            board.close(unlink=True)
            if pid == self._predecessor.get("pid") and pid != os.getpid():
                self.accounts.attempts += beat.attempts - int(self._predecessor.get("counted", 0))
            committed.append(beat.step)
            left = self.job.left(rank, pid)
            fault = self._fault_of(rank, pid, left)
            answer = rank_ladder.answer(self.job, pid)
            if answer is not None:
                self._tell_answer(rank, pid, answer)
            elif fault is not None:
                self._record(fault.at(step=beat.at, phase=beat.phase.label))
            waited = not beat.attempts and beat.phase is Phase.PEERS  # a spare, which may have waited for days
            if (fault is not None or answer is not None) and not waited:
                self._recovering = self._recovering or time.monotonic() - beat.silence
        self.accounts.steps = max(self.accounts.steps, min(committed, default=0))  # a step is one that all have
        if self.place.stays:
            self._tell_who_was_lost_elsewhere()
            return
        if self.place.restarts and self._recovering is None and self.snapshots.start is not None:
            self._record(Fault(Kind.EXIT, "another machine", step=self.snapshots.step + 1))
            self._recovering = time.monotonic()

    def _tell_who_was_lost_elsewhere(self) -> None:
        """What the leader has noted of ranks on other machines; the boards of those are not here."""
        for path in sorted(self.job.path.glob(f"note-{GONE}-*.json")):
            told = read_json(path) or {}
            path.unlink(missing_ok=True)
            answer = rank_ladder.answer(self.job, int(told.get("pid", 0)))
            if answer is not None:
                self._tell_answer(int(told["seat"]), int(told["pid"]), answer)
                self._recovering = self._recovering or float(told.get("since", time.monotonic()))
                continue
            if told.get("seat") is None:
                fault: Fault | None = Fault(Kind.HANG, str(told.get("machine")), message=str(told.get("why", "")))
            else:
                fault = self._fault_of(int(told["seat"]), 0, told.get("left"), int(told.get("code", -9)))
            if fault is not None:
                known = {"step": told.get("step"), "phase": told.get("phase") or None}
                self._record(fault.at(**{name: value for name, value in known.items() if value is not None}))
                self._recovering = self._recovering or float(told.get("since", time.monotonic()))

    def _tell_who_was_full(self) -> None:
        """A rank that holds a part of the state ran out of memory: all compute batches in more pieces from here on."""
        known = self.job.noted(PIECES)
        if isinstance(known.get("fault"), dict):
            fault, pieces = Fault.from_json(known["fault"]), int(known["pieces"])
            self.job.note(PIECES, {"pieces": pieces})
            self.accounts.fault(fault.kind.value)
            self.teller.emit_fault(fault, Move(Action.SPLIT, 0, pieces, reason=f"all ranks, in {pieces} pieces"))

    def _fault_of(self, rank: int, pid: int, left: dict[str, Any] | None, code: int | None = None) -> Fault | None:
        """None for a rank that ended because another had."""
        return rank_ladder.fault_of(
            self.job,
            rank,
            pid,
            left,
            device=f"rank {rank}",
            exit_code=lambda: self._exit_code(pid) if code is None else code,
        )

    def _exit_code(self, pid: int) -> int:
        """What the agent said about it; -9 where nobody knows: most that end without a word were killed."""
        known = self.job.noted(f"exit-{pid}").get("code")
        if isinstance(known, int):
            return known
        for found in reversed(_EXIT.findall(_tail(self.run.path / AGENT_LOG))):
            if int(found[1]) == pid:
                return int(found[0])
        return -9

    def _tell_answer(self, seat: int, pid: int, answer: rank_ladder.Answer) -> None:
        """What the ladder of that rank has decided: the fault, and where its next process is."""
        moved = answer.after != answer.before
        folder = self._record(answer.fault, f"{answer.before} → {answer.after}" if moved else "")
        rank_ladder.say_told(self.job, pid, folder)
        if moved:
            where = "the CPU" if answer.after == "cpu" else answer.after
            spans = self.place.roster is not None and self.place.roster.spans
            who = f"rank {seat} on {answer.fault.evidence.get('host')}" if spans else f"rank {seat}"
            text = f"{who} moved from {answer.before} to {where} ({answer.fault.sentence()})"
            self.teller.emit("note", text=text, moved=seat)

    def _record(self, fault: Fault, moved: str = "") -> Path:
        reason = "this rank is replaced, the others stay" if self.place.stays else "all ranks are started again"
        group = self.place.roster
        if group is not None and (fault.device or "").startswith("machine"):
            back = group.ranks == group.wanted
            reason = "its ranks were replaced, the others stay" if back else "the others continue without its ranks"
        elif group is not None and fault.device in [f"rank {seat}" for seat in group.empty]:
            reason = "the others continue without this rank"
        elif group is not None and fault.device not in [f"rank {seat}" for seat in group.seats]:
            reason = "a spare process takes its place, the others stay"
        action = Action.NEXT_RUNG if moved else Action.REPLACE
        move = Move(action, 0, reason=f"{moved}, the others stay" if moved else reason, new_worker=True)
        folder = evidence.collect(self.run, fault, move, None, "", {}, "")
        self.accounts.fault(fault.kind.value)
        self.teller.emit_fault(fault, move, folder)
        return folder


def _tail(path: Path, most: int = 65536) -> str:
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
