"""Going on where a run was: the newest snapshot restored, and the place in the loop it was taken at.

    landing = restore(context)                  # None for a new run
    if landing.here(CommitPoint.BATCH, "data"):  # the script has come to that place again
        landing.land(context)                   # and everything protected is again as it was then

A script that goes on runs up to the loop once more, and through the body of the epoch up to its batches. What that
does to protected objects is part of the snapshot already, so it does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from holdfast.base.errors import UserError
from holdfast.faults.classification import classify_exception
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import Restored, Unheard
from holdfast.state import snapshot
from holdfast.state.layout import parse_header, read_meta
from holdfast.state.protected import KEPT
from holdfast.state.rng import restore_rng
from holdfast.state.shards import SHARED_OUT, cut, parts_of
from holdfast.worker import unreported
from holdfast.worker.position import Loop, Position
from holdfast.worker.session_context import SessionContext


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a restored run goes on. What the script does to protected objects on its way there does not count."""

    at: CommitPoint
    of: str | None
    """The name of the loader whose batch it was."""
    payload: memoryview
    meta: dict[str, Any]
    tensors: list[torch.Tensor]
    stamp: tuple[object, ...]
    """What was protected, right after the first restore."""
    ended: list[unreported.Record]
    """Epochs that were over by then, of whose end nobody may have heard."""
    loop: Loop | None
    """The loop over epochs it was taken in, or after."""

    def here(self, at: CommitPoint, of: str | None) -> bool:
        if at is CommitPoint.ASKED:  # the head of a loop without epochs and batches, before it draws its batch
            return self.at in (CommitPoint.FREE, CommitPoint.END)
        return (at, of) == (self.at, self.of) or self.at in (CommitPoint.START, CommitPoint.FREE, CommitPoint.END)

    @property
    def left(self) -> bool:
        """Whether a loop over epochs had been left by then."""
        return self.loop is not None and self.loop.left

    @property
    def loops(self) -> int:
        """How many loops over epochs the script has to come past first."""
        return self.loop.number if self.loop is not None else 0

    @property
    def missed(self) -> bool:
        """Whether the loop it was taken in has more to do."""
        loop = self.loop
        return loop is not None and not loop.left and Position.of(self.meta).epoch < loop.first + loop.total

    def land(self, context: SessionContext) -> None:
        """Position, protected objects and generators as they were when the snapshot was taken."""
        context.position, context.loop = Position.of(self.meta), self.loop
        context.begun = int(self.meta["session"].get("begun", 0))
        protected = context.protected
        if protected.stamp() != self.stamp or protected.tensors() is not self.tensors:
            protected.restore(snapshot.reader(self.payload), self.meta)
        self.restore_generators(context.device)
        context.peers.landed(context)

    def restore_generators(self, device: torch.device) -> None:
        read = snapshot.reader(self.payload)
        tensors = {str(name): read(str(name)).clone() for name in self.meta["rng_names"]}
        restore_rng(tensors, self.meta["rng"], device)


def restore(context: SessionContext) -> Landing | None:
    """The state of the newest snapshot, in the objects just protected; None if there is none.

    A checkpoint may have been made up, digests and all. One that cannot be restored is passed over for the one before
    it; if none is left, the first reason is the one that is told.
    """
    payload = context.link.newest()
    first: Exception | None = None
    while payload is not None:
        try:
            return _restored(context, payload)
        except Exception as error:
            if classify_exception(error, device=str(context.device)) is not None:  # the device's doing, not the file's
                raise
            first = first or error
            older = getattr(context.link, "older", None)
            payload = older(_reason(error)) if older is not None else None
            if payload is None:
                raise _told(first, older is not None) from first
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, UserError):
        return f"{error.message}: {error.cause}" if error.cause else error.message
    return f"it cannot be restored ({type(error).__name__}: {str(error)[:200]})"


def _told(error: Exception, from_disk: bool) -> Exception:
    if isinstance(error, UserError) or not from_disk:
        return error
    hints = ["`holdfast fsck` looks at all that was saved", "start a new run if nothing of it can be used"]
    return UserError("what was saved of this run cannot be restored", cause=_reason(error), hints=hints)


def _fitting(context: SessionContext, payload: memoryview) -> memoryview:
    """The same state, shared out as the objects here are: another number of ranks may have saved it."""
    have, want = parts_of(payload), context.protected.meta().get(SHARED_OUT, {})
    saved = (have.get("index", 0), have.get("count", 1))
    wanted = (want.get("index", 0), want.get("count", 1))
    if saved == wanted:
        return payload
    whole = payload
    if saved[1] > 1:
        put_together = getattr(context.link, "whole", None)  # only ranks have parts
        found = None if put_together is None else put_together()
        if found is None:
            raise UserError(
                f"a part of the state of {saved[1]} ranks is missing",
                cause="the snapshot of a rank that held it is gone",
                hints=["resume the run: it goes on from its last checkpoint, which is whole"],
            )
        whole = found
    if wanted[1] == 1:
        return whole
    names = context.protected.shared_out_in({entry.name: entry.shape for entry in parse_header(whole)[0]})
    return memoryview(cut(whole, index=wanted[0], count=wanted[1], names=names))


def _restored(context: SessionContext, payload: memoryview) -> Landing:
    protected = context.protected
    payload = _fitting(context, payload)
    _check_same_objects(read_meta(payload), context)
    meta = snapshot.restore(protected, payload)
    session = meta["session"]
    context.position = Position.of(meta)
    context.board.commit(context.position.step, context.position.samples)
    at, of, stamp = CommitPoint(session["at"]), session.get("of"), protected.stamp()
    logged, ended = unreported.kept_in(session)
    here = bool(ended) and ended[-1]["step"] == context.position.step
    if here and (loss := snapshot.loss_in(payload)) is not None:
        ended[-1]["loss"] = loss  # it was not known yet when the snapshot began
    loop = Loop.of(meta)
    landing = Landing(at, of, payload, meta, protected.tensors(), stamp, ended, loop)
    landing.restore_generators(context.device)
    context.snapshots.start_after(int(session["sequence"]))
    for record in logged:
        context.unheard.add(record)
        context.link.send(Unheard(**record))
    inside = loop is not None and not loop.left and context.position.epoch < loop.first + loop.total
    context.link.send(Restored(context.position.step, context.position.epoch, ended=here, inside=inside))
    return landing


def _check_same_objects(meta: dict[str, Any], context: SessionContext) -> None:
    before, now = {*meta["parts"]} - {KEPT}, {*context.objects} - {KEPT}
    if before != now:
        raise UserError(
            "the script protects other objects than the run it goes on with",
            cause=f"saved: {', '.join(sorted(before))}; protected now: {', '.join(sorted(now))}",
            hints=["start a new run, or protect the same names"],
        )
