"""Workloads by name: found without importing anything, and a typo is answered with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.console.order import read_script
from holdfast.console.usage import UsageError
from holdfast.run import script, workload_registry

TOML = """
[tides]
about = "both stages"
stages = ["tides-low", "tides-high"]

[tides-low]
script = "low.py"
extra = "tides"
needs = ["no_such_module_anywhere"]
"""


def test_a_folder_registers_itself(tmp_path: Path) -> None:
    (tmp_path / "tides").mkdir()
    (tmp_path / "tides" / "workload.toml").write_text(TOML)
    found = workload_registry.all_workloads(tmp_path)
    assert list(found) == ["tides", "tides-low"]
    assert found["tides"].stages == ("tides-low", "tides-high") and found["tides"].script is None
    assert found["tides-low"].script == tmp_path / "tides" / "low.py"
    with pytest.raises(UserError) as refused:
        found["tides-low"].check_installed()
    assert refused.value.message == "the workload `tides-low` needs no_such_module_anywhere"
    assert refused.value.hints == ("pip install 'holdfast[tides]'",)


def test_every_registered_script_can_be_a_script() -> None:
    for workload in workload_registry.all_workloads().values():
        assert workload.about
        if workload.script is not None:
            assert script.read(workload.script).parameters
            assert workload_registry.named_by(workload.script) == workload.name
        for stage in workload.stages:
            assert workload_registry.find(stage) is not None


def test_a_script_of_ours_is_imported_by_its_own_name() -> None:
    found = workload_registry.find("eeg-challenge1")
    assert found is not None and found.script is not None
    assert script.packaged_name(found.script) == "holdfast.workloads.eeg.challenge1"
    assert script.packaged_name(Path("/somewhere/challenge1.py")) is None


def test_a_typo_is_answered_with_what_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        read_script("egg", "train")
    assert refused.value.message == "unknown workload `egg`"
    assert refused.value.hints[0] == "a similar workload exists: `eeg`"
    assert "eeg-challenge1" in (refused.value.cause or "")
    assert refused.value.exit_code == 2


def test_a_whole_pipeline_is_not_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is not one run"):
        read_script("eeg", "chaos")
