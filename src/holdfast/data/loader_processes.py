"""One generation of loader children, and the thread that reads from them.

    feed = Feed(fetcher, Job(claim, course, start=17, stop=len(course)), workers=2, prefetch=2, pin=None)
    feed.take(timeout=0.05)         # the next Item, or None
    feed.dead()                     # children that are gone
    feed.stop(grace=0)              # all of them, at once, and nothing is left behind

The children are those of a torch `DataLoader`. It is driven in a way of its own, because of three things in
it that a run cannot live with:

- Its SIGCHLD handler raises RuntimeError wherever the main thread is when a child is killed: in the middle of
  an optimizer step too. So the children are taken out of its books; whoever waits for a batch watches them.
- Its timeout covers the arrival of a message, not the reading. A child stopped in the middle of a message, or
  just after it (the memory of a tensor is handed over by a second connection), blocks the reader for ever.
  So a thread of its own reads, and killing the children frees it.
- Its shutdown may wait for ever on a lock that a killed child was holding. After a kill it is not used.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from holdfast.base import interpreter, processes
from holdfast.data.batch import tensors_of
from holdfast.data.loader_child import Failure, Fetcher, Parcel, Start, Ticket, as_it_is, unpack_error
from holdfast.data.sample_marks import IDLE
from holdfast.data.small_batch import room_of_a_pipe, widened
from holdfast.state.torch_private import forget_children, pin

REAP_S = 10.0
"""How long a killed child may take to be gone before it is left to the kernel; 8 GB took half a second."""
LEAVE_S = 1.0
"""How long the reading thread may take to end after its children did."""


class Tickets(Protocol):
    """What there is to fetch, by batch: a `Course`, or single samples on trial."""

    @property
    def number(self) -> int:
        """Of the epoch."""

    def ticket(self, batch: int) -> Ticket: ...


@dataclass(frozen=True)
class Job:
    """Batches `start` to `stop` of a course, for one iterator (`claim`)."""

    claim: object
    course: Tickets
    start: int
    stop: int


@dataclass(frozen=True)
class Item:
    """What comes out of a feed: a value, an error to be raised as it is, or trouble with the children."""

    batch: int = -1
    seconds: float = 0.0
    value: Any = None
    error: Exception | None = None
    failure: Failure | None = None
    """Where the user's code raised the error; None if it was not the user's."""
    trouble: BaseException | None = None


class _Plan:
    """The sampler given to the DataLoader: the tickets of whatever job is current when it is asked."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __iter__(self) -> Iterator[Ticket]:
        job = self.job
        for batch in range(job.start, job.stop):
            yield job.course.ticket(batch)

    def __len__(self) -> int:
        return self.job.stop - self.job.start


def start_method() -> str:
    """Fork where it is fast and safe; spawn on macOS and Windows, and where HOLDFAST_PORTABLE asks for it."""
    return "fork" if sys.platform == "linux" and not processes.portable() else "spawn"


class Feed:
    """Loader children and their reader. When one of them fails, the whole generation is stopped."""

    def __init__(
        self,
        fetcher: Fetcher,
        job: Job,
        *,
        workers: int,
        prefetch: int,
        pin: torch.device | None,
        must_pin: bool = True,
    ) -> None:
        context = self._context(fetcher.start_method or start_method())
        fetcher.progress = self.progress = context.RawArray("q", [IDLE] * workers)
        fetcher.room = room_of_a_pipe()
        self.born = time.monotonic()
        self.job = job
        self.next = job.start
        self.delivered = 0
        self._plan = _Plan(job)
        self._pin = pin
        self._must_pin = must_pin
        self._changed = threading.Condition()
        self._ready: deque[Item] = deque()
        self._broken: BaseException | None = None
        self._stopping = False
        self._iterator: Any = None
        self._loader: Any = DataLoader(
            fetcher,  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._plan,
            collate_fn=as_it_is,
            num_workers=workers,
            prefetch_factor=prefetch,
            persistent_workers=True,
            multiprocessing_context=context,
            worker_init_fn=Start(fetcher.init),
            generator=torch.Generator(),  # iter() draws from it; the global one belongs to the training
        )
        try:
            with interpreter.spawning(), _held_back(signal.SIGINT):  # until the children ignore it, see Start
                self._iterator = iter(self._loader)
        except BaseException:
            self._kill()
            raise
        widened(self._iterator._worker_result_queue._writer.fileno())
        forget_children(self._iterator)
        self._thread = threading.Thread(target=self._read, name="holdfast-feed", daemon=True)
        self._thread.start()

    def _context(self, method: str) -> Any:
        """A multiprocessing context that notes each child: so all are known even when starting them fails."""
        self.children: list[BaseProcess] = []
        context: Any = type(multiprocessing.get_context(method))()
        make = context.Process

        def noted(*args: Any, **kwargs: Any) -> BaseProcess:
            child: BaseProcess = make(*args, **kwargs)
            self.children.append(child)
            return child

        context.Process = noted  # on the instance: hides the class of that name
        return context

    # The side of the loop.

    def serves(self, claim: object, batch: int) -> bool:
        """Is `batch`, for that iterator, the one that comes next?"""
        return self.job.claim is claim and self.next == batch < self.job.stop

    def begin(self, job: Job) -> None:
        """Turn to another job. What is under way for the old one is thrown away."""
        with self._changed:
            self.job, self.next = job, job.start
            self._ready.clear()
            self._changed.notify_all()

    def take(self, timeout: float) -> Item | None:
        """The next item of the current job, or None after `timeout` seconds."""
        with self._changed:
            if not self._ready and self._broken is None:
                self._changed.wait(timeout)
            if self._ready:
                self.next += 1
                self.delivered += 1
                self._changed.notify_all()
                return self._ready.popleft()
            return None if self._broken is None else Item(trouble=self._broken)

    def dead(self) -> list[BaseProcess]:
        """Children that are gone. Their sentinels are asked too: someone else may have reaped them."""
        gone = set(wait_for_any([child.sentinel for child in self.children], timeout=0))
        return [child for child in self.children if child.exitcode is not None or child.sentinel in gone]

    def pids(self) -> list[int]:
        """The children that are still there."""
        return [child.pid for child in self.children if child.pid is not None and child.exitcode is None]

    def stop(self, *, grace: float) -> None:
        """End children and thread: politely for `grace` seconds, then by SIGKILL, stopped ones too."""
        here = threading.current_thread() is self._thread  # the collector may run anywhere
        politely = grace > 0 and not self.dead() and not any(map(is_stopped, self.pids()))
        if not politely:
            self._disown()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if politely and not here:
            self._thread.join(grace)
        self._kill()
        if not here:
            self._thread.join(LEAVE_S)  # a daemon: should it still be stuck, it holds nothing that matters

    def _disown(self) -> None:
        """Keep the DataLoader from shutting down by itself, see the third point above."""
        if (iterator := self._iterator) is not None:
            iterator._shutdown = True

    def _kill(self) -> None:
        iterator = self._iterator
        self._disown()
        for child in self.children:
            if child.pid is not None and child.exitcode is None:
                child.kill()
        deadline = time.monotonic() + REAP_S
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.002)
        if iterator is not None:
            for queue in iterator._index_queues:
                queue.cancel_join_thread()
                queue.close()
            # The last end to write to: a reader in the middle of a message now meets the end of the file.
            iterator._worker_result_queue._writer.close()

    # The side of the thread.

    def _read(self) -> None:
        try:
            self._read_jobs()
        except BaseException as error:  # the edge of the thread: whoever waits for a batch is told
            with self._changed:
                self._broken = error
                self._changed.notify_all()
        else:
            # The last references: the DataLoader's own shutdown runs, and the children end by themselves.
            self._iterator = self._loader = None

    def _read_jobs(self) -> None:
        if self._pin is not None and self._pin.type == "cuda":
            torch.cuda.set_device(self._pin)  # the current device is a property of the thread
        job = self._plan.job
        iterator = self._iterator
        while True:
            while self._wanted(job):
                parcel = next(iterator, None)
                if parcel is None:
                    break
                self._hand_over(job, self._open(parcel))
            following = self._next_job(job)
            if following is None:
                return
            self._plan.job = job = following
            iterator = iter(self._loader)  # the same iterator, which throws away what is under way

    def _open(self, parcel: Parcel) -> Item:
        if parcel.failure is not None:
            error = unpack_error(parcel.payload)
            return Item(parcel.batch, parcel.seconds, error=error, failure=parcel.failure)
        value = pickle.loads(parcel.payload)
        if self._pin is not None:
            try:
                value = pinned(value)
            except Exception as error:  # the device's trouble and not the children's: the loop judges it
                if not self._must_pin:
                    return Item(parcel.batch, parcel.seconds, value=value)
                return Item(parcel.batch, parcel.seconds, error=error)
        return Item(parcel.batch, parcel.seconds, value=value)

    def _wanted(self, job: Job) -> bool:
        """Wait until the last item is taken: one is ready here, the rest of the prefetching is the children's.

        Shared memory may be as little as 64 MB in a container. False if the job is no longer the current one.
        """
        with self._changed:
            while self._ready and self.job is job and not self._stopping:
                self._changed.wait()
            return self.job is job and not self._stopping

    def _hand_over(self, job: Job, item: Item) -> None:
        with self._changed:
            if self.job is job:
                self._ready.append(item)
                self._changed.notify_all()

    def _next_job(self, done: Job) -> Job | None:
        with self._changed:
            while self.job is done and not self._stopping:
                self._changed.wait()
            return None if self._stopping else self.job


def is_stopped(pid: int | None) -> bool:
    """Is that process stopped (SIGSTOP)? Unknown counts as no."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def signal_name(exitcode: int | None) -> str | None:
    """SIGSEGV for -11; None for a process that was not ended by a signal, or has not ended."""
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


@contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Keep a signal waiting, here and in the processes started meanwhile, until it is let through."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pinned(value: Any) -> Any:
    """The same value in page-locked memory. A tuple stays one: torch 2.6 would make a list of it."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(pinned, value)) if type(value) is tuple else type(value)(map(pinned, value))
    if type(value) is dict:
        return {key: pinned(item) for key, item in value.items()}
    return [pinned(item) for item in value] if type(value) is list else pin(value)


STAGED = 1 << 16
"""Bytes up to which CUDA copies from any memory without making the host wait, by its documentation."""


def pinned_where_large(value: Any) -> Any:
    """In page-locked memory if that spares the host a wait and can be had; else as it is."""
    if all(each.numel() * each.element_size() <= STAGED for each in tensors_of(value)):  # sparse ones have no `nbytes`
        return value
    try:
        return pinned(value)
    except RuntimeError:
        return value
