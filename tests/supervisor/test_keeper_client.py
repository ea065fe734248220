"""The supervisor's side of the keeper: what is asked for while it is busy, and whose weights are the best."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.scratch import Scratch
from holdfast.record.best_weights import FILE
from holdfast.run.commit_points import SaveReason
from holdfast.run.settings import Settings
from holdfast.state.slot_memory import Memory
from holdfast.state.weights_file import check_weights, read_said
from holdfast.supervisor.keeper_client import Keeping
from tests.supervisor.test_keeper import PLAN, WEIGHTS, commit
from tests.waiting import wait_until
from tests.worker.local_runs import new_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it is stopped by a signal")


def value(number: float) -> dict[str, Any]:
    return {"name": "valid_loss", "value": number, "step": 5, "epoch": 1}


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    run, settings = new_folder(tmp_path), Settings.load({}, cwd=tmp_path, env={})
    run.lock()
    memory, scratch = Memory(run, settings, portable=False, say=print), Scratch.create()
    memory.grow(PLAN.total_bytes)
    made = Keeping(run, settings, memory, scratch, portable=False)
    made.start()
    yield made
    made.close(patience=20.0)
    memory.close()
    scratch.remove()
    run.close()


def hold(keeping: Keeping, step: int) -> None:
    (arena,) = keeping.memory.arenas
    commit(arena, step)
    slot = arena.find(step)
    assert slot is not None
    slot.hold()


def made_busy(keeping: Keeping) -> int:
    """Its keeper is asked for a checkpoint, and stopped: it answers when the test lets it."""
    assert keeping.pid is not None
    os.kill(keeping.pid, signal.SIGSTOP)
    commit(keeping.memory.arenas[0], 1)
    keeping.wish(SaveReason.TIME)
    return keeping.pid


def holds(keeping: Keeping, step: int, best: float) -> bool:
    path = keeping.run.path / FILE
    if check_weights(path) is not None:
        return False
    said = read_said(path)
    return said["step"] == str(step) and json.loads(said["best"]) == value(best) and step_of(path) == step


def step_of(path: Path) -> int:
    data = path.read_bytes()[-WEIGHTS:]
    assert len(set(data)) == 1
    return data[0]


def test_weights_that_wait_for_a_busy_keeper_outlive_the_supervisor(keeping: Keeping) -> None:
    pid = made_busy(keeping)
    hold(keeping, 5)
    keeping.wish(SaveReason.EPOCH, weights=["best"], best=value(0.5), checkpoint=False, sequence=5)
    for step in range(6, 12):
        commit(keeping.memory.arenas[0], step)
    assert keeping.channel is not None
    keeping.channel.close()  # as the kernel does for one that is killed
    keeping.channel = None
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: not keeping.run.path.joinpath("slots").exists() and holds(keeping, 5, 0.5))


def test_of_two_that_wait_the_newer_one_is_saved_under_its_own_value(keeping: Keeping) -> None:
    pid = made_busy(keeping)
    hold(keeping, 5)
    keeping.wish(SaveReason.EPOCH, weights=["best"], best=value(0.5), sequence=5)
    hold(keeping, 8)
    keeping.wish(SaveReason.EPOCH, weights=["best"], best=value(0.25), sequence=8)
    assert keeping.awaited == {8}
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: bool(keeping.hear() or True) and keeping.idle)
    assert holds(keeping, 8, 0.25)


def test_also_where_nothing_is_held(keeping: Keeping) -> None:
    """A framework's epoch: the newest snapshot is meant, and what was said last of it."""
    pid = made_busy(keeping)
    keeping.wish(SaveReason.EPOCH, weights=["best"], best=value(5.0))
    commit(keeping.memory.arenas[0], 9)
    keeping.wish(SaveReason.EPOCH, weights=["best"], best=value(3.0))
    keeping.wish(SaveReason.TIME)
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: bool(keeping.hear() or True) and keeping.idle)
    assert holds(keeping, 9, 3.0)
