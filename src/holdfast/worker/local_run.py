"""A run without a supervisor: the same session in this very process, with rollback and checkpoints.

    outcome = run_local(train, run_folder, settings)        # `holdfast.main(train, supervised=False)`

What a step needs to be undone is in slots of this process, so running out of memory is survived. The death or
hang of the process is not: then the newest checkpoint is what is left, and resuming starts from it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from holdfast.base.board import Board
from holdfast.base.errors import ExitCode, GaveUp, HoldfastError, ScriptFailed, Stopped, UserError
from holdfast.data import sample_marks
from holdfast.faults.ladder import Rung
from holdfast.record.receipt import Accounts
from holdfast.record.reporter import Face, Teller
from holdfast.run.commit_points import SaveReason
from holdfast.run.disk_trouble import Storage
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder
from holdfast.run.messages import CadenceTold, EpochEnded, FaultMended, Log, Message, Restored, Weights
from holdfast.run.settings import DEFAULT, Settings
from holdfast.run.states import RunState
from holdfast.state import checkpoint, layout
from holdfast.state.slot_memory import Memory
from holdfast.state.slots import Arena
from holdfast.worker.session import LostWorker, Run, Session, StopRun
from holdfast.worker.worker import map_file, open_device, seed_everything

Train = Callable[..., None]


class LocalLink:
    """The session's way to a run folder, with nobody in between."""

    generation = 0

    def __init__(self, run: RunFolder, settings: Settings, face: Face) -> None:
        self.run = run
        self.settings = settings
        self.board = Board.create()
        self.teller = Teller(run, face, settings.checkpoint.best)
        self.memory = Memory(run, settings, portable=False, say=self.teller.emit)
        self.accounts = Accounts.from_json(run.info.get("accounts") or {})
        self.saved: checkpoint.Checkpoint | None = None
        self.checkpoint: checkpoint.Checkpoint | None = None
        self._last_save = time.monotonic()
        self._storage = Storage(run, self.teller.emit, lambda: self.saved.step if self.saved else None)

    def arena(self, capacity: int) -> Arena:
        arenas = self.memory.arenas
        return arenas[-1] if arenas and arenas[-1].capacity >= capacity else self.memory.grow(capacity)

    def newest(self) -> memoryview | None:
        return None if self.checkpoint is None else map_file(self.checkpoint.state)

    def older(self, why: str) -> memoryview | None:
        """The checkpoint before the one that cannot be used; None if there is none."""
        if self.checkpoint is None:
            return None
        good = checkpoint.instead_of(self.checkpoint.path, why, lambda text: self.teller.emit("note", text=text))
        if good is None:
            return None
        self.accounts.restored(self.accounts.steps, good.step)
        self.checkpoint, self.accounts.steps = good, good.step
        return map_file(good.state)

    def committed(self, step: int) -> None:
        self.accounts.steps = step
        self.teller.rate.note(step)
        if time.monotonic() - self._last_save >= self.settings.checkpoint.every:
            self.save()

    def send(self, message: Message) -> None:
        if isinstance(message, Log | Restored):
            self.teller.heed(message, self.board)
        elif isinstance(message, FaultMended):
            self.accounts.fault(message.fault.kind.value)
            self.teller.emit_fault(message.fault, message.move, whole=True)
        elif isinstance(message, CadenceTold):
            self.accounts.heard_cadence(message, self.teller.emit)
        elif isinstance(message, EpochEnded):
            best = self.teller.epoch(message)
            self.board.hear()
            self._keep_best(message.sequence, best=best)
        elif isinstance(message, Weights):
            self._keep_best(message.sequence, best=self.teller.best.taken(message.step))
        else:
            self.teller.emit(message.kind, **message.told)

    def _keep_best(self, sequence: int | None, *, best: bool) -> None:
        """The snapshot that is held is saved if its weights are the best, and let go."""
        try:
            if best:
                self._save_weights("best", best=self.teller.best.known, sequence=sequence)
        except OSError as error:
            self._storage.failed(str(error.strerror or error), SaveReason.EPOCH)
        self.memory.let_go(sequence)

    def save(self) -> None:
        """The newest snapshot on disk; a full disk is said and training goes on."""
        payload = self._payload()
        self._last_save = time.monotonic()
        if payload is None:
            return
        try:
            self.saved = checkpoint.write(self.run.path / "checkpoints", payload, step=self._step_of(payload))
            keep, newest = self.settings.checkpoint.keep, self.saved.step
            checkpoint.prune(self.run.path / "checkpoints", keep=keep, newest=newest)
        except OSError as error:
            self._storage.failed(str(error.strerror or error), "time")
        else:
            self.teller.emit("checkpoint", step=self.saved.step, path=str(self.saved.path))
            self._storage.saved()

    def _step_of(self, payload: memoryview) -> int:
        return self.accounts.steps

    def finish(self) -> str | None:
        """The last save and the weights alone; returns their digest."""
        self.save()
        payload = self._payload()
        if payload is None:
            return None
        try:
            self._save_weights("final")
        except OSError as error:
            raise GaveUp(
                "training is over, but its result could not be saved",
                cause=str(error.strerror or error),
                saved=str(self.saved.path) if self.saved else None,
                hints=[f"free disk space in {self.run.path}, then go on with `resume={self.run.name}`"],
            ) from None
        return layout.weights_sha256(payload)

    def _save_weights(self, name: str, best: dict[str, Any] | None = None, sequence: int | None = None) -> None:
        held = None if sequence is None else self._held(sequence)
        payload, step = held or (self._payload(), self.accounts.steps)
        if payload is not None:
            path = self.run.path / f"{name}.safetensors"
            checkpoint.write_weights(path, payload, step=step, best=best)

    def _held(self, sequence: int) -> tuple[memoryview, int] | None:
        """The snapshot that is held under this sequence, and its step."""
        for arena in self.memory.arenas:
            slot = arena.find(sequence)
            commit = None if slot is None else slot.read(savepoints=True)
            if slot is not None and commit is not None:
                return slot.payload(commit.size), commit.step
        return None

    def _payload(self) -> memoryview | None:
        found = self.memory.newest_slot()
        if found is None:
            return None
        arena, commit = found
        return arena.slots[commit.slot].payload(commit.size)

    def close(self) -> None:
        self.memory.close()
        self.board.close()


def run_local(
    train: Train,
    run: RunFolder,
    settings: Settings,
    *,
    device: str = "cpu",
    seed: int = 0,
    arguments: dict[str, Any] | None = None,
    resume: checkpoint.Checkpoint | None = None,
    face: Face | None = None,
) -> dict[str, Any]:
    """Train here and now; returns the receipt. Your own errors come out as they are."""
    # There is nobody to go back to the last agreement for it: a device that is wrong is noticed by a supervised run.
    settings = settings.override({"sentinel.enabled": "never"}, "an unsupervised run")
    if settings.source("snapshot.every") == DEFAULT:  # and nobody who would start a process that goes back further
        settings = settings.override({"snapshot.every": 1}, "an unsupervised run")
    link = LocalLink(run, settings, face or Face())
    link.checkpoint = resume
    run.update_info(state=RunState.RUNNING, device=device)
    seed_everything(seed)
    described = Run(name=run.name, folder=run.path, seed=seed, generation=0, resumed=resume is not None)
    session = Session(link, run=described, rungs=[Rung(device)], rung=0, settings=settings, device=open_device(device))
    sample_marks.begin(run.path, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    state, code = RunState.FAILED, int(ExitCode.NO)
    digest: str | None = None
    try:
        with _stop_politely(link.board):
            train(session, **(arguments or {}))
        session._finish()
        digest = link.finish()
        state, code = RunState.FINISHED, int(ExitCode.OK)
    except StopRun:
        link.save()
        state, code = RunState.STOPPED, int(ExitCode.INTERRUPTED)
        raise Stopped(
            f"stopped at step {link.accounts.steps}", saved=str(link.saved.path) if link.saved else None
        ) from None
    except LostWorker as lost:
        link.save()
        raise ScriptFailed(
            lost.fault.sentence(),
            cause=lost.fault.cause(),
            saved=str(link.saved.path) if link.saved else None,
            hints=["`holdfast train` survives this: it trains in a process that can be replaced"],
        ) from lost.__cause__
    except Exception as error:
        link.save()
        code = int(error.exit_code) if isinstance(error, HoldfastError) else code
        raise
    finally:
        session._close_loaders()  # an error holds on to the session, and with it to the loader's children
        sample_marks.end()
        link.accounts.attempts += link.board.read().attempts
        receipt = receipt_of(link, survived=state == RunState.FINISHED, digest=digest)
        run.put("receipt.json", receipt)
        run.update_info(
            state=state, exit_code=code, ended=utc_now(), accounts=link.accounts.to_json(), best=link.teller.best.known
        )
        link.close()
    return receipt


def receipt_of(link: LocalLink, *, survived: bool, digest: str | None) -> dict[str, Any]:
    return link.accounts.receipt(survived=survived, sha256=digest, session=link.memory.session_numbers())


class _stop_politely:
    """The first Ctrl-C or SIGTERM asks the session to stop at its next commit, the second one interrupts."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread, as in a notebook: signals stay what they were
                self.before[number] = signal.signal(number, self._asked)

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        if self.board.stop_requested:
            raise KeyboardInterrupt
        self.board.request_stop()

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def default_device() -> str:
    """Where an unsupervised run goes: this process may touch the device, so torch may be asked."""
    if torch.cuda.is_available():
        return "cuda:0"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def newest_checkpoint(run: RunFolder) -> checkpoint.Checkpoint:
    good, rejected = checkpoint.newest_good(run.path / "checkpoints")
    if good is None:
        why = f"{rejected[0][0].name}: {rejected[0][1]}" if rejected else "none was written"
        raise UserError(f"{run.name} has no checkpoint to go on from", cause=why)
    return good


def script_of(train: Train) -> Path | None:
    """The file that defines `train`, if it is a script somebody started."""
    import sys

    module = sys.modules.get(getattr(train, "__module__", ""))
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if name else None
