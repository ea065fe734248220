"""What is there of the extra: the other tests of this folder are collected only with all of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.base import toml_file
from holdfast.run import workload_registry
from tests.workloads.detection.conftest import MISSING


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install 'holdfast[detection]')")
def test_the_extra_is_installed() -> None:
    workload = workload_registry.find("detection")
    assert workload is not None
    workload.check_installed()


def test_threads_of_its_runs_wait_without_spinning() -> None:
    workload = workload_registry.find("detection")
    assert workload is not None and workload.script is not None
    assert workload_registry.environment_of(workload.script) == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert workload_registry.environment_of(Path("my_script.py").absolute()) == {}


def test_presets_make_the_same_training_smaller() -> None:
    """`holdfast plan` offers them: what they set has to be an argument of the training."""
    workload = workload_registry.find("detection")
    assert workload is not None and workload.script is not None
    presets = toml_file.load(workload.script.with_name("workload.toml"))["detection"]["presets"]
    tree = ast.parse(workload.script.read_text())
    (train,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train")
    known = {each.arg for each in train.args.kwonlyargs}
    for each in presets:
        changed = set(each.get("arguments", {})) | ({each["epochs"]["argument"]} if "epochs" in each else set())
        assert changed and changed <= known, each
        assert ("score" in each) == ("basis" in each), each
    assert len({each["name"] for each in presets}) == len(presets) >= 3
