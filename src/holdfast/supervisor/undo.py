"""Going back: the device's numbers were wrong, and what was computed since the last agreement is not believed.

    undone = undo(context)                # the newest snapshot is the one both agreed on; None if there is no such
    undone = undo(context, sequence)      # the newest snapshot is this one; None if no slot holds it
    undone.from_step, undone.to_step

Checkpoints and best weights from the doubtful steps are set aside in `doubtful/`, not deleted. No torch here.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.folders import Folder
from holdfast.record.best_weights import FILE
from holdfast.state import checkpoint
from holdfast.supervisor.run_context import RunContext

DOUBTFUL = "doubtful"


@dataclass(frozen=True, slots=True)
class Undone:
    """Steps that are computed again."""

    from_step: int
    to_step: int


def undo(context: RunContext, sequence: int | None = None) -> Undone | None:
    """Make a snapshot the one the run goes on from: by default the last one that device and CPU agreed on."""
    memory = context.memory
    agreed = memory.back_to_agreed() if sequence is None else memory.back_to(sequence)
    if agreed is None and (context.plan.resume is None or sequence is not None):
        return None
    if agreed is None:  # nothing was compared since the run was resumed: back to where that was
        context.memory.undo_all()
    step = context.newest_step
    undone = Undone(context.accounts.steps, step)
    context.accounts.undo(step)
    set_aside(context.run_folder.path, step, best=context.teller.undo(step))
    return undone


def set_aside(folder: Path, step: int, *, best: bool) -> None:
    """What a run folder has of later steps goes to `doubtful/`; with `best`, so do the best weights."""
    for path in checkpoint.candidates(folder / "checkpoints"):
        if path.name.isdigit() and int(path.name) > step:
            _move(folder, path, inner=1)
    if best:
        _move(folder, folder / FILE, inner=0)


def _move(run: Path, path: Path, *, inner: int) -> None:
    """A full or vanished disk is not a reason to stop: then the journal alone says what is doubtful."""
    with (
        contextlib.suppress(OSError),
        Folder.at(run / DOUBTFUL, inner=1, make=True) as aside,
        Folder.at(path.parent, inner=inner) as folder,
    ):
        taken, name, number = aside.names(), path.name, 2
        while name in taken:
            name, number = f"{path.name}-{number}", number + 1
        folder.rename(path.name, name, aside)
