"""Snapshot slots: a torn one never becomes valid, the newest is never overwritten, a lease is honoured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.state.slot_memory import Memory
from holdfast.state.slots import HEADER, LARGE, Arena, Slot, no_room

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not inherited")

WRITER = """
import sys
from holdfast.state.slots import Arena
arena = Arena.open([int(word) for word in sys.argv[1].split(",")])
size = arena.capacity
print("writing", flush=True)
for sequence in range(1, 1_000_000):
    slot = arena.choose(set())
    slot.begin(sequence)
    slot.payload(size)[:] = bytes([sequence % 251]) * size
    slot.commit(sequence=sequence, step=sequence, generation=0, size=size)
"""


def write(arena: Arena, sequence: int, content: bytes = b"state", *, resumable: bool = True) -> Slot:
    slot = arena.choose(set())
    slot.begin(sequence)
    slot.payload(len(content))[:] = content
    slot.commit(sequence=sequence, step=sequence, generation=0, size=len(content), resumable=resumable)
    return slot


def test_an_empty_arena_holds_nothing() -> None:
    arena = Arena.create(1000, slots=3)
    assert arena.newest() is None
    assert (arena.capacity, arena.where, arena.paths) == (1000, "memory", [])
    arena.close()


def test_a_commit_says_what_it_holds() -> None:
    arena = Arena.create(1000, slots=3)
    before = time.time_ns()
    slot = arena.choose(set())
    slot.begin(5)
    slot.payload(3)[:] = b"abc"
    slot.commit(sequence=5, step=120, generation=2, size=3)
    commit = arena.newest()
    assert commit is not None
    assert (commit.slot, commit.sequence, commit.step, commit.generation, commit.size) == (slot.index, 5, 120, 2, 3)
    assert before <= commit.time_ns <= time.time_ns()
    assert bytes(slot.payload(commit.size)) == b"abc"
    arena.close()


def test_a_write_that_was_not_finished_never_becomes_valid() -> None:
    """The worker dies between `begin` and `commit`: the one before it is what is left."""
    arena = Arena.create(1000, slots=3)
    write(arena, 1, b"whole")
    torn = arena.choose(set())
    torn.begin(2)
    torn.payload(4)[:] = b"half"
    assert torn.read() is None
    newest = arena.newest()
    assert newest is not None and newest.sequence == 1
    assert bytes(arena.slots[newest.slot].payload(newest.size)) == b"whole"
    arena.close()


def test_a_slot_that_is_written_again_loses_what_it_held() -> None:
    arena = Arena.create(1000, slots=3)
    slot = write(arena, 1)
    slot.begin(9)
    assert slot.read() is None
    assert arena.newest() is None
    arena.close()


def test_a_savepoint_is_for_its_own_process_alone() -> None:
    arena = Arena.create(1000, slots=3)
    write(arena, 1)
    write(arena, 2, resumable=False)
    newest = arena.newest()
    assert newest is not None and newest.sequence == 1
    arena.close()


@pytest.mark.parametrize("size", [0, -1, 1001, 2**62])
def test_a_size_that_cannot_be_is_no_commit(size: int) -> None:
    arena = Arena.create(1000, slots=3)
    slot = arena.slots[0]
    slot.begin(1)
    slot.commit(sequence=1, step=1, generation=0, size=size)
    assert slot.read() is None
    arena.close()


def test_the_newest_is_never_chosen() -> None:
    arena = Arena.create(100, slots=3)
    last = write(arena, 1)
    for sequence in range(2, 200):
        slot = write(arena, sequence)
        assert slot.index != last.index
        newest = arena.newest()
        assert newest is not None and newest.sequence == sequence
        last = slot
    arena.close()


def test_the_oldest_of_the_free_ones_is_chosen() -> None:
    arena = Arena.create(100, slots=4)
    order = [write(arena, sequence).index for sequence in range(1, 9)]
    assert order[:4] == order[4:]
    assert sorted(order[:4]) == [0, 1, 2, 3]
    arena.close()


def test_a_leased_slot_is_left_alone_and_a_busy_one_too() -> None:
    arena = Arena.create(100, slots=4)
    for sequence in range(1, 5):
        write(arena, sequence)
    arena.slots[0].lease()
    chosen = [arena.choose({1}).index for _ in range(3)]
    assert chosen == [2, 2, 2]
    arena.release_all()
    assert arena.choose({1}).index == 0
    arena.close()


def test_a_dead_keepers_lease_gives_way_but_never_the_newest() -> None:
    """When nothing else is free the lease is broken: the keeper's own check then finds its copy torn."""
    arena = Arena.create(100, slots=3)
    for sequence in range(1, 4):
        write(arena, sequence)
    newest = arena.newest()
    assert newest is not None
    for slot in arena.slots:
        slot.lease()
    for _ in range(5):
        assert arena.choose(set()).index != newest.slot
    arena.close()


def test_a_lease_holds_against_a_process_that_writes_as_fast_as_it_can() -> None:
    """Every copy taken under a lease that is still whole afterwards is one snapshot, not a mix of two."""
    arena = Arena.create(256 << 10, slots=4)
    copies = torn = 0
    command = [sys.executable, "-c", WRITER, ",".join(map(str, arena.fds))]
    with subprocess.Popen(command, pass_fds=arena.fds, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        deadline = time.monotonic() + 20.0
        while copies < 60 and time.monotonic() < deadline:
            commit = arena.newest()
            if commit is None:
                continue
            slot = arena.slots[commit.slot]
            slot.lease()
            time.sleep(0.005)
            if slot.read() == commit:
                copy = bytes(slot.payload(commit.size))
                if slot.read() == commit:
                    copies += 1
                    assert copy == bytes([commit.sequence % 251]) * commit.size
                else:
                    torn += 1
            slot.release()
        writer.kill()
    last = arena.newest()
    assert copies == 60
    assert torn <= copies
    assert last is not None and last.sequence > 60
    assert bytes(arena.slots[last.slot].payload(last.size)) == bytes([last.sequence % 251]) * last.size
    arena.close()


def test_files_have_no_name_unless_asked(tmp_path: Path) -> None:
    unnamed = Arena.create(5000, slots=3, folder=tmp_path / "slots")
    assert list((tmp_path / "slots").iterdir()) == []
    assert (unnamed.where, unnamed.paths) == ("file", [])
    write(unnamed, 1)
    assert unnamed.newest() is not None
    unnamed.close()


def test_named_files_are_found_by_path_and_removed_at_the_end(tmp_path: Path) -> None:
    named = Arena.create(5000, slots=3, folder=tmp_path / "slots", named=True)
    assert len(named.paths) == 3
    assert all(path.stat().st_size == HEADER + 5000 for path in named.paths)
    write(named, 4, b"seen elsewhere")
    code = (
        "import sys; from pathlib import Path; from holdfast.state.slots import Arena\n"
        "arena = Arena.open_paths([Path(word) for word in sys.argv[1:]])\n"
        "commit = arena.newest()\n"
        "print(bytes(arena.slots[commit.slot].payload(commit.size)).decode())"
    )
    told = subprocess.run([sys.executable, "-c", code, *map(str, named.paths)], capture_output=True, text=True)
    assert told.stdout.strip() == "seen elsewhere"
    named.close()
    assert list((tmp_path / "slots").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("where", ["memory", "file", "named"])
def test_nothing_is_left_behind(tmp_path: Path, where: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    folder = None if where == "memory" else tmp_path / "slots"
    arena = Arena.create(1 << 20, slots=4, folder=folder, named=where == "named")
    write(arena, 1)
    arena.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert folder is None or list(folder.iterdir()) == []


# -- no room -------------------------------------------------------------------------------------------------

NO_ROOM = """
import resource, sys
from pathlib import Path
from holdfast.state.slots import Arena
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import os
before = len(os.listdir("/proc/self/fd"))
try:
    Arena.create(512 << 10, slots=1, folder=Path(sys.argv[1]), named=True).close()
    Arena.create(2 << 20, slots=3, folder=Path(sys.argv[1]), named=True)
except OSError as error:
    print("no room", len(os.listdir("/proc/self/fd")) == before, len(list(Path(sys.argv[1]).iterdir())))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit on file size, and /proc")
def test_no_room_is_an_error_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """Reserved before use: without that, the first write past the end is a SIGBUS in the middle of a step."""
    told = subprocess.run([sys.executable, "-c", NO_ROOM, str(tmp_path / "slots")], capture_output=True, text=True)
    assert told.stdout.split() == ["no", "room", "True", "0"], told.stderr
    assert told.returncode == 0


def test_reserved_means_that_the_bytes_are_there(tmp_path: Path) -> None:
    arena = Arena.create(4 << 20, slots=3, folder=tmp_path / "slots", named=True)
    for path in arena.paths:
        assert path.stat().st_blocks * 512 >= 4 << 20
    arena.close()


def test_no_room_is_told_with_what_to_do() -> None:
    error = no_room(300 << 20, "in memory")
    assert error.message == "no room for 300 MiB of snapshots in memory"
    assert any("snapshot.slots=3" in hint for hint in error.hints)


def memory(tmp_path: Path, said: list[dict[str, object]], **settings: object) -> Memory:
    run = RunFolder.create(tmp_path, "test", {})
    loaded = Settings.load({f"snapshot.{key}": value for key, value in settings.items()}, cwd=tmp_path, env={})
    return Memory(run, loaded, portable=False, say=lambda kind, **data: said.append({"kind": kind, **data}))


def test_too_little_memory_falls_back_to_a_file_and_says_so_once(tmp_path: Path) -> None:
    said: list[dict[str, object]] = []
    slots = memory(tmp_path, said, memory="1MB")
    arena = slots.grow(1 << 20)
    assert arena.where == "file"
    assert len(said) == 1 and said[0]["where"] == "file"
    assert "snapshot.memory allows" in str(said[0]["text"])
    slots.close()
    assert not slots.folder.exists()


def test_memory_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    slots = memory(tmp_path, [], memory="1MB", where="memory")
    with pytest.raises(UserError, match="no room for 5 MiB of snapshots in memory"):
        slots.grow(1 << 20)


def test_slots_of_a_larger_size_keep_the_last_commit(tmp_path: Path) -> None:
    slots = memory(tmp_path, [])
    small = slots.grow(1000)
    write(small, 1, b"first")
    large = slots.grow(5000)
    newest = slots.newest()
    assert newest is not None and newest.sequence == 1
    write(large, 2, b"second")
    slots.grow(9000)
    assert slots.arenas[0] is large
    assert len(slots.arenas) == 2
    slots.close()


def test_an_abandoned_worker_keeps_its_slots_and_the_run_gets_others(tmp_path: Path) -> None:
    """It may still write by DMA: what it writes must not reach the run any more."""
    slots = memory(tmp_path, [])
    old = slots.grow(1000)
    write(old, 7, b"precious")
    theirs = Arena.open([os.dup(fd) for fd in old.fds])
    slots.abandon()
    for slot in theirs.slots:
        slot.begin(99)
        slot.payload(8)[:] = b"garbage!"
        slot.commit(sequence=99, step=99, generation=0, size=8)
    found = slots.newest_slot()
    assert found is not None
    arena, commit = found
    assert commit.sequence == 7
    assert bytes(arena.slots[commit.slot].payload(commit.size)) == b"precious"
    theirs.close()
    slots.close()


def test_what_device_and_cpu_agreed_on_outlives_larger_slots(tmp_path: Path) -> None:
    """It is what the run goes back to when the numbers turn out to be wrong: until there is a newer one, it stays."""
    slots = memory(tmp_path, [])
    write(slots.grow(1000), 1, b"agreed").agree()
    large = slots.grow(5000)
    write(large, 2, b"doubtful")
    assert not slots.drop_outgrown()
    assert slots.back_to_agreed() is not None and slots.newest_slot() is not None
    arena, commit = slots.newest_slot() or (large, None)
    assert commit is not None and bytes(arena.slots[commit.slot].payload(commit.size)) == b"agreed"
    write(large, 3, b"agreed again").agree()
    assert slots.drop_outgrown() and slots.arenas == [large]
    slots.close()


@pytest.mark.parametrize("both", [True, False])
def test_what_device_and_cpu_agreed_on_outlives_a_worker_that_cannot_be_killed(tmp_path: Path, both: bool) -> None:
    slots = memory(tmp_path, [])
    arena = slots.grow(1000)
    write(arena, 1, b"agreed").agree()
    if not both:
        write(arena, 2, b"doubtful")
    slots.abandon()
    assert arena not in slots.arenas
    newest = slots.newest()
    assert newest is not None and newest.sequence == (1 if both else 2)
    agreed = slots.back_to_agreed()
    assert agreed is not None and agreed.sequence == 1
    assert bytes(slots.arenas[-1].slots[agreed.slot].payload(agreed.size)) == b"agreed"
    slots.close()


# -- a reader beside a writer --------------------------------------------------------------------------------


class _Words:
    """The header of a slot: notes every load, and lets the writer in before one of them."""

    def __init__(self, words: Any, seen: list[str], before: int = -1, write: Callable[[], None] | None = None) -> None:
        self.words, self.seen, self.before, self.write = words, seen, before, write

    def __getitem__(self, index: int) -> int:
        if self.write is not None and len([each for each in self.seen if each != "fence"]) == self.before:
            write, self.write = self.write, None
            write()
        self.seen.append("sequence" if index == 1 else "word")
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value

    def release(self) -> None:
        self.words.release()


@pytest.mark.parametrize("finishes", [True, False])
def test_what_is_overwritten_while_it_is_read_is_not_believed(finishes: bool) -> None:
    """The writer comes in before each load in turn: what is read is the old commit, the new one, or nothing."""
    for before in range(12):
        arena = Arena.create(8192, slots=1)
        slot = arena.slots[0]
        slot.begin(5)
        slot.commit(sequence=5, step=50, generation=0, size=500)
        old, words = slot.read(), slot.words

        def write(slot: Slot = slot, words: Any = words) -> None:
            slot.words = words
            slot.begin(6)
            words[2], words[4] = 60, 600
            if finishes:
                slot.commit(sequence=6, step=60, generation=1, size=600)

        seen: list[str] = []
        slot.words = _Words(words, seen, before, write)  # type: ignore[assignment]
        read = slot.read()
        slot.words = words
        assert read is None or read == old or (finishes and (read.sequence, read.step, read.size) == (6, 60, 600))
        assert (read == old) == (before >= len([each for each in seen if each != "fence"])), f"before load {before}"
        arena.close()


def test_the_sequence_is_loaded_first_and_last_with_a_fence_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ARM a load may come early or late: nothing between the two looks at the sequence may leave that place."""
    arena = Arena.create(8192, slots=1)
    slot = arena.slots[0]
    slot.begin(5)
    slot.commit(sequence=5, step=50, generation=0, size=500)
    seen: list[str] = []
    monkeypatch.setattr("holdfast.state.slots.fence", lambda: seen.append("fence"))
    words = slot.words
    slot.words = _Words(words, seen)  # type: ignore[assignment]
    assert slot.read() is not None
    slot.words = words
    assert seen[:2] == ["sequence", "fence"] and seen[-2:] == ["fence", "sequence"]
    assert set(seen[2:-2]) == {"word"} and len(seen) > 8
    arena.close()


def test_a_savepoint_is_found_by_its_sequence_and_an_undone_one_is_not() -> None:
    arena = Arena.create(8192, slots=2)
    slot = arena.slots[0]
    slot.begin(5)
    slot.commit(sequence=5, step=50, generation=0, size=500, resumable=False)
    assert arena.newest() is None and arena.find(5) is slot
    found = slot.read(savepoints=True)
    assert found is not None and not found.resumable
    slot.undo()
    assert arena.find(5) is None
    arena.close()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back by Linux's advice alone")
def test_when_training_is_over_only_what_is_saved_keeps_its_memory(tmp_path: Path) -> None:
    mine = memory(tmp_path, [], slots=5)
    arena = mine.grow(LARGE)
    content = bytes(range(256)) * (LARGE // 256)
    slots = [write(arena, sequence, content) for sequence in range(1, 6)]
    slots[0].hold()
    slots[1].lease()
    mine.keep_last()
    mine.wait_until_emptied()
    kept = [os.fstat(slot.fd).st_blocks * 512 >= LARGE for slot in slots]
    assert kept == [True, True, False, True, True]  # held, leased, the end and the one before it
    assert [slot.read() is not None for slot in slots] == kept
    assert all(bytes(slot.payload(LARGE)) == content for slot in (slots[0], slots[1], slots[3], slots[4]))
    mine.close()


def test_a_snapshot_whose_pages_are_mapped_at_once_is_the_same(tmp_path: Path) -> None:
    mine = memory(tmp_path, [], slots=3)
    arena = mine.grow(LARGE)
    content = bytes(range(256)) * (LARGE // 256)
    slot = write(arena, 1, content)
    theirs = Arena.open([os.dup(fd) for fd in arena.fds])
    theirs.slots[slot.index].map_in(LARGE)
    assert bytes(theirs.slots[slot.index].payload(LARGE)) == content
    theirs.close()
    mine.close()
