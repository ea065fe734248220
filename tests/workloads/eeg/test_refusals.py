"""A refusal comes before there is a run, without torch, and names a command that works for this set."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from tests.workloads.eeg import small
from tests.workloads.eeg.sets import make_set
from tests.workloads.eeg.test_response_windows import QUICK, cueing


def muse(root: Path) -> Path:
    """A set that nobody made for this competition."""
    return make_set(root, subjects=4, task="cueing", events=cueing(QUICK), labels=False, seconds=30.0)


@pytest.mark.parametrize(
    ("workload", "data", "message"),
    [
        ("eeg-challenge1", "nothing", "there is no cache in"),
        ("eeg-challenge1", "set", "holds recordings, and no windows for challenge1"),
        ("eeg-challenge2", "one", "no subject in"),
        ("eeg-challenge1", "two", "no window in"),
        ("eeg", "set", "holds recordings, and no windows for"),
    ],
)
def test_data_that_cannot_be_trained_on_leave_no_run(
    tmp_path: Path, workload: str, data: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    muse(tmp_path / "set")
    small.challenge1(tmp_path / "one")
    path = small.challenge2(tmp_path / "two")
    assert path.exists()
    words = [f"data={tmp_path / data}", f"run.folder={tmp_path / 'runs'}", "--plain"]
    assert main(["train", workload, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_refusal_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast.cli.main import main; "
        f"code = main(['train', 'eeg-challenge1', 'data={tmp_path}/nothing']); "
        "assert code == 2 and 'torch' not in sys.modules, sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)


def test_the_hint_for_a_strange_set_is_a_command_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    muse(Path("set"))
    assert main(["eeg", "prepare", "set", "cache", "--kind", "challenge1"]) == 2
    said = capsys.readouterr().err
    hint = said.partition("hint: `")[2].partition("`")[0]
    words = shlex.split(hint)
    assert words[:5] == ["holdfast", "eeg", "prepare", "set", "cache"]
    assert words[-4:] == ["--stimulus", "target_left", "--response", "buttonPress_left"]
    assert main([*words[1:], "--workers", "1"]) == 0
    assert "16 windows" in capsys.readouterr().out


def test_left_out_recordings_end_with_a_command_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    muse(Path("set"))
    words = ["eeg", "prepare", "set", "cache", "--kind", "challenge1", "--tasks", "cueing", "--workers", "1"]
    assert main(words) == 1
    hint = capsys.readouterr().err.partition("hint: `")[2].partition("`")[0]
    assert main([*shlex.split(hint)[1:], "--workers", "1"]) == 0
