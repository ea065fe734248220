"""Who is told what about a run: finished, needs you, gave up; and what was mended, as a digest, not every hiccup.

    news = News(digest_s=3600)
    for message in news.look(run): send(message, ways)       # run: holdfast.monitor.reader.Run, refreshed
    python -m holdfast.monitor.notify FOLDER                 # until the run is over; the ways come as JSON on stdin

`holdfast train` starts this as a process of its own. It only reads the run folder, so it can also tell of a supervisor
that was killed, and a webhook that hangs holds up nobody.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.errors import HoldfastError
from holdfast.base.human import count, counted, duration, metric
from holdfast.monitor import reader
from holdfast.monitor.devices import behave
from holdfast.monitor.notify_ways import Message, Ways, send
from holdfast.monitor.story import Fault
from holdfast.monitor.terminal.notes import clean
from holdfast.run.states import LIVE_STATES, RunState

LOOK_EVERY = 2.0
SURE = 2
"""Looks in a row that must see the same end: between a lock that is let go and a state that is written is a moment."""
SILENT = 300.0
"""Seconds without a beat after which somebody should look."""


class News:
    """What was told already, and what there is to tell."""

    def __init__(self, digest_s: float = 3600.0) -> None:
        self.digest_s = digest_s
        self.over = False
        """True once the end was told: there is nothing more to come."""
        self._state = ""
        self._seen = 0
        self._faults: int | None = None
        self._moves = 0
        self._since: float | None = None
        """When the first thing happened that waits for the digest."""
        self._unsaved: float | None = None
        self._silent = False
        self._waited: object = None
        """When it was last said that the script itself is silent."""

    def look(self, run: reader.Run, now: float | None = None) -> list[Message]:
        """What should be told now."""
        now = time.monotonic() if now is None else now
        if self._faults is None:
            self._faults, self._moves = run.faults_total, run.story.moves
        found = [*self._waiting(run), *self._ended(run), *self._held(run), *self._unwritten(run), *self._silence(run)]
        return found if self.over else [*found, *self._mended(run, now)]

    # -- the end ---------------------------------------------------------------------------------------------

    def _ended(self, run: reader.Run) -> Iterator[Message]:
        state = run.state
        if state in LIVE_STATES:
            self._seen = 0
            return
        self._seen += 1
        if self._seen < SURE or self.over:
            return
        self.over = True
        if state in (RunState.FINISHED, RunState.STOPPED):
            yield _message(run, "result", f"{_name(run)} {state.lower()}{_after(run)}", _lines(run))
            return
        why = ": nobody supervises it any more" if state == RunState.CRASHED else ""
        word = state.lower().replace("_", " ") + why
        yield _message(run, "alert", f"{_name(run)} {word}{_after(run)}", [*_error(run), *_lines(run), _resume(run)])

    # -- while it runs ---------------------------------------------------------------------------------------

    def _held(self, run: reader.Run) -> Iterator[Message]:
        """A pause needs somebody; its end is told to whoever heard of it."""
        before, self._state = self._state, run.state
        if self._state == RunState.PAUSED and before != RunState.PAUSED:
            said = [clean(event.data.get("text")) for event in run.events(last=1, kinds={"limit"})]
            yield _message(run, "alert", f"{_name(run)} is paused", said)
        elif before == RunState.PAUSED and self._state in LIVE_STATES:
            yield _message(run, "result", f"{_name(run)} goes on", _lines(run))

    def _unwritten(self, run: reader.Run) -> Iterator[Message]:
        before, self._unsaved = self._unsaved, run.story.unsaved_since
        if self._unsaved is not None and before is None and run.live:
            said = [clean(event.data.get("text")) for event in run.events(last=1, kinds={"not_saved"})]
            yield _message(run, "alert", f"{_name(run)} cannot be saved; it goes on in memory", said)
        elif before is not None and self._unsaved is None:
            yield _message(run, "result", f"{_name(run)} is saved again", [])

    def _silence(self, run: reader.Run) -> Iterator[Message]:
        age = run.beat_age_s
        before, self._silent = self._silent, bool(run.live and age is not None and age > SILENT)
        if self._silent and not before:
            yield _message(run, "alert", f"{_name(run)} has given no sign for {duration(age)}", _lines(run))

    def _waiting(self, run: reader.Run) -> Iterator[Message]:
        """The script makes no step: somebody hears of it before anything is ended."""
        for event in run.events(last=1, kinds={"silent"}):
            before, self._waited = self._waited, event.time
            if before != event.time:
                yield _message(run, "alert", f"{_name(run)} is silent", [clean(event.data.get("text")), *_lines(run)])

    def _mended(self, run: reader.Run, now: float) -> Iterator[Message]:
        """Faults that were survived, gathered."""
        assert self._faults is not None
        new, moved = run.faults_total - self._faults, run.story.moves - self._moves
        if not new and not moved:
            return
        self._since = now if self._since is None else self._since
        if now - self._since < self.digest_s or run.state == RunState.RECOVERING:
            return
        faults = run.faults[-new:] if new else []
        self._faults, self._moves, self._since = run.faults_total, run.story.moves, None
        title = f"{_name(run)}: {_fault_words(faults, new)}" if new else f"{_name(run)} moved to {clean(run.device)}"
        yield _message(run, "note", title, [*_kinds(faults), *_lines(run)])


def _message(run: reader.Run, level: str, title: str, lines: list[str]) -> Message:
    return Message(
        level=level,
        title=title,
        text="\n".join(line for line in lines if line),
        run=clean(run.name),
        workload=clean(run.workload or ""),
        state=run.state,
        folder=str(run.path.absolute()),
    )


def _name(run: reader.Run) -> str:
    return f"{clean(run.name)} ({clean(run.workload)})" if run.workload else clean(run.name)


def _after(run: reader.Run) -> str:
    return f" after {duration(run.lasted_s)}" if run.lasted_s is not None else ""


def _lines(run: reader.Run) -> list[str]:
    """How far, how good, how bad: three lines that fit a telephone."""
    progress, best = run.progress, run.best
    place = [f"epoch {progress.epoch}/{progress.epochs}"] if progress.epoch and progress.epochs else []
    place += [f"step {count(progress.step)}" + (f"/{count(progress.of)}" if progress.of else "")]
    place += [f"on {clean(run.device)}"] if run.device else []
    place += [f"{duration(progress.time_left_s)} left"] if progress.time_left_s is not None else []
    score = f"best {clean(best['name'])} {metric(best['value'])}" if best else ""
    total = run.faults_total
    return [" · ".join(place), score, _fault_words(run.faults, total) if total else "no faults"]


def _fault_words(faults: list[Fault], total: int) -> str:
    """2 faults, both recovered, 19 s lost"""
    recovered = sum(fault.recovered for fault in faults)
    lost = sum(fault.lost_s or 0.0 for fault in faults)
    if recovered >= len(faults):
        how = "recovered" if total == 1 else "both recovered" if total == 2 else "all recovered"
    else:
        how = f"{len(faults) - recovered} not recovered"
    return f"{counted(total, 'fault')}, {how}" + (f", {duration(lost)} lost" if lost >= 0.1 else "")


def _kinds(faults: list[Fault]) -> list[str]:
    """The newest few, by what happened."""
    return [f"{clean(fault.code)} {clean(fault.sentence)}" for fault in faults[-3:]]


def _error(run: reader.Run) -> list[str]:
    """The error the run ended with, as its journal has it."""
    for event in run.events(last=1, kinds={"end"}):
        error = event.data.get("error")
        if isinstance(error, dict):
            return [clean(error[key]) for key in ("message", "cause") if error.get(key)]
    return []


def _resume(run: reader.Run) -> str:
    saved = run.checkpoints
    if not saved:
        return "nothing was saved"
    return f"saved at step {count(saved[0].step)}: `holdfast resume {clean(run.name)}` goes on"


# A process of its own -------------------------------------------------------------------------------------


def follow(folder: Path, news: News, every: float = LOOK_EVERY) -> Iterator[Message]:
    """Look until the run is over. A folder that is gone ends it too."""
    run = reader.open(folder, cached=False)
    while True:
        yield from news.look(run)
        if news.over:
            return
        time.sleep(every)
        if not folder.is_dir():
            return
        run.refresh()


def main(argv: list[str] | None = None) -> int:
    """The ways as one JSON object on stdin: they may hold secrets, and arguments can be read by everybody."""
    behave()
    words = sys.argv[1:] if argv is None else argv
    ways = Ways.from_json(json.loads(sys.stdin.read() or "{}"))
    try:
        for message in follow(Path(words[0]), News(ways.digest)):
            for line in send(message, ways):
                print(line, flush=True)
    except (HoldfastError, OSError) as error:
        print(f"notify: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
