"""A run, read from its folder: live, finished, crashed or copied; nothing in it is executed.

    run = reader.open(folder)                # reads what there is, or what came since the last time anybody looked
    run.state                                # RUNNING, RECOVERING, MOVED, FINISHED, FAILED, CRASHED, GAVE_UP, …
    run.progress.step, run.progress.of       # also epoch, epochs, rate, time_left_s, share
    run.settings                             # [Setting("watchdog.floor", 5.0, "5 s", "default"), …]
    run.lanes, run.faults                    # a lane a worker; faults with blame and what it took to recover
    run.metrics["valid_loss"].points(400)    # steps and values; every peak is in them
    run.curves                               # what is drawn: these; where no loss is among them, that of each epoch too
    run.readings["cuda:0 temperature_c"]     # what the sensors said, the same way
    run.events(last=20, kinds={"fault"})     # lines of the journal
    run.beat_age_s, run.best, run.checkpoints, run.receipt, run.environment, run.log_tail(50), run.problems
    run.refresh()                            # cheap where nothing changed; True if something did

No torch, no runtime. A journal that is cut in the middle of a line, files that are being written, files of a newer
holdfast or without permission: what can be read is there, and `problems` says the rest in words.
"""

from __future__ import annotations

import functools
import os
import time
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError
from holdfast.monitor.books import Books
from holdfast.monitor.columns import Metrics
from holdfast.monitor.facts import Checkpoint, Progress, Setting, settings_of
from holdfast.monitor.jsonfile import JsonFile, names_in, read_json
from holdfast.monitor.planned import Planned, planned
from holdfast.monitor.story import Fault, Lane, Story, amount, seconds, text, whole
from holdfast.run.events import Event
from holdfast.run.folder import FORMAT, RunFolder, name_of
from holdfast.run.metric_direction import smaller_is_better
from holdfast.run.states import LIVE_STATES, RunState

STALE = 10.0
"""Seconds after which the beat of a live run is called old."""
ELSEWHERE = 90.0
"""Seconds without a beat after which a run on another machine is called crashed: syncing takes its time."""
_MOST_LOG = 1 << 20


def open(folder: Path | str, *, cached: bool = True, budget_s: float | None = None) -> Run:
    """A run folder as it is now. UserError where there is none; whatever else is wrong is in `problems`."""
    path = Path(folder)
    try:
        entry = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}", cause=str(error.strerror or error)) from None
    run = Run(path, cached=cached)
    if not os.path.isdir(path):
        raise UserError(f"{path} is not a run folder", cause="it is not a folder")
    run.refresh(budget_s)
    if not run.info and not (entry.st_mode & 0o444 and run.progress.step):
        cause = next(iter(run.problems), "it has no readable run.json")
        raise UserError(f"{path} is not a run folder", cause=cause)
    return run


class Run:
    """What is known of one run. Take `refresh()` to see what has changed."""

    def __init__(self, path: Path, *, cached: bool = True) -> None:
        self.path = path
        self.folder = RunFolder(path)
        self.info: dict[str, Any] = {}
        self.beat: dict[str, Any] = {}
        self.books = Books(path, cached=cached)
        self.looked_at = 0.0
        self._files = {name: JsonFile(path / name) for name in ("run.json", "beat.json", "receipt.json")}
        self._world = JsonFile(path / "world.json")
        self._beat_seen: tuple[object, float] = (None, 0.0)
        self._in_use = False

    # -- reading -------------------------------------------------------------------------------------------

    def refresh(self, budget_s: float | None = None, *, books: bool = True) -> bool:
        """Read what is new, for about `budget_s` seconds; True if anything was. Without the books: a glance."""
        changed = [file.read() for file in self._files.values()]
        self.info = self._files["run.json"].data
        self.beat = self._files["beat.json"].data
        before, self._in_use = self._in_use, self.folder.in_use()
        changed += [books and self.books.read(budget_s), books and self._world.read(), before != self._in_use]
        if self.beat.get("time") != self._beat_seen[0]:
            first = self._beat_seen[0] is None
            self._beat_seen = (self.beat.get("time"), 0.0 if first else time.monotonic())
        self.looked_at = time.time()
        if any(changed):
            self.__dict__.pop("settings", None)
            self.__dict__.pop("environment", None)
        return any(changed)

    @property
    def behind(self) -> int:
        """Bytes of the journal and the metrics that are not read yet: not 0 only with a budget, or for half a line."""
        return self.books.behind

    @property
    def problems(self) -> list[str]:
        """What cannot be shown and why, in words for a person."""
        found = [f"{name}: {file.problem}" for name, file in self._files.items() if file.problem]
        for tail in (self.books.journal, self.books.metrics, self.books.sensors):
            if tail.problem:
                found.append(f"{tail.path.name}: {tail.problem}")
        version = self.info.get("format")
        if isinstance(version, int) and version > FORMAT:
            found.append(f"written by a newer holdfast (format {version}; known here: {FORMAT}): some may be missing")
        if self.books.torn:
            torn = self.books.torn
            found.append(f"{torn} torn {'line' if torn == 1 else 'lines'} skipped in journal and metrics")
        if self.books.table.left_out:
            found.append(f"{self.books.table.left_out} numbers left out: more metrics than can be told apart")
        return found

    # -- what it is and where it stands --------------------------------------------------------------------

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def workload(self) -> str | None:
        return text(self.info.get("workload"))

    @property
    def state(self) -> str:
        """The state a person should read, in one word."""
        said = text(self.info.get("state")) or RunState.CRASHED
        if said in LIVE_STATES and not self._in_use and not self._beats_elsewhere:
            return RunState.CRASHED
        if said == RunState.RUNNING and self.device and self.first_device not in (None, self.device):
            return RunState.MOVED
        return said

    @property
    def first_device(self) -> str | None:
        """Where it began."""
        timeline = self.accounts.get("timeline")
        first = timeline[0] if isinstance(timeline, list) and timeline else None
        return text(_dict(first).get("device")) or self.story.first_device

    @property
    def _beats_elsewhere(self) -> bool:
        """No lock here, but a supervisor of another machine that beats: a mounted or synced folder."""
        if self.info.get("boot_id") in (None, boot_id()):
            return False
        seen, said = self._beat_seen[1], seconds(self.beat.get("time"))
        fresh = said is not None and abs(time.time() - said) < ELSEWHERE
        return fresh or bool(seen and time.monotonic() - seen < ELSEWHERE)

    @property
    def live(self) -> bool:
        return self.state in LIVE_STATES

    @property
    def elsewhere(self) -> bool:
        """It runs on another machine."""
        return self.live and not self._in_use

    @property
    def story(self) -> Story:
        return self.books.story

    @property
    def accounts(self) -> dict[str, Any]:
        return _dict(self.info.get("accounts"))

    @property
    def device(self) -> str | None:
        return text(self.info.get("device")) or text(self.beat.get("device"))

    @property
    def step(self) -> int | None:
        """Steps committed, by the newest source that says so."""
        known = [whole(self.accounts.get("steps")), whole(self.beat.get("step")), self.story.step or None]
        known.append(whole((self.receipt or {}).get("steps")))
        return max((step for step in known if step is not None), default=None)

    @property
    def progress(self) -> Progress:
        beat, step, live = self.beat, self.step, self.live
        epoch, setup = whole(beat.get("epoch")), _dict(beat.get("progress"))
        epochs = whole(beat.get("epochs")) or None
        done = self.story.epochs_done
        if epochs and not live:  # the last beat may be older than the end: the journal has every epoch
            epochs = max(epochs, done)
        now = (done or None) if not live else None if epoch is None else epoch + 1
        total, label = whole(setup.get("total")), text(setup.get("label"))
        return Progress(
            step=step,
            of=step if self.state == RunState.FINISHED else whole(beat.get("steps_total")),
            epoch=min(now, epochs) if now and epochs else now,
            epochs=epochs if live or self.state != RunState.FINISHED else done or None,
            rate=amount(beat.get("rate")) if live else None,
            time_left_s=amount(beat.get("time_left_s")) if live else None,
            phase=text(beat.get("phase")) if live else None,
            setup=(whole(setup.get("done")) or 0, total, label or "") if total and live else None,
        )

    @property
    def beat_age_s(self) -> float | None:
        """Seconds since the supervisor last wrote the beat."""
        when = seconds(self.beat.get("time"))
        return None if when is None else max(0.0, time.time() - when)

    @property
    def stale(self) -> bool:
        """A live run whose beat is old: what is shown is how it was then."""
        age = self.beat_age_s
        return self.live and age is not None and age > STALE

    @property
    def last_seen(self) -> float | None:
        """The newest time that anything in the folder names."""
        known = [self.story.last, seconds(self.beat.get("time")), seconds(self.info.get("ended"))]
        return max((when for when in known if when is not None), default=None)

    @property
    def began(self) -> float | None:
        return self.story.first or seconds(self.info.get("created"))

    @property
    def lasted_s(self) -> float | None:
        """From its start to its end, or to now; all sittings of a resumed run together."""
        began = self.story.began
        if began is None:
            return None
        end = time.time() if self.live and not self.elsewhere else (self.story.last or began)
        return max(0.0, self.story.sat_s + end - began)

    @property
    def planned(self) -> Planned | None:
        """What the plan said of it, if it was started by one."""
        return planned(self.info.get("plan"))

    @property
    def exit_code(self) -> int | None:
        return None if self.live else whole(self.info.get("exit_code"))

    # -- what happened -------------------------------------------------------------------------------------

    @property
    def lanes(self) -> list[Lane]:
        """One a worker; the last one of a live run is open, that of a dead one ends when it was last seen."""
        lanes: list[Lane] = list(self.story.lanes)
        if lanes and lanes[-1].until is None and not self.live:
            last = lanes[-1]
            lanes[-1] = replace(last, until=self.last_seen, to_step=self.step)
        return lanes

    @property
    def device_timeline(self) -> list[dict[str, Any]]:
        """Devices by steps, as the accounts of the run have it."""
        timeline = self.accounts.get("timeline")
        rows = [row for row in timeline if isinstance(row, dict)] if isinstance(timeline, list) else []
        if rows:
            keys = ("from_step", "to_step")
            return [{"device": text(row.get("device")), **{key: whole(row.get(key)) for key in keys}} for row in rows]
        return [{"device": self.device, "from_step": 0, "to_step": None}] if self.device else []

    @property
    def faults(self) -> list[Fault]:
        """The newest (at most 2000); `faults_total` counts all."""
        return list(self.story.faults)

    @property
    def faults_total(self) -> int:
        return int(self.story.faults_total)

    @property
    def faults_recovered(self) -> int:
        """After how many of them the training went on, in the same process or in another."""
        return self.faults_total - sum(not fault.recovered for fault in self.story.faults)

    @property
    def recoveries(self) -> int:
        """How often a worker was replaced."""
        sources = (self.receipt or {}, self.accounts, self.beat)
        return max((whole(source.get("recoveries")) or 0 for source in sources), default=0)

    def events(
        self, last: int | None = None, kinds: Collection[str] | None = None, *, before: int | None = None
    ) -> list[Event]:
        """Lines of the journal but logged numbers; `before` is a count, to page back from."""
        return self.books.events(last, kinds, before=before)

    @property
    def metrics(self) -> Metrics:
        return Metrics(self.books.table, ahead=self.books.ahead)

    @property
    def curves(self) -> Metrics:
        """What every face draws: the metrics; where no loss is among them, that of each epoch comes first."""
        if any(map(smaller_is_better, self.books.table.names)):
            return self.metrics
        return Metrics(self.books.losses, self.books.table, ahead=self.books.ahead)

    @property
    def readings(self) -> Metrics:
        """What the sensors said, every ten seconds: `cuda:0 temperature_c`, `cpu load_pct`, …"""
        return Metrics(self.books.readings)

    @property
    def best(self) -> dict[str, Any] | None:
        """Name, value, step and epoch (counted from 1) of the best; None if nothing was judged."""
        said, found = _dict(self.info.get("best")), self._best_by_the_journal()
        value, epoch = amount(said.get("value")), whole(said.get("epoch"))
        if value is None or (found is not None and _better(found, value)):
            return found
        return {
            "name": str(said.get("name")),
            "value": value,
            "step": whole(said.get("step")),
            "epoch": None if epoch is None else epoch + 1,
        }

    def _best_by_the_journal(self) -> dict[str, Any] | None:
        """A run says its best when it ends. Until then, or if it is killed, the marks of its journal are all there is;
        which metric they are of is a setting."""
        step, epoch = self.story.best_step, self.story.best_epoch
        chosen = next((each.value for each in self.settings if each.key == "checkpoint.best"), "auto")
        names = [name for name in self.metrics if name == chosen or (chosen == "auto" and name.startswith("val"))]
        if text(self.info.get("state")) not in LIVE_STATES or step is None or not names:
            return None
        series = self.metrics[names[0]]
        at = bisect_right(series.steps, step) - 1
        value = series.values[at] if at >= 0 and series.steps[at] == step else None
        if value is None or amount(value) is None:
            return None
        return {"name": names[0], "value": value, "step": step, "epoch": None if epoch is None else epoch + 1}

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What the run ended with; a run that goes on has none, whatever an earlier end left."""
        said = text(self.info.get("state"))
        return None if said in LIVE_STATES else self._files["receipt.json"].data or None

    # -- what lies in the folder ---------------------------------------------------------------------------

    @functools.cached_property
    def settings(self) -> list[Setting]:
        return list(settings_of(self.info.get("settings")))

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """What the last fault kept of it, and what run.json says: versions, machine, devices."""
        kept: dict[str, Any] = {}
        for fault in reversed(self.story.faults[-20:]):
            kept = read_json(self.path / fault.folder / "environment.json") if fault.folder else {}
            if kept:
                break
        named = {key: text(self.info.get(key)) for key in ("holdfast", "python")}
        return {**named, "torch": self.story.torch, "found": kept}

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The newest first."""
        found = []
        for name in names_in(self.path / "checkpoints"):
            if name.isdigit() and len(name) < 16:
                digest = read_json(self.path / "checkpoints" / name / "digest.json")
                found.append(Checkpoint(int(name), name, whole(digest.get("bytes")) or 0))
        return sorted(found, key=lambda each: each.step, reverse=True)

    @property
    def world(self) -> dict[str, Any]:
        """What a simulation shows of itself, as it wrote it; see scenes.py."""
        return self._world.data

    @property
    def weights(self) -> dict[str, Path]:
        """The weight files there are: best, final."""
        paths = {name: self.path / f"{name}.safetensors" for name in ("best", "final")}
        return {name: path for name, path in paths.items() if path.is_file() and not path.is_symlink()}

    def log_tail(self, lines: int = 200) -> list[str]:
        """The end of what the script printed, without anything that moves a cursor."""
        from holdfast.monitor.logs import tail_of

        return tail_of(self.path / "output.log", lines, most=_MOST_LOG)


@functools.lru_cache(maxsize=1)
def boot_id() -> str | None:
    """Of this machine; None where it is not told in a file."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _better(found: dict[str, Any], value: float) -> bool:
    return bool(found["value"] < value if smaller_is_better(found["name"]) else found["value"] > value)
