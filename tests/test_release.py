"""What a release needs: one version, workflows for every system and Python, a Dockerfile that linters accept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import __version__

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402


def test_one_version_everywhere() -> None:
    assert release.version() == __version__
    assert list(release.versions(None)) == []


def test_a_tag_of_another_version_is_refused() -> None:
    found = list(release.versions("v99.0.0"))
    assert f"the tag v99.0.0 is not v{__version__}, as pyproject.toml says" in found


@pytest.mark.parametrize("name", ["actionlint", "hadolint"])
def test_linters_find_nothing(name: str) -> None:
    if release.tool(name) is None:
        pytest.skip(f"{name} is not installed")
    paths = sorted(release.WORKFLOWS.glob("*.yml")) if name == "actionlint" else [ROOT / "Dockerfile"]
    assert list(release.lint(name, *paths)) == []


def test_workflows_are_yaml_and_cover_what_we_promise() -> None:
    yaml = pytest.importorskip("yaml")
    ci = yaml.safe_load((release.WORKFLOWS / "ci.yml").read_text(encoding="utf-8"))
    pythons = ["3.10", "3.11", "3.12", "3.13"]
    assert ci["jobs"]["linux"]["strategy"]["matrix"]["python"] == pythons
    others = ci["jobs"]["others"]["strategy"]["matrix"]
    assert others == {"os": ["macos-latest", "windows-latest"], "python": pythons}
    out = yaml.safe_load((release.WORKFLOWS / "release.yml").read_text(encoding="utf-8"))
    assert out[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true
    assert out["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert out["jobs"]["publish"]["needs"] == "build" and out["jobs"]["build"]["needs"] == "test"


def test_files_that_workflows_name_exist() -> None:
    for path in release.WORKFLOWS.glob("*.yml"):
        named = re.findall(r"\b(?:scripts|tests|examples)/[\w./]+", path.read_text(encoding="utf-8"))
        assert [name for name in named if not (ROOT / name).exists()] == [], path.name


@pytest.mark.long  # `make release-check` does it, too
def test_an_index_on_disk_is_one_that_pip_reads(tmp_path: Path) -> None:
    wheel = tmp_path / f"holdfast-{__version__}-py3-none-any.whl"
    from package import build

    made, _ = build(tmp_path / "dist")
    made.rename(wheel)
    address = release.index(wheel, tmp_path / "simple")
    words = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "-q",
        "--index-url",
        address,
        "-d",
        str(tmp_path / "got"),
        "holdfast",
    ]
    env = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INPUT": "1"}
    done = subprocess.run(
        [sys.executable, *words, "holdfast"], capture_output=True, text=True, env=env, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "got").iterdir()] == [wheel.name]
