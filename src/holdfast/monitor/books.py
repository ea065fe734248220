"""The growing files of a run, read as they grow: the journal as a story, metrics and readings as tables.

    books = Books(folder)
    books.read()                        # what is new; True if anything was
    books.story.faults                  # see story.py
    books.table.series("valid_loss")    # see columns.py
    books.losses.series(EPOCH_LOSS)     # as the ends of epochs in the journal have it
    books.readings.series("cuda:0 temperature_c")
    books.events(last=20)               # lines of the journal, found by where they begin

An index in the user's cache makes the second look cheap, also in another process.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from holdfast.base.files import open_regular
from holdfast.monitor.columns import Column, Shape, Table
from holdfast.monitor.downsample import Peaks
from holdfast.monitor.index import Index, Part
from holdfast.monitor.story import Story, amount, seconds
from holdfast.monitor.tail import LONGEST, Tail
from holdfast.run.events import Event

_LOGGED = b'"event": "log"'
"""Numbers are in metrics.jsonl as well: their lines in the journal are not even parsed."""
WORTH_KEEPING = 256 << 10
"""Bytes that are read faster than an index is."""
EPOCH_LOSS = "epoch_loss"
OF_AN_EPOCH = "last step of each epoch"
_KINDS = 250
AHEAD = 64 << 10
"""Bytes at the end of the metrics that are looked at first, as long as what lies before is not read."""
QUANTITIES = ("load_pct", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w", "power_limit_w")
"""What is known of a device at a moment."""


class Books:
    """How far journal and metrics were read, and what they said."""

    def __init__(self, folder: Path, *, cached: bool = True) -> None:
        self.folder = folder
        self.journal = Tail(folder / "journal.jsonl")
        self.metrics = Tail(folder / "metrics.jsonl")
        self.torn = 0
        """Lines that could not be read."""
        self.sensors = Tail(folder / "readings.jsonl")
        self._index = Index.of(folder) if cached else None
        self._kept_bytes = 0
        self._page: mmap.mmap | None = None
        self._clear_journal()
        self._clear_metrics()
        self._clear_readings()
        self._load()

    def _clear_journal(self) -> None:
        self.story = Story()
        self._begins = Column("Q")
        self._kinds = Column("B")
        self._names: list[str] = []
        self.losses = Table(OF_AN_EPOCH)
        """What the loss was when an epoch ended, whether or not the script logs anything."""

    def _clear_metrics(self) -> None:
        self.table = Table()

    def _clear_readings(self) -> None:
        self.readings = Table()
        """By device and quantity; its steps are milliseconds."""

    @property
    def behind(self) -> int:
        """Bytes that are there and not read yet."""
        return self.journal.behind + self.metrics.behind + self.sensors.behind

    def ahead(self) -> dict[str, float]:
        """The newest value of each metric at the end of a file that is still being read; nothing once it is."""
        if self.metrics.behind <= AHEAD:
            return {}
        found = Table()
        for record in self.metrics.last_lines(AHEAD):
            known = _parse(record)
            if isinstance(known, dict):
                found.add(known)
        return found.last()

    def read(self, budget_s: float | None = None) -> bool:
        """Read what is new, for about so long; True if anything was. `behind` says what is left."""
        deadline = None if budget_s is None else time.monotonic() + budget_s
        changed = False
        for tail in (self.journal, self.metrics, self.sensors):
            if tail.changed():
                changed |= self._read(tail, deadline)
        if changed:
            self._keep()
        return changed

    def _read(self, tail: Tail, deadline: float | None) -> bool:
        before, first = tail.offset, True
        for begin, lines in tail.read():
            if first and tail.replaced:
                self._forget(tail)
            first = False
            if tail is self.journal:
                self._tell(begin, lines)
            elif tail is self.metrics:
                self._note(lines)
            else:
                self._sense(lines)
            if deadline is not None and time.monotonic() > deadline:
                break
        if tail.replaced and first:
            self._forget(tail)
        return tail.offset != before or tail.replaced

    def _forget(self, tail: Tail) -> None:
        """It is another file now: what the old one said does not count."""
        if tail is self.journal:
            self._clear_journal()
        elif tail is self.metrics:
            self._clear_metrics()
        else:
            self._clear_readings()

    def _tell(self, begin: int, lines: list[bytes]) -> None:
        ours, at = [], begin
        for line in lines:
            if line and _LOGGED not in line:
                ours.append((at, line))
            at += len(line) + 1
        codes = {name: code for code, name in enumerate(self._names)}
        for (at, _), record in zip(ours, self._parsed([line for _, line in ours]), strict=True):
            kind = record.get("event") if record else None
            if not isinstance(kind, str) or record is None:
                continue
            if kind not in codes and len(codes) < _KINDS:
                codes[kind] = len(self._names)
                self._names.append(kind[:60])
            self._begins.append(at)
            self._kinds.append(codes.get(kind, _KINDS))
            self.story.tell(record)
            if kind == "epoch" and amount(record.get("loss")) is not None:
                known = {key: record.get(key) for key in ("time", "step", "epoch")}
                self.losses.add({**known, EPOCH_LOSS: record["loss"]})

    def _note(self, lines: list[bytes]) -> None:
        self.table.add_all(record for record in self._parsed([line for line in lines if line]) if record is not None)

    def _sense(self, lines: list[bytes]) -> None:
        for record in self._parsed([line for line in lines if line]):
            if record is not None:
                self.readings.add(flat(record))

    def _parsed(self, lines: list[bytes]) -> Iterator[dict[str, Any] | None]:
        """JSON objects, None for what is torn. All at once first: that is twice as fast as one by one."""
        lines = [line if len(line) <= LONGEST else b"null" for line in lines]
        try:
            records = json.loads(b"[" + b",".join(lines) + b"]")
        except (ValueError, RecursionError):
            records = []
        if len(records) != len(lines):
            records = [_parse(line) for line in lines]
        for record in records:
            if isinstance(record, dict):
                yield record
            else:
                self.torn += 1
                yield None

    # -- looking back --------------------------------------------------------------------------------------

    @property
    def event_count(self) -> int:
        """Events but the logged numbers."""
        return len(self._begins)

    def events(
        self, last: int | None = None, kinds: Collection[str] | None = None, *, before: int | None = None
    ) -> list[Event]:
        """Events in order: all, or the last ones, of these kinds; `before` counts them from the first."""
        wanted = None if kinds is None else {code for code, name in enumerate(self._names) if name in kinds}
        found: list[float] = []
        end = self.event_count if before is None else min(before, self.event_count)
        while end > 0 and (last is None or len(found) < last):
            begin = max(0, end - 4096)
            codes, begins = self._kinds[begin:end], self._begins[begin:end]
            block = [at for at, code in zip(begins, codes, strict=True) if wanted is None or code in wanted]
            found = block + found
            end = begin
        kept = found if last is None else found[max(0, len(found) - last) :]
        return list(self._events_at([int(at) for at in kept]))

    def _events_at(self, begins: list[int]) -> Iterator[Event]:
        if not begins:
            return
        try:
            file = open_regular(self.journal.path)
        except OSError:
            return
        with file:
            for at in begins:
                file.seek(at)
                event = Event.from_line(file.readline(LONGEST).decode(errors="replace"))
                if event is not None:
                    yield event

    # -- the index -----------------------------------------------------------------------------------------

    def _load(self) -> None:
        loaded = self._index.load() if self._index is not None else None
        if loaded is None:
            return
        header, columns, page = loaded
        try:
            story = Story.from_json(header["story"])
            shapes = [_shape(tuple(names), at, columns) for at, names in enumerate(header["shapes"])]
            tables = [(self.table, self.losses, self.readings)[number] for number in header["tables"]]
            if len(tables) != len(shapes):
                raise ValueError("shapes of no table")
            if not all(tail.go_on_from(header[tail.path.stem]) for tail in (self.journal, self.metrics, self.sensors)):
                raise ValueError("another file")
        except (LookupError, TypeError, ValueError, AttributeError):
            tails = (self.journal, self.metrics, self.sensors)
            self.journal, self.metrics, self.sensors = (Tail(tail.path) for tail in tails)
            return
        self.story = story
        self._begins, self._kinds = Column("Q", columns["begins"]), Column("B", columns["kinds"])
        self._names = [str(name) for name in header["kinds"]]
        for at, shape in enumerate(shapes):
            tables[at].take(shape)
        self.table.version = self._kept_bytes = self._read_bytes
        self._page = page

    def release(self) -> None:
        """Give back the memory of what was looked at: it is on the disk, and comes again when it is asked for."""
        if self._page is not None and sys.platform != "win32" and hasattr(mmap, "MADV_DONTNEED"):
            self._page.madvise(mmap.MADV_DONTNEED)

    @property
    def _read_bytes(self) -> int:
        return self.journal.offset + self.metrics.offset + self.sensors.offset

    def _keep(self) -> None:
        """Worth it when much was read, compared with what the next reader would have to read again."""
        read = self._read_bytes
        enough = max(WORTH_KEEPING, read // (50 if self.behind < WORTH_KEEPING else 4))
        if self._index is None or read - self._kept_bytes < enough:
            return
        self._kept_bytes = read
        tables = (self.table, self.losses, self.readings)
        shapes = [shape for table in tables for shape in table.shapes.values()]
        header = {
            **{tail.path.stem: tail.to_json() for tail in (self.journal, self.metrics, self.sensors)},
            "tables": [number for number, table in enumerate(tables) for _ in table.shapes],
            "story": self.story.to_json(),
            "kinds": self._names,
            "shapes": [shape.names for shape in shapes],
        }
        parts: list[Part] = [("begins", "Q", self._begins.write_to), ("kinds", "B", self._kinds.write_to)]
        for at, shape in enumerate(shapes):
            parts += [(f"{at}.{i}", column.typecode, column.write_to) for i, column in enumerate(shape.columns)]
            parts += [(f"{at}.peaks.{i}", "I", _writer(shape.peaks_of(name))) for i, name in enumerate(shape.names)]
        self._index.save(header, parts)


def flat(reading: dict[str, Any]) -> dict[str, Any]:
    """What the sensors said, as one record: `cuda:0 temperature_c`, `cpu load_pct`, …; its step is the time."""
    when = seconds(reading.get("time"))
    record: dict[str, Any] = {"time": reading.get("time"), "step": int((when or 0) * 1000), "epoch": 0}
    rows = reading.get("devices")
    for row in rows[:64] if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("device"), str):
            record.update({f"{row['device'][:40]} {key}": row[key] for key in QUANTITIES if row.get(key) is not None})
    if reading.get("disk_free_bytes") is not None:
        record["disk free_bytes"] = reading["disk_free_bytes"]
    return record


def _shape(names: tuple[str, ...], at: int, columns: dict[str, memoryview]) -> Shape:
    codes = ["q", "i", "d", *("d" for _ in names)]
    shape = Shape(names, [Column(code, columns[f"{at}.{i}"]) for i, code in enumerate(codes)])
    if len({len(column) for column in shape.columns}) != 1:
        raise ValueError("columns of different lengths")
    shape.peaks = {name: Peaks(columns[f"{at}.peaks.{i}"].tobytes()) for i, name in enumerate(names)}
    return shape


def _writer(peaks: Peaks) -> Any:
    return lambda write: write(peaks.to_bytes())


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
