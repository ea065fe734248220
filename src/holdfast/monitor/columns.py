"""Numbers that a script logged, as columns: eight bytes a number, read once, appended to, cut back after a restore.

    table = Table()
    table.add({"time": …, "step": 30, "epoch": 0, "train_loss": 0.016, "valid_loss": 0.0086})
    table.series("train_loss")            # steps, epochs, times, values: 28 bytes a point, mapped or in memory

Records that name the same metrics share their steps and times. A step that comes again was repeated after a fault: the
later record counts, and what was logged after that step, in a future that was taken back, is dropped. So steps never go
back in what is read here.
"""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, overload

from holdfast.monitor.downsample import Peaks

NOT_METRICS = frozenset({"time", "step", "epoch"})
MOST_NAMES = 512
"""Metrics that are told apart; a folder that names more is not one of ours, and the rest is left out."""
MOST_SHAPES = 256
_LONGEST_NAME = 200
_STEP, _EPOCH, _TIME = 0, 1, 2
_FIXED = 3


class Column(Sequence[float]):
    """One column: a part that is mapped from the index, and a part that has come since."""

    def __init__(self, typecode: str, base: memoryview | None = None) -> None:
        self.typecode = typecode
        self._base: Any = base if base is not None else array(typecode)
        self._kept = len(self._base)
        self._rest: array[Any] = array(typecode)

    def __len__(self) -> int:
        return self._kept + len(self._rest)

    @overload
    def __getitem__(self, at: int) -> float: ...
    @overload
    def __getitem__(self, at: slice) -> array[Any]: ...
    def __getitem__(self, at: int | slice) -> float | array[Any]:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            part: array[Any] = array(self.typecode)
            part.frombytes(self._base[begin : min(end, self._kept)].tobytes())
            part.extend(self._rest[max(0, begin - self._kept) : max(0, end - self._kept)])
            return part if step == 1 else part[::step]
        if at < 0:
            at += len(self)
        if at >= self._kept:
            return self._rest[at - self._kept]  # type: ignore[no-any-return]
        if at < 0:
            raise IndexError(at)
        return self._base[at]  # type: ignore[no-any-return]

    def append(self, value: float) -> None:
        self._rest.append(value)

    def extend(self, values: array[Any]) -> None:
        self._rest.extend(values)

    def cut(self, length: int) -> None:
        """Drop everything after `length`."""
        if length < self._kept:
            self._kept = length
            self._rest = array(self.typecode)
        else:
            del self._rest[length - self._kept :]

    def write_to(self, write: Any) -> int:
        """All of it as bytes; returns how many."""
        write(self._base[: self._kept])
        write(self._rest)
        return len(self) * self._rest.itemsize


class Shape:
    """The records that name the same metrics."""

    def __init__(self, names: tuple[str, ...], columns: list[Column] | None = None) -> None:
        self.names = names
        self.columns = columns or [Column("q"), Column("i"), Column("d"), *(Column("d") for _ in names)]
        self.peaks: dict[str, Peaks] = {}

    def __len__(self) -> int:
        return len(self.columns[0])

    def last_key(self) -> tuple[float, float] | None:
        return (self.columns[_EPOCH][-1], self.columns[_STEP][-1]) if len(self) else None

    def cut_from(self, key: tuple[int, int], *, same_too: bool) -> None:
        """Drop what was logged after `key`, and at it if `same_too`."""
        steps, epochs = self.columns[_STEP], self.columns[_EPOCH]
        length = before = len(self)
        while length:
            last = (epochs[length - 1], steps[length - 1])
            if last < key or (last == key and not same_too):
                break
            length -= 1
        if length < before:
            for column in self.columns:
                column.cut(length)

    def column(self, name: str) -> Column:
        return self.columns[_FIXED + self.names.index(name)]

    def peaks_of(self, name: str) -> Peaks:
        peaks = self.peaks.setdefault(name, Peaks())
        peaks.extend(self.column(name))
        return peaks


class Series:
    """One metric: parallel columns in the order of steps."""

    def __init__(
        self,
        name: str,
        columns: tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]],
        peaks: Peaks | None = None,
    ) -> None:
        self.name = name
        self.steps, self.epochs, self.times, self.values = columns
        self._peaks = peaks

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(zip(self.steps, self.values, strict=True))

    @property
    def last(self) -> float | None:
        return self.values[-1] if len(self.values) else None

    def picked(self, n: int, low: float | None = None, high: float | None = None, *, by: str = "step") -> list[int]:
        """Positions of about `n` points between two steps (or times) that keep every peak."""
        xs = self.times if by == "time" else self.steps
        first = 0 if low is None else max(0, bisect_left(xs, low) - 1)
        last = len(xs) if high is None else min(len(xs), bisect_right(xs, high) + 1)
        if self._peaks is None:
            self._peaks = Peaks()
            self._peaks.extend(self.values)
        return self._peaks.pick(self.values, first, last, n) if last > first else []

    def points(self, n: int, low: float | None = None, high: float | None = None) -> tuple[list[int], list[float]]:
        """Steps and values for a picture `n` points wide."""
        at = self.picked(n, low, high)
        return [int(self.steps[each]) for each in at], [self.values[each] for each in at]


class Table:
    """Everything that was logged."""

    def __init__(self, about: str = "") -> None:
        self.about = about
        """What its numbers are, where their names alone do not say it."""
        self.shapes: dict[tuple[str, ...], Shape] = {}
        self.left_out = 0
        """Records, or numbers of a record, that are more than we keep apart."""
        self._names: dict[str, list[Shape]] = {}
        self._newest: tuple[float, float] = (-1, -1)
        self._merged: dict[str, tuple[int, Series]] = {}
        self.version = 0
        """Grows with every record."""

    @property
    def names(self) -> list[str]:
        """The metrics, in the order in which they were first logged."""
        return list(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return sum(len(shape) for shape in self.shapes.values())

    def add(self, record: dict[str, Any]) -> None:
        """One line of metrics.jsonl; what is not a number of ours is passed over."""
        names = tuple(record)
        shape = self.shapes.get(names[3:]) if names[:3] == ("time", "step", "epoch") else None
        if shape is None:
            shape = self._shape_of(record)
        if shape is None:
            return
        step, epoch = _whole(record.get("step"), 1 << 62), _whole(record.get("epoch"), 1 << 31)
        key = (epoch, step)
        if key <= self._newest:
            for other in self.shapes.values():
                other.cut_from(key, same_too=other is shape)
        self._newest = key
        columns = shape.columns
        columns[0].append(step)
        columns[1].append(epoch)
        columns[2].append(_seconds(record.get("time")))
        for at, name in enumerate(shape.names, _FIXED):
            columns[at].append(_float(record.get(name)))
        self.version += 1

    def add_all(self, records: Iterable[dict[str, Any]]) -> None:
        """Many lines; those that are as they should be, column by column, which is three times as fast."""
        for names, group in groupby(records, key=tuple):
            part = list(group)
            shape = self.shapes.get(names[_FIXED:]) if names[:_FIXED] == ("time", "step", "epoch") else None
            if shape is None or not self._add_together(shape, part):
                for record in part:
                    self.add(record)

    def _add_together(self, shape: Shape, part: list[dict[str, Any]]) -> bool:
        """False, with nothing added, unless every record is newer than the one before and holds numbers alone."""
        steps, epochs = [record["step"] for record in part], [record["epoch"] for record in part]
        try:
            keys = [self._newest, *zip(epochs, steps, strict=True)]
            if not all(map(operator.lt, keys, keys[1:])) or min(steps) < 0 or min(epochs) < 0:
                return False
            rows = [steps, epochs, list(map(_Clock().seconds, [record["time"] for record in part]))]
            rows += [[record[name] for record in part] for name in shape.names]
            fresh = [array(column.typecode, row) for column, row in zip(shape.columns, rows, strict=True)]
        except (TypeError, OverflowError, ValueError):
            return False
        for column, values in zip(shape.columns, fresh, strict=True):
            column.extend(values)
        self._newest = keys[-1]
        self.version += len(part)
        return True

    def _shape_of(self, record: dict[str, Any]) -> Shape | None:
        names: list[str] = []
        for name, value in record.items():
            if name in NOT_METRICS or not _is_number(value):
                continue
            if len(name) > _LONGEST_NAME or (name not in self._names and len(self._names) + len(names) >= MOST_NAMES):
                self.left_out += 1
                continue
            names.append(name)
        key = tuple(names)
        if not key:
            return None
        if key not in self.shapes:
            if len(self.shapes) >= MOST_SHAPES:
                self.left_out += 1
                return None
            self.take(Shape(key))
        return self.shapes[key]

    def take(self, shape: Shape) -> None:
        """A shape that is new here, perhaps from the index."""
        self.shapes[shape.names] = shape
        for name in shape.names:
            self._names.setdefault(name, []).append(shape)
        last = shape.last_key()
        if last is not None:
            self._newest = max(self._newest, last)

    def series(self, name: str) -> Series:
        """A metric's own columns; KeyError for a name that was never logged."""
        shapes = self._names[name]
        if len(shapes) == 1:
            shape = shapes[0]
            columns = (shape.columns[_STEP], shape.columns[_EPOCH], shape.columns[_TIME], shape.column(name))
            return Series(name, columns, shape.peaks_of(name))
        version, series = self._merged.get(name, (-1, None))
        if series is None or version != self.version:
            series = self._merge(name, shapes)
            self._merged[name] = (self.version, series)
        return series

    def _merge(self, name: str, shapes: list[Shape]) -> Series:
        """A metric that was logged together with different others: one row a step, the later one counts."""
        rows: dict[tuple[float, float], tuple[float, float]] = {}
        for shape in shapes:
            parts = zip(*(column[:] for column in shape.columns[:_FIXED]), shape.column(name)[:], strict=True)
            for step, epoch, when, value in parts:
                known = rows.get((epoch, step))
                if known is None or not known[0] > when:
                    rows[(epoch, step)] = (when, value)
        ordered = sorted(rows)
        return Series(
            name,
            (
                array("q", [int(step) for _, step in ordered]),
                array("i", [int(epoch) for epoch, _ in ordered]),
                array("d", [rows[key][0] for key in ordered]),
                array("d", [rows[key][1] for key in ordered]),
            ),
        )

    def last(self) -> dict[str, float]:
        """Each metric's last value."""
        found = {}
        for name, shapes in self._names.items():
            newest = max(
                (shape for shape in shapes if len(shape)), key=lambda shape: shape.last_key() or (), default=None
            )
            if newest is not None:
                found[name] = newest.column(name)[-1]
        return found


class Metrics(Mapping[str, Series]):
    """Every metric by name, in the order in which they were first logged, table by table."""

    def __init__(self, *tables: Table, ahead: Callable[[], dict[str, float]] = dict) -> None:
        self._tables = tables
        self._ahead = ahead

    def _table_of(self, name: str) -> Table:
        for table in self._tables:
            if name in table:
                return table
        raise KeyError(name)

    def __getitem__(self, name: str) -> Series:
        return self._table_of(name).series(name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for table in self._tables for name in table.names])

    def __len__(self) -> int:
        return sum(len(table.names) for table in self._tables)

    def about(self, name: str) -> str:
        """What it is, where its name alone does not say that."""
        return self._table_of(name).about

    @property
    def shapes(self) -> list[Shape]:
        """All records."""
        return [shape for table in self._tables for shape in table.shapes.values()]

    def last(self) -> dict[str, float]:
        """Each metric's last value, without reading any column; also of a file that is still being read."""
        known = {name: value for table in self._tables for name, value in table.last().items()}
        return {**known, **self._ahead()}


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _float(value: object) -> float:
    """NaN for what is not a number, so that a hole is seen as one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _whole(value: object, limit: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else 0


class _Clock:
    """Times that follow each other, mostly in the same minute."""

    def __init__(self) -> None:
        self._minute, self._base = "", 0.0

    def seconds(self, stamp: str) -> float:
        if stamp[:17] != self._minute or stamp[-1] != "Z":
            when = _seconds(stamp)
            if len(stamp) < 20 or stamp[-1] != "Z" or not math.isfinite(when):
                return when
            self._minute, self._base = stamp[:17], when - float(stamp[17:-1])
        return self._base + float(stamp[17:-1])


def _seconds(stamp: object) -> float:
    if not isinstance(stamp, str):
        return math.nan
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return math.nan
