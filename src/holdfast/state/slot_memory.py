"""The memory of a run: which slots there are, where they live, and the newest snapshot in them.

    memory = Memory(run_folder, settings, portable=False, say=teller.emit)
    arena = memory.grow(capacity)        # the worker's state needs slots of this size
    memory.newest()                      # the last commit, whatever happened to the worker that made it

The supervisor owns it, so it outlives every worker. It is in RAM where there is room and in files where not.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection
from typing import Any

from holdfast.base import processes
from holdfast.base.files import remove
from holdfast.run.folder import RunFolder
from holdfast.run.setting_groups import SnapshotSettings
from holdfast.run.settings import Settings
from holdfast.state import layout
from holdfast.state.slots import HEADER, LEAST, Arena, Commit, Slot, no_room

SHARE = 0.5
"""Of the memory that is free, the part snapshots may take when nobody said otherwise."""
_LAST = 2
"""Snapshots that are read when a run is over: that of the end, and the one before, which may be saved and equal."""


class Memory:
    """Every arena of a run; more than one only while a worker moves to larger slots."""

    def __init__(self, run: RunFolder, settings: Settings, *, portable: bool, say: Callable[..., None]) -> None:
        self.folder = run.path / "slots"
        self.settings = settings.snapshot
        self.portable = portable
        self.arenas: list[Arena] = []
        self.evidence: set[int] = set()
        """Sequences of snapshots before a step that failed: held until it is known whose fault that was."""
        self._say = say
        self._emptying: threading.Thread | None = None

    def newest_slot(self) -> tuple[Arena, Commit] | None:
        found = [(arena, commit) for arena in self.arenas if (commit := arena.newest()) is not None]
        return max(found, key=lambda pair: pair[1].sequence, default=None)

    def newest(self) -> Commit | None:
        found = self.newest_slot()
        return None if found is None else found[1]

    def session_numbers(self) -> dict[str, Any]:
        """What the session wrote beside the newest snapshot: steps, samples, the loaders' own counts."""
        found = self.newest_slot()
        if found is None:
            return {}
        arena, commit = found
        numbers = layout.read_meta(arena.slots[commit.slot].payload(commit.size)).get("session", {})
        return numbers if isinstance(numbers, dict) else {}

    def back_to_agreed(self) -> Commit | None:
        """Make the last snapshot device and CPU agreed on the newest one; None if no slot holds any."""
        agreed = self._agreed()
        return None if agreed is None else self._back_to(agreed)

    def back_to(self, sequence: int) -> Commit | None:
        """Make this snapshot the newest one; None if no slot holds it any more."""
        found = [commit for commit in self._commits() if commit.sequence == sequence]
        return self._back_to(found[0]) if found else None

    def _back_to(self, wanted: Commit) -> Commit:
        for arena in self.arenas:
            for slot in arena.slots:
                commit = slot.read()
                if commit is not None and commit.sequence > wanted.sequence:
                    slot.undo()
        return wanted

    def _commits(self) -> list[Commit]:
        return [commit for arena in self.arenas for slot in arena.slots if (commit := slot.read()) is not None]

    def keep_step(self, step: int) -> tuple[Arena, Commit] | None:
        """The newest snapshot of this step, held as evidence from now on; None if no slot holds one."""
        found = [commit for commit in self._commits() if commit.step == step]
        if not found:
            return None
        commit = max(found, key=lambda each: each.sequence)
        for arena in self.arenas:
            slot = arena.find(commit.sequence)
            if slot is not None:
                slot.hold()
                self.evidence.add(commit.sequence)
                return arena, commit
        return None

    def _agreed(self) -> Commit | None:
        found = [commit for arena in self.arenas if (commit := arena.agreed()) is not None]
        return max(found, key=lambda commit: commit.sequence, default=None)

    def undo_all(self) -> None:
        """Nothing in memory is believed any more."""
        for arena in self.arenas:
            for slot in arena.slots:
                slot.undo()

    def agree_on_newest(self) -> None:
        """The CPU computed it: there is nobody to disagree."""
        found = self.newest_slot()
        for arena in self.arenas:
            for slot in arena.slots:
                slot.forget_agreement()
        if found is not None:
            arena, commit = found
            arena.slots[commit.slot].agree()

    def grow(self, capacity: int) -> Arena:
        """Slots of at least this size. Older ones stay until the new ones hold a commit."""
        arena = self._make(capacity, later=True)
        newest = self.newest_slot()
        self._close([old for old in self.arenas if (newest is None or old is not newest[0]) and not self._wanted(old)])
        self.arenas.append(arena)
        return arena

    def drop_outgrown(self) -> bool:
        """Let smaller slots go once the larger ones hold the newest snapshot; True if there were any."""
        if len(self.arenas) < 2:
            return False
        newest = self.newest_slot()
        if newest is None or newest[0] is not self.arenas[-1]:
            return False
        outgrown = [arena for arena in self.arenas[:-1] if not self._wanted(arena)]
        self._close(outgrown)
        return bool(outgrown)

    def abandon(self) -> None:
        """A worker that cannot be killed may still write: copy out what the run can go on from, leave it the rest."""
        found = self.newest_slot()
        old = list(self.arenas)
        if found is not None:
            arena, commit = found
            agreed = self._agreed()
            fresh = self._make(arena.capacity)
            _copy(arena, commit, fresh.slots[0])
            if agreed is not None and agreed.sequence == commit.sequence:
                fresh.slots[0].agree()
            elif agreed is not None and agreed.size <= fresh.capacity:
                holder = next(each for each in old if each.agreed() == agreed)
                _copy(holder, agreed, fresh.slots[1])
                fresh.slots[1].agree()
            self.arenas.append(fresh)
        self._close(old)

    def release_leases(self, keep: Collection[int] = ()) -> None:
        """Nobody copies any more. Held snapshots go too, but for those whose sequence somebody still waits for."""
        for arena in self.arenas:
            arena.release_all()
            for slot in arena.slots:
                commit = slot.read(savepoints=True)
                if commit is None or commit.sequence not in {*keep, *self.evidence}:
                    slot.let_go()

    def let_go(self, sequence: int | None) -> None:
        """This snapshot is not needed beyond its turn."""
        if sequence in self.evidence:
            return
        for arena in self.arenas:
            slot = None if sequence is None else arena.find(sequence)
            if slot is not None:
                slot.let_go()

    def let_evidence_go(self, sequence: int) -> None:
        self.evidence.discard(sequence)
        self.let_go(sequence)

    def keep_last(self) -> None:
        """Training is over: only what is saved now is needed. The memory of the other slots is given back meanwhile,
        beside the save: of a large state that takes seconds."""
        last = sorted((commit.sequence for commit in self._commits()), reverse=True)[:_LAST]
        spare = [slot for arena in self.arenas for slot in arena.slots if not (slot.held or slot.leased)]
        spare = [slot for slot in spare if (commit := slot.read()) is None or commit.sequence not in last]
        if spare:
            self._emptying = threading.Thread(target=_empty, args=(spare,), daemon=True)
            self._emptying.start()

    def wait_until_emptied(self) -> None:
        if self._emptying is not None:
            self._emptying.join()

    def close(self) -> None:
        self.wait_until_emptied()
        self._close(list(self.arenas))
        remove(self.folder)

    def _wanted(self, arena: Arena) -> bool:
        """A snapshot in it is held (the best weights, which the keeper has not come to yet), or the last agreement."""
        agreed = arena.agreed()
        return any(slot.held for slot in arena.slots) or (agreed is not None and agreed == self._agreed())

    def _close(self, arenas: list[Arena]) -> None:
        for arena in arenas:
            self.arenas.remove(arena)
            arena.close()

    def _make(self, capacity: int, *, later: bool = False) -> Arena:
        """As many slots as were asked for, or as memory has room for; files where it has none for two."""
        wanted = self.settings
        each = capacity + HEADER
        fitting, why = self._fitting(each)
        count = min(wanted.slots, fitting)
        if not self.portable and wanted.where != "file" and count >= LEAST:
            try:
                arena = Arena.create(capacity, slots=count, later=later)
            except OSError as error:
                why = str(error.strerror or error)
            else:
                if count < wanted.slots:
                    self._say("arena", where="memory", bytes=count * each, slots=count, text=_fewer(count, wanted, why))
                return arena
        need = wanted.slots * each
        if wanted.where == "memory" and why is not None:
            raise no_room(need, f"in memory ({why})")
        if need > shutil.disk_usage(self.folder.parent).free:
            raise no_room(need, f"in memory or in {self.folder}")
        if wanted.where != "file" and not self.portable:
            self._say("arena", where="file", bytes=need, text=f"snapshots go to a file instead of memory: {why}")
        try:
            return Arena.create(capacity, slots=wanted.slots, folder=self.folder, named=self.portable)
        except OSError as error:
            raise no_room(need, f"in {self.folder} ({error.strerror or error})") from None

    def _fitting(self, each: int) -> tuple[int, str | None]:
        """How many slots of `each` bytes memory may take, and why not all that are wanted."""
        need, limit = self.settings.slots * each, self.settings.memory
        if isinstance(limit, int):
            why = f"{_mib(need)} are needed, snapshot.memory allows {_mib(limit)}"
            return limit // each, why if need > limit else None
        available = processes.available_memory()
        if available is None:
            return self.settings.slots, None
        spare = int(available * SHARE)
        return spare // each, f"{_mib(need)} are needed, {_mib(available)} are free" if need > spare else None


def _fewer(count: int, wanted: SnapshotSettings, why: str | None) -> str:
    said = f"memory for {count} of {wanted.slots} slots: {why}"
    return said if count > LEAST else f"{said}; nothing is committed while a checkpoint is written"


def _empty(slots: list[Slot]) -> None:
    for slot in slots:
        slot.empty()


def _copy(arena: Arena, commit: Commit, target: Slot) -> None:
    target.begin(commit.sequence)
    target.payload(commit.size)[:] = arena.slots[commit.slot].payload(commit.size)
    target.commit(sequence=commit.sequence, step=commit.step, generation=commit.generation, size=commit.size)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
