"""Which samples cannot be read? Each is tried alone, and others beside it: only some fail, or all of them do.

    found = inquire(examine, suspects=[4711], batch=[…], elsewhere=[…])      # {4711: Finding(End.DIED, "…"), 12: …}
    charge = charge_for_error(dataset, batch, suspects, found, error)        # data, code or unknown

`examine` reads samples one at a time: in this process (`examine_here`), or in a child that may die of it (`Examiner`),
which notes each sample before it reads it, in memory it shares with us. A sample is guilty of a death if it is the
first that a fresh child reads and the child ends, and that was not the only time: something from outside may end a
child as well, and what one sample has damaged may only show at the next.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from holdfast.base.text_enum import TextEnum
from holdfast.data.loader_child import Fetcher, Ticket, fetch_here
from holdfast.data.loader_processes import Feed, Item, Job, is_stopped, signal_name
from holdfast.data.read_limit import Patience
from holdfast.data.sample_marks import Place
from holdfast.data.sample_sources import described
from holdfast.faults.bad_samples import Charge
from holdfast.faults.blame import Blame

GUILTY = 2
"""Deaths that make a sample guilty."""
MOST_TRIES = 4
"""Children that one sample may cost in a trial."""
MOST_OTHERS = 63
"""Samples of the batch that are tried beside the suspects."""
HOPELESS = 3
"""So many deaths and nothing that could be read: then it is not the samples."""
MOST_SECONDS = 300.0
"""What is not tried by then stays unknown."""
POLL_S, BEAT_S = 0.05, 0.5
_MOST_WORDS = 300


class End(TextEnum):
    """How an attempt to read one sample ended."""

    OK = "ok"
    RAISED = "raised"
    DIED = "died"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a sample did when it was read alone."""

    end: End
    did: str = ""
    """Goes on after "sample 4711": "raised ValueError: …"."""

    @property
    def fatal(self) -> bool:
        return self.end in (End.DIED, End.STUCK)


Findings = dict[int, Finding]
Examine = Callable[[Sequence[int]], Findings]


# What was seen, and what follows from it.


def inquire(examine: Examine, suspects: Sequence[int], batch: Iterable[int], elsewhere: Sequence[int]) -> Findings:
    """Try the suspects, then the rest of their batch; if nothing there can be read, a few samples from elsewhere.

    A batch may well consist of one bad recording: only others can tell whether it is the code.
    """
    others = [index for index in batch if index not in set(suspects)][:MOST_OTHERS]
    found = examine([*suspects, *others])
    if not _any_ok(found):
        found.update(examine([index for index in elsewhere if index not in found]))
    return found


def charge_for_error(
    dataset: Any, batch: Iterable[int], suspects: Sequence[int], found: Findings, error: BaseException
) -> Charge:
    """`dataset[index]` raised: for some samples, or for each?"""
    guilty = [index for index in batch if index in found and found[index].end is End.RAISED]
    if not any(index in guilty for index in suspects):  # read again, it was fine
        return _charge(Blame.UNKNOWN, dataset, suspects, found, words_of(error))
    return _charge(_blame(found), dataset, guilty, found, words_of(error))


def charge_for_deaths(dataset: Any, batch: Iterable[int], found: Findings) -> Charge | None:
    """Children died or hung: which samples do that by themselves? None if no sample does."""
    guilty = [index for index in batch if index in found and found[index].fatal]
    return _charge(_blame(found), dataset, guilty, found, found[guilty[0]].did) if guilty else None


def charge_for_collating(dataset: Any, batch: Sequence[int], odd: Sequence[int], words: str, error: str) -> Charge:
    """The samples could be read and not be put together: that was tried without the odd ones already."""
    if not odd:
        return Charge(Blame.CODE, (), f"{error}, in collating", len(batch), 0)
    others = len(batch) - len(odd)
    return Charge(Blame.DATA, tuple(described(dataset, odd)), f"{words} ({error})", others, others)


def _blame(found: Findings) -> Blame:
    if _any_ok(found):
        return Blame.DATA
    return Blame.CODE if len(found) > 1 else Blame.UNKNOWN


def _any_ok(found: Findings) -> bool:
    return any(finding.end is End.OK for finding in found.values())


def _charge(blame: Blame, dataset: Any, guilty: Sequence[int], found: Findings, did: str) -> Charge:
    others = [finding for index, finding in found.items() if index not in set(guilty)]
    ok = sum(finding.end is End.OK for finding in others)
    return Charge(blame, tuple(described(dataset, guilty)), did, len(others), ok)


def words_of(error: BaseException) -> str:
    """ "raised ValueError: arange: cannot compute length", on one line."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"raised {text[:_MOST_WORDS]}"


# Trying.


def examine_here(
    fetcher: Fetcher, ticket: Ticket, indices: Sequence[int], at: Place, wait: Callable[[], None]
) -> Findings:
    """One at a time in this process, with the random numbers each has in its batch."""
    found: Findings = {}
    deadline = time.monotonic() + MOST_SECONDS
    for index in indices:
        if time.monotonic() > deadline:
            break
        wait()
        try:
            fetch_here(fetcher, ticket._replace(samples=np.array([index]), alone=True), at)
            found[index] = Finding(End.OK)
        except Exception as error:
            found[index] = Finding(End.RAISED, words_of(error))
    return found


class _Alone:
    """A course of single samples."""

    def __init__(self, ticket: Ticket, indices: Sequence[int]) -> None:
        self.number = ticket.epoch
        self._ticket = ticket
        self._indices = list(indices)

    def ticket(self, batch: int) -> Ticket:
        return self._ticket._replace(batch=batch, samples=np.array([self._indices[batch]]), alone=True)


class Examiner:
    """Reads samples one at a time in a child of its own, and starts another when it dies."""

    def __init__(self, fetcher: Fetcher, patience: Patience, wait: Callable[[], None]) -> None:
        self.fetcher = fetcher
        self.patience = patience
        self.wait = wait

    def examine(self, ticket: Ticket, indices: Sequence[int], strikes: Counter[int] | None = None) -> Findings:
        """`strikes`: how often each was being read already when a process ended."""
        strikes = Counter() if strikes is None else strikes
        found: Findings = {}
        pending = list(indices)
        deadline = time.monotonic() + MOST_SECONDS
        tries: Counter[int] = Counter()
        while pending and time.monotonic() < deadline and not _hopeless(found):
            first = pending[0]
            try:
                ended = self._read(ticket, pending, found)
            except (OSError, TypeError, AttributeError, pickle.PicklingError):
                break  # there is no child to be had, for want of memory or because the dataset cannot be sent to one
            if ended is None:
                continue
            index, finding, blamable = ended
            tries[index] += 1
            strikes[index] += blamable
            if index == first and finding.fatal and blamable and strikes[index] >= GUILTY:
                found[index] = finding
                pending.remove(index)
            elif tries[index] >= MOST_TRIES:
                pending.remove(index)  # what it does is not to be told from what happens around it
            else:
                pending.remove(index)
                pending.insert(0, index)  # alone in a fresh child the next time
        return found

    def _read(self, ticket: Ticket, pending: list[int], found: Findings) -> tuple[int, Finding, bool] | None:
        """Work through `pending` with one child until it ends: the sample it ended at, and whether by itself."""
        job = Job(object(), _Alone(ticket, pending), 0, len(pending))
        feed = Feed(self.fetcher, job, workers=1, prefetch=1, pin=None)
        try:
            for index in list(pending):
                outcome = self._await(feed, index)
                if not isinstance(outcome, Item):
                    return outcome
                pending.remove(index)
                said = Finding(End.OK) if outcome.error is None else Finding(End.RAISED, words_of(outcome.error))
                found[index] = said
            return None
        finally:
            feed.stop(grace=0)

    def _await(self, feed: Feed, index: int) -> Item | tuple[int, Finding, bool]:
        began = last = beat = time.monotonic()
        waited = reading = 0.0
        while True:
            item = feed.take(POLL_S)
            if item is not None and item.trouble is None:
                return item
            if dead := feed.dead():
                return self._died(feed, dead[0], index)
            now = time.monotonic()
            passed, last = min(now - last, 1.0), now  # capped: this process may have been stopped itself
            waited += passed
            reading += passed if feed.progress[0] == index else 0.0
            if now - beat >= BEAT_S:
                beat = now
                self.wait()
            stopped = is_stopped(feed.children[0].pid) and now - began > self.patience.floor_s
            limit = self.patience.limit(fresh=False, attempt=2)
            if stopped or item is not None:  # somebody stopped it, or what it sent cannot be read
                return index, Finding(End.STUCK, "could not be tried"), False
            if reading > limit or waited > self.patience.first_wait_s + limit:
                did = f"hung the process that reads it (nothing for {reading:.0f} s)"
                return index, Finding(End.STUCK, did), reading > limit

    def _died(self, feed: Feed, child: BaseProcess, index: int) -> tuple[int, Finding, bool]:
        child.join(1.0)  # its descriptors close a moment before its exit status can be read
        at = int(feed.progress[0])
        how = signal_name(child.exitcode) or f"exit status {child.exitcode}"
        return (at if at >= 0 else index), Finding(End.DIED, f"ended the process that reads it ({how})"), at >= 0


def _hopeless(found: Findings) -> bool:
    return sum(finding.fatal for finding in found.values()) >= HOPELESS and not _any_ok(found)
