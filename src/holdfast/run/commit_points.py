"""Where in a script a commit is made and a restored run goes on; why the keeper is asked to save, and what.

commits.commit(CommitPoint.BATCH, "data")     # kept in the snapshot as session.at
keeping.wish(SaveReason.TIME)                 # kept in the journal as the reason of a save that failed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from holdfast.base.text_enum import TextEnum


class CommitPoint(TextEnum):
    """The place in the script that a snapshot belongs to: the landing point of a run that is restored from it."""

    START = "start"
    """Before the first body of the loop."""
    BATCH = "batch"
    """After the body of a batch."""
    EPOCH = "epoch"
    """After the body of an epoch."""
    FREE = "free"
    """After a step of a loop that is not one of the session's."""
    END = "end"
    """`train` has returned."""
    SAVE = "save"
    """Before a step, for the step alone or for its weights. No run goes on from it."""
    ASKED = "asked"
    """The head of a loop without epochs and batches, before it draws its batch. Arrived at; no snapshot has it."""

    @property
    def in_loop(self) -> bool:
        """In a loop of the session: a script that is restored has to come to it again."""
        return self in (CommitPoint.BATCH, CommitPoint.EPOCH)

    @property
    def by_cadence(self) -> bool:
        """So frequent that a snapshot is taken only when it is time for one."""
        return self in (CommitPoint.BATCH, CommitPoint.FREE)


class SaveReason(TextEnum):
    """Why something is written to disk."""

    EPOCH = "epoch"
    BEST = "best"
    """The weights of a snapshot are the best so far, and it was not the end of an epoch."""
    TIME = "time"
    """`checkpoint.every` seconds have passed."""
    STOP = "stop"
    """The run was asked to stop, and its worker has not come to a commit yet."""
    END = "end"
    """The last save of a run."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the keeper is asked to save."""

    reason: str
    """As a rule a SaveReason; the keeper says it again in its answer."""
    weights: tuple[str, ...] = ()
    """Files of weights alone: best, final."""
    checkpoint: bool = True
    sequence: int | None = None
    """Of a snapshot that is held until it is saved; None means the newest."""
    best: dict[str, Any] | None = None
    """The value that makes the weights the best, for their file."""
    last: bool = False
    """The run waits for it."""
    folder: str | None = None
    """Where to, if the run's own folder has refused it."""

    def joined(self, other: Wish) -> Wish:
        """Both in one; of two snapshots that are held, the newer one is meant."""
        newest = other if (other.sequence or 0) >= (self.sequence or 0) else self
        return replace(
            self,
            weights=tuple(sorted({*self.weights, *other.weights})),
            checkpoint=self.checkpoint or other.checkpoint,
            sequence=newest.sequence,
            best=newest.best or self.best or other.best,
        )
