"""Checkpoints: snapshots on disk, with digests, written whole or not at all. No torch, no pickle.

    saved = write(folder, payload, step=3600)         # keeper: temporary folder, fsync, read back, rename
    newest = newest_good(folder)                      # resume: the newest whose digest still agrees
    write_weights(path, payload)                      # the model alone, for plain safetensors

A checkpoint is a folder `003600/` with `state.safetensors` (the snapshot's own bytes) and `digest.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.events import utc_now
from holdfast.runfolder import read_json, sync_folder, write_json
from holdfast.runtime import layout

STATE = "state.safetensors"
DIGEST = "digest.json"
_CHUNK = 8 << 20


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


def _nothing() -> None:
    return None


def write(folder: Path, payload: memoryview, *, step: int, check: Callable[[], None] = _nothing) -> Checkpoint:
    """Write one checkpoint and read it back; what is not the same bytes never gets its final name.

    `check` raises OSError if the payload changed while it was copied: a mix of two steps has a good digest too.
    """
    final = folder / f"{step:06d}"
    temporary = folder / f".{step:06d}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700, parents=True)
    try:
        sha256 = _write_bytes(temporary / STATE, [payload])
        check()
        if file_sha256(temporary / STATE) != sha256:
            raise OSError(f"{temporary / STATE} does not hold what was written to it")
        record = {"schema": 1, "step": step, "bytes": len(payload), "sha256": sha256, "created": utc_now()}
        write_json(temporary / DIGEST, record)
        aside = folder / f".{step:06d}.{os.getpid()}.old"
        if final.exists():  # never a moment without one: the old one goes after the new one has come
            os.replace(final, aside)
        os.replace(temporary, final)
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    return Checkpoint(final, step, len(payload), sha256)


def write_weights(path: Path, payload: memoryview, *, check: Callable[[], None] = _nothing) -> None:
    """Write the protected modules alone: what `model.load_state_dict(load_file(path))` takes."""
    header, pieces = layout.weights_only(payload)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_bytes(temporary, [memoryview(header), *(payload[start:stop] for start, stop in pieces)])
        check()
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def check(path: Path) -> Checkpoint | str:
    """The checkpoint if its digest agrees, otherwise the reason why it is not trusted."""
    record = read_json(path / DIGEST)
    if record is None:
        return "it has no readable digest"
    step, size, sha256 = record.get("step"), record.get("bytes"), record.get("sha256")
    if not isinstance(step, int) or not isinstance(size, int) or not isinstance(sha256, str):
        return "its digest is not one of ours"
    try:
        if (path / STATE).stat().st_size != size:
            return "its size is not the one written"
        if file_sha256(path / STATE) != sha256:
            return "its bytes are not the ones written"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return Checkpoint(path, step, size, sha256)


def candidates(folder: Path) -> list[Path]:
    """Checkpoint folders, the newest step first."""
    with contextlib.suppress(OSError):
        found = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdigit()]
        return sorted(found, key=lambda entry: int(entry.name), reverse=True)
    return []


def newest_good(folder: Path) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and those passed over with their reasons."""
    rejected: list[tuple[Path, str]] = []
    for path in candidates(folder):
        result = check(path)
        if isinstance(result, Checkpoint):
            return result, rejected
        rejected.append((path, result))
    return None, rejected


def prune(folder: Path, *, keep: int, newest: int | None = None) -> list[int]:
    """Remove all but the newest `keep` checkpoints, and what half-written ones left; returns removed steps.

    `newest` is the step just written. A run that went on from an older one, because those after it were damaged,
    leaves higher numbers behind: they go first.
    """
    found = candidates(folder)
    if newest is not None:
        found.sort(key=lambda path: int(path.name) > newest)  # stable: within both parts the newest stay first
    removed = []
    for path in found[max(1, keep) :]:
        shutil.rmtree(path, ignore_errors=True)
        removed.append(int(path.name))
    for leftover in (*folder.glob(".*.tmp"), *folder.glob(".*.old")):
        shutil.rmtree(leftover, ignore_errors=True)
    return removed


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _write_bytes(path: Path, pieces: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for piece in pieces:
            for start in range(0, len(piece), _CHUNK):
                chunk = piece[start : start + _CHUNK]
                digest.update(chunk)
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
