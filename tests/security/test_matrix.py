"""Every kind of hostile file x every file of a run folder x every command that reads or writes it.

No traceback, no exit code that is not documented, none that says "our bug", no raw escape, nothing outside of the
folder changed, and an end in time. `make test-all` looks at a few cells, `make test-long` at more, always the same;
`HOLDFAST_MATRIX=all` takes all 4 760 (some minutes), `HOLDFAST_MATRIX=500` so many.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security import matrix, planting

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes need another way there")
FEW, MANY = 60, 400
"""Every link in every place of a run that is resumed, then some thing in every place for every command."""
HOME = Path(__file__).parents[2]


def cells(sample: int) -> list[list[str]]:
    every = [[kind, name, command] for kind in matrix.KINDS for name in matrix.FILES for command in matrix.COMMANDS]
    wanted = os.environ.get("HOLDFAST_MATRIX", str(sample))
    if wanted == "all":
        return every
    order = random.Random(20261117)
    resumed = [[kind, name, "resume"] for kind in (*planting.LINKS, "hard link") for name in matrix.FILES]
    first = [[order.choice(matrix.KINDS), name, command] for name in matrix.FILES for command in matrix.COMMANDS]
    order.shuffle(first)
    shown = [["escapes", "run.json", command] for command in matrix.COMMANDS]  # every command prints something of it
    everything = shown + resumed + first + order.sample(every, len(every))
    if int(wanted) >= MANY:
        return everything[: int(wanted)]
    return order.sample(everything[:MANY], int(wanted))


@pytest.mark.all
@pytest.mark.parametrize("sample", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.timeout(3600)
def test_no_command_fails_on_what_somebody_planted(tmp_path: Path, sample: int) -> None:
    nothing = [[matrix.NOTHING, "run.json", command] for command in matrix.COMMANDS] if sample == MANY else []
    wanted = nothing + cells(sample)
    env = {**os.environ, "PYTHONPATH": str(HOME), "HOLDFAST_STATE": str(tmp_path / "state"), "HOME": str(tmp_path)}
    child = subprocess.run(
        [sys.executable, "-m", "tests.security.matrix", str(tmp_path / "cells")],
        cwd=tmp_path,
        env=env,
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert child.stdout.strip() == "done 0", child.stdout[-5000:] + child.stderr[-2000:]
    assert not list(tmp_path.glob("holdfast-report-*")), "a report of our own bug was written"
