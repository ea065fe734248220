"""What a loader child does: one ticket in, one parcel out, with every random number fixed by the ticket.

    fetcher = Fetcher(dataset, collate_fn=None)
    fetcher[Ticket(seed=7, epoch=0, batch=3, samples=...)]      # in a child: a Parcel, never an exception
    fetch_here(fetcher, ticket)                                 # in this process: the value itself

A batch is pickled here and not by the queue that carries it: that queue pickles in a background thread, which
drops what it cannot pickle, so that the batch would never arrive and nobody would know why. Nothing would be
gained by it either: both threads need the interpreter.
An error in the user's dataset is carried over whole: its type, its arguments, its attributes, its traceback.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate, get_worker_info

from holdfast.base.errors import UserError
from holdfast.base.scratch import note_child
from holdfast.data.collation import odd_ones
from holdfast.data.generators import States, Watch, capture_all, give_back, keep_lookouts, seed
from holdfast.data.sample_marks import IDLE, NOWHERE, Place
from holdfast.data.sample_order import Indices, collate_seeds, sample_seeds
from holdfast.data.sample_seeding import DrewMore, Seeding
from holdfast.data.small_batch import packed
from holdfast.state.torch_private import new_worker_info, set_worker_info

log = logging.getLogger(__name__)

COLLATING = -2
"""Where a process is when it is at no sample, beside IDLE; see `Fetcher.progress`."""


class Ticket(NamedTuple):
    """The order for one batch."""

    seed: int
    epoch: int
    batch: int
    samples: Indices
    alone: bool = False
    """A trial: the samples are read, nothing is made of them and nothing comes back."""


class Failure(NamedTuple):
    """Where the user's code raised."""

    stage: str
    """"read", "collate" or "send"."""
    samples: tuple[int, ...] = ()
    """The sample that raised; in collating those that do not fit to the others, if that is what it was."""
    words: str = ""


_SENDING = Failure("send")


class Parcel(NamedTuple):
    """One batch on its way out of a child. With a `failure` the payload is the error of the user's code."""

    batch: int
    seconds: float
    failure: Failure | None
    payload: bytes


class _DrewEarly(Exception):
    """The first sample of a batch used a generator that was not seeded for it."""


class Fetcher:
    """Reads the samples of a ticket and collates them, seeding for each sample every generator that is used."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        init: Callable[[int], None] | None = None,
        start_method: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.init = init
        """The script's `worker_init_fn`."""
        self.start_method = start_method
        """How its processes are started, if the script says so."""
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.batch_of = getattr(dataset, "batch_of", None) if collate_fn is None else None
        """The dataset's own way to a whole batch: what one copy can do is not done in two for each sample."""
        self.several_of = _several_of(dataset)
        """The dataset's `__getitems__`, which torch's own loader would call, too."""
        self.calm = False
        """It has given a whole batch without drawing a random number."""
        self.quiet = False
        """It has given a batch, sample by sample, without drawing from a generator that was not seeded for it."""
        self.draws = collate_fn is not None or may_draw(dataset)
        """False where nothing can draw a random number."""
        self._tables = collate_fn is None
        """Whether a batch of a TensorDataset may be made by one copy out of each of its tensors."""
        self._table: tuple[Any, ...] | None = None
        self._arrays: list[Any] = []
        """Its tensors as they were seen last, and the same memory as arrays."""
        self._whole = type(dataset) is TensorDataset
        self.page_locked = 0
        """Bytes from which on a batch out of a table is made in page-locked memory at once; 0: never."""
        self.seeding = Seeding()
        self.used: set[str] = set()
        """The global generators that the dataset or the collate function has used: they are seeded for each sample."""
        self.by_value = False
        """Send tensors through the pipe, of any size: needs neither shared memory nor file descriptors."""
        self.room = 0
        """Bytes that the pipe to the parent holds: a batch that fits into it goes through it (small_batch.py)."""
        self._small = False
        """Whether the last batch did."""
        self._states: States | None = None
        """In a child: the generators after the last batch, if it drew from none of them. Nobody else draws there."""
        self.progress: Any = None
        """Shared with the parent: the sample each child is at. What a crash leaves here names its sample."""
        self.failure = Failure("send")
        """Where the last error was raised."""

    def __getstate__(self) -> dict[str, Any]:
        """For a loader process that is not forked: the arrays are the memory of the tensors, and made anew there."""
        return {**vars(self), "_table": None, "_arrays": [], "_states": None}

    def begin_in_child(self) -> None:
        """What the process it was forked from knew of its generators does not count here: they were seeded anew."""
        self._states = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: Ticket) -> Parcel:
        """What torch's loop in the child calls."""
        info = get_worker_info()
        at = NOWHERE if info is None or self.progress is None else self._place(info.id)
        began = time.monotonic()
        failure = None
        try:
            payload = self._packed(ticket, at)
        except Exception as error:
            payload, failure = pack_error(error), self.failure
        at[0] = IDLE
        return Parcel(ticket.batch, time.monotonic() - began, failure, payload)

    def _place(self, slot: int) -> Place:
        """Where this child writes at which sample it is."""
        return memoryview(self.progress).cast("B").cast("q")[slot : slot + 1]

    def _packed(self, ticket: Ticket, at: Place) -> bytes:
        if not self.by_value:
            try:
                value = self.fetch(ticket, at, self._states)
                payload = packed(value, self.room) if self.room else None
                self._small = payload is not None and len(payload) <= self.room
                if payload is None:
                    return _dumps(value)
                if not self._small:  # other things than tensors make it large: they are pickled in any case
                    self.room = 0
                return payload
            except (OSError, RuntimeError) as error:
                if not _is_shortage(error):
                    raise
                log.warning("batches go by value, without shared memory: %s", error)
                self.by_value = True
        # default_collate of a loader child builds the batch in shared memory; elsewhere it does not.
        with _not_a_loader_child():
            return pickle.dumps(self.fetch(ticket, at), protocol=pickle.HIGHEST_PROTOCOL)

    def fetch(self, ticket: Ticket, at: Place = NOWHERE, before: States | None = None) -> Any:
        """The value of one batch. Leaves the generators that the dataset uses seeded, and the others as they are.

        `before`: the states of all generators as they are now, where the caller has them.

        Samples that draw from a generator for the first time are read twice.
        """
        if self.batch_of is not None:
            whole = self.whole(ticket, at)
            if whole is not None:
                return whole
        if not self.draws:
            return self._read(ticket, at, None)
        while True:
            with Watch(self.used, before) as watch:
                value, raised = None, None
                try:
                    value = self._read(ticket, at, watch)
                except _DrewEarly:
                    pass
                except Exception as error:
                    raised = error
            found = watch.found()
            if not found and not self.seeding.make_all(watch.looked() & self.used):
                if raised is not None:
                    raise raised
                self.quiet = True
                self._states = None if self.used else watch.now
                return value
            self.used |= found  # at most three times: once more, with these generators seeded for each sample

    def _read(self, ticket: Ticket, at: Place, watch: Watch | None) -> Any:
        """Every sample, then the batch; the generators that are `used` are seeded before each."""
        if self._tables and not self.draws and not ticket.alone and len(ticket.samples):
            whole = self._out_of_table(ticket)
            if whole is not None:
                return whole
        samples = ticket.samples.tolist()
        items = None if self.several_of is None or self.used or ticket.alone else self._together(samples, at)
        if items is None:
            items = self._one_by_one(ticket, samples, at, watch)
        if ticket.alone or not items:  # a batch of which every sample is left out is nothing
            return None
        at[0] = COLLATING
        try:
            value = self._collate(ticket, items)
        except Exception as error:
            self.failure = self._odd_ones(ticket, items)
            _note(error, f"raised while collating samples {listed(samples)}, batch {ticket.batch}")
            raise
        self.failure = _SENDING
        return value

    def _out_of_table(self, ticket: Ticket) -> list[torch.Tensor] | None:
        """What `default_collate` makes of samples of a TensorDataset, bit by bit, by one copy out of each tensor.

        None in a loader process, where torch makes batches in shared memory, and where that is not possible: sample by
        sample the same is raised again, with the sample named.
        """
        if get_worker_info() is not None:
            return None
        samples: Any = ticket.samples if self._whole else ticket.samples.tolist()
        dataset, places = _behind(self.dataset, samples)
        if type(dataset) is not TensorDataset:
            self._tables = False
            return None
        if dataset.tensors is not self._table:
            self._table, self._arrays = dataset.tensors, _arrays_of(dataset.tensors)
        if not self._arrays:
            return None
        try:
            rows = np.asarray(places if self._whole else list(places), dtype=np.int64)
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            log.debug("a batch cannot be taken out of the tensors: %s", error)
            return None
        if rows.ndim != 1 or rows.min() < 0 or rows.max() >= min(map(len, self._arrays)):
            return None
        self.failure = _SENDING
        return [self._rows_of(array, each, rows) for array, each in zip(self._arrays, dataset.tensors, strict=True)]

    def _rows_of(self, array: Any, tensor: torch.Tensor, rows: Any) -> torch.Tensor:
        shape, locked = (len(rows), *tensor.shape[1:]), False
        if self.page_locked:
            locked = math.prod(shape) * tensor.element_size() >= self.page_locked
        try:
            room = torch.empty(shape, dtype=tensor.dtype, pin_memory=locked)
        except RuntimeError:  # no page-locked memory to be had: any other will do
            room = torch.empty(shape, dtype=tensor.dtype)
        # All rows are there, so nothing is clipped: numpy would make a second copy in order to raise.
        np.take(array, rows, axis=0, out=room.numpy(), mode="clip")
        return room

    def _together(self, samples: list[int], at: Place) -> list[Any] | None:
        """The samples by one call of the dataset's `__getitems__`; None where that raises or gives another number.

        One by one the same is raised again, with the sample named.
        """
        if self.several_of is None or not samples:
            return None
        at[0] = COLLATING
        try:
            items = list(self.several_of(samples))
        except Exception as error:
            log.debug("__getitems__ raised, the samples are read one by one: %s", error)
            return None
        return items if len(items) == len(samples) else None

    def _one_by_one(self, ticket: Ticket, samples: list[int], at: Place, watch: Watch | None) -> list[Any]:
        items: list[Any] = []
        try:  # around the loops: what is done for each sample is paid 256 times a batch
            early = watch if not self.quiet else None
            if self.used or early is not None:
                self._carefully(ticket, samples, at, early, items)
            else:
                dataset, places = _behind(self.dataset, samples)
                if places is samples:
                    for index in samples:
                        at[0] = index
                        items.append(dataset[index])
                else:
                    for index, place in zip(samples, places, strict=True):
                        at[0] = index
                        items.append(dataset[place])
        except _DrewEarly:
            raise
        except Exception as error:
            index = samples[len(items)] if len(items) < len(samples) else samples[-1]
            self.failure = Failure("read", (index,))
            _note(error, f"raised by dataset[{index}], in batch {ticket.batch} of epoch {ticket.epoch}")
            raise
        return items

    def _carefully(self, ticket: Ticket, samples: list[int], at: Place, early: Watch | None, items: list[Any]) -> None:
        """The generators that the dataset uses are seeded before each sample. One that it draws from and that nobody
        has seen it use is looked for after the first: most that draw do so at every sample, and then one is read twice,
        not a batch."""
        used = self.used
        seeds = sample_seeds(ticket.seed, ticket.epoch, ticket.samples) if used else None
        while len(items) < len(samples):
            begin = len(items)
            seeding = itertools.repeat(None) if seeds is None else self.seeding.of(seeds[begin:], used)
            try:
                rest = samples[begin:]
                dataset, places = _behind(self.dataset, rest)
                for _, index, place in zip(seeding, rest, places, strict=False):
                    at[0] = index
                    items.append(dataset[place])
                    if early is not None:
                        if early.found():
                            raise _DrewEarly
                        early = None
            except DrewMore:
                del items[begin:]
                self.seeding.drew_more()  # of another generator, too, perhaps: then they are read twice, not thrice
            except _DrewEarly:
                raise
            except Exception:
                if seeds is None or not self.seeding.drew_more():
                    raise
                del items[begin:]

    def whole(self, ticket: Ticket, at: Place) -> Any:
        """The batch in one go; None if the dataset has no such way, or does not take it now.

        What it raises does not count: sample by sample the same is raised again, with the sample named. If it ends a
        loader child, any sample of the batch is a suspect, and they are tried one by one.
        """
        if self.batch_of is None or ticket.alone or not len(ticket.samples):
            return None
        self.failure = Failure("send")
        at[0] = COLLATING
        with Watch(()) as watch:
            try:
                value = self.batch_of(ticket.samples.tolist())
            except Exception as error:
                log.debug("batch_of raised, its samples are read one by one: %s", error)
                return None
        if watch.found():
            raise UserError(
                f"`batch_of` of {type(self.dataset).__name__} drew a random number",
                cause="whole batches are not seeded, so a run that goes on would see others",
                hints=["return None from it where samples are varied: they are then read, and seeded, one by one"],
            )
        self.calm = True
        return value

    def _collate(self, ticket: Ticket, items: list[Any]) -> Any:
        if self.used and self.collate_fn is not default_collate:  # which draws nothing
            seed(collate_seeds(ticket.seed, ticket.epoch, ticket.batch), self.used)
        if self._small and self.collate_fn is default_collate:
            with _not_a_loader_child():  # where it would make the batch in shared memory
                return self.collate_fn(items)
        return self.collate_fn(items)

    def _odd_ones(self, ticket: Ticket, items: list[Any]) -> Failure:
        """Some samples do not fit to the others, or the collate function is wrong."""
        with _not_a_loader_child():
            odd = odd_ones(items, lambda some: self._collate(ticket, some))
        return Failure("collate", tuple(int(ticket.samples[place]) for place, _ in odd), odd[0][1] if odd else "")


def fetch_here(fetcher: Fetcher, ticket: Ticket, at: Place = NOWHERE) -> Any:
    """A batch in this very process, leaving no trace in its generators."""
    try:
        if not fetcher.draws:
            return fetcher.fetch(ticket, at)
        whole = fetcher.whole(ticket, at) if fetcher.calm else None
        if whole is not None:
            return whole
        before, threads = capture_all(), torch.get_num_threads()
        # One thread, as in a loader child: some sums come out differently with two.
        torch.set_num_threads(1)
        try:
            return fetcher.fetch(ticket, at, before)
        finally:
            torch.set_num_threads(threads)
            if fetcher.used:
                give_back(before, fetcher.used)
    finally:
        at[0] = IDLE


def _is_shortage(error: Exception) -> bool:
    """Is it shared memory or file descriptors that ran out? torch says so in words only."""
    text = str(error)
    return "shared memory" in text or "(shm)" in text or "Too many open files" in text


@contextmanager
def _not_a_loader_child() -> Iterator[None]:
    info = set_worker_info(None)
    try:
        yield
    finally:
        set_worker_info(info)


def may_draw(dataset: Any) -> bool:
    """Exact types only: a subclass may do anything."""
    if type(dataset) is TensorDataset:
        return False
    if type(dataset) is Subset:
        return may_draw(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return any(may_draw(part) for part in dataset.datasets)
    return True


def _arrays_of(tensors: tuple[Any, ...]) -> list[Any]:
    """The tensors as arrays, where rows taken out of each are, bit by bit, what stacking them gives; else nothing."""
    for each in tensors:
        if type(each) is not torch.Tensor or each.device.type != "cpu" or each.layout is not torch.strided:
            return []
        if each.requires_grad or each.is_quantized or each.is_conj() or each.is_neg() or not each.is_contiguous():
            return []
        if not each.dim() or not len(each):
            return []
    try:
        return [each.numpy() for each in tensors]
    except (TypeError, RuntimeError):  # a kind of number that numpy does not have
        return []


def _several_of(dataset: Any) -> Callable[[list[int]], Any] | None:
    """A `Subset` has one of its own, which asks for one sample after the other unless the dataset behind it has one."""
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    if not callable(getattr(inner, "__getitems__", None)):
        return None
    several: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
    return several


def _behind(dataset: Any, samples: Iterable[int]) -> tuple[Any, Iterable[Any]]:
    """The dataset behind a `Subset`, and where the samples are there; torch's loader, too, asks for them in one go."""
    places: Iterable[Any] = samples
    while type(dataset) is Subset:
        dataset, places = dataset.dataset, map(dataset.indices.__getitem__, places)
    return dataset, places


def as_it_is(value: Any) -> Any:
    """The collate function given to torch: collating is done already."""
    return value


class Start:
    """A loader child's first act. A class, because a closure could not be pickled for spawn."""

    def __init__(self, init: Callable[[int], None] | None = None) -> None:
        self.parent = os.getpid()
        self.init = init

    def __call__(self, worker_id: int) -> None:
        # Ctrl-C reaches the whole process group. What it means is the worker's to decide, and until it has
        # stopped well it needs its data.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back by the parent until here
        if sys.platform == "linux":
            _die_with_parent(self.parent)
        note_child()
        keep_lookouts()
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Fetcher):  # the script's code looks for its own dataset there
            about: dict[str, Any] = {"id": info.id, "num_workers": info.num_workers, "seed": info.seed}
            set_worker_info(new_worker_info(**about, dataset=info.dataset.dataset))
            info.dataset.begin_in_child()
        if self.init is not None:
            self.init(worker_id)


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with the thread that started it, however that one ends."""
    if sys.platform == "win32":
        raise NotImplementedError("this needs POSIX")
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return  # no prctl in this libc: torch's own look at the parent, every 5 s, remains
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


# Errors of the user's code, from the child to the loop.


class FromChild(Exception):
    """The traceback of a loader child as text, shown as the cause of the error raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def pack_error(error: Exception) -> bytes:
    """The error and the text of its traceback, in the fullest form that comes out again as the same error."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    forms: tuple[tuple[Any, ...], ...] = (
        ("whole", error),
        # A class whose __init__ takes other arguments than it hands to super() cannot be rebuilt by a call.
        ("parts", type(error), error.args, dict(vars(error))),
        ("parts", type(error), error.args, {}),
    )
    for form in forms:
        try:
            packed = _dumps((text, *form))
            rebuilt = unpack_error(packed)
            if type(rebuilt) is type(error) and str(rebuilt) == str(error):
                return packed
        except Exception:  # whatever a user's class does when it is pickled, there is a next form
            continue
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return _dumps((text, "words", f"{name}: {error}"))


def unpack_error(payload: bytes) -> Exception:
    """The error `pack_error` packed; a RuntimeError with its words if its class could not travel."""
    text, form, *rest = pickle.loads(payload)
    error: Exception
    if form == "whole":
        error = rest[0]
    elif form == "parts":
        cls, arguments, attributes = rest
        error = cls.__new__(cls, *arguments)
        error.args = arguments
        vars(error).update(attributes)
    else:
        error = RuntimeError(rest[0])
    error.__cause__ = FromChild(text)
    return error


def listed(samples: Sequence[int], most: int = 16) -> str:
    """`1, 2, 3 and 61 more`."""
    shown = ", ".join(map(str, samples[:most]))
    return shown if len(samples) <= most else f"{shown} and {len(samples) - most} more"


def _note(error: BaseException, text: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(text)


def _dumps(value: Any) -> bytes:
    return bytes(ForkingPickler.dumps(value))
