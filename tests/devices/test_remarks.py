"""What is said about a device beside what failed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.devices.remarks import of_results
from holdfast.devices.results import ProbeResult


def load(device: str = "cuda:0", status: str = "passed", **evidence: Any) -> ProbeResult:
    about = {"family": "training", "situation": "sustained", **evidence}
    return ProbeResult("sustained load", device, status, 1e-7, 1e-5, 20.0, about)


def training(name: str, seconds: float, *, batch: int = 8, status: str = "passed") -> ProbeResult:
    precision = next(word for word in name.split() if word in ("fp32", "fp16", "bf16"))
    about = {"family": "conv", "phase": "training", "precision": precision, "batch": batch}
    return ProbeResult(f"{name} training", "cuda:0", status, 0.0, 1.0, seconds, about)


def test_a_card_that_slows_down_when_it_is_warm() -> None:
    sensors = {"before": {"temperature_c": 41.0}, "most": {"temperature_c": 94.0}}
    (found,) = of_results("cuda:0", [load(slower=1.6, sensors=sensors)])
    assert found.code == "D040"
    assert found.sentence().startswith("under load it slowed down by 38 % at 94.0 °C")
    assert of_results("cuda:0", [load(slower=1.1, sensors=sensors)]) == []
    (unread,) = of_results("cuda:0", [load(slower=2.0)])
    assert unread.sentence() == unread.title


def test_errors_that_the_device_counted_itself() -> None:
    sensors = {"before": {"errors": 1.0, "link_errors": 0.0}, "most": {"errors": 3.0, "link_errors": 0.0}}
    (found,) = of_results("cuda:0", [load(status="failed", sensors=sensors)])
    assert found.sentence() == "uncorrected memory errors rose from 1 to 3 during sustained load"
    assert of_results("cuda:0", [load(sensors={"before": {"errors": 3.0}, "most": {"errors": 3.0}})]) == []
    assert of_results("cuda:0", [load(sensors={"before": {}, "most": {"errors": 3.0}})]) == []


@pytest.mark.parametrize(
    "sensors", [None, [], {"before": 1, "most": "?"}, {"before": {"errors": "x"}, "most": {"errors": None}}]
)
def test_sensors_that_say_nonsense_say_nothing(sensors: object) -> None:
    assert of_results("cuda:0", [load(slower="?", sensors=sensors)]) == []


def test_a_precision_that_costs_time() -> None:
    results = [training("conv2d fp32", 0.2), training("conv2d fp16", 1.0), training("conv2d bf16", 0.3)]
    (found,) = of_results("cuda:0", results)
    assert found.sentence() == "fp16 takes 5.0 times as long as fp32"
    assert found.evidence["probe"] == "conv2d fp16 training"


@pytest.mark.parametrize(
    "results",
    [
        [training("conv2d fp32", 0.01), training("conv2d fp16", 0.2)],  # too short to tell
        [training("conv2d fp32", 0.2), training("linear fp16", 2.0)],  # another layer
        [training("conv2d fp32", 0.2), training("conv2d fp16 batch 32", 2.0, batch=32)],  # another batch
        [training("conv2d fp32", 0.2), training("conv2d fp16", 2.0, status="failed")],  # a finding of its own
        [training("conv2d fp16", 2.0)],  # nothing to compare with
    ],
    ids=["short", "layer", "batch", "failed", "alone"],
)
def test_what_cannot_be_compared_is_not(results: list[ProbeResult]) -> None:
    assert of_results("cuda:0", results) == []


def test_the_same_batch_under_two_names() -> None:
    results = [training("network fp32", 0.2), training("network fp16 batch 8", 2.0)]
    assert [each.code for each in of_results("cuda:0", results)] == ["D043"]


def test_a_card_that_the_cpu_beats() -> None:
    cpu = [load("cpu", step_ms=4.0)]
    (found,) = of_results("cuda:0", [load(step_ms=9.0)], cpu)
    assert found.sentence() == "a training step takes 9 ms here and 4 ms on the CPU"
    assert of_results("cuda:0", [load(step_ms=2.0)], cpu) == []
    assert of_results("cuda:0", [load(step_ms=9.0)]) == []
    assert of_results("cpu", cpu, cpu) == []
    assert of_results("cuda:0", [load(step_ms=9.0, status="failed")], cpu) == []


def test_memory_that_ends_in_a_death() -> None:
    about = {"family": "memory", "reached_bytes": 21.4e9, "reported_bytes": 24e9}
    died = ProbeResult("memory limit", "cuda:0", "crashed", evidence=about)
    (found,) = of_results("cuda:0", [died])
    assert found.sentence() == "it fails once memory passes 21.4 GB of 24.0 GB"
    refused = ProbeResult("memory limit", "cuda:0", "failed", 0.2, 0.05, evidence=about)
    assert of_results("cuda:0", [refused]) == []


def test_what_was_left_out_is_said_once_for_each_reason() -> None:
    def left(name: str, **evidence: object) -> ProbeResult:
        return ProbeResult(name, "mps", "skipped", evidence={"family": "attention", **evidence})

    kernels = [left(f"attention {name}", why="this torch has no such kernel") for name in ("flash", "cudnn")]
    frozen = left("conv2d fp16 forward", why="it took the machine down", took_machine_down=True)
    (found,) = of_results("mps", [*kernels, frozen])
    assert found.sentence() == "attention flash was left out: this torch has no such kernel"
    assert found.evidence["also"] == ["attention cudnn"]
