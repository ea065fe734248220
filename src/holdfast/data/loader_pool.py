"""Batches out of loader children that may be killed, stopped or stuck: each exactly once, and in order.

    pool = Pool(Fetcher(dataset, collate_fn), workers=2)
    for value in pool.stream(course, 17, settle):    # batch 17, 18, ... of the epoch
        ...
    pool.close()

When a child dies, or gives nothing for longer than `Patience` allows, the whole generation is killed and a
new one begins with the batch that was due. A batch is a function of its ticket, so it comes out the same.
The second time, its samples are tried one by one: those that do it alone are left out, or BadSamples is raised.
After `RESPAWNS` new generations for one batch: LoaderFailed, with the sample that did it where that is known.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch

from holdfast.base.errors import ExitCode, HoldfastError, InternalError, UserError
from holdfast.data.loader_child import Failure, Fetcher, Ticket, listed
from holdfast.data.loader_processes import Feed, Item, Job, is_stopped, signal_name, start_method
from holdfast.data.quarantine import Course, Settle
from holdfast.data.read_limit import Patience
from holdfast.data.sample_check import (
    Examiner,
    Findings,
    charge_for_collating,
    charge_for_deaths,
    charge_for_error,
    inquire,
    words_of,
)
from holdfast.data.sample_marks import IDLE, current
from holdfast.faults.bad_samples import Charge
from holdfast.record.evidence.stacks import by_py_spy

RESPAWNS = 3
"""How often the children are replaced for the sake of one batch."""
POLL_S = 0.05
"""How soon a dead child is noticed while a batch is waited for."""
BEAT_S = 0.5
"""How often `on_wait` is called meanwhile."""
_STACK = 4000
"""Characters of a stack that go along with an event."""
GRACE_S = 1.0
"""How long healthy children get to leave by themselves at a close."""


class LoaderFailed(HoldfastError):
    """Loader children died or hung again and again at one batch; `samples` names the suspects."""

    exit_code = ExitCode.NO

    def __init__(
        self, message: str, *, samples: Sequence[int] = (), epoch: int = -1, batch: int = -1, **parts: Any
    ) -> None:
        super().__init__(message, **parts)
        self.samples = list(samples)
        self.epoch = epoch
        self.batch = batch


@dataclass(frozen=True)
class _Trouble:
    """Why a generation was given up: events for the journal, and the words for the last error."""

    events: list[tuple[str, dict[str, Any]]]
    suspects: list[int]
    line: str
    hints: tuple[str, ...] = ()
    error: BaseException | None = None
    fatal: bool = False
    """A child died or hung over its work: that may be a sample's doing."""


class Pool:
    """Loader children, replaced when they fail. Made for one stream at a time."""

    def __init__(self, fetcher: Fetcher, *, workers: int, prefetch: int = 2, persistent: bool = True) -> None:
        self.fetcher = fetcher
        self.workers = workers
        self.prefetch = prefetch
        self.persistent = persistent
        self.patience = Patience()
        self.pin: torch.device | None = None
        self.must_pin = False
        """Else a batch that cannot be pinned comes as it is."""
        self.on_event: Callable[[str, dict[str, Any]], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        self._strikes: Counter[int] = Counter()
        """How often a child was at that sample when it ended."""
        self._feeds: list[Feed] = []  # none or one; a list, for the finaliser must not hold the pool itself
        # When the pool is collected; and at exit, before multiprocessing waits for children that may not end.
        self._finalize = Finalize(self, _stop_all, args=(self._feeds,), exitpriority=100)

    @property
    def pids(self) -> list[int]:
        """The loader children alive now."""
        return [pid for feed in self._feeds for pid in feed.pids()]

    def close(self) -> None:
        """End every child and wait until it is gone. A later stream starts new ones."""
        _stop_all(self._feeds)

    def wait(self) -> None:
        """A sign of life, while something is waited for."""
        marks = current()
        beat = self.on_wait or (marks.beat if marks is not None else None)
        if beat is not None:
            beat()

    def examine(self, ticket: Ticket, indices: Sequence[int], strikes: Counter[int] | None = None) -> Findings:
        """Samples one at a time, in a child that may die of it."""
        return Examiner(self.fetcher, self.patience, self.wait).examine(ticket, indices, strikes)

    def stream(self, course: Course, start: int, settle: Settle) -> Iterator[Any]:
        """The values of batches `start`, `start` + 1, ... of the course."""
        claim = object()
        try:
            for batch in range(start, len(course)):
                yield self._obtain(claim, course, batch, settle)
        finally:
            if not self.persistent:
                self.close()

    def _obtain(self, claim: object, course: Course, batch: int, settle: Settle) -> Any:
        """One batch, whatever it takes."""
        attempt = 0
        while True:
            # After a respawn only this batch is ordered, so that no later one can be to blame;
            # after the second it comes by value, so that neither shared memory nor descriptors can.
            self.fetcher.by_value |= attempt >= 2
            job = Job(claim, course, batch, len(course) if attempt == 0 else batch + 1)
            outcome = self._try(job, attempt)
            if isinstance(outcome, Item):
                if outcome.error is None:
                    return outcome.value
                charge = self._look_into_error(course, batch, outcome.error, outcome.failure)
                settle(course, batch, charge, outcome.error)
                attempt = 0
                continue
            self._drop(outcome, respawn=attempt + 1)
            found = self._look_into_deaths(course, batch, outcome) if attempt == 1 and outcome.fatal else None
            if found is not None:
                settle(course, batch, found, None)
                attempt = 0
                continue
            if attempt == RESPAWNS:
                raise _failed(outcome, course, batch) from outcome.error
            attempt += 1

    def _look_into_error(self, course: Course, batch: int, error: Exception, failure: Failure | None) -> Charge:
        """The dataset or the collate function raised: whose fault is it?"""
        ticket = course.ticket(batch)
        if failure is None or failure.stage == "send":
            raise error
        samples = ticket.samples.tolist()
        if failure.stage == "collate":
            words = words_of(error)
            return charge_for_collating(self.fetcher.dataset, samples, failure.samples, failure.words, words)
        found = inquire(partial(self.examine, ticket), failure.samples, samples, course.elsewhere(batch))
        return charge_for_error(self.fetcher.dataset, samples, failure.samples, found, error)

    def _look_into_deaths(self, course: Course, batch: int, trouble: _Trouble) -> Charge | None:
        """The batch was fatal twice: which of its samples are so by themselves? None if none is."""
        ticket = course.ticket(batch)
        samples = ticket.samples.tolist()
        suspects = [index for index in trouble.suspects if index in samples]
        examine = partial(self.examine, ticket, strikes=self._strikes)
        found = inquire(examine, suspects, samples, course.elsewhere(batch))
        return charge_for_deaths(self.fetcher.dataset, samples, found)

    def _try(self, job: Job, attempt: int) -> Item | _Trouble:
        try:
            feed = self._feed_for(job)
        except OSError as error:  # no memory, or no room for another process
            return _not_started(error, job)
        return self._wait(feed, job.start, attempt)

    def _feed_for(self, job: Job) -> Feed:
        feed = self._feeds[0] if self._feeds else None
        if feed is not None and feed.serves(job.claim, job.start):
            return feed
        if feed is not None and (dead := feed.dead()):  # while nobody was waiting
            self._drop(self._died(feed, dead), respawn=0)
            feed = None
        if feed is not None:
            feed.begin(job)
            return feed
        try:
            feed = Feed(
                self.fetcher, job, workers=self.workers, prefetch=self.prefetch, pin=self.pin, must_pin=self.must_pin
            )
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            if (self.fetcher.start_method or start_method()) == "fork":
                raise
            raise UserError(
                f"the dataset cannot be sent to a loader child: {error}",
                hints=("define dataset and collate_fn at the top level of a module, or use num_workers=0",),
            ) from error
        self._feeds.append(feed)
        return feed

    def _wait(self, feed: Feed, batch: int, attempt: int) -> Item | _Trouble:
        limit = self.patience.limit(fresh=feed.delivered < self.workers, attempt=attempt)
        waited = since_beat = 0.0
        last = time.monotonic()
        while True:
            item = feed.take(POLL_S)
            if item is not None and item.trouble is None:
                return self._accept(feed, item, batch)
            now = time.monotonic()
            # Capped: a run that was itself stopped for an hour (Ctrl-Z) must not blame its children for it.
            waited, since_beat, last = waited + min(now - last, 1.0), since_beat + now - last, now
            if dead := feed.dead():
                return self._died(feed, dead)
            if item is not None:
                return self._unreadable(feed, batch, item.trouble)
            if since_beat >= BEAT_S:
                since_beat = 0.0
                self.wait()
            child = feed.children[(batch - feed.job.start) % self.workers]  # torch deals them out in turn
            stopped = waited > self.patience.floor_s and is_stopped(child.pid)
            if stopped or waited > limit:
                return self._stuck(feed, child, batch, waited, limit, stopped)

    def _accept(self, feed: Feed, item: Item, batch: int) -> Item:
        if item.batch != batch:
            raise InternalError(f"a loader child gave batch {item.batch} where {batch} was due")
        self.patience.note(item.seconds)
        if feed.delivered == 1:
            self.patience.note_first(time.monotonic() - feed.born)
        return item

    def _drop(self, trouble: _Trouble, respawn: int) -> None:
        """End this generation, then tell."""
        while self._feeds:
            self._feeds.pop().stop(grace=0)
        if self.on_event is not None:
            for name, details in trouble.events:
                self.on_event(name, {**details, "respawn": respawn})

    # Naming what happened.

    def _died(self, feed: Feed, dead: list[BaseProcess]) -> _Trouble:
        for child in dead:
            child.join(1.0)  # its descriptors close a moment before its exit status can be read
        trouble = _Trouble([], [], "; ".join(f"loader child {child.pid} {_end(child)}" for child in dead))
        hints: dict[str, None] = {}
        for child in dead:
            name = signal_name(child.exitcode)
            samples = self._suspects(feed, child)
            self._strikes.update(samples if len(samples) == 1 else ())
            trouble.suspects.extend(samples)
            hints.update(dict.fromkeys(_hints(name, samples)))
            batch = self._batch_of(feed, child)
            details = _details(feed.job, batch, child.pid, samples, ahead=batch - feed.next)
            trouble.events.append(("loader_died", {**details, "signal": name, "exitcode": child.exitcode}))
            if name == "SIGBUS":  # shared memory is full: a full tmpfs kills whoever writes to it
                self.fetcher.by_value = True
        return _Trouble(trouble.events, trouble.suspects, trouble.line, tuple(hints), fatal=True)

    def _stuck(
        self, feed: Feed, child: BaseProcess, batch: int, waited: float, limit: float, stopped: bool
    ) -> _Trouble:
        samples = self._suspects(feed, child)
        self._strikes.update(samples if len(samples) == 1 and not stopped else ())
        samples = samples or feed.job.course.ticket(batch).samples.tolist()
        details = _details(feed.job, batch, child.pid, samples)
        event = {**details, "waited_s": round(waited, 3), "limit_s": limit, "stopped": stopped, "stack": _stack(child)}
        state = "is stopped" if stopped else f"gave nothing for {waited:.1f} s"
        line = f"loader child {child.pid} {state}"
        return _Trouble([("loader_stuck", event)], samples, line, _hints(None, samples), fatal=not stopped)

    def _unreadable(self, feed: Feed, batch: int, error: BaseException | None) -> _Trouble:
        """Reading failed: mostly because a child has died, seen a moment later; or descriptors ran out."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            if dead := feed.dead():
                return self._died(feed, dead)
            time.sleep(POLL_S)
        self.fetcher.by_value = True
        samples = feed.job.course.ticket(batch).samples.tolist()
        details = _details(feed.job, batch, None, samples)
        event = {**details, "signal": None, "exitcode": None, "error": repr(error)}
        return _Trouble([("loader_died", event)], samples, f"a batch could not be read: {error!r}", (), error)

    def _suspects(self, feed: Feed, child: BaseProcess) -> list[int]:
        """The sample that child was at; its whole batch if it was collating; nothing if it was idle."""
        slot = feed.children.index(child)
        at = int(feed.progress[slot])
        if at >= 0:
            return [at]
        batch = next(self._due(feed, slot), None)
        return [] if at == IDLE or batch is None else feed.job.course.ticket(batch).samples.tolist()

    def _due(self, feed: Feed, slot: int) -> Iterator[int]:
        """The batches this child has still to give; torch deals them out in turn."""
        theirs = range(feed.job.start + slot, feed.job.stop, self.workers)
        return (batch for batch in theirs if batch >= feed.next)

    def _batch_of(self, feed: Feed, child: BaseProcess) -> int:
        """The batch that child was at. It may be read long before its turn, while the loop waits for another."""
        slot = feed.children.index(child)
        at = int(feed.progress[slot])
        if at == IDLE:
            return feed.next
        course, due = feed.job.course, itertools.islice(self._due(feed, slot), self.prefetch + 1)
        found = [batch for batch in due if at < 0 or at in course.ticket(batch).samples]
        return found[0] if found else feed.next


def _stop_all(feeds: list[Feed]) -> None:
    while feeds:
        feeds.pop().stop(grace=GRACE_S)


def _details(job: Job, batch: int, pid: int | None, samples: list[int], ahead: int = 0) -> dict[str, Any]:
    """`ahead`: how many batches come before it."""
    return {"pid": pid, "samples": samples, "epoch": job.course.number, "batch": batch, "ahead": ahead}


def _not_started(error: OSError, job: Job) -> _Trouble:
    event = {**_details(job, job.start, None, []), "signal": None, "exitcode": None, "error": repr(error)}
    hints = ("use fewer num_workers: the system refused another process",)
    return _Trouble([("loader_died", event)], [], f"no loader child could be started: {error}", hints, error)


def _failed(trouble: _Trouble, course: Course, batch: int) -> LoaderFailed:
    samples = trouble.suspects or course.samples(batch).tolist()
    what = f"sample {samples[0]}" if len(samples) == 1 else f"samples {listed(samples)}"
    return LoaderFailed(
        f"batch {batch} of epoch {course.number} could not be loaded in {RESPAWNS + 1} tries: {what}",
        cause=trouble.line,
        hints=trouble.hints,
        samples=samples,
        epoch=course.number,
        batch=batch,
    )


def _hints(name: str | None, samples: Sequence[int]) -> tuple[str, ...]:
    hints = []
    if name == "SIGKILL":
        hints.append("if memory was short, use fewer num_workers")
    elif name == "SIGBUS":
        hints.append("shared memory may be full: see `df -h /dev/shm`; `docker run` takes --shm-size")
    if len(samples) == 1:
        hints.append(f"read that sample alone: dataset[{samples[0]}]")
    return tuple(hints)


def _end(child: BaseProcess) -> str:
    name = signal_name(child.exitcode)
    return f"was killed by {name}" if name else f"exited with status {child.exitcode}"


def _stack(child: BaseProcess) -> str | None:
    """Where it is stuck, while it still lives: read out of its memory by py-spy; None where that is not installed."""
    found = by_py_spy(child.pid, "--nonblocking") if child.pid is not None else None
    return None if found is None else found[:_STACK]
