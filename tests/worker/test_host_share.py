"""The host's share of a step is constant: nothing is done in Python for each tensor in each step."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tests import warm
from tests.data.loaders import POSIX

pytestmark = [POSIX, pytest.mark.timeout(900)]

JOB = Path(__file__).parent / "count_job.py"


MOST = 4500
"""Byte codes of one step: a tenth of a millisecond, at the 22 ns that one of the runtime took on a Neoverse-N1."""


def byte_codes(folder: Path, tensors: int, *, own: int = 0) -> list[int]:
    """Of the steps that were not committed, in a worker under `holdfast train`."""
    out = folder / f"{tensors}.json"
    words = [
        f"tensors={tensors}",
        f"own={own}",
        f"out={out}",
        f"run.folder={folder}",
        "snapshot.every=8",
        "--device",
        "cpu",
        "-q",
    ]
    ran = warm.holdfast("train", str(JOB), *words, cwd=folder)
    assert ran.code == 0, ran.err
    found: list[int] = json.loads(out.read_text())
    return found


@pytest.mark.all
def test_a_step_takes_as_much_python_for_many_tensors_as_for_few(tmp_path: Path) -> None:
    few, many = byte_codes(tmp_path, 8), byte_codes(tmp_path, 400)
    assert len(few) >= 8 and len(many) >= 8
    more = statistics.median(many) - statistics.median(few)
    assert abs(more) < (400 - 8) / 2, (few, many)  # one byte code for each tensor would be 392


def test_a_step_that_is_not_committed_stays_within_a_tenth_of_a_millisecond_of_python(tmp_path: Path) -> None:
    """With a dataset of the script's own, whose generators are watched. Counted, so a busy machine changes nothing."""
    found = byte_codes(tmp_path, 8, own=1)
    assert len(found) >= 8 and statistics.median(found) < MOST, found
