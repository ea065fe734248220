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

Here is what a script may call. The loops over epochs and batches are in training_loop.py, the end of a body in
commits.py, trying a step until it is done in retry.py, going on where a run was in restore.py, and what all of them
work on in session_context.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.data.any_loader import AnyLoader, is_loader
from holdfast.data.distributed_sampler import shared_loader
from holdfast.data.loader import Loader
from holdfast.faults.bad_samples import Charge, attach
from holdfast.faults.ladder import Rung
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import Log, Note
from holdfast.run.settings import Settings
from holdfast.state.protected import KEPT
from holdfast.state.rng import capture_rng, restore_rng
from holdfast.worker.cadence import Cadence
from holdfast.worker.commits import Commits
from holdfast.worker.epoch_loops import check_reached
from holdfast.worker.kept_values import Kept, Meter
from holdfast.worker.loop_head import LoopHead, place_of_caller
from holdfast.worker.peers import Alone, Peers
from holdfast.worker.position import Position
from holdfast.worker.restore import restore
from holdfast.worker.retry import Attempts, Samples
from holdfast.worker.session_context import Link, LostWorker, SessionContext, StopRun, named_by_kind
from holdfast.worker.step import Loss, Splitter, Work
from holdfast.worker.training_loop import TrainingLoop

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
        context = SessionContext(link, settings, device)
        context.peers = peers or context.peers
        context.cadence = Cadence(settings, together=context.peers.ranks > 1)
        self._context = context
        self._board = context.board
        self._phase_hooks = context.phase_hooks
        self._enter = context.enter
        self._attempts = Attempts(context, rungs, rung, run.folder)
        self._commits = Commits(context, self._attempts)
        self._loop = TrainingLoop(context, self._attempts, self._commits)
        self._head = LoopHead()
        self._warned = False
        """That steps are not committed."""
        self._kept = Kept()
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
        self._context.cadence.after_losses(between_faults, workers_lost, watched_s)

    @property
    def device(self) -> torch.device:
        """Where the protected objects are."""
        return self._context.device

    @property
    def replaying(self) -> bool:
        """True while a step is computed off the record, to find out whose fault something was.

        A function given to `session.step` that does more than compute (it counts, it draws) may want to know.
        """
        return self._context.replaying

    @property
    def rank(self) -> int:
        """Which of the processes of this run this one is: 0, unless it was launched with several."""
        return self._context.peers.rank

    @property
    def ranks(self) -> int:
        """How many processes train this model together."""
        return self._context.peers.ranks

    @property
    def state(self) -> dict[str, Any]:
        """A dictionary for what a script keeps besides its objects: restored with them, after any fault."""
        return self._kept.values

    def meter(self, name: str) -> Meter:
        """A running mean that begins here, where a script would write `running = 0.0`; restored with the rest."""
        return self._kept.meter(name)

    @property
    def _position(self) -> Position:
        return self._context.position

    @property
    def _named(self) -> dict[str, Any]:
        return self._context.objects

    @property
    def _pieces(self) -> int:
        return self._attempts.pieces.count

    # -- protecting ----------------------------------------------------------------------------------------

    def protect(self, *positional: Any, **named: Any) -> None:
        """Put these objects under the session's care: on the device now, restored if the run goes on.

        Takes anything with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, a GradScaler,
        a Loader, a simulated world. Positional ones are named by what they are.
        """
        if self._context.ready:
            raise UserError(
                "session.protect was called twice",
                cause="the snapshot's layout is made once",
                hints=["pass everything in one call: `session.protect(model=…, optimizer=…, data=…)`"],
            )
        found = named_by_kind(positional, named)
        objects = {name: self._followed(each) if is_loader(each) else each for name, each in found.items()}
        if KEPT in objects:
            raise UserError(f"`{KEPT}` is the name of what the session itself keeps", hints=["protect it by another"])
        self._context.protect({**objects, KEPT: self._kept})
        self._attempts.protect()
        for optimizer in self._context.known_optimizers():
            if self.ranks > 1:
                optimizer.register_step_pre_hook(self._steps_by_hand)
            optimizer.register_step_post_hook(lambda *_: self._stepped_by_hand())
        self._commits.landing = restore(self._context)
        if self._commits.landing is not None:
            self._commits.started = True
            self._attempts.pieces.hold()
        self._context.peers.protect(self._context, restored=self._commits.landing is not None)
        for each in self._left_out:
            loader = self._named.get(each["loader"])
            if isinstance(loader, Loader):
                loader.leave_out(each["samples"], each["why"], epoch=each["epoch"], batch=each["batch"])
        self._board.loaders(sum(loader.num_workers for loader in self._context.loaders()))
        for name, loader in self._context.named_loaders().items():
            loader.on_event = self._attempts.loader_mended
            loader.passes.protected = True
            if self._commits.landing is not None:
                loader.passes.begin_again()
            loader.on_wait = self._board.beat
            loader.device = self.device
            together = self._context.peers
            loader.share_with(self.rank, self.ranks, together.shares(name), together.leaving_out(name))
            loader.be_patient(floor_s=self.settings.loader.stuck_floor, first_wait_s=self.settings.loader.first_wait)
            if isinstance(loader, AnyLoader):
                loader.source.on_progress = self.progress
                loader.source.on_note = lambda text: self._context.link.send(Note(text))

    def _followed(self, loader: Any) -> Loader | AnyLoader:
        """A loader of somebody else's, as a session follows it."""
        shared = None
        if not isinstance(self._context.peers, Alone):
            shared = shared_loader(loader, rank=self.rank, ranks=self.ranks)
        return AnyLoader(loader) if shared is None else shared

    # -- the loop ------------------------------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """Steps done, those of earlier workers included.

        A loop without epochs and batches asks this at its head, `while session.step_count < total:`, and a restored
        run goes on from there. What its body did is committed when the head asks again, so a scheduler that is updated
        after the step belongs to it.
        """
        landing = self._commits.landing
        before = landing is not None and landing.left and self._loop.numbered.calls <= landing.loops
        if not self._commits.busy and not self._loop.inside and not before:
            self._commits.land(CommitPoint.ASKED)
            if self._context.ready and self._context.over is None and self._head.asked(place_of_caller()):
                self._commits.started = True
                self._commits.commit(CommitPoint.FREE)
                if self._commits.stopping:
                    self._commits.stop()
                self._context.peers.open_body(None)
        return self._position.step

    @property
    def epoch(self) -> int:
        """The epoch the run is in, counted from 0."""
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The place of this batch in its epoch, counted from 0: in a restored run too."""
        if self._loop.open is None:
            raise UserError("session.batch was asked outside of the loop over session.batches")
        return self._loop.open.batch.index

    def epochs(self, total: int, *, name: str | None = None) -> Iterator[int]:
        """Count `total` epochs, without those that are already done; each is committed when its body is over.

        Each loop counts from 0. A script with several may give them names; without, their order tells them apart. One
        that is left early (`break`, `return`) ends its epoch as well. After an error that the script catches, the next
        loop is the same one, and goes on with the next epoch.
        """
        return self._loop.epochs(total, name=name)

    def batches(self, data: Any) -> Iterator[Any]:
        """The batches of this epoch that are still to do; a batch is done when the loop comes back for the next.

        `data` is a holdfast.Loader, a torch DataLoader, an IterableDataset, or any iterable with `state_dict`, and
        protected. Inside of a loop over another one it gives its own batches, which are done with that loop's body.
        """
        return self._loop.batches(data)

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
        context = self._context
        optimizers, pieces = context.optimizers(optimizer), max(1, int(accumulate))
        work = Work(fn, batch, optimizers, context.scaler(), clip, pieces, split)
        context.updating(True)
        try:
            loss = self._transact(lambda device: self._attempts.perform(work, device), work)
        finally:
            context.updating(False)
        context.loss, context.norm = loss, work.norm
        self._leave_step(loss, work.norm)
        return Loss(loss, self._waiting)

    def transaction(self, fn: Callable[[], T]) -> T:
        """Several updates as one: `fn()` happens whole or not at all, and counts as one step.

        Out of memory rolls everything protected back and calls `fn` again, so what it does outside the
        protected objects must bear being done twice.
        """

        def perform(device: torch.device) -> T:
            self._enter(Phase.FORWARD)
            with self._context.peers.averaging(self._context.known_optimizers()):
                return fn()

        result = self._transact(perform, None)
        self._context.loss = self._context.norm = None
        self._context.uncommitted.whole = True
        self._leave_step(None, None)
        return result

    def _arrive_at_step(self) -> None:
        """A step begins; in a loop without epochs and batches this is where a restored run goes on."""
        self._commits.arrive(CommitPoint.FREE)

    def _leave_step(self, loss: torch.Tensor | None, norm: torch.Tensor | None) -> None:
        context, loop = self._context, self._loop
        position = context.position
        position.step += 1
        context.uncommitted.add(position.step, loss, norm)
        if not loop.in_epoch:
            if loop.open is None and self._head.step_ends():
                self._commits.commit(CommitPoint.FREE)
            if self._commits.landing is None:
                self._commits.offers.make()  # of a value that was logged inside of the step
        context.enter(Phase.LOOP)

    def _steps_by_hand(self, optimizer: torch.optim.Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._commits.busy and not self._context.replaying:
            closure = named.get("closure", given[1] if len(given) > 1 else None)  # the first one is the optimizer
            self._context.peers.before_update(optimizer, closure=closure is not None)

    def _stepped_by_hand(self) -> None:
        """`optimizer.step()` of the script's own: a step like any other, committed with the body it is in."""
        if self._commits.busy or self._context.replaying:
            return
        self._board.begin_attempt(self._position.step + 1)
        self._position.step += 1
        self._context.uncommitted.add(self._position.step, None, None)
        self._context.loss = self._context.norm = None
        if not self._loop.inside and self._commits.landing is None:
            self._commits.started = True  # there is something to save at the end
            if not self._head.stepped_by_hand():
                self._warn_uncommitted()

    def _warn_uncommitted(self) -> None:
        """Nobody can tell where the body of this loop ends: so nothing of it is kept before the end of the script."""
        if not self._warned:
            self._warned = True
            text = (
                "optimizer.step() was called outside of session.epochs, session.batches and a loop `while "
                "session.step_count < …`: these steps are saved at the end of the script, and after a fault they are "
                "done again from the first"
            )
            self._context.link.send(Note(text))

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
        commits = self._commits
        self._context.check_not_over()
        if commits.busy:
            raise UserError("session.step was called inside a step", cause="a step is rolled back as a whole")
        if commits.stopping:
            commits.stop()
        self._loop.end_left()
        self._arrive_at_step()
        opened = self._loop.open
        samples = None
        if opened is not None and isinstance(opened.loader, Loader):
            samples = Samples(opened.name, opened.loader, opened.batch)
        commits.busy = True
        try:
            return self._attempts.until_done(perform, work, samples)
        finally:
            commits.busy = False

    # -- the end -------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The script's `train` has returned: the last commit."""
        self._context.check_not_over()
        if self._context.ready and self._commits.started:
            if self._loop.in_epoch:  # the script has left the loop, and keeps its iterator
                self._loop.in_epoch = False
                self._loop.leave_epoch(self._position.epoch)
            self._loop.end_left()
            check_reached(self._commits.landing)
            self._commits.land_at_last()
            self._context.peers.at_boundary(self._context, CommitPoint.END, stop=False)
            self._context.take(CommitPoint.END, resumable=True)
            self._commits.tell_cadence(last=True)
            self._context.snapshots.flush()
            self._attempts.check_numbers()
        self._commits.busy = True
        self._attempts.close()
        self._close_loaders()

    def _abandon(self) -> None:
        """The script was left and is called again in this process: nothing of this session goes on beside the next."""
        self._commits.busy = True
        with contextlib.suppress(RuntimeError, OSError):
            self._attempts.close()
        self._close_loaders()
        if self._context.ready:
            self._context.snapshots.close()

    def _close_loaders(self) -> None:
        for loader in self._context.loaders():
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
        modules = self._context.modules()
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
        if self._context.replaying:
            return
        values = {name: _number(name, value) for name, value in numbers.items()}
        record: dict[str, Any] = {"step": self._position.step, "epoch": self._position.epoch, "values": values}
        self._context.unheard.add(record)
        self._context.link.send(Log(**record))
        self._commits.offers.note(values)
        if not self._loop.in_epoch and not self._commits.busy and self._commits.landing is None:
            self._commits.offers.make()

    def progress(self, done: int, total: int, label: str = "") -> None:
        """Long work before the loop: shown to the user, and a sign of life for the watchdog."""
        self._board.progress(int(done), int(total), label)


def _number(name: str, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"session.log takes numbers, but `{name}` is {type(value).__name__}") from None
    return number if math.isfinite(number) else None
