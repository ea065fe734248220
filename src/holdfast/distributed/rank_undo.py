"""Going back to before the numbers of one rank went wrong: all ranks give up the snapshots since then. No torch.

    note(job, find(job, seat=2, generation=5))     # the agent, when that rank has ended
    known = known_to(group, job)                   # each rank: what the agent of any of them has decided
    give_up(known, memory)                         # each rank, before the ranks agree on where to go on
    news(job, known)                               # the rank that writes: what it has not told yet

The state of all ranks is the same, and one rank's wrong gradients are in it from the next step on. So all go back to
the last snapshot at which the device of that rank and the CPU agreed, or which the device had no part in. That rank
holds it in a slot of its own; those that have overwritten theirs get the bytes from it. Ranks that hold parts of the
state (FSDP2) all keep the same one (checked_commits.py). If there is none, all go back to where the launch began: to
the checkpoint, or to the beginning.

Snapshots count on when a run goes back. A snapshot is given up if it is newer than the one to go back to and was made
in a group that had the wrong rank in it, so that what is committed afterwards stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.base import dataclass_json
from holdfast.distributed.job import Job
from holdfast.state.slot_memory import Memory

_NOTE, _TOLD, _BEGAN = "undone", "undone-told", "began"


@dataclass(frozen=True, slots=True)
class Undone:
    """One way back."""

    seat: int
    generation: int
    """The group in which it was noticed."""
    sequence: int = 0
    """The snapshot to go on from; 0 if no slot of that rank holds one that was agreed on: all are given up."""
    step: int = 0

    @property
    def agreed(self) -> bool:
        return self.sequence > 0


def begin(job: Job, step: int) -> None:
    """The launch goes on from this step, in a checkpoint or at the beginning. Of later calls nothing changes."""
    if not job.noted(_BEGAN):
        job.note(_BEGAN, {"step": step})


def find(job: Job, *, seat: int, generation: int) -> Undone:
    """The last snapshot at which the device of this seat and the CPU agreed. Its process has ended.

    Its slots are on this machine. Where the launch began is known on the first machine alone.
    """
    best: tuple[int, int] | None = None
    for arena in job.arenas(seat):
        commit = arena.agreed()
        if commit is not None and (best is None or commit.sequence > best[0]):
            best = commit.sequence, commit.step
        for slot in arena.slots:
            slot.close()
    return Undone(seat, generation, *(best or (0, _began(job))))


def note(job: Job, made: Undone) -> Undone:
    """All ranks are to go back so. Returns it as it was noted, in the folder of the first machine."""
    if not made.agreed:
        made = replace(made, step=_began(job))
    job.note(_NOTE, {"all": [*map(dataclass_json.write, _all(job)), dataclass_json.write(made)]})
    return made


def _began(job: Job) -> int:
    return int(job.noted(_BEGAN).get("step", 0))


def noted(job: Job) -> list[Undone]:
    """What is known on this machine, without asking the other ranks."""
    return _all(job)


class Exchange(Protocol):
    """The ranks of a group."""

    def of_all(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]: ...


def known_to(group: Exchange, job: Job) -> list[Undone]:
    """All that was decided so far, the same in every rank. Each rank has to ask at the same place."""
    found = group.of_all([dataclass_json.write(each) for each in _all(job)])
    return [dataclass_json.read_strictly(Undone, each) for each in found]


def give_up(known: Iterable[Undone], memory: Memory) -> None:
    """Of the slots of this rank. Doing it again changes nothing."""
    for each in known:
        for arena in memory.arenas:
            for slot in arena.slots:
                commit = slot.read(savepoints=True)
                if commit is not None and commit.sequence > each.sequence and commit.generation <= each.generation:
                    slot.undo()


def news(job: Job, known: Iterable[Undone]) -> list[Undone]:
    """Those that were not told yet; from here on they are."""
    told = _all(job, _TOLD)
    found = [each for each in known if each not in told]
    if found:
        job.note(_TOLD, {"all": [dataclass_json.write(each) for each in (*told, *found)]})
    return found


def _all(job: Job, name: str = _NOTE) -> list[Undone]:
    return [dataclass_json.read_strictly(Undone, each) for each in job.noted(name).get("all", [])]
