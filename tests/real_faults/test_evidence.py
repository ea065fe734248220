"""What a run keeps of its faults: found in the folder after real deaths, and nothing in it that is a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.real_faults.conftest import Drive
from tests.real_faults.driving import SOON, assert_exact

SECRET = "hf_abcdefghijklmnopqrstuv"


def test_a_crash_leaves_its_evidence(drive: Drive, reference: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MIOPEN_FIND_MODE", "2")
    run = drive(faults="segfault@5:backward")
    assert_exact(run, reference(), faults=1)
    folder = run.evidence()
    names = {path.name for path in folder.iterdir()}
    assert {"README.txt", "fault.json", "stacks-python.txt", "counters.json", "environment.json", "kernel.txt"} <= names
    text = (folder / "README.txt").read_text()
    assert text.startswith("The worker on cpu crashed (SIGSEGV) at step 5 in backward")
    for name in names - {"README.txt"}:
        assert f"\n  {name} " in text
    facts = json.loads((folder / "environment.json").read_text())
    assert facts["environment"]["MIOPEN_FIND_MODE"] == "2"
    assert facts["torch"]["version"]
    assert not any(SECRET in path.read_text() for path in folder.iterdir())


def test_a_kill_from_outside_says_that_the_kernel_said_nothing(drive: Drive) -> None:
    run = drive(faults="sigkill@5")
    record = json.loads((run.evidence() / "kernel.json").read_text())
    readme = (run.evidence() / "README.txt").read_text()
    if record["unreadable"]:
        assert "its log could not be read: kmsg: " in readme
    else:
        assert record["worst"] is None
        assert readme.splitlines()[0] == "The worker on cpu was killed from outside (SIGKILL) at step 5 in forward."


def test_every_fault_of_a_run_has_its_own_evidence(drive: Drive, reference: Drive) -> None:
    run = drive(faults="sigkill@5,abort@9:backward,hang@13", settings=SOON)
    assert_exact(run, reference(), faults=3)
    for number in (1, 2, 3):
        names = {path.name for path in run.evidence(number).iterdir()}
        assert {"README.txt", "fault.json", "counters.json", "environment.json", "kernel.json"} <= names, number
        assert run.evidence(number).stat().st_mode & 0o777 == 0o700


def test_evidence_that_cannot_be_written_stops_nothing(drive: Drive, reference: Drive, tmp_path: Path) -> None:
    """Somebody put a file where the folder of faults has to be."""

    def meanwhile(supervisor: object) -> None:
        path = supervisor.run_folder.path / "faults"  # type: ignore[attr-defined]
        path.rmdir()
        path.write_text("in the way")

    run = drive(faults="sigkill@15", meanwhile=meanwhile)
    assert_exact(run, reference(), faults=1)
