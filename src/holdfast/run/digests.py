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

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.base.files import flush_to_disk, forget_cached
from holdfast.base.folders import Folder
from holdfast.run.folder import name_of, read_json

FORMAT = 2
CHUNK = 8 << 20
"""Bytes that are read, written and hashed at once."""
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


def write_file(folder: Folder, name: str, pieces: Iterable[memoryview]) -> list[str]:
    """Write a new file to the disk, and the SHA-256 of each piece."""
    hashed = []
    with folder.create(name) as file:
        for piece in pieces:
            digest = hashlib.sha256()
            for start in range(0, len(piece), CHUNK):
                chunk = piece[start : start + CHUNK]
                digest.update(chunk)
                file.write(chunk)
            hashed.append(digest.hexdigest())
        file.flush()
        flush_to_disk(file.fileno())
        forget_cached(file.fileno())
    return hashed


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
