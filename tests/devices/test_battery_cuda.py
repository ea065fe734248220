"""The battery on a real card: all of it passes, TF32 shows by its error, a wrong kernel that was planted is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.devices.battery import Host, run, run_one, select
from holdfast.injection import symptoms
from holdfast.injection.symptoms import Symptom

DEVICE = "cuda:0"
WRONG_IN_CUDNN_9_19 = ("lstm fp16 forward", "lstm bf16 forward")
"""On an H200: found by this battery, see `sm_90-cudnn-lstm-48-fp16` in devices/knowledge.json."""
pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


@pytest.mark.parametrize("full", [False, True])
def test_a_good_card_passes(host: Host, full: bool) -> None:
    found = list(run(DEVICE, select(DEVICE, full=full), host, full=full))
    bad = [result for result in found if result.status not in ("passed", "skipped")]
    if torch.backends.cudnn.version() == 91900 and torch.cuda.get_device_capability() == (9, 0):
        bad = [result for result in bad if result.probe not in WRONG_IN_CUDNN_9_19]
    assert bad == []
    assert sum(result.ok for result in found) >= (60 if full else 20)


def test_tf32_shows_by_its_error(host: Host) -> None:
    exact, coarse = (run_one(DEVICE, f"linear {name}", host=host)[0] for name in ("fp32", "tf32"))
    assert exact.ok and coarse.ok and exact.bound is not None and coarse.error is not None
    if torch.cuda.get_device_capability()[0] >= 8:
        assert coarse.error > exact.bound, "TF32 where fp32 was asked for would be found"


def test_a_wrong_kernel_is_found(tmp_path: Path) -> None:
    path = symptoms.write(tmp_path / "plant.json", [Symptom("wrong", kernel="convolution_backward")])
    with Host({symptoms.PLANT: str(path)}) as host:
        statuses = [result.status for result in run_one(DEVICE, "conv2d fp32", host=host)]
        assert statuses == ["passed", "failed", "skipped"]
        assert [result.status for result in run_one(DEVICE, "linear fp32", host=host)] == ["passed"] * 3
