"""The first user's story: forward works, backward hangs. The smallest script that shows it is a probe of the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.devices.battery import Host, run, run_one
from holdfast.devices.probe_catalog import script_probe
from holdfast.injection import ailments, symptoms
from holdfast.injection.symptoms import Symptom
from holdfast.run import workload_registry

DEVICE = "pretend:0"
ARGUMENTS = {"preset": "tiny", "animals": "32", "neighbours": "4"}
pytestmark = pytest.mark.skipif(processes.portable(), reason="these share one process to fork from")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretend") / "pretend.json"


@pytest.fixture(scope="module")
def host(place: Path) -> Iterator[Host]:
    with Host({ailments.VARIABLE: str(place), "OMP_NUM_THREADS": "1"}) as host:
        yield host


@pytest.mark.long  # make test: test_one_real_step_of_a_script and test_a_hang in tests/devices/test_battery.py
def test_a_backward_that_hangs_is_told_and_the_cpu_is_well(host: Host, place: Path) -> None:
    workload = workload_registry.find("ecosystem-repro")
    assert workload is not None and workload.script is not None
    probe = script_probe(workload.script, ARGUMENTS, called="ecosystem-repro")
    symptoms.write(place, [])
    (well,) = run(DEVICE, [probe], host)
    assert well.status == "passed" and well.evidence["batch"] == 32, well
    symptoms.write(place, [Symptom("hang", kernel="threshold_backward")])
    (hung,) = run_one(DEVICE, probe.name, host=host, deadline_s=4.0)
    assert (hung.status, hung.why) == ("hung", "no sign of life for 4 s")
    (cpu,) = run_one("cpu", probe.name, host=host)
    assert cpu.status == "passed"
