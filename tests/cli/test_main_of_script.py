"""`holdfast.main(train)` where `train` is not of the script that was started: supervised, or an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.driving import environment

LIBRARY = """
import holdfast

def train(session: "holdfast.Session") -> None:
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.protect(model=model, optimizer=optimizer)
    while session.step_count < 3:
        session.step(lambda b: model(b).square().mean(), torch.randn(4, 2))
"""


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "library.py").write_text(LIBRARY)
    (folder / "started.py").write_text(text)
    words = [sys.executable, "started.py", f"run.folder={folder / 'runs'}", "run.device=cpu", "-q"]
    return subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=100)


def supervised(folder: Path) -> list[bool]:
    infos = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/run.json")]
    return [info.get("supervised", True) and info["state"] == "FINISHED" for info in infos]


@pytest.mark.all
def test_a_function_of_another_module_is_supervised(tmp_path: Path) -> None:
    text = "import holdfast, library\nif __name__ == '__main__':\n    holdfast.main(library.train, supervised=True)\n"
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert supervised(tmp_path) == [True]


def test_one_that_no_worker_can_find_is_an_error(tmp_path: Path) -> None:
    text = "import holdfast, library\nif __name__ == '__main__':\n    holdfast.main(lambda s: library.train(s))\n"
    done = run(tmp_path, text)
    assert done.returncode == 2, done.stderr
    assert "cannot be run under a supervisor" in done.stderr
    assert not (tmp_path / "runs").exists()
