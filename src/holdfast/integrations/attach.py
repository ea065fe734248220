"""`holdfast.attach`: a plain loop whose state is outside of its process, about once a second.

    import holdfast                                                  # 1
    loader = holdfast.attach(model, optimizer, loader)               # 2: the same batches, in the same order
    for epoch in loader.epochs(10):                                  # 3: instead of range(10)
        for x, y in loader:
            ...
            optimizer.step()

The body of the loop over batches is what is committed, when the loop comes back for the next batch. The last batch
of an epoch is committed together with what follows it, at the end of the epoch's body; without `epochs`, when the loop
over the loader ends. After a fault the script runs from its first line; `attach` puts the state back, `epochs` begins
at the epoch that was under way, and the loader at the batch that was not committed. There the state is put back once
more: what the script did on its way to that batch, a scheduler at the head of the epoch, was done before and is part of
it. Local variables of the loop are not restored; `loader.state`, a dictionary, and `loader.meter(name)`, a running
mean, are.

Without `holdfast run` around it, the script trains as before: nothing is saved, and nothing is slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from holdfast.base import enumeration
from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.integrations.data import Followed, follow
from holdfast.integrations.outside import Keep, connect, several_processes
from holdfast.run.messages import Note, ScriptEpoch
from holdfast.state.protected import KEPT
from holdfast.worker.kept_values import Kept, Meter
from holdfast.worker.session_context import named_by_kind

SEVERAL = (
    "several processes train: holdfast.attach keeps nothing of them, and restarts go on from the script's own"
    " checkpoints; `holdfast launch` protects several processes"
)


def attach(model: torch.nn.Module, optimizer: Any, loader: Any, **more: Any) -> AttachedLoader:
    """The loader, which commits everything given here about once a second, or at each step: `snapshot.every=1`.

    `more` are schedulers, scalers, averages, generators, anything with `state_dict` and `load_state_dict`, by name.
    `optimizer` may be a list. Call it once, after the model is on its device, and before the loop.
    """
    if not hasattr(type(loader), "__iter__"):
        raise UserError(
            f"holdfast.attach takes a loader to iterate over, not a {type(loader).__name__}",
            hints=["holdfast.attach(model, optimizer, loader, scheduler=scheduler)"],
        )
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    return AttachedLoader(loader, named_by_kind((model, *optimizers), more), _device_of(model))


def _device_of(model: torch.nn.Module) -> torch.device:
    param = next(model.parameters(), None)
    return torch.device("cpu") if param is None else param.device


class AttachedLoader:
    """A loader that knows where it is, and the epochs around it. What it does not have is looked up in the loader."""

    def __init__(self, loader: Any, named: dict[str, Any], device: torch.device) -> None:
        self._loader = loader
        self._epoch = 0
        self._in_epochs = False
        self._keep: Keep | None = None
        self._followed: Followed | None = None
        self._kept = Kept()
        outside = connect()
        if outside is None:
            return
        if several_processes():
            outside.detach(SEVERAL)
            return
        self._followed = follow(loader)
        self._followed.on_note = lambda text: outside.send(Note(text))
        if KEPT in named:
            raise UserError(f"`{KEPT}` is the name of what holdfast itself keeps", hints=["give it by another name"])
        self._keep = Keep(outside, {**named, "data": self._followed, KEPT: self._kept}, device)
        session = self._keep.restore()
        if session is None:
            self._keep.commit(epoch=0)
        else:
            self._epoch = int(session["epoch"])
            self._followed.on_resumed = self._keep.restore_generators
        outside.board.enter(Phase.LOOP)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def state(self) -> dict[str, Any]:
        """A dictionary for what a script keeps besides its objects: restored with them, after any fault."""
        return self._kept.values

    def meter(self, name: str) -> Meter:
        """A running mean that begins here, where a script would write `running = 0.0`; restored with the rest."""
        return self._kept.meter(name)

    @property
    def step_count(self) -> int:
        """Batches that are done, those of earlier processes included; 0 without `holdfast run`."""
        return self._keep.step if self._keep is not None else 0

    def epochs(self, total: int) -> Iterator[int]:
        """The epochs that are still to do; each is committed when its body is over."""
        if self._followed is not None and self._followed.resuming and self._keep is not None:
            self._keep.restore()  # what was done since `attach` was done before, too
        for epoch in range(self._epoch, total):
            self._epoch, self._in_epochs = epoch, True
            self._show(epoch, total)
            yield epoch
            self._in_epochs = False
            self._end_epoch(epoch)
        self._epoch = total
        if self._keep is not None:
            self._keep.flush()
            self._keep.outside.board.enter(
                Phase.SAVE
            )  # what the script does after its training takes as long as it does

    def _show(self, epoch: int, total: int) -> None:
        if self._keep is not None:
            self._keep.outside.board.position(epoch=epoch, epochs=total, batch=0, batches=_length(self._loader))

    def _end_epoch(self, epoch: int) -> None:
        keep, followed = self._keep, self._followed
        if keep is None or followed is None:
            return
        pending = followed.given - followed.used
        followed.finish()
        keep.passed(step=keep.step + pending, samples=keep.samples + pending)
        keep.commit(epoch=epoch + 1)
        keep.outside.send(ScriptEpoch(epoch, keep.step))
        keep.stop_if_asked()

    def __iter__(self) -> Iterator[Any]:
        if self._keep is None or self._followed is None:
            yield from self._loader
            return
        keep, followed, board = self._keep, self._followed, self._keep.outside.board
        total = _length(self._loader)
        board.enter(Phase.LOOP)  # what a body does besides computing nobody knows: a minute at least for each
        resumed = followed.resuming
        if resumed and followed.used:
            keep.restore()  # what was done on the way to this batch was done before, too
        for batch in self._loader:
            board.begin_attempt(keep.step + 1)
            if resumed:
                _count_on(followed.given - 1)
            resumed = False
            yield batch
            last = total and followed.given >= total
            if not last or not self._in_epochs:
                self._commit(keep, followed)
            board.enter(Phase.EVALUATE if last else Phase.LOOP)
        if not self._in_epochs:
            self._end_pass(keep)

    def _end_pass(self, keep: Keep) -> None:
        """A loop without `epochs` is over, and may have been the last: what it ended with is outside then."""
        if keep.uncommitted:
            keep.commit(epoch=self._epoch)
        keep.flush()
        keep.stop_if_asked()
        keep.outside.board.enter(Phase.EVALUATE)

    def _commit(self, keep: Keep, followed: Followed) -> None:
        followed.used = followed.given
        if keep.passed(step=keep.step + 1, samples=keep.samples + 1):
            keep.commit(epoch=self._epoch)
        board = keep.outside.board
        board.position(epoch=self._epoch, epochs=0, batch=followed.used, batches=_length(self._loader))
        keep.stop_if_asked()


def _count_on(done: int) -> None:
    if not enumeration.catch_up(done):
        raise UserError(
            "`enumerate` around the attached loader cannot go on counting here",
            cause=f"{done} batches of this epoch are done, and this build of Python has another kind of enumerate",
            hints=["ask `loader.step_count` instead"],
        )


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:  # a stream has none
        return 0
