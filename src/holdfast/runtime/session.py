"""The session: what a training script sees of holdfast.

    def train(session: holdfast.Session) -> None:
        data = holdfast.Loader(dataset, batch_size=64, shuffle=True)
        session.protect(model=model, optimizer=optimizer, data=data)     # on the device, restored if this is a resume
        for epoch in session.epochs(10):
            for batch in session.batches(data):
                loss = session.step(lambda b: cross_entropy(model(b[0]), b[1]), batch)

The loop body is the transaction. What it did to the protected objects is committed when the body is over and
the loop asks for the next batch, so a scheduler or an average updated after the step belongs to it. A worker
that dies is replaced, and its successor starts at the body that was not committed.

Only protected objects are restored. Local variables of the loop, plain attributes and non-persistent buffers
are not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from holdfast.errors import UserError
from holdfast.runtime import snapshot, transaction
from holdfast.runtime.board import Phase
from holdfast.runtime.compiling import CompileWatch
from holdfast.runtime.faults import Fault, Health, Kind, classify_exception
from holdfast.runtime.ladder import Action, Limits, Move, Past, Rung, next_move
from holdfast.runtime.layout import read_meta
from holdfast.runtime.loader import Batch, Loader
from holdfast.runtime.rng import capture_rng, restore_rng
from holdfast.runtime.state import Protected
from holdfast.runtime.transaction import Loss, Splitter, Work
from holdfast.settings import Settings

T = TypeVar("T")


class StopRun(BaseException):
    """The run was asked to stop and its state is committed. Let it propagate: it is not an error."""


class LostWorker(BaseException):
    """This process cannot go on with the device; a new one will, from the last commit. Let it propagate as well."""

    def __init__(self, fault: Fault, move: Move) -> None:
        super().__init__(fault.sentence())
        self.fault = fault
        self.move = move


class Link(snapshot.Link, Protocol):
    """The session's way to whoever keeps its state: the supervisor, or this process itself."""

    def newest(self) -> memoryview | None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """What a script may want to know about the run it is in."""

    name: str
    folder: Path
    seed: int
    generation: int
    """0 for the first worker, one more for each that replaced it."""
    resumed: bool
    """True if state from before was found: `protect` restored it."""


@dataclass(frozen=True, slots=True)
class _Landing:
    """Where a restored run goes on. What the script does to protected objects on its way there does not count."""

    at: str
    of: str | None
    """The name of the loader whose batch it was."""
    payload: memoryview
    meta: dict[str, Any]
    tensors: list[torch.Tensor]
    stamp: tuple[object, ...]
    """What was protected, right after the first restore."""

    def here(self, at: str, of: str | None) -> bool:
        if at == "asked":  # the head of a loop without epochs and batches, before it draws its batch
            return self.at in ("free", "end")
        return (at, of) == (self.at, self.of) or self.at in ("start", "free", "end")


@dataclass(slots=True)
class _Position:
    """Where the run is. Saved with every snapshot."""

    step: int = 0
    epoch: int = 0
    samples: int = 0

    @classmethod
    def of(cls, meta: dict[str, Any]) -> _Position:
        session = meta["session"]
        return cls(int(session["step"]), int(session["epoch"]), int(session["samples"]))


@dataclass(frozen=True, slots=True)
class _Open:
    """The batch whose loop body is running."""

    loader: Loader
    batch: Batch
    step: int
    """Steps done when it began."""


class Session:
    """One training run, seen from inside. Holdfast makes it; your `train(session)` receives it."""

    def __init__(
        self, link: Link, *, run: Run, rungs: list[Rung], rung: int, settings: Settings, device: torch.device
    ) -> None:
        self.run = run
        self.device = device
        self.settings = settings
        self._link = link
        self._board = link.board
        self._rungs = rungs
        self._rung = rung
        self._position = _Position()
        self._protected: Protected | None = None
        self._snapshots: snapshot.Snapshots | None = None
        self._named: dict[str, Any] = {}
        self._landing: _Landing | None = None
        self._over: StopRun | LostWorker | None = None
        """Why nothing more is done here: said again to a script whose bare `except:` went on regardless."""
        self._started = False
        self._busy = False
        """Inside a step, or past the end."""
        self._in_epoch = False
        self._open: _Open | None = None
        self._passes: dict[str, bool] = {}
        """The loaders used in this epoch, and whether all their batches were."""
        self._loss: torch.Tensor | None = None
        self._pieces = 1
        self._pieces_until = settings.oom.grow_back_steps
        self._grow_wait = settings.oom.grow_back_steps
        self._grown = False
        self._history: list[Past] = []
        self._compiling = CompileWatch(link.board, self._enter)
        self._uncommitted = 0
        self._epochs_total = 0
        self._cpu_next = False
        self._phase_hooks: list[Callable[[Phase], None]] = []

    def begin_with(self, *, pieces: int, cpu_batch: bool) -> None:
        """What the ladder decided for the first step of this worker, after its predecessor was lost in it."""
        self._pieces = max(1, pieces)
        self._cpu_next = cpu_batch

    # -- protecting ----------------------------------------------------------------------------------------

    def protect(self, *positional: Any, **named: Any) -> None:
        """Put these objects under the session's care: on the device now, restored if the run goes on.

        Takes anything with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, a GradScaler,
        a Loader, a simulated world. Positional ones are named by what they are.
        """
        if self._protected is not None:
            raise UserError(
                "session.protect was called twice",
                cause="the snapshot's layout is made once",
                hints=["pass everything in one call: `session.protect(model=…, optimizer=…, data=…)`"],
            )
        everything = {**_named_by_kind(positional, set(named)), **named}
        objects = {name: _unwrapped(value) for name, value in everything.items()}
        protected = Protected(objects, self.device)
        protected.move(self.device)
        self._named = objects
        self._protected = protected
        optimizers = [value for value in objects.values() if isinstance(value, torch.optim.Optimizer)]
        self._snapshots = snapshot.Snapshots(protected, self._link, self.device, optimizers)
        self._snapshots.reserve()
        self._restore()
        for loader in self._loaders():
            loader.on_event = self._loader_event
            loader.on_wait = self._loader_wait
            loader.device = self.device
            loader.be_patient(floor_s=self.settings.loader.stuck_floor, first_wait_s=self.settings.loader.first_wait)

    def _restore(self) -> None:
        payload = self._link.newest()
        if payload is None or self._protected is None or self._snapshots is None:
            return
        self._check_same_objects(read_meta(payload))
        meta = snapshot.restore(self._protected, payload)
        session = meta["session"]
        self._position = _Position.of(meta)
        self._pieces_until = self._position.step + self._grow_wait
        self._board.commit(self._position.step, self._position.samples)
        at, of, stamp = str(session["at"]), session.get("of"), self._protected.stamp()
        self._landing = _Landing(at, of, payload, meta, self._protected.tensors(), stamp)
        self._started = True
        self._snapshots.start_after(int(session["sequence"]))
        self._restore_rng(self._landing)

    def _check_same_objects(self, meta: dict[str, Any]) -> None:
        before, now = set(meta["parts"]), set(self._named)
        if before != now:
            raise UserError(
                "the script protects other objects than the run it goes on with",
                cause=f"saved: {', '.join(sorted(before))}; protected now: {', '.join(sorted(now))}",
                hints=["start a new run, or protect the same names"],
            )

    def _restore_rng(self, landing: _Landing) -> None:
        read = snapshot.reader(landing.payload)
        tensors = {str(name): read(str(name)).clone() for name in landing.meta["rng_names"]}
        restore_rng(tensors, landing.meta["rng"], self.device)

    # -- the loop ------------------------------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """Steps done, those of earlier workers included.

        A loop without epochs and batches asks this at its head, `while session.step_count < total:`, and a restored
        run goes on from there. Each of its steps is committed by itself: what else belongs to a step goes into
        `session.transaction`.
        """
        if not self._busy and not self._in_epoch and self._open is None:
            self._land("asked")
        return self._position.step

    @property
    def epoch(self) -> int:
        """The epoch the run is in, counted from 0."""
        return self._position.epoch

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs from where the run is to `total`; each is committed when its body is over."""
        if not isinstance(total, int) or total < 0:
            raise UserError(f"session.epochs takes a whole number of epochs, not {total!r}")
        if self._in_epoch:
            raise UserError("session.epochs was called inside another", cause="a run has one count of epochs")
        self._board.position(epoch=self._position.epoch, epochs=total, batch=0, batches=0)
        for epoch in range(self._position.epoch, total):
            self._arrive("epoch")
            self._in_epoch = True
            self._passes.clear()
            self._board.position(epoch=epoch, epochs=total, batch=0, batches=0)
            self._epochs_total = total
            try:
                yield epoch
            finally:
                self._in_epoch = False
            self._end_epoch(epoch)
        self._land("epoch")

    def _end_epoch(self, epoch: int) -> None:
        if self._open is not None:
            self._leave_batch(self._open)
        self._land_at_last()
        for name, whole in self._passes.items():
            self._named[name].finish_epoch(left=not whole)
        self._passes.clear()
        self._position.epoch = epoch + 1
        try:
            self._commit("epoch")
        except StopRun:
            self._tell_epoch(epoch)  # it may have been the best one
            raise
        self._tell_epoch(epoch)

    def _tell_epoch(self, epoch: int) -> None:
        """The epoch is over and committed; its snapshot is held until the supervisor knows whether it is the best."""
        snapshots = self._need_snapshots()
        snapshots.flush()
        sequence = snapshots.last.sequence if snapshots.last is not None else None
        self._link.send("epoch", epoch=epoch, step=self._position.step, sequence=sequence)

    def batches(self, data: Loader) -> Iterator[Any]:
        """The batches of this epoch that are still to do; a batch is done when the loop comes back for the next."""
        name = self._name_of(data)
        self._check_pass(name)
        self._passes[name] = False
        self._enter(Phase.DATA)
        total = len(data)
        for batch in data.batches(data.epoch, data.cursor):
            self._show_position(batch.index, total)
            self._enter(Phase.LOOP)
            self._arrive("batch", name)
            opened = self._open = _Open(data, batch, self._position.step)
            try:
                yield batch.value
            except GeneratorExit:
                self._leave_batch(opened)
                raise
            self._end_batch(opened, name)
        self._land("batch", name)  # killed after the last batch of the epoch: none is left to go on with
        self._passes[name] = True
        if not self._in_epoch:
            data.finish_epoch()
        self._enter(Phase.EVALUATE)  # what follows the last batch is often an evaluation, declared or not

    def _check_pass(self, name: str) -> None:
        if self._open is not None:
            raise UserError(
                "session.batches was called inside another",
                cause="a body is committed with the batch of one Loader: a fault would tear a pair of batches apart",
                hints=["make one dataset whose samples hold both parts"],
            )
        if self._in_epoch and self._passes.get(name):
            raise UserError(
                f"all batches of this epoch were used already: session.batches({name}) was called again",
                hints=["go round once more with session.epochs: each epoch is one pass over the data"],
            )

    def _name_of(self, data: Any) -> str:
        if not isinstance(data, Loader):
            raise UserError(
                f"session.batches takes a holdfast.Loader, not a {type(data).__name__}",
                cause="only a Loader can say which samples were used when a worker is replaced",
                hints=["`data = holdfast.Loader(dataset, batch_size=…, shuffle=True)` takes the same dataset"],
            )
        for name, value in self._named.items():
            if value is data:
                return name
        raise UserError(
            "this Loader was not protected",
            cause="its position would be lost when a worker is replaced",
            hints=["add it to the call: `session.protect(model=…, optimizer=…, data=data)`"],
        )

    def _end_batch(self, opened: _Open, name: str) -> None:
        if self._open is not opened:
            raise UserError("this iterator over session.batches is of an earlier epoch", hints=["make a new one"])
        if self._position.step == opened.step:
            self._uncommitted += 1  # a body without a step is done as well
        self._count_batch(opened)
        self._commit("batch", name, last=opened.loader.cursor >= len(opened.loader))
        self._enter(Phase.DATA)

    def _leave_batch(self, opened: _Open) -> None:
        """The loop was left by `break`: a batch that was trained on is done, one that was looked at is not."""
        if self._open is opened and self._position.step > opened.step:
            self._count_batch(opened)
        elif self._open is opened:
            self._open = None

    def _count_batch(self, opened: _Open) -> None:
        self._open = None
        opened.loader.advance(opened.batch)
        self._position.samples += len(opened.batch.samples)

    def _show_position(self, index: int, total: int) -> None:
        self._board.position(epoch=self._position.epoch, epochs=self._epochs_total, batch=index, batches=total)

    def _arrive(self, at: str, of: str | None = None) -> None:
        """The loop begins or goes on here: the first snapshot of a new run, or the landing of a restored one."""
        if self._protected is None:
            raise UserError(
                "nothing is protected",
                cause="the loop began before session.protect was called",
                hints=["call `session.protect(model=…, optimizer=…, data=…)` before the loop"],
            )
        self._land(at, of)
        if not self._started:
            self._started = True
            if at != "free":  # there the body has begun already: what it drew cannot be drawn again
                self._commit("start")

    def _land(self, at: str, of: str | None = None) -> None:
        """If this is where the snapshot was taken: everything protected again as it was then.

        The script ran up to here once more, with the body of the epoch up to its batches; what that did to
        protected objects is part of the snapshot already.
        """
        if self._landing is not None and self._landing.here(at, of):
            self._land_at_last()

    def _land_at_last(self) -> None:
        """Land here, or where the script has gone another way than before and is past the place."""
        landing, self._landing = self._landing, None
        if landing is None:
            return
        self._position = _Position.of(landing.meta)
        self._uncommitted = 0
        protected = self._protected
        assert protected is not None
        if protected.stamp() != landing.stamp or protected.tensors() is not landing.tensors:
            protected.restore(snapshot.reader(landing.payload), landing.meta)
        self._restore_rng(landing)

    # -- one step ------------------------------------------------------------------------------------------

    def step(
        self,
        fn: Callable[[Any], torch.Tensor],
        batch: Any,
        *,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        clip: float | None = None,
        accumulate: int = 1,
        split: Splitter | None = None,
    ) -> Loss:
        """Forward, backward and update of one batch, as one transaction.

        `fn(batch)` returns the loss, a mean over the batch's samples. The batch is moved to the device.
        `accumulate` works through the batch in so many pieces of exact weight; `split(batch, count)` cuts
        batches that are not tensors with a common first dimension. `clip` limits the gradient norm.
        """
        work = Work(
            fn=fn,
            batch=batch,
            optimizers=self._optimizers(optimizer),
            scaler=self._scaler(),
            clip=clip,
            accumulate=max(1, int(accumulate)),
            split=split,
        )
        self._loss = self._transact(lambda device: self._perform(work, device), work)
        self._leave_step()
        return Loss(self._loss, self._waiting)

    def transaction(self, fn: Callable[[], T]) -> T:
        """Several updates as one: `fn()` happens whole or not at all, and counts as one step.

        Out of memory rolls everything protected back and calls `fn` again, so what it does outside the
        protected objects must bear being done twice.
        """

        def perform(device: torch.device) -> T:
            self._enter(Phase.FORWARD)
            return fn()

        result = self._transact(perform, None)
        self._leave_step()
        return result

    def _leave_step(self) -> None:
        self._position.step += 1
        self._uncommitted += 1
        if not self._in_epoch and self._open is None:
            self._commit("free")
        self._enter(Phase.LOOP)

    def _perform(self, work: Work, device: torch.device) -> torch.Tensor:
        work.pieces = self._pieces
        return transaction.perform(work, device, self._enter)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """A loss is read: what the device has not done yet is waited for here, and a hung kernel shows here."""
        if self.device.type == "cpu" or self._board.closed:  # nothing to wait for, or read after the run
            yield
            return
        phase = self._board.phase
        self._board.enter(Phase.BACKWARD)
        yield
        self._board.enter(phase)

    def _transact(self, perform: Callable[[torch.device], T], work: Work | None) -> T:
        """Whole or not at all."""
        self._check_not_over()
        if self._busy:
            raise UserError("session.step was called inside a step", cause="a step is rolled back as a whole")
        self._arrive("free")
        self._compiling.begin()
        self._busy = True
        try:
            return self._try_until_done(perform, work)
        finally:
            self._busy = False

    def _try_until_done(self, perform: Callable[[torch.device], T], work: Work | None) -> T:
        """After a fault: roll back, then do what the ladder says."""
        snapshots = self._need_snapshots()
        self._grow_back()
        exact = snapshots.fresh()
        if not exact and (self.settings.snapshot.every == 1 or snapshots.last is None):
            self._take("save", resumable=False)
            exact = True
        meta, before = snapshots.meta_now(), capture_rng(self.device)
        pieces = self._pieces
        while True:
            self._board.begin_attempt(self._position.step + 1)
            try:
                result = self._on_the_cpu(perform) if self._cpu_next else perform(self.device)
                self._compiling.check()
                self._cpu_next = False
            except Exception as error:
                fault = classify_exception(error, device=self._rungs[self._rung].device)
                if fault is None:  # the script's own error: it may go on, and must not find half a step
                    if exact:
                        self._roll_back(meta, before)
                    raise
                move = self._judge(fault, error, work, exact)
                self._roll_back(meta, before)
                self._cpu_next = move.action is Action.CPU_BATCH
                self._apply(move, pieces)
                continue
            if self._history and self._history[-1].fault.step == self._position.step + 1:
                self._link.send("recovered", step=self._position.step + 1, in_process=True)
            return result

    def _judge(self, fault: Fault, error: Exception, work: Work | None, exact: bool) -> Move:
        """What now? What this process cannot mend is raised: also if it has no `exact` state to go back to."""
        fault = fault.at(
            step=self._position.step + 1,
            phase=self._board.read().phase.label,
            pieces=self._pieces,
            batch=None if work is None else transaction.batch_size(work.batch),
            splittable=work is not None and self._splittable(work),
        )
        move = next_move(
            fault,
            self._history,
            self._rungs,
            self._rung,
            limits=Limits(tries=self.settings.retry.same_step, outside=self.settings.retry.without_progress),
        )
        in_process = move.action in (Action.RETRY, Action.SPLIT, Action.CPU_BATCH)
        if not in_process or fault.health is not Health.ALIVE or not exact:
            self._over = LostWorker(fault, move)
            raise self._over from error
        self._history.append(Past(fault, move, self._rung))
        self._link.send("fault", fault=fault.to_json(), move=move.to_json())
        error.__traceback__ = None  # the frames hold the tensors we are about to free
        return move

    def _splittable(self, work: Work) -> bool:
        if not self.settings.oom.split:
            return False
        if work.split is None and not self._samples_come_first(work):
            return False
        modules = [value for value in self._named.values() if isinstance(value, torch.nn.Module)]
        return self.settings.oom.allow_batchnorm_split or not transaction.mixes_samples(modules)

    def _samples_come_first(self, work: Work) -> bool:
        """Whether cutting the batch along its first dimension is known to part samples, not time or channels."""
        size = transaction.batch_size(work.batch)
        if size is None or self._open is None or work.accumulate > 1:
            return size is not None
        return size == len(self._open.batch.samples)

    def _roll_back(self, meta: dict[str, Any], before: tuple[dict[str, torch.Tensor], dict[str, Any]]) -> None:
        """Everything protected, and the generators, as they were when the step began."""
        for value in self._named.values():
            if isinstance(value, torch.optim.Optimizer):
                value.zero_grad(set_to_none=True)
        transaction.free_memory(self.device)
        self._need_snapshots().roll_back(meta)
        restore_rng(*before, self.device)

    def _apply(self, move: Move, before: int) -> None:
        """The pieces for the next try. A batch that did not fit in any says nothing about those after it."""
        pieces = before if move.action is Action.CPU_BATCH else move.pieces
        if self._grown and pieces > self._pieces:
            self._grow_wait = min(self._grow_wait * 2, 10_000)
            self._grown = False
        if pieces != self._pieces:
            self._pieces = pieces
            self._board.pieces(pieces)
        self._pieces_until = self._position.step + self._grow_wait

    def _grow_back(self) -> None:
        """After enough steps in pieces, try larger ones; if that fails, wait twice as long the next time."""
        if self._pieces > 1 and self._position.step >= self._pieces_until:
            self._pieces //= 2
            self._grown = True
            self._pieces_until = self._position.step + self._grow_wait
            self._board.pieces(self._pieces)
            what = f"{self._pieces} pieces" if self._pieces > 1 else "the whole batch"
            self._link.send("note", text=f"memory: trying {what} again", pieces=self._pieces)

    def _on_the_cpu(self, perform: Callable[[torch.device], T]) -> T:
        """This one batch where there is room, and back."""
        protected, snapshots = self._protected, self._need_snapshots()
        assert protected is not None
        home, cpu = self.device, torch.device("cpu")
        pieces, self._pieces = self._pieces, 1
        snapshots.flush()
        try:
            protected.move(cpu)
            self.device = cpu
            return perform(cpu)
        finally:
            self.device, self._pieces = home, pieces
            protected.move(home)
            snapshots.moved(home)

    # -- committing ----------------------------------------------------------------------------------------

    def _commit(self, at: str, of: str | None = None, *, last: bool = False) -> None:
        """The boundary: what happened before it is kept, and a wish to stop is honoured.

        The last batch of an epoch is kept together with what follows it. A run restored in between does that
        batch again, so names the loop leaves behind, like its last loss, exist for the code after the loop.
        """
        self._check_not_over()
        snapshots = self._need_snapshots()
        due = (
            at not in ("batch", "free")
            or self._uncommitted >= self.settings.snapshot.every
            or self._board.stop_requested
        )
        if self._landing is not None:
            due = False  # on its way to where the snapshot was taken: nothing of this counts
        if due:
            self._enter(Phase.SNAPSHOT)
            self._take(at, of, resumable=not last)
            self._uncommitted = 0
        if self._board.stop_requested:
            snapshots.flush()
            self._link.send("stopped", step=self._position.step)
            self._over = StopRun()
            raise self._over

    def _take(self, at: str, of: str | None = None, *, resumable: bool) -> None:
        snapshots = self._need_snapshots()
        snapshots.poll()
        position = self._position
        skipped = sum(loader.skipped for loader in self._loaders())
        repeated = sum(loader.repeated for loader in self._loaders())
        meta = {
            "session": {
                "step": position.step,
                "epoch": position.epoch,
                "samples": position.samples,
                "at": at,
                "of": of,
                "sequence": snapshots.next_sequence,
                "skipped": skipped,
                "repeated": repeated,
            }
        }
        snapshots.take(
            meta,
            step=position.step,
            samples=position.samples,
            loss=self._loss,
            resumable=resumable,
            hold=at == "epoch",
        )

    def _finish(self) -> None:
        """The script's `train` has returned: the last commit."""
        self._check_not_over()
        if self._snapshots is not None and self._started:
            self._land_at_last()
            self._take("end", resumable=True)
            self._snapshots.flush()
        self._busy = True
        self._compiling.end()
        for loader in self._loaders():
            loader.close()

    # -- around the loop -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation: protected modules in eval mode, no gradients, and the training's random numbers untouched."""
        modules = [value for value in self._named.values() if isinstance(value, torch.nn.Module)]
        modes = [(part, part.training) for module in modules for part in module.modules()]
        tensors, words = capture_rng(self.device)
        self._enter(Phase.EVALUATE)
        for module in modules:
            module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, training in modes:
                part.training = training
            restore_rng(tensors, words, self.device)
            self._enter(Phase.LOOP)

    def log(self, **numbers: float | torch.Tensor | Loss) -> None:
        """Keep these numbers with the step and epoch they belong to."""
        values = {name: _number(name, value) for name, value in numbers.items()}
        self._link.send("log", step=self._position.step, epoch=self._position.epoch, values=values)

    def progress(self, done: int, total: int, label: str = "") -> None:
        """Long work before the loop: shown to the user, and a sign of life for the watchdog."""
        self._board.progress(int(done), int(total), label)

    # -- helpers -------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        self._board.enter(phase)
        for hook in self._phase_hooks:
            hook(phase)

    def _check_not_over(self) -> None:
        if self._over is not None:
            raise self._over

    def _need_snapshots(self) -> snapshot.Snapshots:
        assert self._snapshots is not None, "protect() comes first"
        return self._snapshots

    def _loaders(self) -> list[Loader]:
        return [value for value in self._named.values() if isinstance(value, Loader)]

    def _scaler(self) -> Any | None:
        scalers = [value for value in self._named.values() if isinstance(value, torch.amp.GradScaler)]
        return next((scaler for scaler in scalers if scaler.is_enabled()), None)

    def _optimizers(self, wanted: Any) -> list[torch.optim.Optimizer]:
        known = [value for value in self._named.values() if isinstance(value, torch.optim.Optimizer)]
        if wanted is None:
            if len(known) == 1:
                return known
            raise UserError(
                "session.step needs one optimizer" if known else "no optimizer is protected",
                cause=f"{len(known)} are protected" if known else "session.protect was given none",
                hints=["say which: `session.step(fn, batch, optimizer=…)`" if known else "protect it with the model"],
            )
        chosen = [wanted] if isinstance(wanted, torch.optim.Optimizer) else list(wanted)
        for optimizer in chosen:
            if not any(optimizer is other for other in known):
                raise UserError(
                    f"the {type(optimizer).__name__} given to session.step was not protected",
                    cause="its state would be lost at the first fault",
                    hints=["add it to the call: `session.protect(model=…, optimizer=…)`"],
                )
        return chosen

    def _loader_event(self, kind: str, details: dict[str, Any]) -> None:
        message = str(details.get("message", ""))
        fault = Fault(
            Kind(kind),
            step=self._position.step + 1,
            phase=Phase.DATA.label,
            message=message,
            evidence=details,
        )
        move = Move(Action.RETRY, self._rung, reason="the loader's processes were replaced")
        self._link.send("fault", fault=fault.to_json(), move=move.to_json())
        self._link.send("recovered", step=self._position.step + 1, in_process=True)

    def _loader_wait(self) -> None:
        self._board.beat()


def _number(name: str, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"session.log takes numbers, but `{name}` is {type(value).__name__}") from None
    return number if math.isfinite(number) else None


def _unwrapped(value: Any) -> Any:
    """The module under torch.compile, so that a checkpoint fits with and without compiling."""
    return getattr(value, "_orig_mod", value)


def _named_by_kind(values: tuple[Any, ...], taken: set[str]) -> dict[str, Any]:
    """`protect(model, optimizer, data)`: names from what the objects are."""
    named: dict[str, Any] = {}
    for value in values:
        kind = type(value).__name__.lower()
        if isinstance(value, torch.nn.Module):
            kind = "model"
        elif isinstance(value, torch.optim.Optimizer):
            kind = "optimizer"
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            kind = "scheduler"
        elif isinstance(value, torch.amp.GradScaler):
            kind = "scaler"
        elif isinstance(value, Loader):
            kind = "data"
        name, number = kind, 2
        while name in named or name in taken:
            name, number = f"{kind}{number}", number + 1
        named[name] = value
    return named
