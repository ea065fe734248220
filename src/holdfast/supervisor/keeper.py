"""The keeper: copies the newest snapshot to disk, verifies it, keeps the last few. No torch.

The supervisor starts it with the run's lock and sends it the slots; it answers each `save` with what was
written, or why nothing was: a full disk is no reason to end. When the supervisor dies, the keeper still holds the
memory: it saves the newest snapshot once more and only then lets go of the lock, so that even `kill -9` of everything
else loses no committed step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.base.board import Board
from holdfast.base.channel import Channel, Closed
from holdfast.base.files import remove
from holdfast.base.scratch import Scratch
from holdfast.run import seal
from holdfast.run.commit_points import SaveReason, Wish
from holdfast.run.digests import Origin
from holdfast.run.folder import LAST_WORD, write_json
from holdfast.run.messages import (
    Adopted,
    ArenasKept,
    BoardKept,
    KeeperBegins,
    Message,
    Owed,
    Quit,
    RunEnds,
    Save,
    SaveReport,
    received,
)
from holdfast.state import checkpoint, layout
from holdfast.state.slots import Arena, Commit, Slot, fence
from holdfast.state.weights_file import link_weights, write_weights
from holdfast.supervisor import rescue_folder

BEST = "best.safetensors"
_SETTLE = 0.005
"""Seconds between a lease and the first look: longer than a worker takes from choosing a slot to marking it."""
_TRIES = 20
_FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
_SPARE = 64 << 10
"""Bytes for the digests and the file system's own books."""


class Superseded(Exception):
    """The run is over, and the snapshot of its end is saved instead."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot that is on disk."""

    sequence: int
    step: int
    size: int
    path: Path


@dataclass(frozen=True, slots=True)
class Best:
    """The file with the best weights, as it was written."""

    step: int
    sha256: str
    file: tuple[int, int, int]
    """Which file it is, its size and when it was changed: somebody may have put another one there."""

    @classmethod
    def of(cls, run: Path, step: int, sha256: str) -> Best | None:
        with contextlib.suppress(OSError):
            status = os.lstat(run / BEST)
            return cls(step, sha256, (status.st_ino, status.st_size, status.st_mtime_ns))
        return None


class Keeper:
    """The keeper's side of the conversation."""

    def __init__(self, channel: Channel, run: Path, keep: int) -> None:
        self.channel = channel
        self.run = run
        self.keep = keep
        self.arenas: list[Arena] = []
        self.saved: Saved | None = None
        """The newest checkpoint in the run's own folder."""
        self.best: Best | None = None
        self.inbox: deque[tuple[Message | None, list[int]]] = deque()
        """Messages that came while something was written."""
        self._listening = threading.Lock()
        self.board: Board | None = None
        self.scratch: Scratch | None = None
        self.owed: list[Wish] = []
        """Saves of snapshots that are held, which the supervisor will ask for unless it dies."""
        self.info: dict[str, Any] = {}
        """run.json, for the time when it cannot be read."""

    @property
    def saved_sequence(self) -> int:
        return -1 if self.saved is None else self.saved.sequence

    @property
    def origin(self) -> Origin | None:
        return Origin.of(self.info, self.run) if self.info else None

    def serve(self) -> None:
        """Answer until told to quit or until the supervisor is gone."""
        rows: dict[type[Message], Callable[[Any, list[int]], None]] = {
            KeeperBegins: self._begin,
            ArenasKept: self._adopt,
            BoardKept: self._watch,
            Save: lambda asked, _: self._say(self._answer(asked.wish)),
            Owed: self._owe,
        }
        try:
            while True:
                message, fds = self.inbox.popleft() if self.inbox else self._receive()
                if isinstance(message, Quit):
                    return
                row = None if message is None else rows.get(type(message))
                if row is not None:
                    row(message, fds)
        except Closed:
            self._last_rites()

    def _receive(self) -> tuple[Message | None, list[int]]:
        data, fds = self.channel.receive()
        return received(data), fds

    def _begin(self, message: KeeperBegins, fds: list[int]) -> None:
        self.scratch, self.info = Scratch(Path(message.scratch)), message.info

    def _owe(self, message: Owed, fds: list[int]) -> None:
        self.owed = list(message.wishes)

    def _adopt(self, message: ArenasKept, fds: list[int]) -> None:
        """Take the slots the supervisor owns now; older ones are let go."""
        old, self.arenas = self.arenas, [Arena.open_at(each, fds) for each in message.arenas]
        for arena in old:
            arena.close()
        self._say(Adopted(len(self.arenas)))

    def _say(self, answer: Message) -> None:
        """To a supervisor that may have died meanwhile: what it still asked for before is heard first."""
        with contextlib.suppress(Closed):
            self.channel.send(answer.to_json())

    def _watch(self, message: BoardKept, fds: list[int]) -> None:
        """The board of the worker there is now: what it says at the end is the dead supervisor's last count."""
        if self.board is not None:
            self.board.close(unlink=False)
        self.board = Board.open_path(Path(message.path)) if message.path else Board.open(fds[0])

    def _answer(self, request: Wish) -> SaveReport:
        began = time.monotonic()
        saved, refused = self._save(request)
        seconds = time.monotonic() - began
        if refused is None:
            return SaveReport(request.reason, request.weights, seconds, saved)
        why = str(refused.strerror or refused)
        return SaveReport(request.reason, request.weights, seconds, saved, why, refused.errno)

    def _save(self, request: Wish) -> tuple[dict[str, Any] | None, OSError | None]:
        """Copy the newest snapshot, or the one that was held; (None, None) if there is none yet."""
        wanted = request.sequence
        try:
            leased = self._lease() if wanted is None else self._held(wanted)
        except OSError as error:
            return None, error
        if leased is None:
            return None, None
        slot, commit = leased
        refused: OSError | None = None
        try:
            report, refused = self._write(request, slot, commit)
            return report, refused
        finally:
            slot.release()
            if wanted is not None and (refused is None or refused.errno is None):
                slot.let_go()  # otherwise it is asked for again, once there is room
                self.owed = [each for each in self.owed if (each.sequence or 0) > wanted]

    def _write(self, request: Wish, slot: Slot, commit: Commit) -> tuple[dict[str, Any] | None, OSError | None]:
        """The checkpoint, then the weights. They are smaller, and may find room where the checkpoint found none.

        The last save is waited for: there both are written at once, if the disk has room for more than both.
        """
        slot.map_in(commit.size)
        payload = slot.payload(commit.size)
        check = partial(self._check_untouched, slot, commit)
        run = Path(request.folder) if request.folder else self.run
        report: dict[str, Any] = {"step": commit.step, "sequence": commit.sequence, "bytes": commit.size}
        written, refused = False, None
        if not run.is_dir():
            return None, _gone()
        last, weights = request.last, request.weights
        at_once = last and bool(weights) and _has_room(run, 3 * commit.size)
        with ThreadPoolExecutor(2) as beside:
            sha256 = beside.submit(layout.weights_sha256, payload) if weights and last else None
            write = partial(self._write_weights, request, run, payload, commit, check, sha256)
            early = beside.submit(write) if at_once else None
            if request.checkpoint and commit.resumable and (run != self.run or not self._is_saved(slot, commit)):
                try:
                    made = self._write_checkpoint(run, payload, commit, check, last=last)
                    report["path"], report["sha256"] = str(made.path), made.sha256
                    written = True
                except Superseded:
                    report["superseded"] = True
                except (OSError, layout.BadHeader) as error:
                    refused = _as_os_error(error) if run.is_dir() else _gone()
            try:
                if early is None or _found_no_room(early):  # the checkpoint may have made some since then
                    write()
                if weights:
                    report["weights_sha256"] = layout.weights_sha256(payload) if sha256 is None else sha256.result()
                    check()
                if "best" in weights and run == self.run:
                    self.best = Best.of(run, commit.step, report["weights_sha256"])
            except (OSError, layout.BadHeader) as error:
                return report if written else None, _as_os_error(error)
        return None if refused is not None and not weights else report, refused

    def _write_weights(
        self,
        request: Wish,
        run: Path,
        payload: memoryview,
        commit: Commit,
        check: Callable[[], None],
        sha256: Future[str] | None,
    ) -> None:
        aside = partial(self._aside, last=request.last)
        for name in request.weights:
            path = run / f"{name}.safetensors"
            if name == "final" and sha256 is not None and self._is_best(path, commit.step, sha256):
                continue
            best = request.best if name == "best" else None
            write_weights(path, payload, step=commit.step, best=best, origin=self.origin, check=check, aside=aside)

    def _is_best(self, path: Path, step: int, sha256: Future[str]) -> bool:
        """Whether the best weights are these: then their file gets a second name, and nothing is written."""
        best = self.best
        if best is None or best.step != step or path.parent != self.run or best.sha256 != sha256.result():
            return False
        return best == Best.of(self.run, step, best.sha256) and link_weights(self.run / BEST, path)

    def _is_saved(self, slot: Slot, commit: Commit) -> bool:
        """Whether the newest checkpoint holds this state: it is this snapshot, or one that differs in its place alone.

        A run ends with a snapshot of the state that the end of its last epoch has left. Going on from either comes to
        the same.
        """
        saved = self.saved
        if saved is None or commit.sequence == saved.sequence:
            return saved is not None
        if (commit.step, commit.size) != (saved.step, saved.size) or not saved.path.is_dir():
            return False
        other = next((found for arena in self.arenas if (found := arena.find(saved.sequence)) is not None), None)
        if other is None:
            return False
        before = other.read()
        other.map_in(commit.size)
        same = layout.same_state(slot.payload(commit.size), other.payload(commit.size))
        return same and before is not None and before.sequence == saved.sequence and other.read() == before

    def _still_wanted(self, commit: Commit, check: Callable[[], None]) -> None:
        """Called while a checkpoint is written that is not the last one: the run may have come to its end."""
        ending = self._ending()
        if ending is not None and ending != commit.step:
            raise Superseded
        check()

    def _ending(self) -> int | None:
        """The last step of the run, if it has come to its end while something is written."""
        with self._listening, contextlib.suppress(Closed):  # that is heard again when this is done
            while self.channel.has_news():
                self.inbox.append(self._receive())
        return next((message.step for message, _ in list(self.inbox) if isinstance(message, RunEnds)), None)

    def _aside(self, *, last: bool) -> bool:
        """Whether somebody trains, and nobody waits for what is written."""
        return not last and self._ending() is None

    def _write_checkpoint(
        self, run: Path, payload: memoryview, commit: Commit, check: Callable[[], None], *, last: bool
    ) -> checkpoint.Checkpoint:
        folder = run / "checkpoints"
        wanted = check if last else partial(self._still_wanted, commit, check)
        aside = partial(self._aside, last=last)
        write = partial(
            checkpoint.write, folder, payload, step=commit.step, origin=self.origin, check=wanted, aside=aside
        )
        try:
            self._expect_room(run, commit.size)
            written = write()
        except OSError as error:
            # One more than is kept does not fit: then the oldest goes before the new one has come, and not after.
            if error.errno not in _FULL or not checkpoint.make_room(folder, keep=1 if last else self.keep - 1):
                raise
            self._expect_room(run, commit.size)
            written = write()
        if run == self.run:
            self.saved = Saved(commit.sequence, commit.step, commit.size, written.path)
        checkpoint.prune(folder, keep=self.keep, newest=commit.step)
        return written

    def _expect_room(self, run: Path, size: int) -> None:
        """Do not write gigabytes to learn that they do not fit, and take the last byte from others meanwhile."""
        if not _has_room(run, size):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _held(self, sequence: int) -> tuple[Slot, Commit]:
        """The snapshot the worker held for us."""
        for arena in self.arenas:
            slot = arena.find(sequence)
            commit = slot.read(savepoints=True) if slot is not None else None
            if slot is not None and commit is not None:
                slot.lease()
                return slot, commit
        raise OSError("the snapshot that was to be saved is gone")

    def _lease(self) -> tuple[Slot, Commit] | None:
        """Hold the newest snapshot so that the worker writes elsewhere."""
        for _ in range(_TRIES):
            newest = self._newest()
            if newest is None:
                return None
            slot, commit = newest
            slot.lease()
            time.sleep(_SETTLE)
            if slot.read() == commit:
                return slot, commit
            slot.release()
        raise OSError("the worker overwrites its snapshots faster than they can be held")

    def _newest(self) -> tuple[Slot, Commit] | None:
        found = [(arena, commit) for arena in self.arenas if (commit := arena.newest()) is not None]
        if not found:
            return None
        arena, commit = max(found, key=lambda pair: pair[1].sequence)
        return arena.slots[commit.slot], commit

    def _check_untouched(self, slot: Slot, commit: Commit) -> None:
        fence()  # the copy was made before this look
        if slot.read(savepoints=True) != commit:
            raise OSError("the snapshot was overwritten while it was copied")

    def _last_rites(self) -> None:
        """The supervisor is dead, so the worker is too: save what it owed, and what was committed last."""
        for wish in self.owed:
            self._save(replace(wish, checkpoint=False))
        seen = self._newest()
        for _ in range(20):
            time.sleep(0.1)
            newest = self._newest()
            if newest == seen:
                break
            seen = newest
        if seen is not None and seen[1].sequence != self.saved_sequence:
            for arena in self.arenas:
                arena.release_all()
            _, refused = self._save(Wish(SaveReason.END, last=True))
            if refused is not None:
                self._rescue(seen[1], refused)
        with contextlib.suppress(OSError):
            self._leave_word(seen[1] if seen is not None else None)
        self._clean_up()

    def _rescue(self, commit: Commit, refused: OSError) -> None:
        """The run folder does not take it: a folder elsewhere, with all that a resume needs."""
        place = rescue_folder.find(self.run.name, need=commit.size)
        why = str(refused.strerror or refused)
        try:
            if place is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            place.mkdir(mode=0o700)  # in a folder that `mkdtemp` has just made
            write_json(place / "run.json", seal.carried(self.run, place, self.info))
            saved, again = self._save(Wish(SaveReason.END, folder=str(place)))
            if again is not None or saved is None:
                raise again or OSError(errno.ENOENT, "there is nothing to save")
        except OSError as error:
            print(f"holdfast: step {commit.step} is lost: {why}; elsewhere: {error.strerror}", file=sys.stderr)
            return
        print(f"holdfast: {self.run} could not be written ({why}); step {commit.step} is in {place}", file=sys.stderr)

    def _leave_word(self, commit: Commit | None) -> None:
        """How far the last worker was, for the accounts of whoever resumes the run."""
        if self.board is None:
            return
        beat = self.board.read()
        record = {
            "attempts": beat.attempts,
            "attempt": beat.attempt,
            "step": commit.step if commit else beat.step,
            "phase": beat.phase.label,
            "commit_ns": commit.time_ns if commit else None,
        }
        write_json(self.run / LAST_WORD, record)

    def _clean_up(self) -> None:
        """What the supervisor would have removed."""
        if self.scratch is not None:
            self.scratch.remove()
        if sys.platform != "win32":  # there the lock is not inherited, and the next supervisor may be at work already
            remove(self.run / "slots")


def _found_no_room(done: Future[None]) -> bool:
    """Whether that was why it failed; any other error is raised."""
    try:
        done.result()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        return True
    return False


def _has_room(run: Path, size: int) -> bool:
    """Also where nobody knows: then writing will tell."""
    try:
        usage = shutil.disk_usage(run)
    except OSError:
        return True
    return not usage.total or usage.free >= size + _SPARE


def _gone() -> OSError:
    return OSError(errno.ENOENT, "the run folder is gone")


def _as_os_error(error: OSError | layout.BadHeader) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"the snapshot is damaged: {error}")


def main(argv: list[str]) -> int:
    """`python -m holdfast.supervisor.keeper FD RUN KEEP`, started by the supervisor."""
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides when saving ends
    where, run, keep = argv
    if where.startswith("port:"):
        from holdfast.base.channel import connect_back

        channel = connect_back(int(where[5:]), os.environ["HOLDFAST_TOKEN"])
    else:
        channel = Channel.from_fd(int(where))
    Keeper(channel, Path(run), int(keep)).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
