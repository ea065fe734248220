"""The project's own files agree with each other."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import COMMANDS, maker
from holdfast.console.usage import One
from holdfast.monitor.web.server import PORT
from holdfast.workloads.eeg import cache as eeg_cache

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def lock() -> str:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", requirement)[0].lower() for requirement in requirements}


def test_the_lock_is_exact_hashed_and_names_no_host(lock: str) -> None:
    assert "://" not in lock
    assert "--index-url" not in lock
    entries = re.split(r"\n(?=[a-z0-9])", lock)
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9._-]*==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_the_lock_holds_everything_that_is_asked_for(project: dict[str, Any], lock: str) -> None:
    asked = names(project["dependencies"]) | names(project["optional-dependencies"]["dev"]) - {"holdfast"}
    asked |= names(project["optional-dependencies"]["stacks"])
    assert asked <= set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))


def test_torch_is_never_pinned(project: dict[str, Any]) -> None:
    assert "torch>=2.6" in project["dependencies"]


def test_every_dependency_has_its_reason(project: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    wanted = names(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted |= names(extra)
    missing = [name for name in wanted - {"holdfast"} if not re.search(rf"\b{re.escape(name)}\b", page)]
    assert missing == []


def test_ci_runs_what_everybody_runs() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make demo test-all"]


def test_files_that_contributing_sends_readers_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    first = text.partition("## What to read first")[2].partition("## How to add something")[0]
    (folder,) = set(re.findall(r"`(src/[\w/]+/)`", first))
    named = re.findall(r"`([\w/]+\.py)`", first.replace("`tests/test_floors.py`", ""))
    chief = re.findall(r"^\d\. `([\w/]+\.py)`", first, flags=re.MULTILINE)
    assert len(chief) == 5 and len(named) > 25, "the five files, and those of the three walks"
    assert [name for name in named if not (ROOT / folder / name).exists()] == []


def test_the_demo_shows_commands_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    for short in (False, True):
        shown = [step.command[0] for step in demo.steps(short)]
        assert shown == ["doctor", "plan", "chaos", "optimize", "report"] and set(shown) <= set(COMMANDS)
        assert all(step.words.endswith(".") for step in demo.steps(short))
        for step in demo.steps(short):
            maker(step.command[0])(One()).parse(step.command[1:])
    for words in demo.data_commands():
        maker(words[0])(One()).parse(words[1:])
    assert demo.CACHE / f"{demo.JOB[4:]}-100hz" / eeg_cache.META == demo.MADE
    whole, short_one = (sum(step.seconds for step in demo.steps(short)) for short in (False, True))
    assert short_one < whole <= 90, "what it promises on two quiet cores"
    assert 0 < demo.cpu_share() <= 1.1
    with socket.socket() as other:  # somebody's, on the port that the monitor tries first
        with contextlib.suppress(OSError):
            other.bind(("127.0.0.1", PORT))
            other.listen()
        with demo.monitor() as address:
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]{20,}", address)
            assert found and int(found[1]) != PORT, "the next free one"


CASES = """
import pytest

@pytest.mark.parametrize("number", range(7))
@pytest.mark.sample(3)
def test_cases(number): pass

@pytest.mark.parametrize("number", range(2))
@pytest.mark.sample(5)
def test_few(number): pass

@pytest.mark.parametrize("number", range(9))
@pytest.mark.sample(9, 2)
def test_matrix(number): pass

@pytest.mark.parametrize("number", range(4))
@pytest.mark.all
@pytest.mark.sample(2)
def test_slow(number): pass

@pytest.mark.all
@pytest.mark.long
def test_long(): pass

def test_short(): pass
"""
LONG = """
import pytest

@pytest.mark.timeout(900)
def test_patient(): pass
"""
EACH = """
import pytest

for number, options in enumerate([[], ["--rest"], ["--long"], ["--everything"]]):
    if number:
        print("== next ==")
    pytest.main(["--collect-only", "-q", "-p", "no:zarr", *options])
"""


def test_the_tiers_are_everything_and_share_nothing(tmp_path: Path) -> None:
    """Each test is in one tier; of each that is sampled one case is in `make test`; long files come first."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  all\n  long\n  sample\n", encoding="utf-8")
    (tmp_path / "test_cases.py").write_text(CASES, encoding="utf-8")
    (tmp_path / "test_long.py").write_text(LONG, encoding="utf-8")

    done = subprocess.run([sys.executable, "-c", EACH], cwd=tmp_path, capture_output=True, text=True, check=True)
    listings = [[line for line in part.splitlines() if "::" in line] for part in done.stdout.split("== next ==")]
    listed, rest, long, everything = listings
    tiers = [listed, rest, long]
    assert sorted(itertools.chain(*tiers)) == sorted(everything)
    assert listed[0] == "test_long.py::test_patient"
    counted = [Counter(name.partition("::")[2].partition("[")[0] for name in names) for names in tiers]
    assert counted == [
        {"test_cases": 3, "test_few": 1, "test_matrix": 1, "test_patient": 1, "test_short": 1},
        {"test_matrix": 4, "test_slow": 2},
        {"test_cases": 4, "test_few": 1, "test_matrix": 4, "test_slow": 2, "test_long": 1},
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
def test_the_targets_run_the_tiers() -> None:
    """`make test-all` is `make test` and one more tier, `make test-long` the third."""

    def commands(target: str) -> list[str]:
        done = subprocess.run(
            ["make", "--dry-run", target, "PY=python"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found = re.findall(r"^python -m pytest(.*?) -n \d", done.stdout, flags=re.MULTILINE)
        return [words.strip() for words in found]

    assert commands("test") == [""]
    assert commands("test-all") == ["", "--rest"]
    assert commands("test-long") == ["", "--rest", "--long"]
