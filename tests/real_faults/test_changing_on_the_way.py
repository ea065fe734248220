"""The scripts of docs/changing-on-the-way.md, killed and out of memory: the weights and numbers of the quiet run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "changing-on-the-way.md"
FAULTS = {
    "Freezing and unfreezing": "sigkill@7,sigkill@9,sigkill@14",
    "A parameter group that comes later": "sigkill@7,sigkill@9,sigkill@14",
    "LBFGS": "sigkill@3,oom_in_step@4,oom_in_step@5,sigkill@6",
    "K folds": "sigkill@4,sigkill@9,sigkill@13,sigkill@22",
    "Another batch size": "sigkill@5,sigkill@13,sigkill@20",
}


def scripts() -> dict[str, str]:
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        block = re.search(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        assert block is not None
        found[part.splitlines()[0]] = block[1]
    return found


def test_every_part_of_the_page_has_its_faults() -> None:
    assert list(scripts()) == list(FAULTS)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("title", ["LBFGS", *(title for title in FAULTS if title != "LBFGS")])
def test_killed_on_the_way(title: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(scripts()[title], encoding="utf-8")
    words = ["chaos", "job.py", "--faults", FAULTS[title], "--references", "1", "snapshot.every=2", "--device", "cpu"]
    told = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"✓ survived {len(FAULTS[title].split(','))} injected faults" in told.stdout
    assert "the weights are those of the undisturbed run, bit for bit" in told.stdout
    assert re.search(r"logged   all \d+ are those of the undisturbed runs", told.stdout)
