"""What a checkpoint must hold, byte for byte: digest.json, itself sealed. No torch.

    digests = Digests(step, origin, pieces)           # pieces: the header of the state, then each tensor
    path.write_bytes(digests.sealed())
    Digests.unseal(path.read_bytes())                 # BadDigests for anything that is not exactly what was written

Every byte of the state belongs to one piece, and every piece has its SHA-256: so damage has a name, such as
`optimizer.state.3.exp_avg`. The digest of the whole is made of those of the pieces and costs no second look at the
data. The seal is the digest of everything before it in the file. It finds accidents; whoever wants to deceive can
make a new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import begin_to_flush, flush_to_disk, forget_cached
from holdfast.base.folders import Folder
from holdfast.run.folder import name_of, read_json

FORMAT = 2
CHUNK = 8 << 20
"""Bytes that are read, written and hashed at once."""
FLUSH = 64 << 20
"""Bytes after which the disk begins with what was written so far."""
LOOK_BACK, LOOK_BACK_S = 0.1, 1.0
"""Of the time that the last save took to write a file, and at least so many seconds: for reading a part of it back."""
NICE = 10
MAX_BYTES = 100_000_000
"""Of a digest.json: more tensors than the header of a safetensors file can name."""
HEADER = "header"
"""How the header is called among the damaged tensors."""
_SEAL = b',\n  "seal": "'
_END = b'"\n}\n'


class BadDigests(ValueError):
    """A digest.json that is not one, in words that follow "its digest.json …"."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which run a file belongs to. Names are drawn at random and may come again; the time of birth does not."""

    run: str
    created: str | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any], path: Path) -> Origin:
        """From what run.json says, or said."""
        run, created = info.get("run"), info.get("created")
        return cls(str(run) if run else name_of(path), str(created) if created else None)

    @classmethod
    def of_folder(cls, path: Path) -> Origin | None:
        """Of a run folder; None if it does not say."""
        info = read_json(path / "run.json")
        return None if info is None else cls.of(info, path)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the state that belong together."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Digests:
    """Everything digest.json says."""

    step: int
    origin: Origin | None
    created: str
    pieces: tuple[Piece, ...]
    """The header first, then the tensors, as they lie in the file."""

    @cached_property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @cached_property
    def sha256(self) -> str:
        """Of the whole: made of names, sizes and digests of all pieces, so two equal states have the same."""
        lines = (f"{piece.name}\0{piece.size}\0{piece.sha256}\n" for piece in self.pieces)
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    def sealed(self) -> bytes:
        """The text of digest.json."""
        header, *tensors = self.pieces
        record = {
            "format": FORMAT,
            "run": self.origin.run if self.origin else None,
            "run_created": self.origin.created if self.origin else None,
            "step": self.step,
            "created": self.created,
            "bytes": self.size,
            "sha256": self.sha256,
            "header": {"bytes": header.size, "sha256": header.sha256},
            "tensors": {piece.name: {"bytes": piece.size, "sha256": piece.sha256} for piece in tensors},
        }
        body = json.dumps(record, indent=2).encode().removesuffix(b"\n}")
        return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + _END

    @classmethod
    def unseal(cls, data: bytes) -> Digests:
        """Nothing is looked at before the seal agrees, and nothing is believed because it does."""
        body, mark, seal = data.rpartition(_SEAL)
        if not mark:
            raise BadDigests("was not written by holdfast, or is cut short")
        if seal != hashlib.sha256(body).hexdigest().encode() + _END:
            raise BadDigests("is damaged")
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadDigests("is not one of ours") from error
        version = record.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise BadDigests("was written by a newer holdfast")
        try:
            digests = cls._read(record)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadDigests("is not one of ours") from error
        if (version, record.get("bytes"), record.get("sha256")) != (FORMAT, digests.size, digests.sha256):
            raise BadDigests("does not agree with itself")
        return digests

    @classmethod
    def _read(cls, record: dict[str, Any]) -> Digests:
        rows = [(HEADER, record["header"]), *record["tensors"].items()]
        pieces = tuple(Piece(name, _count(row["bytes"]), _text(row["sha256"])) for name, row in rows)
        run, created = record["run"], record["run_created"]
        origin = None if run is None else Origin(_text(run), None if created is None else _text(created))
        return cls(_count(record["step"]), origin, _text(record["created"]), pieces)


def write_file(
    folder: Folder, name: str, pieces: Iterable[memoryview], check: Callable[[], None] = lambda: None
) -> None:
    """Write a new file to the disk. `check` is called now and then, and may raise to end it."""
    with folder.create(name) as file:
        at = flushed = 0
        for piece in pieces:
            for start in range(0, len(piece), CHUNK):
                check()
                at += file.write(piece[start : start + CHUNK])
                if at - flushed >= FLUSH:
                    begin_to_flush(file.fileno(), flushed, at - flushed)
                    flushed = at
        file.flush()
        flush_to_disk(file.fileno())
        forget_cached(file.fileno())


def hash_pieces(
    pieces: Sequence[memoryview], pool: ThreadPoolExecutor, check: Callable[[], None] = lambda: None
) -> Callable[[], list[str]]:
    """The SHA-256 of each piece as it is in memory, made beside other work; what is returned waits for them."""
    jobs = [pool.submit(_hash, piece, check) for piece in pieces]
    return lambda: [job.result() for job in jobs]


def _hash(piece: memoryview, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    for at in range(0, len(piece), CHUNK):
        check()
        digest.update(piece[at : at + CHUNK])  # without the interpreter's lock, and without a copy
    return digest.hexdigest()


def always() -> bool:
    return True


class Hurry(Exception):
    """The run has come to its end, and somebody waits for what was done beside the training."""


def write_checked(
    folder: Folder,
    name: str,
    pieces: Sequence[memoryview],
    check: Callable[[], None] = lambda: None,
    *,
    aside: Callable[[], bool] = always,
    each: bool = True,
) -> list[str]:
    """Write a new file to the disk, and read it back; the SHA-256 of `each` piece. Unlike if a byte is another one.

    As long as somebody trains (`aside`), all of it is read back: a quarter of the processors is used for that, and
    those are left to others first. When somebody waits for the end of the run, it is hashed while it is written and a
    part of it, chosen at random, is read back: all of a file that the disk gives back in a moment. Reading everything
    would take as long again as writing it, and whoever goes on from the file later checks all of it.
    """
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            waits = not aside()
            hashed = hash_pieces(pieces if each and waits else (), pool, check)
            write_file(folder, name, pieces, check)
            if not waits:
                with contextlib.suppress(Hurry):
                    return read_back(folder, name, pieces, check=partial(_unless_waited_for, check, aside), each=each)
                hashed = hash_pieces(pieces if each else (), pool, check)
            found = hashed()
            budget = max(LOOK_BACK_S, LOOK_BACK * (time.monotonic() - began))
            _look_back(folder, name, pieces, pool, time.monotonic() + budget)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _unless_waited_for(check: Callable[[], None], aside: Callable[[], bool]) -> None:
    check()
    if not aside():
        raise Hurry


def _look_back(folder: Folder, name: str, pieces: Sequence[memoryview], pool: ThreadPoolExecutor, until: float) -> None:
    """Compare the ends of the file and pieces in between with what the disk gives, until the time is over."""
    starts = [0, *itertools.accumulate(map(len, pieces))]
    spans = [
        (piece[at : at + CHUNK], start + at)
        for piece, start in zip(pieces, starts[:-1], strict=True)
        for at in range(0, len(piece), CHUNK)
    ]
    order = spans[1:-1]
    random.shuffle(order)
    with folder.read(name) as file:
        reader = _Reader(file)
        if os.fstat(file.fileno()).st_size != starts[-1]:
            raise Unlike(name)
        first = [pool.submit(reader.same, *span) for span in (spans[0], spans[-1])] if spans else []
        jobs = [pool.submit(reader.same_in_time, *span, until) for span in order]
        for job in (*first, *jobs):
            if job.result() is False:
                raise Unlike(name)
        forget_cached(file.fileno())


def read_back(
    folder: Folder,
    name: str,
    pieces: Sequence[memoryview],
    *,
    check: Callable[[], None] = lambda: None,
    each: bool = True,
) -> list[str]:
    """The SHA-256 of `each` piece as the disk gives it; Unlike if a byte is not the one that was written.

    Somebody trains beside it: it takes a quarter of the processors, and leaves those to others first.
    """
    hands = max(1, (os.cpu_count() or 1) // 4)
    starts = [0, *itertools.accumulate(map(len, pieces))]
    with folder.read(name) as file, ThreadPoolExecutor(hands, initializer=_aside) as pool:
        reader = _Reader(file)
        if os.fstat(file.fileno()).st_size != starts[-1]:
            raise Unlike(name)
        try:
            spans = zip(pieces, starts[:-1], strict=True)
            jobs = [pool.submit(reader.compare, *span, check, hashes=each) for span in spans]
            found = [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        forget_cached(file.fileno())  # it is read once; the data of the training may stay in memory
    return found


class Unlike(Exception):
    """What was read back is not what was written."""


class _Reader:
    """A file that several threads read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._turn = threading.Lock()

    def compare(self, piece: memoryview, start: int, check: Callable[[], None], *, hashes: bool = True) -> str:
        digest = hashlib.sha256()
        for at in range(0, len(piece), CHUNK):
            check()
            wanted = bytes(piece[at : at + CHUNK])
            found = self._read(len(wanted), start + at)
            if found != wanted:
                raise Unlike
            if hashes:
                digest.update(found)
        return digest.hexdigest()

    def same(self, piece: memoryview, at: int) -> bool:
        """Whether the file has these bytes there."""
        return self._read(len(piece), at) == bytes(piece)

    def same_in_time(self, piece: memoryview, at: int, until: float) -> bool:
        """The same, or True once the time is over."""
        return time.monotonic() > until or self.same(piece, at)

    def _read(self, size: int, at: int) -> bytes:
        parts: list[bytes] = []
        while size:
            if hasattr(os, "pread"):
                part = os.pread(self._file.fileno(), size, at)
            else:
                with self._turn:
                    self._file.seek(at)
                    part = self._file.read(size)
            if not part:
                break
            parts.append(part)
            size, at = size - len(part), at + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _aside() -> None:
    """In a thread that works beside a training: where that wants the processor, it gets about nine tenths of it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def digest_next(file: BinaryIO, size: int) -> tuple[int, str]:
    """How many of the next `size` bytes there are, and their SHA-256."""
    digest, left = hashlib.sha256(), size
    while left and (chunk := file.read(min(left, CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return size - left, digest.hexdigest()


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
