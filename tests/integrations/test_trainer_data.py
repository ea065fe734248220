"""The Trainer of transformers with data that draws random numbers: after a kill, the same batches, and none read twice.

Masks are drawn when a batch is fetched, and the Trainer fetches ahead. A stream of unknown length ends and begins anew.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.supervisor.scripts.driving import Ran, by_itself, same_weights, under_run

SCRIPT = Path(__file__).parent / "scripts" / "trainer_stream.py"
STEPS, BATCH = 22, 4
PATIENCE = 400.0
"""Seconds: transformers is imported again after the kill."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
]


def samples_read(folder: Path) -> list[int]:
    """How many each process read, in their order."""
    counts: dict[str, int] = {}
    for line in (folder / "read.txt").read_text().splitlines():
        counts[line.split()[0]] = counts.get(line.split()[0], 0) + 1
    return list(counts.values())


def losses(ran: Ran) -> list[tuple[int, float, float]]:
    assert ran.run is not None
    rows = [json.loads(line) for line in (ran.run.path / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["epoch"]) for row in rows if "loss" in row]


@pytest.mark.parametrize(
    ("kind", "batches", "accumulate"),
    [("map", 24, 1), ("map", 16, 2), ("stream", 100, 1), ("stream", 12, 1), ("plain", 100, 1), ("plain", 12, 1)],
)
def test_killed_between_two_steps(tmp_path: Path, kind: str, batches: int, accumulate: int) -> None:
    words = (SCRIPT, kind, STEPS, batches, accumulate)
    alone = by_itself(tmp_path / "alone", *words)
    assert alone.code == 0, alone.story()
    quiet = under_run(tmp_path / "quiet", *words, patience=PATIENCE)
    assert quiet.code == 0 and same_weights(tmp_path / "alone", tmp_path / "quiet"), quiet.story()
    ran = under_run(tmp_path / "killed", *words, fault="kill@17", patience=PATIENCE)
    assert ran.code == 0 and ran.faults == ["killed"], ran.story()
    assert same_weights(tmp_path / "alone", tmp_path / "killed"), ran.story()
    assert losses(ran) == losses(quiet)
    left = (
        (STEPS - 16 + 3) * BATCH * accumulate
    )  # the steps that are left, one that is repeated, and what is fetched ahead
    if kind != "plain":
        assert samples_read(tmp_path / "killed")[-1] <= left
    else:
        assert any("are read again" in note for note in ran.notes)
