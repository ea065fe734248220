"""What a run folder says about a run, as data: for --json, the tables and the closing summary alike.

    look = Look(run)                # everything is read when it is asked for, nothing is executed
    look.result()                   # run, folder, state, exit_code, device_timeline, metrics, best, receipt
    look.row()                      # one line of `holdfast list`

Works on live, finished, crashed and copied folders. It reads files only: never the supervisor, never a device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.events import Event
from holdfast.runfolder import LIVE_STATES, RunFolder, read_json

_LOGGED = '"event": "log"'
_NOT_METRICS = frozenset({"time", "step", "epoch"})


class Look:
    """One look at a run; take a new one to see what has changed."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.info = run.info
        self.state = run.state()
        self.beat: dict[str, Any] = read_json(run.path / "beat.json") or {}

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def live(self) -> bool:
        return self.state in LIVE_STATES

    @functools.cached_property
    def receipt(self) -> dict[str, Any] | None:
        """What the run ended with; a run that goes on has none, whatever an earlier end left."""
        return None if self.live else self.run.receipt()

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.run.metrics()

    @functools.cached_property
    def events(self) -> list[Event]:
        """Everything but the numbers, which are many and in `metrics`: their lines are not even parsed."""
        try:
            with open(self.run.path / "journal.jsonl", encoding="utf-8", errors="replace") as file:
                parsed = (Event.from_line(line) for line in file if _LOGGED not in line)
                return [event for event in parsed if event is not None]
        except OSError:
            return []

    @functools.cached_property
    def faults(self) -> list[Event]:
        return [event for event in self.events if event.kind == "fault"]

    @property
    def accounts(self) -> dict[str, Any]:
        return _dict(self.info.get("accounts"))

    @property
    def step(self) -> int | None:
        """Steps committed, by the newest source that says so."""
        known = [whole(self.accounts.get("steps")), whole(self.beat.get("step"))]
        if self.receipt:
            known.append(whole(self.receipt.get("steps")))
        return max((step for step in known if step is not None), default=None)

    @property
    def steps_total(self) -> int | None:
        """As the worker said; a short run may end before the first beat that knows."""
        return self.step if self.state == "FINISHED" else whole(self.beat.get("steps_total"))

    @property
    def epochs_done(self) -> int:
        ended = [whole(event.data.get("epoch")) for event in self.events if event.kind == "epoch"]
        return max((epoch + 1 for epoch in ended if epoch is not None), default=0)

    @property
    def device(self) -> str | None:
        return _text(self.info.get("device") or self.beat.get("device"))

    @property
    def device_timeline(self) -> list[dict[str, Any]]:
        timeline = self.accounts.get("timeline")
        if isinstance(timeline, list) and timeline:
            return [
                {
                    "device": _text(entry.get("device")),
                    "from_step": whole(entry.get("from_step")),
                    "to_step": whole(entry.get("to_step")),
                }
                for entry in timeline
                if isinstance(entry, dict)
            ]
        return [{"device": self.device, "from_step": 0, "to_step": None}] if self.device else []

    @property
    def last_metrics(self) -> dict[str, float | None]:
        """Each metric's last value."""
        last: dict[str, float | None] = {}
        for record in self.metrics:
            last.update({name: value for name, value in record.items() if name not in _NOT_METRICS})
        return last

    @property
    def best(self) -> dict[str, Any] | None:
        """Name, value, step and epoch (counted from 1) of the best; None if nothing was judged."""
        best = self.info.get("best")
        if not isinstance(best, dict) or number(best.get("value")) is None:
            return None
        epoch = whole(best.get("epoch"))
        return {
            "name": str(best.get("name")),
            "value": number(best.get("value")),
            "step": whole(best.get("step")),
            "epoch": None if epoch is None else epoch + 1,
        }

    def series(self, name: str) -> list[float | None]:
        """All values of a metric, in order."""
        return [number(record[name]) for record in self.metrics if name in record]

    @property
    def names(self) -> list[str]:
        """The metrics, in the order in which they were first logged."""
        return list(dict.fromkeys(name for record in self.metrics for name in record if name not in _NOT_METRICS))

    @property
    def age_s(self) -> float | None:
        """Seconds since the supervisor last wrote the beat."""
        return _since(self.beat.get("time"))

    @property
    def lasted_s(self) -> float | None:
        """From its start to its end, or to now; all sittings of a resumed run together."""
        total, began, last = 0.0, None, None
        for event in self.events:
            now = event.seconds()
            if event.kind == "start":
                total += (last - began) if began is not None and last is not None else 0.0
                began = now
            last = now if now is not None else last
        if began is None:
            return None
        end = time.time() if self.live else (last or began)
        return max(0.0, total + end - began)

    @property
    def checkpoints(self) -> list[tuple[int, Path, int]]:
        """Step, folder and bytes, the newest first; not verified here: `resume` does that."""
        found = []
        for path in _folders(self.run.path / "checkpoints"):
            digest = read_json(path / "digest.json") or {}
            found.append((int(path.name), path, whole(digest.get("bytes")) or 0))
        return sorted(found, reverse=True)

    @property
    def weights(self) -> dict[str, Path]:
        """The weight files there are: best, final."""
        paths = {name: self.run.path / f"{name}.safetensors" for name in ("best", "final")}
        return {name: path for name, path in paths.items() if path.is_file()}

    def result(self) -> dict[str, Any]:
        """What `train`, `resume`, `chaos` and `show` print with --json."""
        return {
            "run": self.name,
            "folder": str(self.run.path.absolute()),
            "state": self.state,
            "exit_code": None if self.live else whole(self.info.get("exit_code")),
            "device_timeline": self.device_timeline,
            "metrics": self.last_metrics,
            "best": self.best,
            "receipt": self.receipt,
        }

    def row(self) -> dict[str, Any]:
        """One entry of `list --json` and `status --json`."""
        live = self.live
        return {
            "run": self.name,
            "folder": str(self.run.path.absolute()),
            "workload": self.info.get("workload"),
            "state": self.state,
            "device": self.device,
            "step": self.step,
            "steps_total": self.steps_total,
            "time_left_s": number(self.beat.get("time_left_s")) if live else None,
            "recoveries": self.recoveries,
            "created": self.info.get("created"),
            "pid": self.info.get("pid") if live else None,
            "epoch": whole(self.beat.get("epoch")),
            "epochs": whole(self.beat.get("epochs")) or None,
            "rate": number(self.beat.get("rate")) if live else None,
            "last_beat_s": _rounded(self.age_s) if live else None,
        }

    @property
    def recoveries(self) -> int:
        sources = (self.receipt or {}, self.accounts, self.beat)
        return max((whole(source.get("recoveries")) or 0 for source in sources), default=0)


def local_time(event: Event) -> str:
    """09:22:09 where the reader is."""
    seconds = event.seconds()
    return "--:--:--" if seconds is None else datetime.fromtimestamp(seconds).strftime("%H:%M:%S")


def _since(stamp: object) -> float | None:
    seconds = Event("", str(stamp)).seconds() if stamp else None
    return None if seconds is None else max(0.0, time.time() - seconds)


def _folders(path: Path) -> Iterator[Path]:
    try:
        yield from (entry for entry in path.iterdir() if entry.is_dir() and entry.name.isdigit())
    except OSError:
        return


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def whole(value: object) -> int | None:
    """A whole number, or None for whatever else a foreign file may hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
