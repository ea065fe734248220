"""The newest snapshot of this machine on disk, where no rank is left to write it. No torch.

    saved = rescue(job, make)       # a run folder that `make` makes, with one checkpoint; None if there is no snapshot

A machine that has lost the first one for good does so: the run folder is over there, and may be lost with it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.distributed.job import Job
from holdfast.run.events import Event, utc_now
from holdfast.run.folder import RunFolder
from holdfast.run.states import RunState
from holdfast.state import checkpoint
from holdfast.state.shards import parts_of, put_together
from holdfast.state.slots import Commit


def newest_state(job: Job) -> tuple[memoryview, int] | None:
    """The newest snapshot that is whole on this machine, and its step."""
    found: dict[int, list[tuple[Commit, memoryview]]] = {}
    for seat in job.seats():
        for arena in job.arenas(seat):
            for slot in arena.slots:
                commit = slot.read()
                if commit is not None:
                    found.setdefault(commit.sequence, []).append((commit, slot.payload(commit.size)))
    for _, held in sorted(found.items(), reverse=True):
        newest = max(commit.generation for commit, _ in held)
        parts = {int(parts_of(each).get("index", 0)): each for commit, each in held if commit.generation == newest}
        count = max(int(parts_of(each).get("count", 1)) for each in parts.values())
        step = held[0][0].step
        if count == 1:
            return parts[0], step
        if sorted(parts) == list(range(count)):
            return memoryview(put_together([parts[index] for index in range(count)])), step
    return None


def rescue(job: Job, make: Callable[[], RunFolder], of: str) -> tuple[RunFolder, int] | None:
    """`of` is the run that the state belongs to. OSError if it cannot be written."""
    state = newest_state(job)
    if state is None:
        return None
    payload, step = state
    run = make()
    checkpoint.write(run.path / "checkpoints", payload, step=step)
    run.append(Event.now("note", text=f"the state of {of} at step {step}, as this machine had it in memory"))
    run.update_info(state=RunState.STOPPED, exit_code=4, ended=utc_now(), rescued_from=of, accounts={"steps": step})
    return run, step
