"""`holdfast list`, `status`, `show`, `watch -1` and `report` on a run of somebody else's program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.supervisor.scripts.driving import environment, holdfast, under_run

CODE = """
import os
print("loss 0.25", flush=True)
if not os.path.exists("again"):
    open("again", "w").close()
    os.kill(os.getpid(), 9)
"""


def asked(folder: Path, *words: str) -> str:
    done = subprocess.run(holdfast(*words), cwd=folder, env=environment(folder), capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.all
def test_a_run_of_a_foreign_program_looks_right_everywhere(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CODE)
    ran = under_run(tmp_path, "-S", "train.py", "--token", "secret-word")
    assert ran.code == 0, ran.story()
    shown = asked(tmp_path, "show", "latest")
    assert "train.py --token ***\n" in shown and "secret-word" not in shown
    for ours in ("seed", "threads", "None", "bound", "samples", "0 steps", "nothing saved"):
        assert ours not in shown, shown
    assert "✓ finished in" in shown and "1 killed worker; all recovered" in shown and "F007" in shown, shown
    for words in (("list",), ("status", "latest"), ("watch", "-1", "latest")):
        text = asked(tmp_path, *words)
        assert "FINISHED" in text and "None" not in text and "secret-word" not in text, text
    asked(tmp_path, "report", "latest")
    assert ran.run is not None
    page = (ran.run.path / "report.html").read_text()
    assert "train" in page and "F007" in page and "secret-word" not in page
    assert "Finished in" in page and "samples were" not in page
    last = ran.said.splitlines()[-1]  # nobody saw a step, and nobody knows how it goes on
    assert "lossless" not in ran.said and "step" not in last and "of work repeated" in last and "up to" in last, (
        ran.said
    )
