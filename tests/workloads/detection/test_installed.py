"""What is there of the extra: the other tests of this folder are collected only with all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.workloads import registry
from tests.workloads.detection.conftest import MISSING


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install 'holdfast[detection]')")
def test_the_extra_is_installed() -> None:
    workload = registry.find("detection")
    assert workload is not None
    workload.check_installed()


def test_threads_of_its_runs_wait_without_spinning() -> None:
    workload = registry.find("detection")
    assert workload is not None and workload.script is not None
    assert registry.environment_of(workload.script) == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert registry.environment_of(Path("my_script.py").absolute()) == {}
