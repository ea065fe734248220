"""Reports of `holdfast verify` that became fixtures, and the one file that makes such reports."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices import crash_advice, recorded
from holdfast.run.scrubber import left_in
from holdfast.verification import card_check

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "tests" / "devices" / "reports"
NAMES = sorted(path.stem for path in REPORTS.glob("*.json"))


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_reported_machine(name: str) -> None:
    case = json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8"))
    there = recorded.load(REPORTS / f"{name}.json")
    said = crash_advice.consult(there.inventory(), there.env, there.message, there.ended)
    told = {"code": said.code, "sentence": said.sentence, "commands": [*said.commands]} if said else None
    assert told == case["expect"]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has torch and what torch needs, no numpy and no holdfast: an environment of links."""
    place = tmp_path_factory.mktemp("stranger")
    venv.create(place / "env", with_pip=False, symlinks=True)
    python = place / "env" / "bin" / "python"
    there = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
    )  # fmt: skip
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.endswith(".pth") and not {"holdfast", "numpy"} & set(re.split(r"[-._]", entry.name)):
            (there / entry.name).symlink_to(entry)
    for name in ("holdfast", "numpy"):
        lonely = subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False, cwd=place)
        assert lonely.returncode != 0, f"{name} must not be importable there"
    return python


@pytest.mark.timeout(900)
@pytest.mark.long
def test_one_file_verifies_a_device_without_an_installation(stranger: Path, tmp_path: Path) -> None:
    """The file, in a clean process of a Python that never heard of holdfast; its report becomes a fixture."""
    pyz = script("verify_pyz").make(tmp_path / "holdfast-verify.pyz")
    first = pyz.read_bytes()
    assert script("verify_pyz").make(tmp_path / "again.pyz").read_bytes() == first, "the same tree, the same bytes"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    env = {**clean, "HOLDFAST_STATE": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    words = [stranger, "-I", pyz, "--device", "cpu", "--steps", "10", "--minutes", "14", "-o", "report.json"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["answer"], report["device"], report["asked"]) == ("yes", "cpu", None)
    assert report["training"]["receipt"]["weights_equal"] is True and "numpy" in report["training"]["without"]
    assert not list(tmp_path.glob("holdfast-verify-*")), "what was unpacked is gone"
    made = script("report_to_fixture")
    assert made.main([str(tmp_path / "report.json"), "--name", "cpu", "--to", str(tmp_path / "fixtures")]) == 0
    text = (tmp_path / "fixtures" / "cpu.json").read_text()
    assert not left_in(text)
    fixture = json.loads(text)
    assert (fixture["verdict"], fixture["expect"]) == ("trusted", None)
    assert recorded.load(tmp_path / "fixtures" / "cpu.json").inventory().torch.version


def test_a_file_that_is_no_report_makes_no_fixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text('{"schema": 1, "what": "something else"}')
    assert script("report_to_fixture").main([str(tmp_path / "x.json"), "--to", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    pyz = script("verify_pyz").make(tmp_path / "holdfast-verify.pyz")
    done = subprocess.run([sys.executable, "-I", "-S", pyz], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast-verify needs torch in this Python: ")


# --- asking first ---------------------------------------------------------------------------------------------------


def test_a_card_that_may_freeze_the_machine_is_not_touched_without_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is examined after a no is the processor, whatever was asked for."""
    there = recorded.load(ROOT / "tests/devices/cases/user-5700xt-two-crashes.json").inventory()
    monkeypatch.setattr("holdfast.devices.survey.take", lambda: there)
    danger = card_check.dangers("cuda:0")
    assert any("runs as gfx1030" in each for each in danger) and any("reset by its driver" in each for each in danger)
    assert card_check.dangers("cpu") == []
    examined: list[str | None] = []

    def examine(asked: str | None, *, full: bool, limit_s: float) -> dict[str, Any]:
        examined.append(asked)
        return {"devices": [], "usable": []}

    monkeypatch.setattr(card_check, "examine", examine)
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    report = card_check.conduct("cuda:0", say=lambda text: None, ask=no)
    assert (examined, report["device"], report["asked"]["answer"]) == (["cpu"], "cpu", "no")
    assert "Save your work" in asked[0]
    card_check.conduct("cuda:0", say=lambda text: None, ask=lambda question: True)
    card_check.conduct("cpu", say=lambda text: None, ask=no)
    assert (examined, len(asked)) == (["cpu", "cuda:0", "cpu"], 1)
