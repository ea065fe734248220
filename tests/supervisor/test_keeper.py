"""The keeper, a real process: it saves beside a writer that never waits, and outlives its supervisor by one save."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.channel import Channel
from holdfast.base.folders import Folder
from holdfast.run import digests
from holdfast.run.commit_points import SaveReason, Wish
from holdfast.run.folder import RunFolder
from holdfast.run.messages import (
    Adopted,
    ArenasKept,
    Message,
    Owed,
    Quit,
    RunEnds,
    Save,
    SaveReport,
    SlotsAt,
    received,
)
from holdfast.state import checkpoint, layout, weights_file
from holdfast.state.slots import Arena
from holdfast.supervisor import keeper as keeper_module
from holdfast.supervisor import process_start
from holdfast.supervisor.keeper import Keeper
from tests.disks import fill, make_room, small_disk
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are not inherited")

WEIGHTS = 256 << 10
PLAN = layout.plan([("model.weight", "U8", (WEIGHTS,))])

WRITER = """
import sys, time
from tests.supervisor.test_keeper import PLAN, commit
from holdfast.state.slots import Arena
arena = Arena.open([int(word) for word in sys.argv[1].split(",")])
pause = float(sys.argv[2])
print("writing", flush=True)
for step in range(1, 1_000_000):
    commit(arena, step)
    time.sleep(pause)
"""


def commit(arena: Arena, step: int, *, sequence: int = 0, **session: Any) -> None:
    """A snapshot whose every weight is its step, so that a mix of two shows."""
    slot = arena.choose(set())
    slot.begin(sequence or step)
    data = slot.payload(PLAN.total_bytes)
    data[: PLAN.data_start] = PLAN.header
    data[PLAN.span("model.weight")] = bytes([step % 251]) * WEIGHTS
    data[PLAN.span(layout.META)] = PLAN.pack_meta({"parts": {"model": "module"}, "session": {"step": step, **session}})
    slot.commit(sequence=sequence or step, step=step, generation=0, size=PLAN.total_bytes)


def assert_whole(path: Path, step: int) -> None:
    found = checkpoint.check(path)
    assert isinstance(found, checkpoint.Checkpoint), found
    assert found.step == step
    data = found.state.read_bytes()
    assert layout.read_meta(data)["session"]["step"] == step
    assert data[PLAN.span("model.weight")] == bytes([step % 251]) * WEIGHTS


class Kept:
    """A run with slots and a keeper: what the supervisor has in its hands."""

    def __init__(self, root: Path, *, keep: int = 3, portable: bool = False) -> None:
        self.run = RunFolder.create(root, "test", {"state": "RUNNING"})
        self.run.lock()
        folder = self.run.path / "slots" if portable else None
        self.arena = Arena.create(PLAN.total_bytes, slots=4, folder=folder, named=portable)
        self.process, self.channel = process_start.start_keeper(
            self.run.path, keep, self.run.lock_fd, portable=portable
        )
        self.say(ArenasKept((self.arena.at(by_path=portable),)), [] if portable else self.arena.fds)
        assert self.hear() == Adopted(1)

    def say(self, message: Message, fds: Sequence[int] = ()) -> None:
        self.channel.send(message.to_json(), fds)

    def hear(self) -> Message | None:
        return received(self.channel.receive(30.0)[0])

    def save(self, reason: str = "test", weights: Sequence[str] = (), **request: Any) -> SaveReport:
        self.say(Save(Wish(reason, tuple(weights), **request)))
        report = self.hear()
        assert isinstance(report, SaveReport)
        return report

    @contextlib.contextmanager
    def writer(self, pause: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-c", WRITER, ",".join(map(str, self.arena.fds)), str(pause)]
        child = subprocess.Popen(command, pass_fds=self.arena.fds, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        assert wait_until(lambda: self.newest_step() > 0)
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            child.stdout.close()

    def newest_step(self) -> int:
        newest = self.arena.newest()
        return 0 if newest is None else newest.step

    def close(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()
        self.arena.close()
        self.run.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.close()


def test_a_save_with_nothing_to_save_says_so(kept: Kept) -> None:
    answer = kept.save()
    assert answer.saved is None
    assert answer.reason == "test"


def test_a_save_is_on_disk_and_verified(kept: Kept) -> None:
    commit(kept.arena, 7)
    answer = kept.save()
    assert answer.saved["step"] == 7
    assert_whole(kept.run.path / "checkpoints" / "000007", 7)
    found = checkpoint.check(Path(answer.saved["path"]))
    assert isinstance(found, checkpoint.Checkpoint) and answer.saved["sha256"] == found.sha256


def test_the_same_snapshot_is_not_written_twice(kept: Kept) -> None:
    commit(kept.arena, 7)
    assert "path" in kept.save().saved
    assert "path" not in kept.save().saved
    commit(kept.arena, 8)
    assert "path" in kept.save().saved


def test_the_end_of_a_run_is_not_written_twice(kept: Kept) -> None:
    """The snapshot that a run ends with holds what its last epoch has left, at another place: the disk has it."""
    commit(kept.arena, 7, at="epoch", epoch=1)
    first = kept.save().saved
    commit(kept.arena, 7, sequence=8, at="end", epoch=1)
    answer = kept.save(last=True, weights=["final"])
    assert "path" not in answer.saved and answer.saved["weights_sha256"] and answer.why is None
    assert_whole(Path(first["path"]), 7)
    commit(kept.arena, 7, sequence=9, at="end", epoch=2)  # this is another state, if only by a count
    assert "path" in kept.save(last=True).saved


def test_final_weights_that_are_the_best_are_not_written_again(kept: Kept) -> None:
    best, final = kept.run.path / "best.safetensors", kept.run.path / "final.safetensors"
    commit(kept.arena, 7, at="epoch", epoch=1)
    first = kept.save(weights=["best"], best={"name": "loss", "value": 0.5, "step": 7, "epoch": 1}).saved
    commit(kept.arena, 7, sequence=8, at="end", epoch=1)
    last = kept.save(last=True, weights=["final"]).saved
    assert last["weights_sha256"] == first["weights_sha256"]
    assert final.samefile(best) and weights_file.check_weights(final) is None
    commit(kept.arena, 8, at="epoch", epoch=2)  # a run that goes on replaces one of the two
    kept.save(weights=["best"])
    assert not final.samefile(best) and layout.weights_sha256(final.read_bytes()) == first["weights_sha256"]


def test_final_weights_are_written_if_the_best_are_others_or_not_ours_any_more(kept: Kept) -> None:
    best, final = kept.run.path / "best.safetensors", kept.run.path / "final.safetensors"
    commit(kept.arena, 7)
    kept.save(weights=["best"])
    commit(kept.arena, 8)
    sha256 = kept.save(last=True, weights=["final"]).saved["weights_sha256"]
    assert not final.samefile(best) and layout.weights_sha256(final.read_bytes()) == sha256
    kept.save(weights=["best"], sequence=None)
    best.write_bytes(b"somebody else's")
    sha256 = kept.save(last=True, weights=["final"]).saved["weights_sha256"]
    assert not final.samefile(best) and layout.weights_sha256(final.read_bytes()) == sha256


@pytest.mark.parametrize(("ending", "written"), [(8, False), (7, True)])
def test_a_checkpoint_that_the_end_of_the_run_overtakes_is_given_up(tmp_path: Path, ending: int, written: bool) -> None:
    """Unless it is of the very step that the run ends with."""
    arena = Arena.create(PLAN.total_bytes, slots=4)
    commit(arena, 7)
    ours, theirs = Channel.pair()
    keeper = Keeper(theirs, tmp_path, 3)
    keeper.arenas = [arena]
    ours.send(Owed(()).to_json())
    ours.send(RunEnds(ending).to_json())
    answer = keeper._answer(Wish(SaveReason.TIME, weights=("best",)))
    assert ("path" in answer.saved) == written and answer.why is None
    assert len(checkpoint.candidates(tmp_path / "checkpoints")) == int(written)
    assert checkpoint.leftovers(tmp_path / "checkpoints") == []
    assert (tmp_path / "best.safetensors").exists(), "weights are of their own worth"
    assert [type(message) for message, _ in keeper.inbox] == [Owed, RunEnds], "what came meanwhile is heard"
    ours.close()
    theirs.close()
    arena.close()


def test_weights_and_their_digest(kept: Kept) -> None:
    commit(kept.arena, 9)
    answer = kept.save(weights=["best", "final"], checkpoint=False)
    assert "path" not in answer.saved
    for name in ("best", "final"):
        data = (kept.run.path / f"{name}.safetensors").read_bytes()
        assert layout.weights_sha256(data) == answer.saved["weights_sha256"]
    assert not list((kept.run.path / "checkpoints").iterdir())


@pytest.mark.all
def test_every_save_beside_a_writer_that_never_waits_is_one_whole_snapshot(kept: Kept) -> None:
    steps = [0]
    with kept.writer() as writer:
        for _ in range(25):
            # A snapshot that is saved is not saved again: on a busy machine the writer may not have come to the next.
            assert wait_until(lambda: kept.newest_step() > steps[-1])
            answer = kept.save(weights=["best"])
            assert answer.saved is not None, answer
            step = answer.saved["step"]
            assert_whole(Path(answer.saved["path"]), step)
            steps.append(step)
        assert writer.poll() is None
    assert steps == sorted(set(steps)), "each save is a newer one"
    assert len(list((kept.run.path / "checkpoints").iterdir())) == 3
    assert all(not slot.leased for slot in kept.arena.slots)


def test_a_snapshot_overwritten_while_it_is_copied_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker held up between choosing a slot and marking it writes into the lease: the mix has a good digest."""
    arena = Arena.create(PLAN.total_bytes, slots=4)
    commit(arena, 1)
    ours, theirs = Channel.pair()
    keeper = Keeper(theirs, tmp_path, 3)
    keeper.arenas = [arena]
    copy = checkpoint.write_file

    def interrupted(folder: Folder, name: str, *rest: Any) -> None:
        copy(folder, name, *rest)
        newest = arena.newest()
        assert newest is not None
        arena.slots[newest.slot].begin(99)

    for module in (checkpoint, digests):
        monkeypatch.setattr(module, "write_file", interrupted)
    assert "overwritten" in keeper._answer(Wish("test")).why
    assert checkpoint.candidates(tmp_path / "checkpoints") == []
    commit(arena, 2)
    assert "overwritten" in keeper._answer(Wish("test", weights=("best",), checkpoint=False)).why
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoints"]
    ours.close()
    theirs.close()
    arena.close()


def test_a_place_that_cannot_be_written_to_is_said_and_survived(kept: Kept) -> None:
    commit(kept.arena, 1)
    folder = kept.run.path / "checkpoints"
    folder.rmdir()
    folder.write_text("in the way")
    answer = kept.save()
    assert answer.saved is None
    assert (answer.why, answer.errno) == ("checkpoints is a file, not a folder", errno.ENOTDIR)
    folder.unlink()
    folder.mkdir()
    assert kept.save().saved["step"] == 1
    assert all(not slot.leased for slot in kept.arena.slots)


def steps_on_disk(kept: Kept) -> list[int]:
    return [int(path.name) for path in checkpoint.candidates(kept.run.path / "checkpoints")]


def test_the_oldest_makes_room_for_the_newest_where_one_more_does_not_fit(tmp_path: Path) -> None:
    """Room for three checkpoints, and three are kept: writing a fourth beside them is not possible."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        kept = Kept(disk, keep=3)
        for step in range(1, 6):
            commit(kept.arena, step)
            assert kept.save().saved["step"] == step
            assert_whole(kept.run.path / "checkpoints" / f"{step:06d}", step)
        assert steps_on_disk(kept) == [5, 4, 3]
        kept.close()


def test_the_only_good_checkpoint_never_makes_room_for_one_that_may_not_fit(tmp_path: Path) -> None:
    """Those after it are damaged, so it is the oldest. It stays, and when there is room the newest is saved."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        kept = Kept(disk, keep=3)
        for step in (1, 2, 3):
            commit(kept.arena, step)
            kept.save()
        for step in (2, 3):
            os.truncate(kept.run.path / "checkpoints" / f"{step:06d}" / "state.safetensors", 100)
        fill(disk)
        commit(kept.arena, 4)
        answer = kept.save(weights=["best"], last=True)
        assert (answer.saved, answer.why, answer.errno) == (
            None,
            "No space left on device",
            errno.ENOSPC,
        )
        assert steps_on_disk(kept) == [1]
        assert_whole(kept.run.path / "checkpoints" / "000001", 1)
        assert not list(kept.run.path.rglob(".*")), "nothing half-written is left"
        make_room(disk)
        assert kept.save(weights=["best"]).saved["step"] == 4
        assert steps_on_disk(kept) == [4, 1]
        kept.close()


def test_weights_are_saved_where_the_state_does_not_fit(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "420k") as disk:
        kept = Kept(disk)
        (disk / "filler").write_bytes(b"x" * (100 << 10))
        commit(kept.arena, 1)
        answer = kept.save(weights=["final"])
        assert (answer.why, answer.errno) == ("No space left on device", errno.ENOSPC)
        assert "path" not in answer.saved and answer.saved["weights_sha256"]
        assert weights_file.check_weights(kept.run.path / "final.safetensors") is None
        kept.close()


def test_last_weights_that_found_no_room_beside_the_checkpoint_are_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota does not show in what a disk says of its room. The last checkpoint takes that of the oldest ones."""
    monkeypatch.setattr(keeper_module, "_has_room", lambda run, size: True)
    with small_disk(tmp_path / "disk", "1m") as disk:
        ours, theirs = Channel.pair()
        keeper = Keeper(theirs, disk, 3)
        keeper.arenas = [arena] = [Arena.create(PLAN.total_bytes, slots=4)]
        for step in (1, 2, 3):
            commit(arena, step)
            assert keeper._answer(Wish("test")).why is None
        with open(disk / "filler", "wb") as filler:  # less than a file of weights is left
            filler.write(b"x" * (shutil.disk_usage(disk).free - WEIGHTS // 2))
        (disk / ".final.safetensors.1.tmp").write_bytes(b"of a keeper that was killed")
        commit(arena, 4)
        answer = keeper._answer(Wish(SaveReason.END, weights=("final",), last=True))
        assert answer.why is None and answer.saved["weights_sha256"] and answer.saved["step"] == 4
        assert weights_file.check_weights(disk / "final.safetensors") is None
        assert_whole(disk / "checkpoints" / "000004", 4)
        assert not list(disk.glob(".*"))
        for each in (ours, theirs, arena):
            each.close()


def test_a_held_snapshot_that_the_disk_refused_stays_held(kept: Kept) -> None:
    """The best epoch's weights are owed; they are asked for again when there is room."""
    commit(kept.arena, 1)
    slot = kept.arena.find(1)
    assert slot is not None
    slot.hold()
    away = kept.run.path.with_name("away")
    kept.run.path.rename(away)
    answer = kept.save(weights=["best"], sequence=1)
    assert (answer.saved, answer.why) == (None, "the run folder is gone")
    assert slot.held and not slot.leased
    for step in range(2, 9):
        commit(kept.arena, step)
    away.rename(kept.run.path)
    assert kept.save(weights=["best"], sequence=1).saved["step"] == 1
    assert not slot.held


def test_a_snapshot_that_is_none_is_an_answer_and_not_the_end_of_the_keeper(kept: Kept) -> None:
    """A worker gone wild may write anything into the memory it shares."""
    commit(kept.arena, 1)
    newest = kept.arena.newest()
    assert newest is not None
    kept.arena.slots[newest.slot].payload(newest.size)[:8] = b"\xff" * 8
    answer = kept.save(weights=["best"])
    assert answer.saved is None and answer.errno is None
    assert answer.why.startswith("the snapshot is damaged: ")
    commit(kept.arena, 2)
    assert kept.save().saved["step"] == 2


def test_larger_slots_take_the_place_of_the_old_ones(kept: Kept) -> None:
    commit(kept.arena, 1)
    larger = Arena.create(2 * PLAN.total_bytes, slots=4)
    commit(larger, 2)
    fds = [*kept.arena.fds, *larger.fds]
    kept.say(ArenasKept((SlotsAt(slots=4), SlotsAt(slots=4))), fds)
    assert kept.hear() == Adopted(2)
    assert kept.save().saved["step"] == 2
    kept.say(ArenasKept((SlotsAt(slots=4),)), larger.fds)
    assert kept.hear() == Adopted(1)
    commit(larger, 3)
    assert kept.save().saved["step"] == 3
    maps = _maps(kept.process.pid)
    assert maps is None or maps.count("holdfast-slot") == 4, "the old ones are let go"
    larger.close()


def test_told_to_quit_it_ends_and_writes_nothing_more(kept: Kept) -> None:
    commit(kept.arena, 5)
    kept.say(Quit())
    assert kept.process.wait(100) == 0
    assert not list((kept.run.path / "checkpoints").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_of_a_terminal_or_a_scheduler_do_not_end_it(kept: Kept, number: int) -> None:
    """They come to everybody at once; the supervisor decides what is saved."""
    commit(kept.arena, 5)
    kept.process.send_signal(number)
    time.sleep(0.05)
    assert kept.save().saved["step"] == 5


def test_the_last_snapshot_is_saved_when_the_supervisor_dies_and_the_lock_is_held_until_then(tmp_path: Path) -> None:
    """`kill -9` of supervisor and worker: the kernel closes their descriptors, nobody says goodbye."""
    kept = Kept(tmp_path)
    with kept.writer(pause=0.001):
        assert wait_until(lambda: kept.newest_step() > 20)
    last = kept.newest_step()
    kept.channel.close()
    kept.run.close()
    assert RunFolder(kept.run.path).in_use(), "the keeper holds the lock beside us"
    assert kept.process.wait(100) == 0
    assert not RunFolder(kept.run.path).in_use()
    assert_whole(kept.run.path / "checkpoints" / f"{last:06d}", last)
    kept.arena.close()


@pytest.mark.all
def test_a_worker_that_outlives_its_supervisor_for_a_moment_loses_nothing(tmp_path: Path) -> None:
    """The kernel ends workers with their parent, but not in the same instant."""
    kept = Kept(tmp_path)
    with kept.writer(pause=0.01):
        assert wait_until(lambda: kept.newest_step() > 5)
        kept.channel.close()
        kept.run.close()
        time.sleep(0.5)
    last = kept.newest_step()
    assert kept.process.wait(100) == 0
    assert_whole(kept.run.path / "checkpoints" / f"{last:06d}", last)
    kept.arena.close()


def test_what_was_saved_already_is_not_saved_again_at_the_end(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    commit(kept.arena, 3)
    kept.save()
    path = kept.run.path / "checkpoints" / "000003" / "digest.json"
    before = path.stat().st_mtime_ns
    kept.channel.close()
    assert kept.process.wait(100) == 0
    assert path.stat().st_mtime_ns == before
    kept.arena.close()
    kept.run.close()


def test_a_killed_keeper_leaves_no_half_checkpoint_and_a_new_one_goes_on(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    with kept.writer():
        for _ in range(5):
            kept.save()
            kept.say(Save(Wish("cut")))
            time.sleep(0.004)
            kept.process.kill()
            kept.process.wait()
            kept.channel.close()
            for path in checkpoint.candidates(kept.run.path / "checkpoints"):
                assert isinstance(checkpoint.check(path), checkpoint.Checkpoint)
            kept.process, kept.channel = process_start.start_keeper(kept.run.path, 3, kept.run.lock_fd, portable=False)
            kept.say(ArenasKept((SlotsAt(slots=4),)), kept.arena.fds)
            assert kept.hear() == Adopted(1)
            kept.arena.release_all()
        assert kept.save().saved["step"] > 0
    assert not list((kept.run.path / "checkpoints").glob(".*")), "what was half written is cleared away"
    kept.close()


def test_everywhere_else_it_opens_the_slots_by_path(tmp_path: Path) -> None:
    """HOLDFAST_PORTABLE: loopback and plain files."""
    kept = Kept(tmp_path, portable=True)
    commit(kept.arena, 4)
    assert kept.save(weights=["final"]).saved["step"] == 4
    assert_whole(kept.run.path / "checkpoints" / "000004", 4)
    commit(kept.arena, 6)
    kept.channel.close()
    assert kept.process.wait(100) == 0
    assert_whole(kept.run.path / "checkpoints" / "000006", 6)
    kept.close()


def test_it_imports_no_torch(kept: Kept) -> None:
    commit(kept.arena, 1)
    kept.save()
    maps = _maps(kept.process.pid)
    if maps is None:
        pytest.skip("needs /proc")
    assert "libtorch" not in maps
    assert "numpy" not in maps


def _maps(pid: int) -> str | None:
    """What is mapped into the memory of a process, where the system tells."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return None


def test_the_channel_of_the_keeper_is_not_shared_with_other_children(kept: Kept) -> None:
    """Another child that inherited our end would keep it open after our death, and nothing would be saved."""
    ours = kept.channel.fileno()
    assert not os.get_inheritable(ours)
    assert isinstance(kept.channel, Channel)
