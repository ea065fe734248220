"""`holdfast launch --continue`: which run it takes, and what happens if it is started twice at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.console.order import create, read_order
from holdfast.run.folder import RunFolder, list_runs
from holdfast.run.states import RunState
from tests.distributed.launched import ROOT
from tests.waiting import wait_until

SCRIPT = """
import time
from pathlib import Path
import torch, holdfast

def train(session, lr: float = 0.1):
    model = torch.nn.Linear(2, 1)
    session.protect(model=model)
    Path(f"begun-{session.rank}").touch()
    while not Path("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("def train(session, lr=0.1):\n    pass\n")
    (tmp_path / "y.py").write_text("def train(session, lr=0.1):\n    return None\n")
    return tmp_path


def _begin(script: str, *words: str, saved: int | None = None, state: RunState | None = None) -> RunFolder:
    """A run of which a process has written this much."""
    folder = create(read_order(script, [*words, "run.folder=runs"]))
    if saved is not None:
        (folder.path / "checkpoints" / f"{saved:06d}").mkdir()
    if state is not None:
        folder.update_info(state=state)
    return folder


def _again(*words: str) -> int:
    return main(["launch", "--continue", "--nproc", "2", *words, "run.folder=runs"])


def test_other_arguments_or_another_seed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _begin("x.py", "lr=0.2")
    assert _again("x.py", "lr=0.3") == 2
    said = capsys.readouterr().err
    assert f"{folder.name} was started with other arguments" in said and "it has lr=0.2 run.seed=0" in said
    assert _again("x.py", "lr=0.2", "--seed", "1") == 2
    assert f"{folder.name} was started with other arguments" in capsys.readouterr().err
    assert len(list_runs(here / "runs")) == 1


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.STOPPED])
def test_a_run_of_another_script_is_left_alone(here: Path, state: RunState, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished one is no reason to do nothing, and its checkpoints are not those of this script."""
    other = _begin("y.py", saved=7, state=state)
    before = other.info
    for node in ("0", "1"):
        assert _again("x.py", "--nodes", "2", "--node-rank", node, "--master", "a") == 2
        said = capsys.readouterr().err
        assert "runs has no run of x.py" in said and f"{other.name} there is a run of {here / 'y.py'}" in said
    assert other.info == before and len(list_runs(here / "runs")) == 1


def test_a_finished_run_among_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job is started once more after its end; what others have in the folder does not count."""
    _begin("y.py", saved=9, state=RunState.FINISHED)
    _begin("x.py", "lr=0.4", saved=9, state=RunState.FINISHED)
    _begin("x.py", saved=8)  # a machine that lost the others has saved it
    mine = _begin("x.py", saved=7, state=RunState.FINISHED)
    for node in ("0", "1"):
        assert _again("x.py", "--nodes", "2", "--node-rank", node, "--master", "a") == 0
        assert f"{mine.name} is finished" in capsys.readouterr().out
    assert len(list_runs(here / "runs")) == 4


def test_the_script_has_another_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = _begin("x.py", state=RunState.FINISHED)
    (here / "image").mkdir()
    moved = here / "image" / "x.py"
    moved.write_text((here / "x.py").read_text())
    assert _again("image/x.py") == 0, "a copy"
    moved.write_text("def train(session, lr=0.1):\n    return 1\n")
    capsys.readouterr()
    assert _again("image/x.py") == 2, "another script of the same name"
    assert "runs has no run of x.py" in capsys.readouterr().err
    (here / "x.py").unlink()
    assert _again("image/x.py") == 0, "its folder has moved"
    assert f"{mine.name} is finished" in capsys.readouterr().out


def _start(here: Path, number: int, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast", "launch", "--continue", "--nproc", "1", "x.py", "run.folder=runs"]
    where = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with open(here / f"out-{number}", "wb") as out, open(here / f"err-{number}", "wb") as err:
        return subprocess.Popen(
            [*command, *words, "--json"],
            cwd=here,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": where},
        )


@pytest.mark.timeout(300)
@pytest.mark.all
def test_three_starts_at_once_make_one_run(here: Path) -> None:
    """Those that come late end with 75, which schedulers know as "try again", and change nothing in the run."""
    (here / "x.py").write_text(SCRIPT)
    started = [_start(here, number) for number in range(3)]
    try:
        assert wait_until(lambda: sum(each.poll() is not None for each in started) >= 2, 120.0)
        assert sorted(each.poll() or 0 for each in started) == [0, 75, 75]
        (run,) = list_runs(here / "runs")
        assert wait_until((here / "begun-0").exists, 120.0)
        before = run.info["settings"]
        late = _start(here, 3, "checkpoint.every=77s")
        started.append(late)
        assert late.wait(120.0) == 75
        told = json.loads((here / "out-3").read_text())
        assert told["exit_code"] == 75 and told["error"]["message"] == f"{run.name} is in use"
        assert run.info["settings"] == before
        (here / "go").touch()
        assert wait_until(lambda: all(each.poll() is not None for each in started), 120.0)
        assert sorted(each.returncode for each in started) == [0, 75, 75, 75]
        assert run.info["state"] == RunState.FINISHED and len(list_runs(here / "runs")) == 1
    finally:
        for each in started:
            if each.poll() is None:
                each.terminate()
        for each in started:
            each.wait(60.0)


@pytest.mark.timeout(300)
@pytest.mark.all
def test_a_changed_script_is_told(here: Path) -> None:
    (here / "x.py").write_text(SCRIPT)
    run = _begin("x.py")
    (here / "x.py").write_text(SCRIPT + "\n# changed\n")
    (here / "go").touch()
    assert _start(here, 0).wait(200.0) == 0
    assert "x.py has changed since the run began" in (here / "err-0").read_text()
    assert [each.path for each in list_runs(here / "runs")] == [run.path.absolute()]
