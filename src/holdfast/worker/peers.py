"""The other processes that train the same model, as a session sees them; a run in one process has none.

    peers.together(work)                     # between backward and update: the same gradients everywhere
    peers.all_done(fault)                    # did everybody get through the step? if not, nobody did
    peers.at_boundary(position, CommitPoint.BATCH)  # the boundary of a loop body: all come to it, or none is past it

`Alone` is what every run has that was not launched with several ranks: it does nothing, and costs nothing. The group
of ranks is in holdfast.distributed.group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move
from holdfast.run.commit_points import CommitPoint
from holdfast.worker.position import Position

if TYPE_CHECKING:
    from holdfast.data.any_loader import AnyLoader
    from holdfast.data.loader import Batch, Loader
    from holdfast.data.quarantine import LeaveOut
    from holdfast.data.shares import Shares
    from holdfast.run.messages import Message
    from holdfast.state.snapshot import Snapshots
    from holdfast.worker.cadence import Cadence
    from holdfast.worker.step import Work
    from holdfast.worker.uncommitted import Uncommitted


class PeerFault(Exception):
    """Another rank could not do this step, so that nobody does it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence())
        self.fault = fault


class Trained(Protocol):
    """What the ranks train together, as one of them has it. It is the SessionContext of session_context.py."""

    device: torch.device
    position: Position
    cadence: Cadence
    uncommitted: Uncommitted

    def lose(self, fault: Fault) -> NoReturn:
        """This process cannot go on."""
        ...

    @property
    def snapshots(self) -> Snapshots: ...
    def modules(self) -> list[torch.nn.Module]: ...
    def named_loaders(self) -> dict[str, Loader | AnyLoader]: ...
    def tell(self, message: Message) -> None:
        """For the journal of the run."""
        ...


class Peers(Protocol):
    """What a session asks of the other ranks. Every call is one that all ranks make, at the same place."""

    rank: int
    ranks: int
    neighbours: int
    """How many ranks are on this machine, this one included."""

    def protect(self, context: Trained, *, restored: bool) -> None:
        """The objects are there: from here on with the same numbers in all ranks."""
        ...

    def shares(self, name: str) -> Shares | None:
        """Which rank reads which part of the batches of the loader with that name; None if nobody else does."""
        ...

    def landed(self, context: Trained) -> None:
        """Everything is as it was in the snapshot; what belongs to a rank alone is made its own again."""
        ...

    def open_body(self, batch: Batch | None) -> None:
        """The body of a loop begins, with this rank's share of the batch. The script may compute in it by itself."""
        ...

    def before_update(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
        """The script calls `optimizer.step()` by itself, with the gradients of this rank's share.

        `closure`: those are not the ones it updates with, it computes them anew.
        """
        ...

    def begin_step(self, batch: Batch | None) -> None:
        """A step is about to be tried, on this rank's share of the batch."""
        ...

    def together(self, work: Work) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """What makes gradients and loss those of all ranks; None if there is nothing to do."""
        ...

    def averaging(self, optimizers: Iterable[torch.optim.Optimizer]) -> AbstractContextManager[None]:
        """Inside, an optimizer that steps does so with the gradients of all ranks."""
        ...

    def all_done(self, fault: Fault | None) -> Fault | None:
        """Tell the others, and hear them: the fault is everybody's now. Raises PeerFault if only others met one."""
        ...

    def after_error(self, error: Exception, fault: Fault | None) -> Fault | None:
        """A step has failed here with this error: what it was for all ranks. None for the script's own error."""
        ...

    def agree_on(self, move: Move) -> Move:
        """The same answer to a fault in all ranks."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """Inside, this rank computes by itself: no module exchanges anything."""
        ...

    def blame(self, fault: Fault | None, every: Sequence[dict[str, Any]]) -> Fault | None:
        """All have computed their part of a step again: whose fault it was, by what all of them found.

        `fault` is what this rank found; `every` are the samples of its part, if each of them is bad.
        """
        ...

    def leaving_out(self, loader: str) -> LeaveOut | None:
        """How samples of this loader that cannot be read are left out by all ranks; None where they cannot be."""
        ...

    def at_boundary(self, context: Trained, at: CommitPoint, *, stop: bool) -> bool:
        """All have come to the end of this body; True if somebody wants to stop here."""
        ...


class Alone:
    """Nobody to agree with."""

    rank = 0
    ranks = 1
    neighbours = 1

    def protect(self, context: Trained, *, restored: bool) -> None:
        return None

    def shares(self, name: str) -> Shares | None:
        return None

    def landed(self, context: Trained) -> None:
        return None

    def open_body(self, batch: Batch | None) -> None:
        return None

    def before_update(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
        return None

    def begin_step(self, batch: Batch | None) -> None:
        return None

    def together(self, work: Work) -> Callable[[torch.Tensor], torch.Tensor] | None:
        return None

    def averaging(self, optimizers: Iterable[torch.optim.Optimizer]) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def all_done(self, fault: Fault | None) -> Fault | None:
        return fault

    def after_error(self, error: Exception, fault: Fault | None) -> Fault | None:
        return fault

    def agree_on(self, move: Move) -> Move:
        return move

    def apart(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def blame(self, fault: Fault | None, every: Sequence[dict[str, Any]]) -> Fault | None:
        return fault

    def leaving_out(self, loader: str) -> LeaveOut | None:
        return None

    def at_boundary(self, context: Trained, at: CommitPoint, *, stop: bool) -> bool:
        return stop


if TYPE_CHECKING:
    _checked: Peers = Alone()
