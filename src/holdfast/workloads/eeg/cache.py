"""Windows of EEG on the disk, ready to train on: one folder for one kind of window at one rate.

    windows = cache.open("cache/challenge1-100hz")
    signal, row = windows[0]                      # (129, 200) float32 volts, and what is known about it
    windows.batch([4, 1, 7])                      # (3, 129, 200), in memory of its own
    for batch in windows.batches(order, 64): ...  # an epoch, in memory that is used again
    windows.signals                               # all of them as one memory map of shape (n, channels, samples)
    windows.table["response_time"]                # a column, one value a window

    signals.f32       float32, little-endian, C order (n, channels, samples), in volts
    table.npz         the columns, plain arrays
    windows.json      what it is: kind, rate, channels, parameters, key. Written last: without it there is no cache

A cache is written by `prepare` and comes from anywhere: nothing in it is trusted, nothing in it is unpickled.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base import files
from holdfast.base.data_files import open_npz
from holdfast.base.errors import UserError
from holdfast.base.human import counted

FORMAT = 1
META, SIGNALS, TABLE = "windows.json", "signals.f32", "table.npz"
KINDS = ("challenge1", "challenge2", "pretrain", "events", "labelled")

NUMBERS = (
    "onset",
    "response_time",
    "correct",
    "age",
    "p_factor",
    "attention",
    "internalizing",
    "externalizing",
)
"""Columns of float64; unknown is NaN."""
WORDS = ("recording", "subject", "release", "task", "kind", "event", "sex")
"""Columns of text; unknown is empty."""
COLUMNS = (*WORDS, *NUMBERS)

Row = dict[str, Any]


class Windows:
    """One cache, open for reading. Cheap to pickle into a loader process: it is opened again there."""

    def __init__(self, folder: Path, meta: dict[str, Any], table: dict[str, NDArray[Any]]) -> None:
        self.folder = folder
        self.meta = meta
        self.table = table
        self.kind: str = meta["kind"]
        self.rate: float = meta["rate"]
        self.channels: list[str] = meta["channels"]
        self.samples: int = meta["samples"]
        self.simulated: bool = meta["simulated"]
        self.key: str = meta["key"]
        self._fd: int | None = None

    def __len__(self) -> int:
        return int(self.meta["windows"])

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], Row]:
        position = range(len(self))[index]  # negative ones count from the end; others raise IndexError
        return np.array(self._plain[position]), self.row(position)

    def row(self, index: int) -> Row:
        """What is known about one window; numbers are NaN and texts empty where it is unknown."""
        return {name: column.item(index) for name, column in self.table.items()}

    @cached_property
    def signals(self) -> NDArray[np.float32]:
        """Every window, memory-mapped and read-only."""
        shape = (len(self), len(self.channels), self.samples)
        if not len(self):  # an empty file cannot be mapped
            return np.empty(shape, np.float32)
        mapped: NDArray[np.float32] = np.memmap(self.folder / SIGNALS, dtype="<f4", mode="r", shape=shape)
        return mapped

    @cached_property
    def _plain(self) -> NDArray[np.float32]:
        """The same without numpy's class for memory maps, which costs more than a small read."""
        return np.asarray(self.signals)

    def batches(
        self, order: Sequence[int] | NDArray[np.integer[Any]], size: int, *, keep: int = 2
    ) -> Iterator[NDArray[np.float32]]:
        """Batches of `size` in this order, in places that are used again: each is good until `keep` more were drawn.

        Fresh memory for every batch would cost more than reading into it.
        """
        places = [np.empty((size, len(self.channels), self.samples), np.float32) for _ in range(keep + 1)]
        for number, start in enumerate(range(0, len(order), size)):
            rows = order[start : start + size]
            yield self.batch(rows, out=places[number % len(places)][: len(rows)])

    def batch(
        self, indices: Sequence[int] | NDArray[np.integer[Any]], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The windows of these indices, in this order."""
        wanted = np.asarray(indices, dtype=np.int64)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if wanted.ndim != 1 or (wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self))):
            raise IndexError(f"indices of windows are 0 to {len(self) - 1}, in one row")
        shape = (len(wanted), len(self.channels), self.samples)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"out is {out.dtype} {out.shape}, but float32 {shape} in C order is needed")
        if self._mapped is None:
            self._read(wanted, out)
        elif len(wanted):
            self._check_size()  # a page that is not there any more would end the process
            np.take(self._mapped, wanted, axis=0, out=out, mode="clip")
        return out

    @cached_property
    def _mapped(self) -> NDArray[np.float32] | None:
        """The map, if the address space of this process has room for it: copying from it is the quickest read."""
        try:
            return self._plain
        except (OSError, ValueError, MemoryError):
            return None

    def _check_size(self) -> None:
        wanted = len(self) * len(self.channels) * self.samples * 4
        if os.fstat(self._descriptor).st_size < wanted:
            raise _damaged(self.folder, f"{SIGNALS} became shorter while it was read")

    def _read(self, wanted: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Without a map; windows that stand together on the disk are read together."""
        if not len(wanted):
            return
        each = len(self.channels) * self.samples * 4
        raw = out.data.cast("B")
        starts = np.flatnonzero(np.diff(wanted, prepend=-2) != 1).tolist()
        for start, stop in zip(starts, [*starts[1:], len(wanted)], strict=True):
            place, at, end = int(wanted[start]) * each, start * each, stop * each
            while at < end:  # a read may be cut short by a signal
                got = _read_into(self._descriptor, raw[at:end], place)
                if got == 0:
                    raise _damaged(self.folder, f"{SIGNALS} became shorter while it was read")
                at, place = at + got, place + got

    @property
    def _descriptor(self) -> int:
        if self._fd is None:
            self._fd = os.open(self.folder / SIGNALS, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        return self._fd

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.folder,))

    def words(self) -> str:
        """What it is, for people."""
        told = "SIMULATED EEG" if self.simulated else "EEG"
        people = counted(len(np.unique(self.table["subject"])), "subject")
        return (
            f"{told}: {counted(len(self), f'{self.kind} window')} of {self.samples / self.rate:g} s x "
            f"{counted(len(self.channels), 'channel')} at {self.rate:g} Hz, {people}"
        )

    def __repr__(self) -> str:
        return f"<{self.words()}>"


def open(folder: str | os.PathLike[str]) -> Windows:
    """Open a cache that `prepare` has finished."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"there is no cache in {path}", hints=["make one with `holdfast eeg prepare DATA CACHE`"])
    meta = _meta(path)
    return Windows(path.absolute(), meta, _table(path, meta))


def _read_into(fd: int, place: memoryview, at: int) -> int:
    if hasattr(os, "preadv"):
        count: int = os.preadv(fd, [place], at)
        return count
    os.lseek(fd, at, os.SEEK_SET)  # Windows
    data = os.read(fd, len(place))
    place[: len(data)] = data
    return len(data)


def _meta(path: Path) -> dict[str, Any]:
    if not (path / META).exists():
        building = (path / "building.json").exists()
        raise UserError(
            f"there is no finished cache in {path}",
            cause="it is being made, or making it was interrupted" if building else f"it has no {META}",
            hints=["run the same `holdfast eeg prepare` again: it goes on where it was"] if building else (),
        )
    meta = files.read_json(path / META)
    if meta is None:
        raise _damaged(path, f"{META} cannot be read")
    if meta.get("format") != FORMAT:
        raise UserError(
            f"the cache in {path} is of another version",
            cause=f"its format is {meta.get('format')!r}, this holdfast reads {FORMAT}",
            hints=["make it anew with `holdfast eeg prepare … --rebuild`"],
        )
    problem = _problem(meta)
    if problem is None:
        shape = (meta["windows"], len(meta["channels"]), meta["samples"])
        problem = _signals_problem(path / SIGNALS, shape)
    if problem is not None:
        raise _damaged(path, problem)
    meta["rate"] = float(meta["rate"])
    return meta


def _problem(meta: dict[str, Any]) -> str | None:
    channels = meta.get("channels")
    if meta.get("kind") not in KINDS:
        return f"unknown kind {meta.get('kind')!r} in {META}"
    if not isinstance(channels, list) or not channels or not all(isinstance(name, str) for name in channels):
        return f"no channels in {META}"
    if not 0 < files.number(meta.get("rate")) < 1e6:
        return f"no sampling rate in {META}"
    if not 0 < files.whole(meta.get("samples")) < 1 << 31 or files.whole(meta.get("windows"), -1) < 0:
        return f"no sizes in {META}"
    if not isinstance(meta.get("key"), str) or not isinstance(meta.get("simulated"), bool):
        return f"no key in {META}"
    return None


def _signals_problem(path: Path, shape: tuple[int, int, int]) -> str | None:
    try:
        with files.open_regular(path) as file:
            there = os.fstat(file.fileno()).st_size
    except OSError as error:
        return f"{SIGNALS}: {error.strerror or error}"
    wanted = shape[0] * shape[1] * shape[2] * 4
    return None if there == wanted else f"{SIGNALS} has {there} bytes, {wanted} were written"


def _table(path: Path, meta: dict[str, Any]) -> dict[str, NDArray[Any]]:
    try:
        files.open_regular(path / TABLE).close()  # never a link
        with open_npz(path / TABLE) as stored:
            table = {name: stored[name] for name in COLUMNS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise _damaged(path, f"{TABLE}: {error}") from error
    for name, column in table.items():
        wanted = "f" if name in NUMBERS else "U"
        if column.shape != (meta["windows"],) or column.dtype.kind != wanted:
            raise _damaged(path, f"column {name} of {TABLE} is {column.dtype} {column.shape}")
    return table


def _damaged(path: Path, cause: str) -> UserError:
    return UserError(
        f"the cache in {path} is damaged", cause=cause, hints=["make it anew with `holdfast eeg prepare … --rebuild`"]
    )


def damaged(windows: Windows) -> list[str]:
    """Recordings whose windows are not the bytes that were written; read in parts, however large it is."""
    written = windows.meta.get("recordings")
    names = windows.table["recording"]
    edges = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]])).tolist() if len(names) else []
    found = []
    for start, stop in zip(edges, [*edges[1:], len(names)], strict=True):
        name, digest = str(names[start]), hashlib.sha256()
        for at in range(start, stop, 64):
            digest.update(windows.batch(range(at, min(at + 64, stop))).data.cast("B"))
        if not isinstance(written, dict) or written.get(name) != digest.hexdigest():
            found.append(name)
    return found


# Writing ----------------------------------------------------------------------------------------------------


def columns(parts: Sequence[tuple[int, Row, dict[str, list[Any]]]]) -> dict[str, NDArray[Any]]:
    """The table, from the recordings: number of windows, what is the same for all of them, what is not."""
    table: dict[str, NDArray[Any]] = {}
    for name in COLUMNS:
        pieces = [_column(name, count, same, differs) for count, same, differs in parts if count]
        kind = np.float64 if name in NUMBERS else "U1"
        table[name] = np.concatenate(pieces) if pieces else np.empty(0, kind)
    return table


def _column(name: str, count: int, same: Row, differs: dict[str, list[Any]]) -> NDArray[Any]:
    values = differs.get(name) or [same.get(name)]
    if name in NUMBERS:
        known = np.array([_number(value) for value in values], np.float64)
    else:
        known = np.array([str(value or "") for value in values], np.str_)
    return np.broadcast_to(known, (count,))


def finish(folder: Path, meta: dict[str, Any], table: dict[str, NDArray[Any]]) -> None:
    """Make a cache of what was written: the table, then the description that makes it valid."""
    temporary = folder / f".{TABLE}.tmp.npz"
    with builtins.open(temporary, "wb", opener=files.private) as file:
        np.savez(file, **table)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / TABLE)
    files.write_json(folder / META, {"format": FORMAT, **meta, "windows": len(table["onset"])})
    files.sync_folder(folder)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
