"""Loader: the same bits with any number of children, from any batch on, through real kills, stops, hangs."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from holdfast.errors import UserError
from holdfast.runtime.loader import BadSamples, Batch, Loader, LoaderFailed
from holdfast.runtime.pool import Patience

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

LENGTH, SIZE = 37, 4
Event = tuple[str, dict[str, Any]]


class Augmented(Dataset[torch.Tensor]):
    """Each sample draws from all three generators, as augmentation does."""

    def __init__(self, length: int = LENGTH, seconds: float = 0.0) -> None:
        self.length = length
        self.seconds = seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        drawn = [torch.rand(()).item(), np.random.standard_normal(), random.gauss(0, 1)]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class At(Augmented):
    """Does something once, or always, at one sample. What was done is remembered in a file."""

    def __init__(self, index: int, act: Callable[[], None], memory: Path | None = None) -> None:
        super().__init__()
        self.index, self.act, self.memory = index, act, memory

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index and not (self.memory and self.memory.exists()):
            if self.memory:
                self.memory.touch()
            self.act()
        return super().__getitem__(index)


def mixup(items: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.stack(items) + torch.rand(()) + np.random.rand() + random.random()


def make(dataset: Any = None, workers: int = 2, **more: Any) -> Loader:
    loader = Loader(dataset or Augmented(), SIZE, shuffle=True, seed=5, num_workers=workers, **more)
    loader._pool.patience = Patience(floor_s=0.5)
    _made.add(loader)
    return loader


_made: weakref.WeakSet[Loader] = weakref.WeakSet()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After every test: no child, no zombie, no thread of ours."""
    before = children()
    yield
    for loader in [*_made]:  # those of a test that failed
        loader.close()
    gc.collect()
    assert wait_until(lambda: children() <= before), children() - before
    assert wait_until(lambda: not [t for t in threading.enumerate() if t.name == "holdfast-feed"])


def children() -> set[int]:
    """The children of this process, zombies too; but not the one multiprocessing keeps for spawning."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and b"resource_tracker" not in entry.with_name("cmdline").read_bytes():
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def record(loader: Loader, events: list[Event]) -> Loader:
    loader.on_event = lambda name, details: events.append((name, details))
    return loader


def values(loader: Loader, epochs: int = 2, each: Callable[[Batch], None] = lambda batch: None) -> torch.Tensor:
    rows = []
    for epoch in range(epochs):
        for batch in loader.batches(epoch, 0):
            each(batch)
            assert batch.value[:, 0].tolist() == batch.samples.tolist()
            rows.append(batch.value)
    return torch.cat(rows)


@pytest.fixture(scope="module")
def undisturbed() -> torch.Tensor:
    """Two epochs without children and without faults."""
    return values(make(workers=0))


# The same bits.


@pytest.mark.parametrize("workers", [1, 2])
def test_children_give_the_same_bits_as_none(workers: int, undisturbed: torch.Tensor) -> None:
    loader = make(workers=workers)
    assert torch.equal(values(loader), undisturbed)
    loader.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_collate_function_that_draws_gives_the_same_bits(workers: int) -> None:
    loaders = [make(workers=count, collate_fn=mixup) for count in (0, workers)]
    here, there = (torch.cat(list(loader)) for loader in loaders)
    assert torch.equal(here, there)
    loaders[1].close()


def test_sums_that_depend_on_threads_give_the_same_bits() -> None:
    class Sums(Augmented):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randn(300_000).sum()[None]

    loaders = [make(Sums(4), workers=count) for count in (0, 1)]
    here, there = (torch.cat(list(loader)) for loader in loaders)
    assert torch.equal(here, there)
    loaders[1].close()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_run_goes_on_at_any_batch(workers: int, undisturbed: torch.Tensor) -> None:
    loader = make(workers=workers)
    trained = []
    saved: list[str] = []
    for batch in loader.batches(loader.epoch, loader.cursor):
        saved.append(json.dumps(loader.state_dict()))  # taken before this batch is complete: it comes again
        trained.append(batch.value)
        loader.advance(batch)
        if batch.index == 5:
            break
    for position, state in enumerate(saved):
        other = make(workers=workers)
        other.load_state_dict(json.loads(state))
        rest = [batch.value for batch in other.batches(other.epoch, other.cursor)]
        assert torch.equal(torch.cat(trained[:position] + rest), undisturbed[:LENGTH])
        other.close()
    loader.close()


def test_the_state_is_restored_over_another_seed_and_position() -> None:
    loader = make(workers=1)
    next(loader.batches(3, 4))  # children are under way with another job
    before = make(workers=0)
    for batch in before.batches(0, 0):
        before.advance(batch)
        if batch.index == 3:
            break
    state = before.state_dict()
    loader.seed = 999
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert torch.equal(next(loader.batches(0, 4)).value, next(before.batches(0, 4)).value)
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generators_of_the_training_are_left_alone(workers: int) -> None:
    def state() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), random.getstate()

    torch.manual_seed(3)
    np.random.seed(3)
    np.random.standard_normal()  # keeps a second value back
    random.seed(3)
    before, threads = state(), torch.get_num_threads()
    loader = make(workers=workers)
    for _ in loader.batches(0, 0):
        assert state() == before
    list(loader)
    loader.close()
    assert state() == before
    assert torch.get_num_threads() == threads


def test_a_loader_without_a_seed_follows_the_script() -> None:
    def order() -> list[int]:
        return [index for batch in Loader(Augmented(), 5, shuffle=True).batches(0, 0) for index in batch.samples]

    torch.manual_seed(1)
    first = order()
    torch.rand(3)
    assert order() == first
    torch.manual_seed(2)
    assert order() != first


def test_plain_iteration_leaves_the_cursor_alone() -> None:
    loader = Loader(TensorDataset(torch.arange(10)), 4, num_workers=1)
    for _ in range(2):
        assert torch.cat([value[0] for value in loader]).tolist() == list(range(10))
    assert (loader.epoch, loader.cursor) == (0, 0)
    assert loader.state_dict()["coverage"]["count"] == 0
    loader.close()


def test_two_iterators_of_one_loader_do_not_mix() -> None:
    loader, plain = make(workers=2), make(workers=0)
    first, second = loader.batches(0, 0), loader.batches(1, 3)
    expected = [*plain.batches(0, 0)][:4], [*plain.batches(1, 3)][:4]
    for position in range(4):
        assert torch.equal(next(first).value, expected[0][position].value)
        assert torch.equal(next(second).value, expected[1][position].value)
    loader.close()


def test_leaving_an_epoch_early_leaves_nothing_of_it_in_the_next(undisturbed: torch.Tensor) -> None:
    loader = make(Augmented(seconds=0.002))
    for _ in range(5):
        for batch in loader.batches(0, 0):
            if batch.index == 2:
                break
    pids = loader._pool.pids
    assert torch.equal(torch.cat([batch.value for batch in loader.batches(1, 0)]), undisturbed[LENGTH:])
    assert loader._pool.pids == pids  # and all that with the same children
    loader.close()


# Exactly once.


def test_an_epoch_is_covered() -> None:
    loader = make(workers=0)
    for epoch in range(2):
        for batch in loader.batches(loader.epoch, loader.cursor):
            loader.advance(batch)
        loader.finish_epoch()
        assert (loader.epoch, loader.cursor) == (epoch + 1, 0)
    assert (loader.skipped, loader.repeated) == (0, 0)


def test_a_batch_skipped_or_repeated_is_told_and_kept() -> None:
    loader = make(workers=0)
    batches = list(loader.batches(0, 0))
    for batch in [*batches[1:], batches[2]]:
        loader.advance(batch)
    loader.finish_epoch()
    assert (loader.skipped, loader.repeated) == (1, 1)
    for batch in batches[:-1]:
        loader.advance(batch)
    loader.finish_epoch()
    assert (loader.skipped, loader.repeated) == (2, 1)
    other = make(workers=0)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert (other.skipped, other.repeated) == (2, 1)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 5), ("shuffle", False), ("drop_last", True)])
def test_other_batches_in_the_middle_of_an_epoch_are_refused(name: str, value: Any) -> None:
    loader = make(workers=0)
    settings = {"batch_size": SIZE, "shuffle": True, "drop_last": False}
    other = Loader(Augmented(), **{**settings, name: value})
    other.load_state_dict(loader.state_dict())  # at the start of an epoch: allowed
    loader.advance(next(loader.batches(0, 0)))
    with pytest.raises(UserError, match=f"{name}={settings[name]}"):
        other.load_state_dict(loader.state_dict())


# Children that die.


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_children_cost_no_batch(workers: int, undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(workers=workers), events)

    def kill(batch: Batch) -> None:
        if pids := loader._pool.pids:  # a batch that was ready comes even after its child is dead
            os.kill(pids[batch.index % len(pids)], signal.SIGKILL)

    assert torch.equal(values(loader, each=kill), undisturbed)
    assert len(events) >= 3
    assert {name for name, _ in events} == {"loader_died"}
    assert {details["signal"] for _, details in events} == {"SIGKILL"}
    loader.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_any_signal_is_survived(number: signal.Signals, undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(), events)

    def kill(batch: Batch) -> None:
        if batch.index == 3:
            # By another process: a child of torch leaves with status 0 when its parent asks.
            subprocess.run(["kill", f"-{int(number)}", str(loader._pool.pids[0])], check=True)

    assert torch.equal(values(loader, each=kill), undisturbed)
    assert events[0][1]["signal"] == number.name
    loader.close()


def test_a_death_raises_nothing_in_the_middle_of_a_step() -> None:
    """torch's own DataLoader raises from a signal handler here."""
    loader = make()
    stream = loader.batches(0, 0)
    next(stream)
    for pid in loader._pool.pids:
        os.kill(pid, signal.SIGKILL)
        for _ in range(20):
            time.sleep(0.005)  # the step
    assert next(stream).index == 1
    loader.close()


def test_a_death_is_noticed_soon(undisturbed: torch.Tensor) -> None:
    loader = make(At(int(undisturbed[0, 0]), hang))
    times: list[float] = []

    def kill() -> None:
        times.append(time.monotonic())
        os.kill(loader._pool.pids[0], signal.SIGKILL)

    def leave(name: str, details: dict[str, Any]) -> None:
        times.append(time.monotonic())
        raise KeyboardInterrupt

    threading.Timer(0.3, kill).start()
    loader.on_event = leave
    with pytest.raises(KeyboardInterrupt):
        next(loader.batches(0, 0))
    assert times[1] - times[0] < 1.0
    loader.close()


def test_a_death_between_epochs_is_told_and_mended(undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(), events)
    assert torch.equal(torch.cat([batch.value for batch in loader.batches(0, 0)]), undisturbed[:LENGTH])
    os.kill(loader._pool.pids[1], signal.SIGKILL)
    assert torch.equal(torch.cat([batch.value for batch in loader.batches(1, 0)]), undisturbed[LENGTH:])
    assert [name for name, _ in events] == ["loader_died"]
    loader.close()


def test_the_event_names_the_sample_at_which_a_child_died(tmp_path: Path, events: list[Event]) -> None:
    loader = record(make(At(11, os.abort, tmp_path / "done")), events)
    assert len(values(loader, epochs=1)) == LENGTH
    assert [(name, details["samples"]) for name, details in events] == [("loader_died", [11])]
    assert events[0][1]["signal"] == "SIGABRT"
    loader.close()


def leave() -> None:
    os._exit(3)


@pytest.mark.parametrize(("act", "end"), [(os.abort, "SIGABRT"), (leave, "status 3")])
def test_a_sample_that_always_kills_is_named(act: Callable[[], None], end: str, undisturbed: torch.Tensor) -> None:
    index = int(undisturbed[22, 0])  # in batch 5
    loader = make(At(index, act))
    loader.policy.quarantine = False
    got = []
    with pytest.raises(BadSamples) as caught:
        for batch in loader.batches(0, 0):
            got.append(batch.value)
    assert torch.equal(torch.cat(got), undisturbed[:20])  # everything before it was delivered
    assert [sample["index"] for sample in caught.value.charge.samples] == [index]
    assert end in caught.value.message
    assert f"dataset[{index}]" in caught.value.hints[-1]
    assert loader._pool.pids == []


def lethal(items: list[torch.Tensor]) -> torch.Tensor:
    os._exit(4)


def test_a_collate_function_that_kills_is_no_samples_fault() -> None:
    loader = make(collate_fn=lethal)
    with pytest.raises(LoaderFailed) as caught:
        next(loader.batches(0, 0))
    assert sorted(caught.value.samples) == sorted(loader._epoch(0).samples(0).tolist())
    assert (caught.value.epoch, caught.value.batch) == (0, 0)
    assert "status 4" in str(caught.value.cause)
    assert loader.quarantined == []
    loader.close()


def test_a_later_batch_that_kills_is_not_blamed_on_a_slow_earlier_one(undisturbed: torch.Tensor) -> None:
    class Slow(At):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == int(undisturbed[0, 0]):
                time.sleep(0.4)
            return super().__getitem__(index)

    index = int(undisturbed[5, 0])  # in batch 1, which its child reaches at once
    loader = make(Slow(index, os.abort))
    missing = {batch.index: batch.missing.tolist() for batch in loader.batches(0, 0)}
    assert missing == {number: [index] if number == 1 else [] for number in range(10)}
    loader.close()


def test_many_respawns_leak_no_descriptors() -> None:
    loader = make(workers=2)

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for _ in range(8):
        for batch in loader.batches(0, 0):
            if batch.index == 1:
                os.kill(loader._pool.pids[0], signal.SIGKILL)
        del batch
        gc.collect()
        counts.append(open_files())
    assert max(counts[2:]) <= counts[1] + 4, counts
    loader.close()


# Children that stop or hang.


def test_a_stopped_child_is_replaced(undisturbed: torch.Tensor, events: list[Event]) -> None:
    """At every moment: while it is idle, while it works, with batches of its memory not yet taken over."""
    loader = record(make(Augmented(seconds=0.001)), events)

    def stop(batch: Batch) -> None:
        if batch.index in (0, 1, 4):
            time.sleep(0.02 * batch.index)
            os.kill(loader._pool.pids[batch.index % 2], signal.SIGSTOP)

    assert torch.equal(values(loader, epochs=1, each=stop), undisturbed[:LENGTH])
    assert {name for name, _ in events} == {"loader_stuck"}
    assert all(details["stopped"] for _, details in events)
    loader.close()


class Wide(Augmented):
    """Samples far larger than a pipe: a child is nearly always in the middle of a message."""

    def __getitem__(self, index: int) -> Any:
        return np.full(500_000, float(index))


def stacked(items: list[Any]) -> Any:
    return np.stack(items)


def test_a_child_stopped_in_the_middle_of_a_message_is_replaced(events: list[Event]) -> None:
    loader = record(make(Wide(80), collate_fn=stacked), events)
    got = []
    for batch in loader.batches(0, 0):
        got.append(batch.index)
        assert batch.value[:, 0].tolist() == batch.samples.tolist()
        if batch.index in (0, 8):
            time.sleep(0.3)  # the pipe is full now, and both children are writing
            for pid in loader._pool.pids:
                os.kill(pid, signal.SIGSTOP)
    assert got == list(range(20))
    assert [name for name, _ in events] == ["loader_stuck", "loader_stuck"]
    loader.close()


def test_a_child_killed_in_the_middle_of_a_message_is_replaced(events: list[Event]) -> None:
    loader = record(make(Wide(), collate_fn=stacked), events)
    got = []
    for batch in loader.batches(0, 0):
        got.append(batch.index)
        if batch.index in (0, 3):
            time.sleep(0.3)
            os.kill(loader._pool.pids[0], signal.SIGKILL)
    assert got == list(range(10))
    assert {name for name, _ in events} == {"loader_died"}
    loader.close()


def hang() -> None:
    threading.Event().wait()


def test_a_hang_is_ended_and_its_sample_named(tmp_path: Path, undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(At(17, hang, tmp_path / "done")), events)
    assert torch.equal(values(loader, epochs=1), undisturbed[:LENGTH])
    assert [(name, details["samples"]) for name, details in events] == [("loader_stuck", [17])]
    assert not events[0][1]["stopped"]
    loader.close()


def doze() -> None:
    time.sleep(1.0)


def test_a_batch_that_is_only_slow_gets_through(undisturbed: torch.Tensor, events: list[Event]) -> None:
    index = int(undisturbed[22, 0])
    loader = record(make(At(index, doze)), events)
    assert torch.equal(values(loader, epochs=1), undisturbed[:LENGTH])
    assert len(events) <= 1  # 0.5 s at first, four times that after a respawn
    loader.close()


def test_patience_grows_with_what_batches_take() -> None:
    patience = Patience()
    assert patience.limit(fresh=True, attempt=0) == 120
    assert patience.limit(fresh=False, attempt=0) == 5
    patience.note_first(9.0)
    patience.note(2.0)
    assert patience.limit(fresh=True, attempt=0) == 36
    assert patience.limit(fresh=False, attempt=0) == 8
    assert patience.limit(fresh=False, attempt=2) == 128
    for _ in range(64):
        patience.note(0.1)
    assert patience.limit(fresh=False, attempt=0) == 5


def test_waiting_is_told_twice_a_second() -> None:
    loader = make(At(0, doze))
    calls: list[float] = []
    loader.on_wait = lambda: calls.append(time.monotonic())
    loader._pool.patience = Patience()
    list(loader.batches(0, 0))
    assert 1 <= len(calls) <= 6
    loader.close()


def test_a_wait_can_be_left_by_raising(undisturbed: torch.Tensor) -> None:
    loader = make(At(int(undisturbed[0, 0]), doze))
    loader._pool.patience = Patience()

    def stop() -> None:
        raise KeyboardInterrupt

    loader.on_wait = stop
    with pytest.raises(KeyboardInterrupt):
        next(loader.batches(0, 0))
    loader.on_wait = None
    assert torch.equal(values(loader), undisturbed)
    loader.close()


# Short of memory.


def test_batches_sent_by_value_are_the_same(undisturbed: torch.Tensor) -> None:
    loader = make()
    loader._fetcher.by_value = True
    assert torch.equal(values(loader), undisturbed)
    loader.close()


SHORT = """
import resource, sys, torch
from holdfast.runtime.loader import Loader

class Data:
    def __len__(self): return 24
    def __getitem__(self, index):
        return [torch.full((size,), index) for size in sizes]

for limit, sizes in [(None, [300_000]), (50, [3] * 30)]:
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    loader = Loader(Data(), 4, num_workers=2)
    for batch in loader.batches(0, 0):
        assert batch.value[0][:, 0].tolist() == batch.samples.tolist()
    loader.close()
print("done", batch.index)
"""


def test_full_shared_memory_and_too_few_descriptors_are_survived() -> None:
    """A container gives 64 MB of shared memory; here it is 8 MB, and then 50 open files."""
    small = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"', "sh"]
    try:
        subprocess.run([*small, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a mount namespace of its own")
    ended = subprocess.run([*small, sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "done 5\n", ended.stderr
    assert "batches go by value" in ended.stderr


# Errors of the user's code.


class BadFile(Exception):
    """Cannot be rebuilt by calling it with its own args."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line} is damaged")
        self.line = line


def raise_bad_file() -> None:
    raise BadFile("a.png", 12)


def raise_unicode_error() -> None:
    b"\xff".decode("utf-8")


def raise_key_error() -> None:
    dict[str, int]()["label"]


def raise_stop_iteration() -> None:
    next(iter([]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("act", "kind"),
    [(raise_bad_file, BadFile), (raise_unicode_error, UnicodeDecodeError), (raise_key_error, KeyError)],
)
def test_an_error_in_the_dataset_comes_as_it_is(
    workers: int,
    act: Callable[[], None],
    kind: type[Exception],
    undisturbed: torch.Tensor,
    events: list[Event],
) -> None:
    index = int(undisturbed[9, 0])  # in batch 2
    loader = record(make(At(index, act), workers=workers), events)
    got = []
    with pytest.raises(kind) as caught:
        for batch in loader.batches(0, 0):
            got.append(batch.index)
    assert got == [0, 1]
    assert type(caught.value) is kind
    text = "".join(traceback.format_exception(caught.value))
    assert act.__name__ in text  # the line that raised, wherever it ran
    assert f"raised by dataset[{index}], in batch 2 of epoch 0" in text
    if kind is BadFile:
        assert caught.value.line == 12  # type: ignore[attr-defined]
        assert str(caught.value) == "a.png:12 is damaged"
    assert events == []
    loader.close()


def test_an_error_of_a_class_that_cannot_travel_keeps_its_words() -> None:
    class Local(Exception):
        pass

    def act() -> None:
        raise Local("only here")

    loader = make(At(3, act))
    with pytest.raises(RuntimeError, match="Local: only here"):
        values(loader)
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_in_the_dataset_does_not_end_the_epoch(workers: int) -> None:
    loader = make(At(3, raise_stop_iteration), workers=workers)
    with pytest.raises(RuntimeError, match="StopIteration"):
        values(loader)
    loader.close()


def test_the_loader_goes_on_after_an_error(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    loader = make(At(int(undisturbed[9, 0]), raise_key_error, tmp_path / "done"))
    with pytest.raises(KeyError):
        values(loader)
    pids = loader._pool.pids
    assert torch.equal(values(loader), undisturbed)
    assert loader._pool.pids == pids
    loader.close()


def unpicklable(items: list[Any]) -> Any:
    return lambda: items


def test_a_batch_that_cannot_be_pickled_is_an_error_and_no_hang() -> None:
    loader = make(collate_fn=unpicklable)
    with pytest.raises(Exception, match="pickle"):
        next(loader.batches(0, 0))
    loader.close()


# Nothing left behind.


def test_close_ends_the_children_and_they_come_back_when_needed(undisturbed: torch.Tensor) -> None:
    loader = make()
    before = children()
    next(loader.batches(0, 0))
    assert len(children() - before) == 2
    loader.close()
    assert children() == before
    loader.close()
    assert torch.equal(values(loader), undisturbed)
    loader.close()


def test_close_ends_stopped_children_too() -> None:
    loader = make()
    before = children()
    next(loader.batches(0, 0))
    for pid in loader._pool.pids:
        os.kill(pid, signal.SIGSTOP)
    loader.close()
    assert children() == before


def test_a_loader_nobody_holds_ends_its_children() -> None:
    before = children()
    loader = make()
    next(loader.batches(0, 0))
    assert children() != before
    del loader
    gc.collect()
    assert children() == before


def test_children_that_do_not_persist_end_with_the_epoch(undisturbed: torch.Tensor) -> None:
    loader = make(persistent_workers=False)
    before = children()
    rows = []
    for epoch in range(2):
        rows += [batch.value for batch in loader.batches(epoch, 0)]
        assert children() == before
    assert torch.equal(torch.cat(rows), undisturbed)


SCRIPT = """
import os, signal, sys, time, torch
from holdfast.runtime.loader import Loader

class Slow:
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor(index)

loader = Loader(Slow(), 4, num_workers=2)
stream = loader.batches(0, 0)
next(stream)
print(*loader._pool.pids, flush=True)
"""


ENDS = {
    "killed": "time.sleep(600)",
    "with a stopped child": "os.kill(loader._pool.pids[0], signal.SIGSTOP)",
    "as usual": "",
}


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="children of other systems need up to 5 s")
def test_however_a_process_ends_its_loader_children_end_too() -> None:
    """At once, and without waiting for children that will not answer."""
    processes = {
        name: subprocess.Popen([sys.executable, "-c", SCRIPT + ending], stdout=subprocess.PIPE, text=True)
        for name, ending in ENDS.items()
    }
    for name, process in processes.items():
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        if name == "killed":
            process.kill()
        process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if name == "killed" else 0), name
        assert wait_until(partial(gone, pids), 5), name


def test_ctrl_c_is_not_for_the_children(undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(), events)

    def interrupt(batch: Batch) -> None:
        for pid in loader._pool.pids:
            os.kill(pid, signal.SIGINT)

    assert torch.equal(values(loader, each=interrupt), undisturbed)
    assert events == []
    loader.close()


def test_spawned_children_do_the_same(
    monkeypatch: pytest.MonkeyPatch, undisturbed: torch.Tensor, events: list[Event]
) -> None:
    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = record(make(workers=1), events)
    loader._pool.patience = Patience()

    def kill(batch: Batch) -> None:
        if batch.index == 3:
            os.kill(loader._pool.pids[0], signal.SIGKILL)

    assert torch.equal(values(loader, epochs=1, each=kill), undisturbed[:LENGTH])
    assert [name for name, _ in events] == ["loader_died"]
    loader.close()


def test_what_cannot_be_spawned_is_the_users_to_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = make(collate_fn=lambda items: items, workers=1)
    with pytest.raises(UserError, match="cannot be sent"):
        next(loader.batches(0, 0))


# Devices.


def test_a_device_that_is_not_in_use_is_not_woken_up_to_pin_memory() -> None:
    loader = make(pin_memory=True, workers=0)
    loader.device = torch.device("cpu")  # a run that has left its accelerator
    assert loader._pin_device() is None
    loader.device = None
    assert loader._pin_device() is None or torch.cuda.is_initialized()


@pytest.mark.hardware
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_pinned_through_a_kill(workers: int, undisturbed: torch.Tensor) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    loader = make(pin_memory=True, workers=workers)
    loader.device = torch.device("cuda")

    def check(batch: Batch) -> None:
        assert batch.value.is_pinned()
        assert torch.equal(batch.value.to("cuda", non_blocking=True).cpu(), batch.value)
        if batch.index == 3 and workers:
            os.kill(loader._pool.pids[0], signal.SIGKILL)

    assert torch.equal(values(loader, each=check), undisturbed)
    loader.close()


# Settings.


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": []}, "is empty"),
        ({"dataset": Stream()}, "`Stream` has not both"),
        ({"dataset": Dataset()}, "`Dataset` has not both"),
        ({"dataset": 3}, "`int` has not both"),
        ({"dataset": DataLoader(TensorDataset(torch.arange(3)))}, "`DataLoader` has not both"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": -2}, "batch_size is -2"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": None}, "batch_size is None"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"prefetch_factor": 0}, "prefetch_factor is 0"),
        ({"seed": "one"}, "seed is 'one'"),
        ({"batch_size": 50, "drop_last": True}, "drop_last leaves no batch"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Loader(**{"dataset": Augmented(), **arguments})


def test_numbers_of_numpy_are_numbers() -> None:
    ten: Any = np.int64(10)
    assert len(Loader(Augmented(), ten)) == 4
    assert len(Loader(Augmented(), 10, drop_last=True)) == 3


class InOneGo(Augmented):
    """Gives whole batches, unless it is told not to."""

    def __init__(self, wrong: int = -1) -> None:
        super().__init__()
        self.wrong = wrong

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.wrong:
            raise ValueError("this one is damaged")
        return torch.tensor([index, 1])

    def batch_of(self, indices: list[int]) -> torch.Tensor:
        if self.wrong in indices:
            raise RuntimeError("something in here is damaged")
        return torch.tensor([[index, 2] for index in indices])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_give_whole_batches(workers: int) -> None:
    loader = Loader(InOneGo(), SIZE, shuffle=True, seed=5, num_workers=workers)
    values = list(loader)
    assert sorted(int(row[0]) for value in values for row in value) == list(range(LENGTH))
    assert all(int(row[1]) == 2 for value in values for row in value)
    loader.close()


def test_with_a_collate_function_samples_come_one_by_one() -> None:
    values = list(Loader(InOneGo(), SIZE, collate_fn=torch.stack))
    assert all(int(row[1]) == 1 for value in values for row in value)


def test_what_a_whole_batch_raises_names_its_sample() -> None:
    with pytest.raises(ValueError, match="this one is damaged") as caught:
        list(Loader(InOneGo(wrong=7), SIZE))
    assert any("dataset[7]" in note for note in getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("draw", [torch.randn, np.random.standard_normal, lambda _: random.random()])
def test_a_whole_batch_that_draws_is_refused(draw: Callable[[int], object]) -> None:
    class Careless(InOneGo):
        def batch_of(self, indices: list[int]) -> torch.Tensor:
            draw(1)
            return super().batch_of(indices)

    with pytest.raises(UserError, match="`batch_of` of Careless drew a random number"):
        list(Loader(Careless(), SIZE))
