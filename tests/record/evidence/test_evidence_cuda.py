"""A real error on a real NVIDIA card: its Xid is found in the kernel log, and the driver is asked by a child."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.devices import nvidia
from holdfast.record import evidence
from holdfast.record.evidence.gathering import Gathering

from .places import AGAIN, LOST, new_run, read

pytestmark = pytest.mark.hardware
ASSERT = """
import torch
values = torch.zeros(10, device="cuda")
try:
    values.put_(torch.tensor([10**9], device="cuda"), torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
except RuntimeError as error:
    print(type(error).__name__)
"""


def test_a_failed_assertion_on_the_card(tmp_path: Path) -> None:
    if nvidia.report_command() is None:
        pytest.skip("no NVIDIA driver here")
    gathering = Gathering()
    gathering.worker_begins()
    gathering.poll()
    worker = subprocess.run([sys.executable, "-c", ASSERT], capture_output=True, text=True, check=False)
    assert "AcceleratorError" in worker.stdout or "RuntimeError" in worker.stdout, worker.stderr
    run = new_run(tmp_path)
    began = time.perf_counter()
    folder = evidence.collect(run, LOST, AGAIN, None, "", {}, "", gathering=gathering)
    collected = time.perf_counter() - began
    gathering.poll()
    told = gathering.close(20.0)
    (card, *_) = read(folder / "counters.json")["nvidia"]
    assert card["recovery_action"] == "None" and card["needs"] is None
    assert card["ecc"]["dram_uncorrectable"] == 0
    print(f"\ncollect took {collected * 1e3:.1f} ms; told: {told}")
    print((folder / "README.txt").read_text(), (folder / "kernel.txt").read_text())
    kernel = read(folder / "kernel.json")
    if kernel["read_from"] is None:
        pytest.skip(f"the kernel log is closed to us: {kernel['unreadable']}")
    codes = {entry["code"] for entry in kernel["entries"]}
    assert "Xid 43" in codes, kernel
    assert {entry["device"] for entry in kernel["entries"] if entry["code"]} == {card["device"]}
    assert "Xid 43" in (folder / "README.txt").read_text().splitlines()[0]
