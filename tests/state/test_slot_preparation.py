"""Large slots become ready beside the script; one that there is no room for is left out."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.state import pages
from holdfast.state.slot_memory import Memory
from holdfast.state.slot_preparation import Preparation
from holdfast.state.slots import HEADER, LARGE, Arena, Slot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="slots in memory")


def held(arena: Arena) -> int:
    """Bytes of the slots that the system has really given."""
    return sum(512 * os.fstat(fd).st_blocks for fd in arena.fds)


def test_large_slots_are_reserved_beside_the_script() -> None:
    arena = Arena.create(LARGE, slots=3, later=True)
    assert held(arena) == 3 * HEADER
    ready = Preparation(arena)
    ready.wait({0})
    assert 2 * LARGE <= held(arena) < 3 * LARGE, "the third takes no memory before it is needed"
    ready.more()
    ready.wait({0, 1})
    assert held(arena) >= 3 * LARGE
    assert [slot.index for slot in ready.slots()] == [0, 1, 2]
    assert ready.said()["slots"]["ready"] == ready.said()["slots"]["of"] == 3
    ready.stop()
    arena.close()


def test_what_a_slot_holds_stays_and_its_slot_comes_last() -> None:
    """A new worker makes the slots of its predecessor ready: the snapshot it goes on from is one of them."""
    arena = Arena.create(LARGE, slots=2, later=True)
    slot = arena.slots[0]
    slot.begin(1)
    slot.payload(LARGE)[-5:] = b"state"
    slot.commit(sequence=1, step=1, generation=0, size=LARGE)
    order: list[int] = []
    ready = Preparation(arena, lambda each: order.append(each.index))
    ready.wait({1})
    ready.stop()
    assert order == [1, 0]
    assert slot.read() is not None and bytes(slot.payload(LARGE)[-5:]) == b"state"
    arena.close()


def test_a_take_waits_for_the_first_slot_and_not_for_all() -> None:
    arena = Arena.create(LARGE, slots=3, later=True)
    go_on, locked = threading.Event(), threading.Event()

    def lock(slot: Slot) -> None:
        if slot.index == 1:
            locked.set()
            go_on.wait(60.0)

    ready = Preparation(arena, lock)
    assert locked.wait(60.0)
    ready.wait(set())
    assert [slot.index for slot in ready.slots()] == [0]
    assert not arena.has_room({0}, ready.slots()) and arena.has_room(set(), ready.slots())
    go_on.set()
    ready.stop()
    arena.close()


@pytest.mark.parametrize("given", [1, 2])
def test_slots_without_room_are_left_out_and_two_are_needed(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    """The system's own answer for memory that is not there, at a slot of our choice."""
    calls: list[int] = []

    def populate(at: int, size: int) -> int:
        calls.append(at)
        return 0 if len(calls) <= given else errno.EFAULT

    monkeypatch.setattr(pages, "adviser", lambda advice: populate)
    arena = Arena.create(LARGE, slots=4, later=True)
    ready = Preparation(arena)
    with ready._changed:
        ready._want(4)
    assert ready._thread is not None
    ready._thread.join()
    assert len(ready.slots()) == given
    if given == 1:
        with pytest.raises(UserError, match=r"no room for .* of snapshots in memory"):
            ready.wait(set())
    else:
        ready.wait({0})
        ready.more()
        assert len(ready.slots()) == 2
    arena.close()


def test_small_slots_are_ready_at_once() -> None:
    arena = Arena.create(1000, slots=3, later=True)
    assert held(arena) >= 3 * 1000
    ready = Preparation(arena)
    assert len(ready.slots()) == 3 and ready.over and ready.said() == {}
    arena.close()


@pytest.mark.parametrize(("fits", "where"), [(5, "memory"), (4, "memory"), (2, "memory"), (1, "file")])
def test_a_state_for_which_five_slots_do_not_fit_uses_fewer(tmp_path: Path, fits: int, where: str) -> None:
    each = 1_000_000 + HEADER
    run = RunFolder.create(tmp_path, "test", {})
    settings = Settings.load({"snapshot.memory": f"{fits * each}B"}, cwd=tmp_path, env={})
    said: list[tuple[str, dict[str, object]]] = []
    memory = Memory(run, settings, portable=False, say=lambda kind, **data: said.append((kind, data)))
    arena = memory.grow(1_000_000)
    assert (arena.where, len(arena.slots)) == (where, 5 if where == "file" else fits)
    assert bool(said) == (fits < 5)
    if 1 < fits < 5:
        ((kind, data),) = said
        text = str(data["text"])
        assert kind == "arena" and data["slots"] == fits
        assert text.startswith(f"memory for {fits} of 5 slots: 4.8 MiB are needed, snapshot.memory allows")
        assert text.endswith("; nothing is committed while a checkpoint is written") == (fits == 2)
    memory.close()
