"""`holdfast run -- torchrun …` with what keeps the state of one process: told so at once, and no rank goes on alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.supervisor.scripts.driving import SCRIPTS, by_itself, under_run

pytestmark = [pytest.mark.all, pytest.mark.timeout(900)]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
PATIENCE = 600.0


def ranks(folder: Path) -> list[torch.Tensor]:
    return [torch.load(folder / f"weights-{rank}.pt", weights_only=True)["weight"] for rank in (0, 1)]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_attach_keeps_nothing_of_several_processes_and_says_so(tmp_path: Path) -> None:
    """Rank 0 alone would go on at the step where it was, with weights that no other rank has."""
    script = SCRIPTS / "attached_ddp_script.py"
    ran = under_run(tmp_path / "killed", *TORCHRUN, script, patience=PATIENCE)
    assert ran.code == 0 and len(ran.restarts) == 1, ran.story()
    assert any("holdfast.attach keeps nothing of them" in note for note in ran.notes), ran.story()
    assert not ran.receipt["exact"], ran.story()
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "killed").touch()
    assert by_itself(tmp_path / "alone", *TORCHRUN, script, patience=PATIENCE).code == 0
    for mine in ranks(tmp_path / "killed"):
        assert torch.equal(mine, ranks(tmp_path / "alone")[0])


def test_exact_follows_no_run_of_several_processes(tmp_path: Path) -> None:
    script = SCRIPTS / "ddp_script.py"
    ran = under_run(tmp_path, *TORCHRUN, script, "--steps", "40", settings=("--exact",), patience=PATIENCE)
    assert ran.code == 0 and not ran.restarts, ran.story()
    assert "not exact: several processes train one model, and each has a state of its own" in ran.said, ran.story()
