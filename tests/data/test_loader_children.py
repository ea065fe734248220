"""Loader: its children as processes. They end with it, leave Ctrl-C to it, need little memory, and may be spawned."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from holdfast.base.errors import UserError
from holdfast.data.loader import Batch
from tests.data.loaders import LENGTH, POSIX, TIDY, Event, children, make, record, values
from tests.waiting import wait_until

pytestmark = [POSIX, TIDY]


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
from holdfast.data.loader import Loader

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


@pytest.mark.long
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
        assert wait_until(partial(gone, pids), 100), name


def test_ctrl_c_is_not_for_the_children(undisturbed: torch.Tensor, events: list[Event]) -> None:
    loader = record(make(), events)

    def interrupt(batch: Batch) -> None:
        for pid in loader._pool.pids:
            os.kill(pid, signal.SIGINT)

    assert torch.equal(values(loader, each=interrupt), undisturbed)
    assert events == []
    loader.close()


SHORT = """
import resource, sys, torch
from holdfast.data.loader import Loader

class Data:
    def __len__(self): return 24
    def __getitem__(self, index):
        return [torch.full((size,), index) for size in sizes]

for limit, sizes in [(None, [300_000]), (50, [1_200] * 30)]:
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    loader = Loader(Data(), 4, num_workers=2)
    for batch in loader.batches(0, 0):
        assert batch.value[0][:, 0].tolist() == batch.samples.tolist()
    loader.close()
print("done", batch.index)
"""


@pytest.mark.all
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


@pytest.mark.long
def test_spawned_children_do_the_same(
    monkeypatch: pytest.MonkeyPatch, undisturbed: torch.Tensor, events: list[Event]
) -> None:
    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = record(make(workers=1), events)

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
