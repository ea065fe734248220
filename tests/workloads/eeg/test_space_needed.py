"""What preparing will need is known before it begins: as many processes as there are cores and room for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.workloads.eeg import bids, pool, space_needed
from holdfast.workloads.eeg.recipe import Recipe

from .sets import make_set

NAMES = [f"E{number}" for number in range(1, 33)]
PEAK = """
import re, resource, sys
from pathlib import Path
from holdfast.workloads.eeg.prepare import prepare
prepare(sys.argv[1], sys.argv[2], kind="challenge2", workers=1)
status = Path("/proc/self/status")
if status.exists():  # the other one counts from before exec: the process of the test
    print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.all
@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
def test_a_process_needs_what_was_said_and_not_more(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1, task="RestingState", seconds=4000, channels=NAMES, events=None)
    said = space_needed.memory_of_one(bids.look(data).recordings, Recipe(kind="challenge2").settled(), NAMES)
    words = [sys.executable, "-c", PEAK, str(data), str(tmp_path / "cache")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert 0.5 * said < int(done.stdout) < said


def test_without_a_sidecar_the_size_of_the_file_says_it(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=1, task="RestingState", seconds=60, channels=NAMES, events=None)
    recipe = Recipe(kind="challenge2").settled()
    told = space_needed.memory_of_one(bids.look(data).recordings, recipe, NAMES)
    for each in data.glob("sub-*/eeg/*.json"):
        each.unlink()
    guessed = space_needed.memory_of_one(bids.look(data).recordings, recipe, NAMES)
    assert told <= guessed < 1.5 * told
    assert space_needed.memory_of_one([], recipe, NAMES) == 0.0


def test_no_more_processes_than_cores_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.machine, "usable_cpus", lambda: 16)
    monkeypatch.setattr(pool.machine, "limits", lambda: {"cpus": None, "memory_bytes": None})
    monkeypatch.setattr(pool.machine, "memory", lambda: {"available_bytes": 10 << 30})
    assert pool.usual_workers() == 16
    assert pool.usual_workers(1 << 30) == 7  # of the ten that are free, some are left for others
    assert pool.usual_workers(1 << 40) == 1
    monkeypatch.setattr(pool.machine, "limits", lambda: {"cpus": 3.5, "memory_bytes": 2 << 30})  # a container
    assert pool.usual_workers() == 4
    assert pool.usual_workers(1 << 30) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_it_keeps_to_the_cores_it_was_given() -> None:
    words = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from holdfast.workloads.eeg import pool; print(pool.usual_workers())"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
