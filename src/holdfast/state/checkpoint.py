"""Checkpoints: snapshots on disk, with digests, written whole or not at all. No torch, no pickle.

    saved = write(folder, payload, step=3600)         # keeper: temporary folder, fsync, read back, rename
    newest, passed_over = newest_good(folder)         # resume: the newest that is exactly what was written
    check(folder / "003600")                          # a Checkpoint, or Damaged with the reason and the tensors
    write_weights(path, payload)                      # the model alone: weights.py

A checkpoint is a folder `003600/` with `state.safetensors` (the snapshot's own bytes) and `digest.json`. What is
read here may come from anybody: no link is followed, and nothing is believed before its digest agrees.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import forget_cached, open_regular
from holdfast.base.folders import Folder
from holdfast.base.human import counted
from holdfast.run.digests import (
    CHUNK,
    HEADER,
    MAX_BYTES,
    BadDigests,
    Digests,
    Origin,
    Piece,
    Unlike,
    always,
    digest_next,
    write_checked,
    write_file,
)
from holdfast.run.events import Event, utc_now
from holdfast.state import layout
from holdfast.state.weights_file import write_weights as write_weights

STATE = "state.safetensors"
DIGEST = "digest.json"
_STEP = re.compile(r"[0-9]{1,18}")
_UNFINISHED = re.compile(r"\.[0-9]{1,18}\.[0-9]{1,18}\.(tmp|old)")
_NAMED = 3
"""Damaged tensors named in one line; `holdfast fsck` names more."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was verified when this was made."""

    path: Path
    step: int
    size: int
    sha256: str

    @property
    def state(self) -> Path:
        return self.path / STATE


@dataclass(frozen=True, slots=True)
class Damaged:
    """A checkpoint that is not used, and why: in words that follow "checkpoint 003600 is skipped: "."""

    path: Path
    reason: str
    tensors: tuple[str, ...] = ()
    """Those whose bytes are not the ones written, where that can be told."""

    def __str__(self) -> str:
        if not self.tensors:
            return self.reason
        more = len(self.tensors) - _NAMED
        return f"{self.reason}: {', '.join(self.tensors[:_NAMED])}{f' and {more} more' if more > 0 else ''}"


class _Unlike(Exception):
    """A file does not hold what its digests say."""

    def __init__(self, reason: str, tensors: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tensors = tuple(tensors)


def _nothing() -> None:
    return None


# Writing --------------------------------------------------------------------------------------------------


def write(
    folder: Path,
    payload: memoryview,
    *,
    step: int,
    origin: Origin | None = None,
    check: Callable[[], None] = _nothing,
    aside: Callable[[], bool] = always,
) -> Checkpoint:
    """Write one checkpoint and read it back; what is not the same bytes never gets its final name.

    `check` raises OSError if the payload changed while it was copied: a mix of two steps has a good digest too.
    `aside` says whether somebody trains meanwhile, who comes first: then all of it is read back. Otherwise somebody
    waits for it, and a part of it is (digests.write_checked).
    The folder that `folder` lies in is not made anew: a run folder that is gone was taken away by somebody.
    """
    final = f"{step:06d}"
    temporary = f".{final}.{os.getpid()}.tmp"
    origin = origin or Origin.of_folder(folder.parent)
    with Folder.at(folder, inner=1, make=True) as place:
        place.discard(temporary)
        place.make(temporary)
        try:
            with place.below(temporary) as inside:
                pieces = _write_state(inside, payload, check, aside)
                check()
                digests = Digests(step, origin, utc_now(), pieces)
                write_file(inside, DIGEST, [memoryview(digests.sealed())])
                _check_digests(inside, digests)
                inside.sync()
            _put(place, temporary, final)
        except BaseException:
            place.discard(temporary)
            raise
        place.sync()
    return Checkpoint(folder / final, step, digests.size, digests.sha256)


def _write_state(
    folder: Folder, payload: memoryview, check: Callable[[], None], aside: Callable[[], bool]
) -> tuple[Piece, ...]:
    try:
        entries, start = layout.parse_header(payload)
    except layout.BadHeader:
        check()  # it may be no header because it was overwritten
        raise
    stop = start + (entries[-1].stop if entries else 0)
    if stop != len(payload):
        raise layout.BadHeader(f"{len(payload) - stop} bytes belong to no tensor")
    spans = [(HEADER, 0, start), *((entry.name, start + entry.start, start + entry.stop) for entry in entries)]
    pieces = [payload[begin:end] for _, begin, end in spans]
    try:
        hashed = write_checked(folder, STATE, pieces, check, aside=aside)
    except Unlike as error:
        check()  # it may be another because it was overwritten meanwhile
        raise OSError(errno.EIO, f"what was read back from {STATE} is not what was written") from error
    return tuple(Piece(name, end - begin, sha) for (name, begin, end), sha in zip(spans, hashed, strict=True))


def _check_digests(folder: Folder, digests: Digests) -> None:
    try:
        if Digests.unseal(_read_digest(folder)) != digests:
            raise BadDigests("is another one")
    except BadDigests as error:
        raise OSError(errno.EIO, f"what was read back from {DIGEST} is not what was written") from error


def _put(place: Folder, temporary: str, final: str) -> None:
    """Give it its name. Never a moment without one: an old one of the same step goes after the new one has come."""
    aside = f"{temporary.removesuffix('.tmp')}.old"
    with contextlib.suppress(FileNotFoundError):
        place.rename(final, aside)
    place.rename(temporary, final)
    place.discard(aside)


# Checking -------------------------------------------------------------------------------------------------


def check(path: Path, origin: Origin | None = None) -> Checkpoint | Damaged:
    """The checkpoint if it is what was written for this step of this run, otherwise why it is not trusted.

    Without `origin`, run.json beside the folder of checkpoints says which run this is; if there is none, any run's
    will do.
    """
    try:
        with Folder.at(path.parent, inner=1) as place:
            kind = place.kind(path.name)
            if kind != "a folder":
                return Damaged(path, f"it is {kind or 'a file'}, not a folder")
            with place.below(path.name) as folder:
                return _checked(path, folder, origin)
    except _Unlike as unlike:
        return Damaged(path, unlike.reason, unlike.tensors)
    except OSError as error:
        return Damaged(path, f"it cannot be read: {error.strerror or error}")


def _checked(path: Path, folder: Folder, origin: Origin | None) -> Checkpoint | Damaged:
    digests = _digests_of(folder)
    if not _STEP.fullmatch(path.name) or digests.step != int(path.name):
        return Damaged(path, f"it is of step {digests.step}")
    wanted = origin or Origin.of_folder(path.parent.parent)
    if wanted is not None and digests.origin is not None and digests.origin != wanted:
        return Damaged(path, f"it belongs to another run: {digests.origin.run}")
    _compare(folder, digests)
    _check_form(folder)
    return Checkpoint(path, digests.step, digests.size, digests.sha256)


def _read_digest(folder: Folder) -> bytes:
    with folder.read(DIGEST) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"longer than {MAX_BYTES} bytes")
    return data


def _digests_of(folder: Folder) -> Digests:
    try:
        return Digests.unseal(_read_digest(folder))
    except BadDigests as error:
        raise _Unlike(f"its {DIGEST} {error}") from error
    except FileNotFoundError as error:
        raise _Unlike(f"its {DIGEST} is missing") from error
    except OSError as error:
        raise _Unlike(f"its {DIGEST} cannot be read: {error.strerror or error}") from error


def _compare(folder: Folder, digests: Digests) -> None:
    """Raise _Unlike if a state is not what its digests say. The digests are believed, its own header is not."""
    try:
        file = folder.read(STATE, buffering=CHUNK)
    except FileNotFoundError as error:
        raise _Unlike("its state is missing") from error
    except OSError as error:
        raise _Unlike(f"its state cannot be read: {error.strerror or error}") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        different = _different(file, digests)
        forget_cached(file.fileno())  # a checkpoint is read once; the data of the training may stay in memory
    if size < digests.size:
        raise _Unlike(f"it is cut short, {size} of {digests.size} bytes", different)
    if size > digests.size:
        raise _Unlike(f"it is {counted(size - digests.size, 'byte')} too long", different)
    if different:
        raise _Unlike("its bytes are not the ones written", different)


def _check_form(folder: Folder) -> None:
    """Raise _Unlike for what is no snapshot. Whoever makes up a state can make up its digests as well."""
    try:
        with folder.read(STATE) as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # closed when nobody refers to it
        entries, _ = layout.parse_header(view)
        strange = next((entry for entry in entries if entry.dtype not in layout.SIZES), None)
        if strange is not None:
            raise layout.BadHeader(f"{strange.name} is of an unknown type, {strange.dtype[:20]!r}")
        layout.read_meta(view)
    except (ValueError, RecursionError) as error:
        raise _Unlike(f"its state was not written by holdfast: {str(error)[:200]}") from None


def _different(file: BinaryIO, digests: Digests) -> list[str]:
    names = []
    for number, piece in enumerate(digests.pieces):
        read, sha256 = digest_next(file, piece.size)
        if sha256 != piece.sha256:
            names.append(piece.name)
        if read < piece.size:  # the end of the file: nothing of the rest is there
            return [*names, *(later.name for later in digests.pieces[number + 1 :] if later.size)]
    return names


def candidates(folder: Path) -> list[Path]:
    """What has the name of a checkpoint, the newest step first."""
    with contextlib.suppress(OSError), Folder.at(folder, inner=1) as place:
        found = [folder / name for name in place.names() if _STEP.fullmatch(name)]
        return sorted(found, key=lambda entry: int(entry.name), reverse=True)
    return []


def newest_good(folder: Path, *, before: int | None = None) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, of those before a step if one is given; and those passed over, with why."""
    rejected: list[tuple[Path, str]] = []
    for path in candidates(folder):
        if before is not None and int(path.name) >= before:
            continue
        result = check(path)
        if isinstance(result, Checkpoint):
            return result, rejected
        rejected.append((path, str(result)))
    return None, rejected


def instead_of(bad: Path, why: str, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest good one before a checkpoint that verifies and cannot be used all the same; `say` hears of each."""
    good, rejected = newest_good(bad.parent, before=int(bad.name))
    for path, reason in [(bad, why), *rejected]:
        say(f"checkpoint {path.name} is skipped: {reason}")
    return good


def lost(run: Path) -> Path | None:
    """The checkpoint the journal of a run names last, if it is gone: nothing in its folder could tell."""
    steps: list[Any] = []
    for event in _saves(run / "journal.jsonl"):
        if event.kind == "checkpoint":
            steps.append(event.data.get("step"))
        else:  # what came after that step was set aside
            kept = event.data.get("to_step")
            steps = [step for step in steps if type(step) is int and type(kept) is int and step <= kept]
    if not steps or type(steps[-1]) is not int or steps[-1] < 0:
        return None
    path = run / "checkpoints" / f"{steps[-1]:06d}"
    newer = any(int(found.name) >= steps[-1] for found in candidates(path.parent))  # saved after the last line
    return None if newer else path


def _saves(journal: Path) -> list[Event]:
    try:
        with open_regular(journal) as file:
            lines = [line for line in file if b'"checkpoint"' in line or b'"undone"' in line]
    except OSError:
        return []
    found = [Event.from_line(line.decode(errors="replace")) for line in lines]
    return [event for event in found if event is not None and event.kind in ("checkpoint", "undone")]


# Removing -------------------------------------------------------------------------------------------------


def prune(folder: Path, *, keep: int, newest: int | None = None) -> list[int]:
    """Remove all but the newest `keep` checkpoints, and what half-written ones left; returns removed steps.

    `newest` is the step just written. A run that went on from an older one, because those after it were damaged,
    leaves higher numbers behind: they go first.
    """
    found = [path for path in candidates(folder) if _carries_digest(path)]
    if newest is not None:
        found.sort(key=lambda path: int(path.name) > newest)  # stable: within both parts the newest stay first
    return _remove(folder, found[max(1, keep) :])


def make_room(folder: Path, *, keep: int) -> list[int]:
    """Remove older checkpoints until `keep` are left, on a disk that is full. The newest good one always stays."""
    good, _ = newest_good(folder)
    if good is None:
        return []
    others = [path for path in candidates(folder) if path != good.path]
    return _remove(folder, others[max(0, keep - 1) :])


def _remove(folder: Path, paths: Iterable[Path]) -> list[int]:
    """Checkpoints of ours, and what half-written ones left; returns the steps of those that are gone."""
    removed = []
    with contextlib.suppress(OSError), Folder.at(folder, inner=1) as place:
        for path in paths:
            if _is_ours(place, path.name) and _carries_digest(path):
                place.discard(path.name)
                removed.append(int(path.name))
        for path in leftovers(folder):
            if _is_ours(place, path.name):
                place.discard(path.name)
    return removed


def _carries_digest(path: Path) -> bool:
    with contextlib.suppress(OSError), Folder.at(path, inner=2) as folder:
        return folder.kind(DIGEST) is None
    return False


def _is_ours(place: Folder, name: str) -> bool:
    """A folder that holds what we write there and nothing else: somebody's pictures are not pruned."""
    try:
        with place.below(name) as folder:
            names = folder.names()
            plain = all(folder.kind(each) is None for each in names)
    except OSError:
        return False
    return plain and {*names} <= {STATE, DIGEST}


def leftovers(folder: Path) -> list[Path]:
    """What a writer that was killed has left: never a checkpoint."""
    with contextlib.suppress(OSError), Folder.at(folder, inner=1) as place:
        return [folder / name for name in place.names() if _UNFINISHED.fullmatch(name)]
    return []
