"""Batches read in the worker itself, where a sample that kills takes the worker with it.

    reader = Reader(fetcher, pool)
    for value in reader.stream(course, 17, settle, pin=None): ...

Each sample is marked before it is read (sample_marks.py). A worker whose predecessor ended at a sample tries it in a
child first: if the child ends too, the sample is to blame; if not, it is read here as if nothing had happened.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

from holdfast.data.loader_child import Failure, Fetcher, Ticket, fetch_here
from holdfast.data.loader_pool import Pool
from holdfast.data.loader_processes import STAGED
from holdfast.data.quarantine import Course, Settle
from holdfast.data.sample_check import (
    End,
    charge_for_collating,
    charge_for_deaths,
    charge_for_error,
    examine_here,
    inquire,
    words_of,
)
from holdfast.data.sample_marks import NOWHERE, Marks, Place, Suspect, current, kind_of
from holdfast.data.sample_sources import described, source_of
from holdfast.faults.bad_samples import Charge
from holdfast.faults.blame import Blame

CERTAIN = 3
"""Workers that ended at one sample: then no trial is needed any more."""
_CONTROLS = 8
"""Samples a suspect is compared with."""


class Reader:
    """Reads in this process; the pool is asked only to try a suspect."""

    def __init__(self, fetcher: Fetcher, pool: Pool) -> None:
        self.fetcher = fetcher
        self.pool = pool
        self._tried: set[int] = set()

    def stream(self, course: Course, start: int, settle: Settle, *, pin: Callable[[Any], Any] | None) -> Iterator[Any]:
        """The values of batches `start`, `start` + 1, ... of the course."""
        self.fetcher.page_locked = 0 if pin is None else STAGED + 1
        for batch in range(start, len(course)):
            value = self._obtain(course, batch, settle)
            yield value if pin is None else pin(value)

    def _obtain(self, course: Course, batch: int, settle: Settle) -> Any:
        marks = current()
        while True:
            if marks is not None:
                for charge in self._try_suspects(marks, course, batch):
                    settle(course, batch, charge, None)
            ticket = course.ticket(batch)
            at: Place = NOWHERE
            if marks is not None and self.fetcher.draws:  # tensors in memory are read in no time, and kill nobody
                at = marks.place(self.kind, epoch=ticket.epoch, batch=batch)
            try:
                return fetch_here(self.fetcher, ticket, at)
            except Exception as error:
                charge = self._look_into(course, ticket, error, self.fetcher.failure, at)
                settle(course, batch, charge, error)

    @cached_property
    def kind(self) -> int:
        """The dataset, as the next process will know it: an index means the same sample there."""
        dataset, length = self.fetcher.dataset, len(self.fetcher)
        layers: list[tuple[str, str, str]] = []
        layer = dataset
        while layer is not None and len(layers) < 8:
            indices = getattr(layer, "indices", None)
            digest = hashlib.sha256(repr(indices).encode()).hexdigest() if indices is not None else ""
            layers.append((type(layer).__module__, type(layer).__qualname__, digest))
            layer = getattr(layer, "dataset", None)
        return kind_of(layers, length, source_of(dataset, 0), source_of(dataset, length - 1))

    # Whose fault is it?

    def _look_into(self, course: Course, ticket: Ticket, error: Exception, failure: Failure, at: Place) -> Charge:
        """The dataset or the collate function raised."""
        samples, dataset = ticket.samples.tolist(), self.fetcher.dataset
        if failure.stage == "collate":
            return charge_for_collating(dataset, samples, failure.samples, failure.words, words_of(error))
        examine = partial(examine_here, self.fetcher, ticket, at=at, wait=self.pool.wait)
        found = inquire(examine, failure.samples, samples, course.elsewhere(ticket.batch))
        return charge_for_error(dataset, samples, failure.samples, found, error)

    def _try_suspects(self, marks: Marks, course: Course, batch: int) -> Iterator[Charge]:
        """Has somebody ended over a sample of this batch? Each is tried once in a process."""
        suspects = marks.suspects(self.kind)
        if not suspects:
            return
        samples = course.samples(batch).tolist()
        for suspect in suspects:
            if suspect.index in samples and suspect.index not in self._tried:
                self._tried.add(suspect.index)
                charge = self._trial(marks, course, batch, suspect)
                if charge is not None:
                    yield charge

    def _trial(self, marks: Marks, course: Course, batch: int, suspect: Suspect) -> Charge | None:
        index, dataset = suspect.index, self.fetcher.dataset
        if suspect.strikes >= CERTAIN:
            return self._by_strikes(suspect)
        ticket = course.ticket(batch)
        examine = partial(self.pool.examine, ticket, strikes=Counter({index: suspect.strikes}))
        found = examine([index])
        if index in found and found[index].end is End.OK:
            marks.acquit(suspect)
            return None
        others = [other for other in ticket.samples.tolist() if other != index][:_CONTROLS]
        found.update(inquire(examine, [], others, course.elsewhere(batch)))
        charge = charge_for_deaths(dataset, [index], found)
        if charge is not None and charge.blame is Blame.DATA:
            return charge
        # A child can read nothing at all here, so it proves nothing: then the second worker decides.
        return self._by_strikes(suspect) if suspect.strikes >= 2 and not suspect.acquitted else None

    def _by_strikes(self, suspect: Suspect) -> Charge:
        did = f"ended {suspect.strikes} workers that were reading it"
        about = tuple(described(self.fetcher.dataset, [suspect.index]))
        return Charge(Blame.DATA, about, did, because="it was the same sample each time")
