"""A real accelerator under `holdfast run`: an assert on the device, a kernel without end, memory that is not there.

The scripts are a plain loop and, where it is installed, a Lightning one; the faults come from a sitecustomize of the
test. Each run writes what it measured to the folder HOLDFAST_RESULTS names, if it does.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch

from tests.supervisor.scripts.driving import SCRIPTS, Ran, under_run

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator that torch can use"),
]
QUICK = ("watchdog.loop=10s", "watchdog.evaluate=10s", "watchdog.term_grace=1s")
PLAIN = [SCRIPTS / "plain_script.py", "--steps", "60", "--pause", "0.02"]
LIGHTNING = [SCRIPTS / "lightning_script.py", "3", "20"]
lightning = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
SCRIPT = [pytest.param(PLAIN, id="plain"), pytest.param(LIGHTNING, id="lightning", marks=lightning)]


def keep(name: str, ran: Ran) -> None:
    folder = os.environ.get("HOLDFAST_RESULTS")
    if folder:
        record = {
            "name": name,
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "exit_code": ran.code,
            "seconds": round(ran.seconds, 2),
            "faults": ran.faults,
            "restarts": ran.restarts,
            "receipt": ran.receipt,
            "timeline": (ran.info.get("accounts") or {}).get("timeline"),
            "said": ran.said.splitlines(),
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"run-{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def finished(name: str, ran: Ran) -> None:
    keep(name, ran)
    print(f"{name}: {ran.story()}", flush=True)  # shown with a failure, whichever assertion it is
    assert ran.code == 0, ran.story()
    assert ran.out.decode().rstrip().splitlines()[-1].startswith("steps 60"), ran.story()
    assert ran.receipt["survived"], ran.story()
    assert ran.receipt["steps"] == 60, ran.story()


@pytest.mark.parametrize("script", SCRIPT)
def test_undisturbed_on_the_device(tmp_path: Path, script: list[object], request: pytest.FixtureRequest) -> None:
    ran = under_run(tmp_path, *script, settings=QUICK, patience=300)
    finished(f"undisturbed-{request.node.callspec.id}", ran)
    assert ran.faults == [] and ran.said == "", ran.story()


@pytest.mark.parametrize("script", SCRIPT)
def test_an_assert_on_the_device(tmp_path: Path, script: list[object], request: pytest.FixtureRequest) -> None:
    ran = under_run(tmp_path, *script, settings=QUICK, fault="device_assert@33", patience=300)
    finished(f"device-assert-{request.node.callspec.id}", ran)
    assert ran.faults == ["device_lost"], ran.story()
    assert ran.receipt["steps_repeated"] == 3, ran.story()  # of 33, where 30 were saved


@pytest.mark.parametrize("script", SCRIPT)
def test_a_kernel_without_end(tmp_path: Path, script: list[object], request: pytest.FixtureRequest) -> None:
    ran = under_run(tmp_path, *script, settings=QUICK, fault="endless_kernel@33", patience=300)
    finished(f"endless-kernel-{request.node.callspec.id}", ran)
    assert ran.faults == ["hang"], ran.story()


@pytest.mark.parametrize("script", SCRIPT)
def test_memory_that_is_not_there(tmp_path: Path, script: list[object], request: pytest.FixtureRequest) -> None:
    ran = under_run(tmp_path, *script, settings=QUICK, fault="real_device_oom@33", patience=300)
    finished(f"out-of-memory-{request.node.callspec.id}", ran)
    assert ran.faults == ["out_of_memory"], ran.story()


def test_a_device_that_fails_again_and_again_is_left_for_the_cpu(tmp_path: Path) -> None:
    """The fault comes at every start on the device: the script ends on the CPU, by its environment alone."""
    again = {"FAULT_AGAIN": "cuda"}
    ran = under_run(tmp_path, *PLAIN, settings=QUICK, fault="device_assert@3", patience=400, **again)
    finished("left-for-the-cpu", ran)
    timeline = [entry["device"] for entry in ran.info["accounts"]["timeline"]]
    assert timeline[0].startswith("cuda") and timeline[-1] == "cpu", ran.story()
