"""The runs that pages look at, read again and again by one thread, so that a page hears of a change within a second.

    hub = Hub(places)
    with hub.run("windows-…-calm-heron") as run: ...      # read up to now; nobody else touches it meanwhile
    listener = hub.listen({"windows-…-calm-heron"})       # its `news` fills up whenever one of these runs changes
    hub.close()

Only runs that somebody looks at are read. A large one without an index is read in slices, the page shows how far.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.monitor import payload
from holdfast.monitor.places import Places
from holdfast.monitor.reader import Run

EVERY = 0.25
"""Seconds between two looks at a run that is watched."""
LIST_EVERY = 1.0
SLICE = 0.15
"""Seconds of reading before others get their turn."""
FORGET_AFTER = 900.0
"""Seconds after which a run that nobody asks for is let go."""


class Watched:
    """One run that is kept open."""

    def __init__(self, ident: str, run: Run) -> None:
        self.ident = ident
        self.run = run
        self.lock = threading.Lock()
        self.version = 0
        self.wanted = time.monotonic()
        self.cache: dict[object, tuple[int, Any]] = {}
        """Answers that are costly to make, by what was asked, as of a version."""

    def refresh(self) -> bool:
        with self.lock:
            changed = self.run.refresh(SLICE)
            self.version += changed
        return changed

    def cached(self, key: object, make: Callable[[], Any]) -> Any:
        """To be called with the lock held."""
        version, made = self.cache.get(key, (-1, None))
        if version != self.version:
            if len(self.cache) > 64:
                self.cache.clear()
            made = make()
            self.run.books.release()  # twenty runs of a million points would fill the memory otherwise
            self.cache[key] = (self.version, made)
        return made


class Listener:
    """One page that wants to hear of changes. `wake` is called from the hub's thread."""

    def __init__(self, idents: frozenset[str], listing: bool, wake: Callable[[], object]) -> None:
        self.idents = idents
        self.listing = listing
        self.news: set[str] = set(idents)
        """Runs that changed since they were last told; "" is the list."""
        self._wake = wake

    def tell(self, ident: str) -> None:
        self.news.add(ident)
        with contextlib.suppress(RuntimeError):  # the loop is closing
            self._wake()


class Hub:
    """Keeps runs open and looks after them."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._runs: dict[str, Watched] = {}
        self._glances: dict[str, Run] = {}
        self._rows: list[dict[str, Any]] = []
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self._listed = 0.0
        self.closing = False
        """Streams are to end."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._look_after, name="holdfast-hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    @contextlib.contextmanager
    def run(self, ident: str) -> Iterator[Watched]:
        """A run as it is now; KeyError if there is none of that name."""
        watched = self._watched(ident)
        watched.wanted = time.monotonic()
        with watched.lock:
            yield watched

    def _watched(self, ident: str) -> Watched:
        path = self.places.path(ident)
        with self._lock:
            known = self._runs.get(path.name)
            if known is None:
                known = Watched(path.name, Run(path))
                known.run.refresh(SLICE)
                self._runs[path.name] = known
            return known

    def live_runs(self) -> Iterator[Run]:
        """Those that are under way, and those that pages look at: read up to now, each held while it is used."""
        idents = [row["id"] for row in self.rows() if row["live"]]
        for ident in dict.fromkeys([*idents, *list(self._runs)]):
            try:
                watched = self._watched(ident)
            except KeyError:
                continue
            watched.refresh()
            with watched.lock:
                yield watched.run

    def rows(self) -> list[dict[str, Any]]:
        """Every run at a glance, the newest first."""
        with self._lock:
            if time.monotonic() - self._listed > LIST_EVERY or not self._rows:
                self._list()
            return self._rows

    def some(self, names: list[str]) -> list[dict[str, Any]]:
        """These runs at a glance, in the order of the list; those that are too old for it come last."""
        rows = [row for row in self.rows() if row["id"] in names or row["run"] in names]
        known = {row["id"] for row in rows} | {row["run"] for row in rows}
        for name in dict.fromkeys(names):
            if name in known:
                continue
            with contextlib.suppress(KeyError, OSError), self.run(name) as each:
                rows.append(payload.glance(each.run, each.ident))
        return rows

    def listing(self) -> dict[str, Any]:
        """What the page of all runs gets: `left_out` says how many are too old to be in it."""
        return {"runs": self.rows(), "left_out": self.places.left_out}

    def _list(self) -> bool:
        paths = self.places.paths()
        self._glances = {ident: self._glances.get(ident) or Run(path) for ident, path in paths.items()}
        rows = []
        for ident, run in self._glances.items():
            run.refresh(books=False)
            rows.append(payload.glance(run, ident))
        rows.sort(key=lambda row: (str(row["created"] or ""), row["id"]), reverse=True)
        self._listed = time.monotonic()
        changed = _without_age(rows) != _without_age(self._rows)
        self._rows = rows
        return changed

    # -- telling pages -------------------------------------------------------------------------------------

    def listen(self, idents: frozenset[str], listing: bool, wake: Callable[[], object]) -> Listener:
        listener = Listener(idents, listing, wake)
        with self._lock:
            self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def _look_after(self) -> None:
        while not self._stop.wait(EVERY):
            now = time.monotonic()
            with self._lock:
                listeners, runs = list(self._listeners), list(self._runs.values())
            wanted = {ident for listener in listeners for ident in listener.idents}
            for watched in runs:
                if watched.ident in wanted:
                    watched.wanted = now
                self._look_at(watched, listeners)
            if any(listener.listing for listener in listeners) and now - self._listed >= LIST_EVERY:
                with self._lock:
                    changed = self._list()
                for listener in listeners:
                    if listener.listing and changed:
                        listener.tell("")
            with self._lock:
                old = [ident for ident, each in self._runs.items() if now - each.wanted > FORGET_AFTER]
                for ident in old:
                    del self._runs[ident]

    def _look_at(self, watched: Watched, listeners: list[Listener]) -> None:
        try:
            changed = watched.refresh()
        except OSError:
            return
        for listener in listeners:
            if changed and watched.ident in listener.idents:
                listener.tell(watched.ident)


def _without_age(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What makes a list another one: a beat's age alone does not."""
    return [{key: value for key, value in row.items() if key != "beat_age_s"} for row in rows]
