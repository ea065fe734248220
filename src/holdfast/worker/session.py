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

Here are the loop and what a script may call. Trying a step until it is done is in retry.py, going on where a
run was in restore.py, and what all three work on in session_base.py.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from holdfast.base import enumeration
from holdfast.base.board import Phase
from holdfast.base.errors import HoldfastError, UserError
from holdfast.data.any_loader import AnyLoader, is_loader
from holdfast.data.loader import Batch, Loader
from holdfast.data.plain_pass import check_no_strays
from holdfast.faults.bad_samples import Charge, attach
from holdfast.faults.ladder import Rung
from holdfast.run.settings import Settings
from holdfast.state.protected import KEPT
from holdfast.state.rng import capture_rng, restore_rng
from holdfast.worker.best_offer import Offers
from holdfast.worker.cadence import Cadence
from holdfast.worker.epoch_loops import EpochLoops, check_reached, left_by_error
from holdfast.worker.kept_values import Kept, Meter
from holdfast.worker.loop_head import LoopHead, place_of_caller
from holdfast.worker.peers import Peers
from holdfast.worker.position import Position
from holdfast.worker.rest import Resting
from holdfast.worker.restore import Landing, restore
from holdfast.worker.retry import Attempts, Samples
from holdfast.worker.session_base import Ground, Link, LostWorker, StopRun, named_by_kind
from holdfast.worker.step import Loss, Splitter, Work
from holdfast.worker.uncommitted import Uncommitted

__all__ = ["Link", "LostWorker", "Run", "Session", "StopRun"]

T = TypeVar("T")


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
class _Open:
    """The batch whose loop body is running."""

    loader: Loader | AnyLoader
    batch: Batch
    step: int
    """Steps done when it began."""


class Session:
    """One training run, seen from inside. Holdfast makes it; your `train(session)` receives it."""

    def __init__(
        self,
        link: Link,
        *,
        run: Run,
        rungs: list[Rung],
        rung: int,
        settings: Settings,
        device: torch.device,
        peers: Peers | None = None,
    ) -> None:
        self.run = run
        self.settings = settings
        ground = Ground(link, settings, device)
        ground.peers = peers or ground.peers
        ground.cadence = Cadence(settings, together=ground.peers.ranks > 1)
        self._ground = ground
        self._board = ground.board
        self._phase_hooks = ground.phase_hooks
        self._enter = ground.enter
        self._attempts = Attempts(ground, rungs, rung, run.folder)
        self._resting = Resting(ground.board)
        self._landing: Landing | None = None
        self._started = False
        self._busy = False
        """Inside a step, or past the end."""
        self._stopping = False
        """A free loop was asked to stop: before its next step."""
        self._in_epoch = False
        self._loops = EpochLoops()
        self._head = LoopHead()
        self._kept = Kept()
        self._left: int | None = None
        """The epoch whose loop was left before its end. It is over once the script goes on."""
        self._offers = Offers(ground)
        self._open: _Open | None = None
        self._passes: dict[str, bool] = {}
        """The loaders used in this epoch, and whether all their batches were."""
        self._epochs_total = 0
        self._left_out: list[dict[str, Any]] = []

    def begin_with(
        self,
        *,
        pieces: int,
        cpu_batch: bool,
        trial: dict[str, Any] | None = None,
        probation: int = 0,
        sentinel: bool = True,
        leave_out: Iterable[dict[str, Any]] = (),
        between_faults: float | None = None,
        workers_lost: int = 0,
        watched_s: float = 0.0,
    ) -> None:
        """What was decided for the first steps of this worker, after its predecessor was lost in one."""
        self._attempts.begin_with(
            pieces=pieces, cpu_batch=cpu_batch, trial=trial, probation=probation, sentinel=sentinel
        )
        self._left_out = list(leave_out)
        self._ground.cadence.after_losses(between_faults, workers_lost, watched_s)

    @property
    def device(self) -> torch.device:
        """Where the protected objects are."""
        return self._ground.device

    @property
    def replaying(self) -> bool:
        """True while a step is computed off the record, to find out whose fault something was.

        A function given to `session.step` that does more than compute (it counts, it draws) may want to know.
        """
        return self._ground.replaying

    @property
    def rank(self) -> int:
        """Which of the processes of this run this one is: 0, unless it was launched with several."""
        return self._ground.peers.rank

    @property
    def ranks(self) -> int:
        """How many processes train this model together."""
        return self._ground.peers.ranks

    @property
    def state(self) -> dict[str, Any]:
        """A dictionary for what a script keeps besides its objects: restored with them, after any fault."""
        return self._kept.values

    def meter(self, name: str) -> Meter:
        """A running mean that begins here, where a script would write `running = 0.0`; restored with the rest."""
        return self._kept.meter(name)

    @property
    def _position(self) -> Position:
        return self._ground.position

    @property
    def _named(self) -> dict[str, Any]:
        return self._ground.objects

    @property
    def _pieces(self) -> int:
        return self._attempts.pieces.count

    # -- protecting ----------------------------------------------------------------------------------------

    def protect(self, *positional: Any, **named: Any) -> None:
        """Put these objects under the session's care: on the device now, restored if the run goes on.

        Takes anything with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, a GradScaler,
        a Loader, a simulated world. Positional ones are named by what they are.
        """
        if self._ground.ready:
            raise UserError(
                "session.protect was called twice",
                cause="the snapshot's layout is made once",
                hints=["pass everything in one call: `session.protect(model=…, optimizer=…, data=…)`"],
            )
        found = named_by_kind(positional, named)
        objects = {name: AnyLoader(each) if is_loader(each) else each for name, each in found.items()}
        if KEPT in objects:
            raise UserError(f"`{KEPT}` is the name of what the session itself keeps", hints=["protect it by another"])
        self._ground.protect({**objects, KEPT: self._kept})
        self._attempts.protect()
        for optimizer in self._ground.known_optimizers():
            optimizer.register_step_post_hook(lambda *_: self._stepped_by_hand())
        self._landing = restore(self._ground)
        if self._landing is not None:
            self._started = True
            self._attempts.pieces.hold()
        self._ground.peers.protect(self._ground, restored=self._landing is not None)
        for each in self._left_out:
            loader = self._named.get(each["loader"])
            if isinstance(loader, Loader):
                loader.leave_out(each["samples"], each["why"], epoch=each["epoch"], batch=each["batch"])
        self._board.loaders(sum(loader.num_workers for loader in self._ground.loaders()))
        for loader in self._ground.loaders():
            loader.on_event = self._attempts.loader_mended
            loader.passes.protected = True
            if self._landing is not None:
                loader.passes.begin_again()
            loader.on_wait = self._board.beat
            loader.device = self.device
            loader.share_with(self.rank, self.ranks)
            loader.be_patient(floor_s=self.settings.loader.stuck_floor, first_wait_s=self.settings.loader.first_wait)
            if isinstance(loader, AnyLoader):
                loader.source.on_progress = self.progress
                loader.source.on_note = lambda text: self._ground.link.send("note", text=text)

    # -- the loop ------------------------------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """Steps done, those of earlier workers included.

        A loop without epochs and batches asks this at its head, `while session.step_count < total:`, and a restored
        run goes on from there. What its body did is committed when the head asks again, so a scheduler that is updated
        after the step belongs to it.
        """
        landing = self._landing
        before = landing is not None and landing.left and self._loops.calls <= landing.loops
        if not self._busy and not self._in_epoch and self._open is None and not before:
            self._land("asked")
            if self._ground.ready and self._ground.over is None and self._head.asked(place_of_caller()):
                self._started = True
                self._commit("free")
                if self._stopping:
                    self._stop()
        return self._position.step

    @property
    def epoch(self) -> int:
        """The epoch the run is in, counted from 0."""
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The place of this batch in its epoch, counted from 0: in a restored run too."""
        if self._open is None:
            raise UserError("session.batch was asked outside of the loop over session.batches")
        return self._open.batch.index

    def epochs(self, total: int, *, name: str | None = None) -> Iterator[int]:
        """Count `total` epochs, without those that are already done; each is committed when its body is over.

        Each loop counts from 0. A script with several may give them names; without, their order tells them apart. One
        that is left early (`break`, `return`) ends its epoch as well. After an error that the script catches, the next
        loop is the same one, and goes on with the next epoch.
        """
        if not isinstance(total, int) or total < 0:
            raise UserError(f"session.epochs takes a whole number of epochs, not {total!r}")
        if self._in_epoch:
            raise UserError("session.epochs was called inside another", cause="a run has one count of epochs")
        if self._landing is None:
            self._end_left()
        loop = self._loops.begin(self._ground, self._landing, total, name)
        if loop is None:
            return
        self._end_left()
        first, last = loop.first, loop.first + total
        self._board.position(epoch=self._position.epoch, epochs=last, batch=0, batches=0)
        for epoch in range(self._position.epoch, last):
            self._arrive("epoch")
            self._enter(Phase.LOOP)  # before its first batch a body may do work of its own
            self._in_epoch = True
            self._ground.loop = loop
            self._passes.clear()
            self._board.position(epoch=epoch, epochs=last, batch=0, batches=0)
            self._epochs_total = last
            for loader in self._ground.loaders():
                loader.passes.drawn = 0
            try:
                yield epoch - first
            except GeneratorExit:
                self._leave_epoch(epoch, caught=left_by_error())
                raise
            finally:
                self._in_epoch = False
            self._end_epoch(epoch)
        if self._landing is None:
            self._ground.loop = loop  # also one without an epoch to do
        if self._landing is not None and self._landing.at == "epoch":
            self._land_at_last()
        self._enter(Phase.EVALUATE)  # a test or an export comes after the last epoch, not a snapshot that takes long

    def _leave_epoch(self, epoch: int, *, caught: bool = False) -> None:
        """The loop was left. Its weights may be the best, and what the script does next may change them.

        Python closes the loop wherever its last name goes, and passes over what is raised here. An error that nobody
        catches leaves it too: so nothing that a run goes on from says yet that the epoch is over.
        """
        self._left = epoch
        if self._ground.loop is not None:
            self._ground.loop.caught = caught
        if self._open is not None and not self._busy:
            self._leave_batch(self._open)
        if self._landing is None and not self._busy:
            with contextlib.suppress(RuntimeError, OSError, HoldfastError):  # the next step meets it as well
                self._offers.make()

    def _end_left(self) -> None:
        """The script has gone on after a loop that was left: its epoch is over."""
        if self._left is None or self._busy:
            return
        epoch, self._left = self._left, None
        if self._ground.loop is not None:
            self._ground.loop.left = True
        self._end_epoch(epoch, "free")

    def _end_epoch(self, epoch: int, at: str = "epoch") -> None:
        if self._open is not None:
            self._leave_batch(self._open)
        self._land_at_last()
        for name, whole in self._passes.items():
            self._named[name].finish_epoch(left=not whole)
        self._passes.clear()
        self._position.epoch = epoch + 1
        ended = {"epoch": epoch, "step": self._position.step, "loss": None}
        self._ground.unheard.add(ended)
        try:
            self._commit(at, hold=True)
        except StopRun:
            self._tell_epoch(ended)  # it may have been the best one
            raise
        self._tell_epoch(ended)

    def _tell_epoch(self, ended: dict[str, Any]) -> None:
        """An epoch is over and committed; its snapshot is held until the supervisor knows whether it is the best."""
        snapshots = self._ground.snapshots
        self._offers.due = False
        snapshots.flush()
        self._attempts.check_numbers()
        ended["loss"] = self._board.read().loss  # of its last step: for scripts that log nothing
        sequence = snapshots.last.sequence if snapshots.last is not None else None
        self._ground.link.send("epoch", **ended, sequence=sequence)

    def batches(self, data: Any) -> Iterator[Any]:
        """The batches of this epoch that are still to do; a batch is done when the loop comes back for the next.

        `data` is a holdfast.Loader, a torch DataLoader, an IterableDataset, or any iterable with `state_dict`, and
        protected. Inside of a loop over another one it gives its own batches, which are done with that loop's body.
        """
        name = self._ground.name_of(data)
        if self._open is not None and self._named[name] is not self._open.loader:
            yield from data
            return
        data = self._named[name]
        self._end_left()
        self._check_pass(name)
        self._passes[name] = False
        self._enter(Phase.DATA)
        landing = self._landing
        if landing is None:
            self._ground.begun = data.cursor
        if self._in_epoch and not any(self._passes.values()):
            self._check_nothing_drawn()
        for batch in self._read(data, name):
            self._attempts.ahead.begin(batch.value, self.device)
            self._show_position(batch.index, data.length() if isinstance(data, AnyLoader) else len(data))
            self._enter(Phase.LOOP)
            self._arrive("batch", name)
            if landing is not None and self._landing is None:
                _count_on(batch.index - self._ground.begun)
            landing = None
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

    def _read(self, data: Loader | AnyLoader, name: str) -> Iterator[Batch]:
        """A loader of somebody else's draws from the generators of the script: they are restored before it is read."""
        if isinstance(data, Loader):
            return data.batches(data.epoch, data.cursor)
        return data.batches(data.epoch, data.cursor, lambda: self._arrive("batch", name))

    def _check_pass(self, name: str) -> None:
        if self._open is not None:
            raise UserError(
                "session.batches was called inside another over the same loader",
                cause="a loader has one place in its epoch",
                hints=["make a second loader of the same dataset, and protect it by a name of its own"],
            )
        if self._in_epoch and self._passes.get(name):
            raise UserError(
                f"all batches of this epoch were used already: session.batches({name}) was called again",
                hints=["use session.epochs for another pass: each epoch is one pass over the data"],
            )

    def _check_nothing_drawn(self) -> None:
        """An iterator that is drawn from between the beginning of an epoch and its first batch is a batch ahead."""
        for name in (name for name, each in self._named.items() if isinstance(each, (Loader, AnyLoader))):
            passes = self._named[name].passes
            if passes.drawn and passes.current is not None:
                raise UserError(
                    f"`{name}` was drawn from before the first batch of the epoch",
                    cause="after a fault that batch would be another one: it belongs to no body",
                    hints=["draw inside of the loop over session.batches", "in `zip`, put session.batches first"],
                )

    def _end_batch(self, opened: _Open, name: str) -> None:
        check_no_strays()
        if self._open is not opened:
            raise UserError("this iterator over session.batches is of an earlier epoch", hints=["make a new one"])
        if self._position.step == opened.step:
            self._ground.uncommitted.count += 1  # a body without a step is done as well
        self._count_batch(opened)
        loader = opened.loader
        last = loader.at_end() if isinstance(loader, AnyLoader) else loader.cursor >= len(loader)
        self._commit("batch", name, last=last)
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
        if not self._ground.ready:
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
                if self._attempts.vigil.sentinel is not None:
                    self._ground.snapshots.agreed()  # nothing was computed yet

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
        if landing is not None:
            self._ground.uncommitted = Uncommitted()
            landing.land(self._ground)
            self._tell_again(landing)

    def _tell_again(self, landing: Landing) -> None:
        """Of the end of these epochs nobody may have heard. If the weights of the last one are here, they are held."""
        ended, ground, sequence = landing.ended, self._ground, None
        for each in ended:
            ground.unheard.add(each)
        if ended and ended[-1]["step"] == self._position.step:
            self._enter(Phase.SNAPSHOT)
            ground.take(landing.at, landing.of, resumable=True, hold=True, again=True)
            ground.snapshots.flush()
            sequence = ground.snapshots.last.sequence if ground.snapshots.last is not None else None
        elif landing.at == "free":
            self._offers.make(again=True)  # a value of this very step may have been heard, and its weights not
        for each in ended:
            ground.link.send("epoch", **each, sequence=sequence if each is ended[-1] else None, again=True)

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
            optimizers=self._ground.optimizers(optimizer),
            scaler=self._ground.scaler(),
            clip=clip,
            accumulate=max(1, int(accumulate)),
            split=split,
        )
        with self._ground.updating():
            loss = self._transact(lambda device: self._attempts.perform(work, device), work)
        self._ground.loss, self._ground.norm = loss, work.norm
        self._leave_step(loss, work.norm)
        return Loss(loss, self._waiting)

    def transaction(self, fn: Callable[[], T]) -> T:
        """Several updates as one: `fn()` happens whole or not at all, and counts as one step.

        Out of memory rolls everything protected back and calls `fn` again, so what it does outside the
        protected objects must bear being done twice.
        """

        def perform(device: torch.device) -> T:
            self._enter(Phase.FORWARD)
            with self._ground.peers.averaging(self._ground.known_optimizers()):
                return fn()

        result = self._transact(perform, None)
        self._ground.loss = self._ground.norm = None
        self._ground.uncommitted.whole = True
        self._leave_step(None, None)
        return result

    def _leave_step(self, loss: torch.Tensor | None, norm: torch.Tensor | None) -> None:
        self._position.step += 1
        self._ground.uncommitted.add(self._position.step, loss, norm)
        if not self._in_epoch and self._open is None and self._head.step_ends():
            self._commit("free")
        if not self._in_epoch and self._landing is None:
            self._offers.make()  # of a value that was logged inside of the step
        self._enter(Phase.LOOP)

    def _stepped_by_hand(self) -> None:
        """`optimizer.step()` of the script's own: a step like any other, committed with the body it is in."""
        if self._busy or self._ground.replaying:
            return
        self._board.begin_attempt(self._position.step + 1)
        self._position.step += 1
        self._ground.uncommitted.add(self._position.step, None, None)
        self._ground.loss = self._ground.norm = None
        if not self._in_epoch and self._open is None and self._landing is None:
            self._head.step_ends()  # committed at the head of its loop, if there is one

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
        self._ground.check_not_over()
        if self._busy:
            raise UserError("session.step was called inside a step", cause="a step is rolled back as a whole")
        if self._stopping:
            self._stop()
        self._end_left()
        self._arrive("free")
        opened = self._open
        samples = None
        if opened is not None and isinstance(opened.loader, Loader):
            samples = Samples(self._ground.name_of(opened.loader), opened.loader, opened.batch)
        self._busy = True
        try:
            return self._attempts.until_done(perform, work, samples)
        finally:
            self._busy = False

    # -- committing ----------------------------------------------------------------------------------------

    def _commit(self, at: str, of: str | None = None, *, last: bool = False, hold: bool = False) -> None:
        """The boundary: what happened before it is kept, and a wish to stop is honoured.

        The last batch of an epoch is kept together with what follows it. A run restored in between does that
        batch again, so names the loop leaves behind, like its last loss, exist for the code after the loop.
        """
        self._ground.check_not_over()
        stop = self._ground.peers.at_boundary(self._ground, at, stop=self._board.stop_requested)
        asked = at not in ("batch", "free") or hold or stop or self._board.rest or self._attempts.vigil.on_trial
        kept = not last and self._attempts.vigil.keeps(self._position.step)
        due = self._due(last=last) or asked or kept
        if self._landing is not None:
            due = False  # on its way to where the snapshot was taken: nothing of this counts
        if due:
            self._enter(Phase.SNAPSHOT)
            began = time.perf_counter()
            snapshots = self._ground.snapshots
            snapshots.laid_out()
            self._ground.take(at, of, resumable=not last, hold=hold or kept)
            self._ground.uncommitted.clear()
            took = time.perf_counter() - began - snapshots.laid_out()
            self._ground.cadence.taken(took + snapshots.waited())
            self._tell_cadence()
            self._attempts.check_numbers()
        self._resting.at_boundary()
        if stop or (self.ranks == 1 and self._board.stop_requested):  # several stop where they agreed to
            if at == "free" and self.ranks == 1:
                self._stopping = True  # before the next step: what the script logs of this one is still logged
            else:
                self._stop()

    def _stop(self) -> None:
        self._ground.snapshots.flush()
        self._attempts.check_numbers()
        self._ground.link.send("stopped", step=self._position.step)
        self._ground.over = StopRun()
        raise self._ground.over

    def _due(self, *, last: bool) -> bool:
        """Whether it is time. A worker does not go on from the last batch of an epoch: its end comes soon."""
        ground = self._ground
        due = ground.cadence.due(ground.uncommitted.count)
        if ground.cadence.fixed is not None:
            return due
        return ground.uncommitted.whole or (due and not last and not ground.snapshots.busy)

    def _tell_cadence(self, *, last: bool = False) -> None:
        news = self._ground.cadence.news(last=last)
        if news is not None:
            self._ground.link.send("cadence", **news, **self._ground.snapshots.slots_said())

    def _finish(self) -> None:
        """The script's `train` has returned: the last commit."""
        self._ground.check_not_over()
        if self._ground.ready and self._started:
            if self._in_epoch:  # the script has left the loop, and keeps its iterator
                self._in_epoch = False
                self._leave_epoch(self._position.epoch)
            self._end_left()
            check_reached(self._landing)
            self._land_at_last()
            self._ground.peers.at_boundary(self._ground, "end", stop=False)
            self._ground.take("end", resumable=True)
            self._tell_cadence(last=True)
            self._ground.snapshots.flush()
            self._attempts.check_numbers()
        self._busy = True
        self._attempts.close()
        self._close_loaders()

    def _abandon(self) -> None:
        """The script was left and is called again in this process: nothing of this session goes on beside the next."""
        self._busy = True
        with contextlib.suppress(RuntimeError, OSError):
            self._attempts.close()
        self._close_loaders()
        if self._ground.ready:
            self._ground.snapshots.close()

    def _close_loaders(self) -> None:
        for loader in self._ground.loaders():
            loader.close()

    def _explain(self, error: Exception) -> None:
        """The script's own error leaves it. If some samples of a step are at fault, that travels with it."""
        verdict = self._attempts.explain(error)
        if verdict is not None and verdict.samples:
            said = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            attach(error, Charge(verdict.blame, verdict.samples, said))

    # -- around the loop -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation: protected modules in eval mode, no gradients, and the training's random numbers untouched."""
        modules = self._ground.modules()
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
        if self._ground.replaying:
            return
        values = {name: _number(name, value) for name, value in numbers.items()}
        record = {"step": self._position.step, "epoch": self._position.epoch, "values": values}
        self._ground.unheard.add(record)
        self._ground.link.send("log", **record)
        self._offers.note(values)
        if not self._in_epoch and not self._busy and self._landing is None:
            self._offers.make()

    def progress(self, done: int, total: int, label: str = "") -> None:
        """Long work before the loop: shown to the user, and a sign of life for the watchdog."""
        self._board.progress(int(done), int(total), label)


def _count_on(done: int) -> None:
    if not enumeration.catch_up(done):
        raise UserError(
            "`enumerate` around session.batches cannot go on counting here",
            cause=f"{done} batches of this epoch are done, and this build of Python has another kind of enumerate",
            hints=["ask `session.batch` for the place of a batch in its epoch"],
        )


def _number(name: str, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"session.log takes numbers, but `{name}` is {type(value).__name__}") from None
    return number if math.isfinite(number) else None
