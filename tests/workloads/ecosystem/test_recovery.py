"""A run killed anywhere in an update ends with the bits of one that was not: world, policies, dice, everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

HUNTED = Path(__file__).parent / "jobs" / "hunted.py"


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("in the middle of a roll-out", {"rollout": 15}),
        ("between two steps of an optimizer", {"update": 11}),
        ("out of memory in a roll-out", {"memory": 10}),
    ],
)
@pytest.mark.sample(5)
def test_killed_anywhere_it_ends_with_the_same_bits(
    drive: Any, reference: Any, name: str, faults: dict[str, int]
) -> None:
    undisturbed = reference(HUNTED)
    run = drive(HUNTED, **faults)
    assert run.outcome.state == "FINISHED", run.story()
    assert list(run.folder.glob("fired-*")), "nothing happened"
    assert run.receipt["faults"] and run.receipt["steps_lost"] == 0
    assert run.receipt["weights_sha256"] == undisturbed.receipt["weights_sha256"]
    mine, theirs = run.state(), undisturbed.state()
    assert mine["tensors"] == theirs["tensors"]  # the world's arrays, normalisers and frozen opponents are in there
    assert {"world", "league", "vitals", "cursor"} <= set(mine["meta"]["state"])
    assert mine["meta"]["state"] == theirs["meta"]["state"]
    scores = [json.loads((each.folder / "scores.json").read_text()) for each in (run, undisturbed)]
    assert scores[0] | {"run": ""} == scores[1] | {"run": ""}


@pytest.mark.long  # make test-all: one of the above; make test: these faults in tests/real_faults
def test_chaos_by_signals_of_the_kit(drive: Any, reference: Any) -> None:
    run = drive(HUNTED, faults="sigkill@2,segfault@3,oom@4")
    assert run.outcome.state == "FINISHED", run.story()
    assert run.receipt["weights_sha256"] == reference(HUNTED).receipt["weights_sha256"]
    assert run.state()["tensors"] == reference(HUNTED).state()["tensors"]
