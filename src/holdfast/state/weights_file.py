"""Files with the weights alone: plain safetensors, with the digest of the file in its own header. No torch.

write_weights(run / "best.safetensors", payload, step=3600)       # what load_state_dict(load_file(path)) takes
read_said(path)                                                   # what its header says: {"run": …, "step": "3600"}
check_weights(path)                                               # None, or what is wrong with it
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import flush_to_disk, forget_cached, open_regular
from holdfast.base.folders import Folder
from holdfast.run.digests import CHUNK, Origin, Unlike, always, write_checked
from holdfast.state import layout

NO_DIGEST = "it has no digest of holdfast"
"""The answer of `check_weights` for a file that somebody else wrote: neither good nor damaged."""
_NO_DIGEST = b"0" * 64


def write_weights(
    path: Path,
    payload: memoryview,
    *,
    step: int | None = None,
    best: Mapping[str, Any] | None = None,
    origin: Origin | None = None,
    check: Callable[[], None] = lambda: None,
    aside: Callable[[], bool] = always,
) -> None:
    """Write the protected modules alone: what `model.load_state_dict(load_file(path))` takes.

    The file carries the digest of itself in its header, made with zeros in the digest's own place: so it can be
    checked wherever it is copied to, and is replaced in one move. `best` says what made these weights the best.
    `aside` as in checkpoint.write: all of the file is read back as long as somebody trains.
    """
    origin = origin or Origin.of_folder(path.parent)
    said = {"format": "pt", "holdfast": "1", "sha256": _NO_DIGEST.decode(), "run": origin.run if origin else "-"}
    said |= {} if step is None else {"step": str(step)}
    said |= {} if best is None else {"best": layout.dump_json(dict(best))}
    header, spans = layout.weights_only(payload, metadata=said)
    pieces = [memoryview(header), *(payload[start:stop] for start, stop in spans)]
    temporary = f".{path.name}.{os.getpid()}.tmp"
    with Folder.at(path.parent) as folder:
        for left in [name for name in folder.names() if name.startswith(f".{path.name}.") and name.endswith(".tmp")]:
            folder.discard(left)  # of a keeper that was killed, too
        try:
            digest = _write(folder, temporary, pieces, check, aside)
            check()
            if digest is None or not _seal(folder, temporary, header, digest):
                raise OSError(errno.EIO, f"what was read back from {path.name} is not what was written")
            folder.rename(temporary, path.name)
        except BaseException:
            folder.discard(temporary)
            raise
        folder.sync()


def link_weights(there: Path, path: Path) -> bool:
    """Give a file of weights a second name in its folder; False where the file system has no such thing."""
    temporary = f".{path.name}.{os.getpid()}.tmp"
    with Folder.at(path.parent) as folder:
        folder.discard(temporary)
        try:
            folder.link(there.name, temporary)
            folder.rename(temporary, path.name)
        except OSError:
            folder.discard(temporary)
            return False
        folder.discard(temporary)  # two names of one file are not renamed to each other
        folder.sync()
    return True


def _write(
    folder: Folder, name: str, pieces: list[memoryview], check: Callable[[], None], aside: Callable[[], bool]
) -> str | None:
    """The digest of the whole file, made while it is written; None if what the disk gives back is not the same."""
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(_hash_all, pieces, check)
        try:
            write_checked(folder, name, pieces, check, aside=aside, each=False)
        except Unlike:
            check()  # it may be another because it was overwritten meanwhile
            return None
        return digest.result()


def _hash_all(pieces: list[memoryview], check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK):
            check()
            digest.update(piece[start : start + CHUNK])
    return digest.hexdigest()


def _seal(folder: Folder, name: str, header: bytes, digest: str) -> bool:
    """Put the digest into its place; False if the disk gives back something else."""
    at = header.index(_NO_DIGEST)
    with folder.change(name) as file:
        file.seek(at)
        file.write(digest.encode())
        file.flush()
        flush_to_disk(file.fileno())
        forget_cached(file.fileno())
    with folder.read(name) as file:
        return file.read(len(header)) == header.replace(_NO_DIGEST, digest.encode(), 1)


def check_weights(path: Path, origin: Origin | None = None) -> str | None:
    """None if a file of weights is what was written (for this run); otherwise why not, or NO_DIGEST."""
    try:
        with open_regular(path, buffering=CHUNK) as file:
            header = _header_of(file)
            said = layout.metadata_of(header)
            wanted = said.get("sha256", "")
            at = header.find(wanted.encode("utf-8", "replace"))
            if len(wanted) != len(_NO_DIGEST) or at < 0:
                return "its digest is damaged" if said.keys() & {"holdfast", "sha256"} else NO_DIGEST
            digest = hashlib.sha256(header[:at] + _NO_DIGEST + header[at + len(_NO_DIGEST) :])
            while chunk := file.read(CHUNK):
                digest.update(chunk)
            forget_cached(file.fileno())
    except layout.BadHeader:
        return "its header is damaged"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    if digest.hexdigest() != wanted:
        return "its bytes are not the ones written"
    run = said.get("run", "-")
    return None if origin is None or run in ("-", origin.run) else f"it belongs to another run: {run}"


def read_said(path: Path) -> dict[str, str]:
    """What the header of such a file says; {} if there is none, or it cannot be read."""
    try:
        with open_regular(path) as file:
            return layout.metadata_of(_header_of(file))
    except (OSError, layout.BadHeader):
        return {}


def _header_of(file: BinaryIO) -> bytes:
    head = file.read(8)
    size = min(int.from_bytes(head, "little"), layout.MAX_HEADER)
    return head + file.read(size)
