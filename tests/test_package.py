"""The wheel and the sdist have everything, and the wheel answers in an environment that has nothing, not even torch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast import __version__

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import package  # noqa: E402


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("setuptools", "77")
    return package.build(tmp_path_factory.mktemp("dist"))


@pytest.mark.long
def test_both_have_everything_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    assert wheel.name == f"holdfast-{__version__}-py3-none-any.whl" and sdist.name == f"holdfast-{__version__}.tar.gz"
    assert [*package.look_into_wheel(wheel), *package.look_into_sdist(sdist)] == []


@pytest.mark.all
def test_what_is_missing_is_noticed(built: tuple[Path, Path], tmp_path: Path) -> None:
    """The look itself can fail: a wheel without its texts, and with a stranger."""
    cut = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as whole, zipfile.ZipFile(cut, "w") as less:
        for name in whole.namelist():
            if name != "holdfast/faults/faults.toml":
                less.writestr(name, whole.read(name))
        less.writestr("holdfast/stranger.py", "")
    found = package.look_into_wheel(cut)
    assert [problem.partition(" ")[2] for problem in found] == [
        "lacks holdfast/faults/faults.toml",
        "has holdfast/stranger.py, which is not in src/",
    ]


@pytest.mark.all
def test_it_answers_where_nothing_else_is_installed(built: tuple[Path, Path], tmp_path: Path) -> None:
    """No site-packages at all: no torch, no numpy, no rich."""
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path / "alone")

    def say(*words: str) -> tuple[int, str]:
        env = {**os.environ, "PYTHONPATH": str(tmp_path / "alone"), "HOLDFAST_STATE": str(tmp_path / "state")}
        done = subprocess.run(
            [sys.executable, "-S", "-m", "holdfast", *words],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    assert say("--version") == (0, f"holdfast {__version__}\n")
    code, text = say("--help")
    assert code == 0 and "usage: holdfast COMMAND" in text
    code, text = say("doctor")
    assert code == 1 and "torch is not installed" in text and "pip install torch" in text
    code, text = say("explain", "F005")
    assert code == 0 and text.startswith("F005")
