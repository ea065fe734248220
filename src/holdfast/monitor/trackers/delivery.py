"""The process of one tracker: it follows a run folder and hands rows to the tracker until the run is over.

    python -m holdfast.monitor.trackers.delivery FOLDER mlflow       # the settings track.* come as JSON on stdin

How far it is stands in `trackers/mlflow.json` of the run folder, which travels with the run. A tracker that is slow,
down or out of disk is tried again with growing pauses. When the run is over and the tracker stays away for
`track.patience`, the process ends; the next `holdfast resume` or `holdfast track` sends the rest. One process at a time
holds `trackers/mlflow.lock`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from holdfast.base import locks
from holdfast.base.control_characters import without_control
from holdfast.base.errors import HoldfastError
from holdfast.base.files import open_regular, read_json, whole
from holdfast.base.folders import Folder
from holdfast.base.line_file import objects
from holdfast.monitor.devices import behave
from holdfast.monitor.tail import Tail
from holdfast.monitor.trackers.rows import Row, Rows
from holdfast.monitor.trackers.tracker import NAMES, About, Missing, Target, Tracker, make
from holdfast.run.folder import RunFolder
from holdfast.run.states import LIVE_STATES

FOLDER = "trackers"
LOOK_EVERY = 1.0
SURE = 2
"""Looks in a row that must see the same end."""
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each new try; the last one again and again."""
AT_ONCE = 500
"""Rows handed over between two notes of the position."""
ALL, GAVE_UP, SUPERSEDED, OWN = "all", "gave up", "superseded", "own"


class Delivery:
    """One run on its way to one tracker."""

    def __init__(
        self, folder: Path, name: str, target: Target, *, say: Callable[[str], None] = print, every: float = LOOK_EVERY
    ) -> None:
        self.run = RunFolder(folder)
        self.name = name
        self.say = say
        self.every = every
        kept = read_json(folder / FOLDER / f"{name}.json") or {}
        tracker = kept.get("tracker")
        self.about = About(folder, self.run.info, target, Rows(), kept=tracker if isinstance(tracker, dict) else {})
        self.sent = max(0, whole(kept.get("rows")))
        """The number of the last row that the tracker has."""
        files = kept.get("files")
        self._files: dict[str, str] = files if isinstance(files, dict) else {}
        self._tail = Tail(folder / "journal.jsonl")
        self._waiting: list[Row] = []
        self._tracker: Tracker | None = None
        self._problem = ""
        self._failures = 0
        self._try_at = 0.0
        self._alive = time.monotonic()
        """When the tracker last took something, or the run was last alive."""

    def to_the_end(self) -> str:
        """Follow the run; how it ended is one of ALL, GAVE_UP, SUPERSEDED and OWN."""
        self._read()
        sitting, seen_over = self.about.rows.sittings, 0
        while True:
            state = self.run.state()
            seen_over = 0 if state in LIVE_STATES else seen_over + 1
            over = seen_over >= SURE
            self._read()
            if self.about.rows.sittings > sitting:  # the next sitting has a process of its own, which waits for us
                self._leave(state)
                return SUPERSEDED
            if self.name in self.about.rows.own:
                self.say(f"{self.name}: the script writes to it by itself, so nothing is sent a second time")
                self._leave(state)
                return OWN
            if (over or self.about.rows.trained) and self._deliver(state if over else "") and over:
                return ALL
            if not over or not self._problem:
                self._alive = time.monotonic()
            elif time.monotonic() - self._alive > self.about.target.patience:
                left = self.about.rows.count - self.sent
                self.say(f"{self.name}: {left} rows are left; `holdfast track {self.run.name}` sends them")
                return GAVE_UP
            if not self.run.path.is_dir():
                return GAVE_UP
            time.sleep(self.every)

    # -- reading -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """New lines of the journal become rows; those that the tracker has are passed over."""
        if not self._tail.changed():
            return
        for _, lines in self._tail.read():
            for record in objects(lines):
                for row in self.about.rows.read(record):
                    if row.number <= self.sent:
                        self.about.delivered(row)
                    else:
                        self._waiting.append(row)

    # -- delivering ----------------------------------------------------------------------------------------

    def _deliver(self, ended: str) -> bool:
        """Hand over what waits; with the files and the end, if the run has ended. False: it is tried again later."""
        if time.monotonic() < self._try_at:
            return False
        try:
            self._open()
            while self._waiting:
                self._send(self._waiting[:AT_ONCE])
            if ended:
                self._hand_over_files()
                assert self._tracker is not None
                self._tracker.close(ended)
                self._tracker = None
        except Missing:
            raise
        except Exception as error:  # whatever a tracker's package raises, the training must not notice
            self._failed(error)
            return False
        if self._problem:
            self._problem, self._failures = "", 0
            self.say(f"{self.name}: it takes rows again; it has {self.sent}")
        return True

    def _open(self) -> None:
        if self._tracker is not None:
            return
        tracker = make(self.name, self.about)
        known = tracker.open()
        self._tracker = tracker
        if known is not None and known < self.sent:  # rows that were handed over and never arrived
            self.sent, self.about.at_step, self.about.at_values = known, -1, {}
            self._again()
        elif known is not None:
            self.sent = known
            self._waiting = [row for row in self._waiting if row.number > known]
        self._remember()

    def _again(self) -> None:
        """Read the journal from its beginning, for rows that were passed over."""
        self.about.rows = Rows()
        self._tail = Tail(self._tail.path)
        self._waiting = []
        self._read()

    def _send(self, rows: Sequence[Row]) -> None:
        assert self._tracker is not None
        self._tracker.send(rows)
        for row in rows:
            self.about.delivered(row)
        self.sent = rows[-1].number
        del self._waiting[: len(rows)]
        self._alive = time.monotonic()
        self._remember()

    def _failed(self, error: Exception) -> None:
        """The next try connects anew: after a failure it is not known what has arrived."""
        pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        self._failures += 1
        self._try_at = time.monotonic() + pause
        self._tracker = None
        kind = type(error).__name__
        if kind != self._problem:
            self._problem = kind
            words = without_control(" ".join(str(error).split()))[:300]
            self.say(f"{self.name}: {kind}: {words}; {len(self._waiting)} rows wait")

    def _leave(self, state: str) -> None:
        """Another process goes on with it. What cannot be said to the tracker now is said by that one."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            with contextlib.suppress(Exception):
                tracker.close(state)

    def _remember(self) -> None:
        """A disk that takes nothing costs the position: after a restart the tracker is asked what it has."""
        data = {"schema": 1, "rows": self.sent, "tracker": self.about.kept, "files": self._files}
        try:
            with Folder.at(self.run.path / FOLDER, inner=1, make=True) as folder:
                folder.replace(f"{self.name}.json", json.dumps(data).encode())
        except OSError as error:
            self.say(f"{self.name}: the position is not written: {error.strerror or error}")

    # -- artefacts -----------------------------------------------------------------------------------------

    def _hand_over_files(self) -> None:
        if not self.about.target.artefacts or self._tracker is None:
            return
        with tempfile.TemporaryDirectory(prefix="holdfast-tracker-") as place:
            for path, kind, mark in self._artefacts(Path(place)):
                if self._files.get(path.name) != mark:
                    self._tracker.file(path, kind)
                    self._files[path.name] = mark
                    self._remember()

    def _artefacts(self, place: Path) -> Iterator[tuple[Path, str, str]]:
        """The report as it is now, and the best weights. What a run folder calls its weights may be a link."""
        from holdfast.monitor import reader, report

        report.write(reader.open(self.run.path, cached=False), place / "report.html")
        yield place / "report.html", "report", str(self.about.rows.count)
        for name in ("best.safetensors", "final.safetensors"):
            try:
                with open_regular(self.run.path / name) as file:
                    digest = sha256()
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError:
                continue
            yield self.run.path / name, "model", digest.hexdigest()
            return


def deliver(folder: Path, name: str, target: Target, say: Callable[[str], None]) -> str:
    """One tracker, once no other process of this run holds it."""
    with Folder.at(folder / FOLDER, inner=1, make=True):
        pass
    lock = locks.Lock(folder / FOLDER / f"{name}.lock")
    while not lock.take():
        time.sleep(LOOK_EVERY)
    try:
        return Delivery(folder, name, target, say=say).to_the_end()
    finally:
        lock.release()


def main(argv: list[str] | None = None) -> int:
    """0: done for this sitting. 1: given up, or impossible. A process that is killed is started again by host.py."""
    behave()
    words = sys.argv[1:] if argv is None else argv
    target = Target.from_json(json.loads(sys.stdin.read() or "{}"))
    if words[1] not in NAMES:
        return 1

    def say(text: str) -> None:
        print(text, file=sys.__stdout__, flush=True)

    try:
        return 1 if deliver(Path(words[0]), words[1], target, say) == GAVE_UP else 0
    except (HoldfastError, OSError) as error:
        say(f"{words[1]}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
