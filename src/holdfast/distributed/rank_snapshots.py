"""The snapshots of one rank in the job's folder, and the one that all ranks go on from.

    snapshots = Snapshots(job, place, settings)
    snapshots.find(group, saved)          # all agree: the newest that all have, or a checkpoint; `start` is its bytes
    snapshots.all_parts()                 # of a model in parts (FSDP2): those of all ranks, put together

A snapshot is the same state in all ranks, or each rank's part of it. Parts are read where they lie: in the slots of the
ranks of this machine, and in copies of those of other machines (part_copies.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.distributed.job import Job
from holdfast.distributed.place import MACHINE, Place
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.state import checkpoint
from holdfast.state.layout import read_meta
from holdfast.state.shards import parts_of, put_together
from holdfast.state.slot_memory import Memory
from holdfast.state.slots import Arena, Commit, Slot
from holdfast.worker.worker import map_file

if TYPE_CHECKING:
    from holdfast.distributed.group import Group


class Snapshots:
    """The slots of one rank, and where to go on from."""

    def __init__(self, job: Job, place: Place, settings: Settings) -> None:
        self.memory = Memory(RunFolder(job.path), settings, portable=True, say=_say_nothing)
        self.memory.folder = job.slots(place.seat)
        self.memory.arenas = job.arenas(place.seat)
        self.memory.release_leases()  # who held them is gone
        self.job = job
        self.seat = place.seat
        self.all_are_here = place.stays and not int(os.environ.get(MACHINE) or 0)
        """The snapshots of every rank are on this machine, its own or copies (part_copies.py)."""
        self._stays = place.stays
        self._made_by: dict[int, tuple[int, ...]] = {}
        """By generation: the seats of a group that this process was in."""
        self._others: dict[int, tuple[list[tuple[str, int]], list[Arena]]] = {}
        self.start: memoryview | None = None
        self.whole = False
        """Nothing that all ranks had committed is missing from it."""

    def rejoin(self) -> None:
        self.memory.release_leases()
        self.start = None

    def arena(self, capacity: int) -> Arena:
        arenas = self.memory.arenas
        return arenas[-1] if arenas and arenas[-1].capacity >= capacity else self.memory.grow(capacity)

    def find(self, group: Group, saved: checkpoint.Checkpoint | None) -> None:
        """Agree with the others on what to go on from; what is newer than that never happened."""
        held = {
            commit.sequence: slot
            for arena in self.memory.arenas
            for slot in arena.slots
            if (commit := slot.read()) is not None
        }
        told = held
        if self.all_are_here:
            told = held = {sequence: slot for sequence, slot in held.items() if self._has_all_parts(sequence, slot)}
        elif self._stays and any(map(_is_part, held.values())):
            told = {}  # the first machine has the parts of all ranks, and says which snapshots are whole
        newest, holder = group.newest_common(told)
        if newest is None:
            step, holder = group.somebody(0 if saved is None else saved.step + 1)
            payload = None if saved is None else map_file(saved.state)
            self.start = None if step == 0 else group.hand_over(payload, holder, wanted=payload is None)
            return
        self.whole = newest >= group.all_had
        for sequence, slot in held.items():
            if sequence > newest:
                slot.undo()
        mine = held.get(newest)
        commit = None if mine is None else mine.read()
        payload = None if mine is None or commit is None else mine.payload(commit.size)
        wanted = payload is None
        if payload is not None and commit is not None and self._stays and not self.all_are_here:
            others = self._made_by.get(commit.generation) != _seats_of(group)
            wanted = others and int(parts_of(payload).get("count", 1)) > 1  # another part may be this rank's now
        self.start = group.hand_over(payload, holder, wanted=wanted, whole=lambda: self._whole_of(payload, newest))
        self._made_by[group.place.restarts] = _seats_of(group)

    def _whole_of(self, payload: memoryview | None, sequence: int) -> memoryview | None:
        """For ranks that have no part of it, or need another one."""
        if payload is None or int(parts_of(payload).get("count", 1)) == 1 or not self._stays:
            return payload
        return self.all_parts(sequence)

    def all_parts(self, sequence: int | None = None) -> memoryview | None:
        """A snapshot with the parts of all ranks of this machine put together; None if a part is missing.

        By default the one to go on from.
        """
        if sequence is None:
            if self.start is None:
                return None
            sequence = int(read_meta(self.start)["session"]["sequence"])
        found = self._parts_at(sequence)
        if not found:
            return None
        made = put_together([payload for _, payload in found])
        again = [slot.read(savepoints=True) for slot, _ in found]
        same = all(now is not None and now.sequence == sequence for now in again)
        return memoryview(made) if same else None  # a rank began to write there while it was read

    def newest_whole(self) -> int | None:
        """The newest snapshot of this rank of which all parts are there."""
        slots = [slot for arena in self.memory.arenas for slot in arena.slots]
        held = {commit.sequence: slot for slot in slots if (commit := slot.read()) is not None}
        return max((each for each, slot in held.items() if self._has_all_parts(each, slot)), default=None)

    def _has_all_parts(self, sequence: int, slot: Slot) -> bool:
        commit = slot.read(savepoints=True)
        if commit is None:
            return False
        return int(parts_of(slot.payload(commit.size)).get("count", 1)) == 1 or bool(self._parts_at(sequence))

    def _parts_at(self, sequence: int) -> list[tuple[Slot, memoryview]]:
        """All parts of a snapshot in their order; [] if one is missing."""
        found: dict[tuple[int, int], dict[int, tuple[Slot, memoryview]]] = {}
        for slot, commit, payload in self._everywhere(sequence):
            parts = parts_of(payload)
            of_one_group = found.setdefault((commit.generation, int(parts.get("count", 1))), {})
            of_one_group.setdefault(int(parts.get("index", 0)), (slot, payload))
        # A rank that was lost may have been ahead of the others, who have made that snapshot anew since then.
        for (_, count), each in sorted(found.items(), key=lambda item: item[0], reverse=True):
            if sorted(each) == list(range(count)):
                return [each[index] for index in range(count)]
        return []

    def _everywhere(self, sequence: int) -> Iterator[tuple[Slot, Commit, memoryview]]:
        """That snapshot in the slots of each rank that has it."""
        for seat in self.job.seats():
            for arena in self.memory.arenas if seat == self.seat else self._of(seat):
                slot = arena.find(sequence)
                commit = None if slot is None else slot.read(savepoints=True)
                if slot is not None and commit is not None:
                    yield slot, commit, slot.payload(commit.size)

    def pulses(self) -> tuple[Any, ...]:
        """Another value whenever something was written to the slots of another rank, its own or copies."""
        others = (seat for seat in self.job.seats() if seat != self.seat)
        return tuple((seat, *(slot.pulse for arena in self._of(seat) for slot in arena.slots)) for seat in others)

    def _of(self, seat: int) -> list[Arena]:
        """The slots of another rank, opened once."""
        names = self.job.slot_names(seat)
        known = self._others.get(seat)
        if known is None or known[0] != names:
            known = self._others[seat] = names, self.job.arenas(seat)
        return known[1]

    def keep_start(self, generation: int) -> None:
        """What this rank begins with counts as agreed on, if its device has no part in it.

        All come back to here if the device is wrong before it is compared. A device has no part in what came from
        others or from disk, nor in what is older than a comparison that agreed.
        """
        start, slots = self.start, [slot for arena in self.memory.arenas for slot in arena.slots]
        if start is None or parts_of(start).get("names"):
            return  # ranks with parts keep one that all of them have; the whole state may be too large for each of them
        if any(slot.agreed and slot.read() is not None for slot in slots):
            return
        numbers = read_meta(start)["session"]
        sequence, step = int(numbers["sequence"]), int(numbers["step"])
        own = next((slot for slot in slots if (held := slot.read()) is not None and held.sequence == sequence), None)
        if own is not None:
            if any(slot.agreed and slot.age > own.age for slot in slots):  # given up because of another rank
                own.agree()
            return
        arena = self.arena(len(start))
        slot = arena.choose(set())
        slot.begin(sequence)
        slot.payload(len(start))[:] = start
        slot.commit(sequence=sequence, step=step, generation=generation, size=len(start))
        slot.agree()

    def agree_on_checked(self, group: Group) -> None:
        """Ranks with parts of a model: the same snapshot to go back to in all of them (checked_commits.py).

        A rank that was lost may have missed the vote in which the others agreed on a newer one. What one rank has
        agreed on was compared in all of them; so it counts in all, if all that have snapshots have this one. A rank
        without any is new: the part that it takes over is in the slots of the one before.
        """
        slots = [slot for arena in self.memory.arenas for slot in arena.slots]
        held = {commit.sequence: slot for slot in slots if (commit := slot.read()) is not None}
        own = []
        if any(map(_is_part, held.values())):
            agreed = [sequence for sequence, slot in held.items() if slot.agreed]
            whole = [each for each, slot in held.items() if not self.all_are_here or self._has_all_parts(each, slot)]
            own = [{"seat": self.seat, "held": sorted(whole), "agreed": sorted(agreed)}]
        told = group.of_all(own)
        if not own:
            return
        agreed_on = {sequence for each in told for sequence in each["agreed"]}
        common = agreed_on.intersection(*(each["held"] for each in told))
        for slot in slots:
            slot.forget_agreement()
        if common:
            held[max(common)].agree()

    @property
    def step(self) -> int:
        """Steps done where the run goes on."""
        return 0 if self.start is None else int(read_meta(self.start)["session"]["step"])


def _is_part(slot: Slot) -> bool:
    commit = slot.read(savepoints=True)
    return commit is not None and int(parts_of(slot.payload(commit.size)).get("count", 1)) > 1


def _seats_of(group: Group) -> tuple[int, ...]:
    return () if group.place.roster is None else group.place.roster.seats


def of_this_process(known: Snapshots | None, job: Job, place: Place, settings: Settings) -> Snapshots:
    """Those that this process has in another role already, or new ones."""
    if known is None:
        return Snapshots(job, place, settings)
    known.rejoin()
    return known


def _say_nothing(*_: Any, **__: Any) -> None:
    return None
