"""The verdict as a table: what the probes of a device showed, and what follows. No process, no torch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.devices import diagnosis
from holdfast.devices.ledger_summary import Trust
from holdfast.devices.probe_catalog import find
from holdfast.devices.remedies import Found, search
from holdfast.devices.verdict import Case, Policy, Verdict, decide, judge, policy_for

from .test_remedies import Device, Seen

HEALTHY = [
    Seen("first step", evidence={"family": "launch"}),
    Seen("memory pattern", evidence={"family": "memory"}),
    Seen("memory limit", evidence={"family": "memory"}),
    Seen("transfer pinned", evidence={"family": "transfer"}),
    *(Seen(f"{layer} fp32 {check}") for layer in ("linear", "conv2d") for check in ("forward", "backward", "training")),
    *(Seen(f"conv2d fp16 {check}") for check in ("forward", "backward", "training")),
    *(Seen(f"linear bf16 {check}") for check in ("forward", "backward", "training")),
    Seen("conv2d fp32 double", evidence={"family": "conv", "phase": "backward", "situation": "double backward"}),
    Seen("network in company", evidence={"family": "training", "precision": "fp32", "situation": "company"}),
    Seen("sustained load", evidence={"family": "training", "precision": "fp32", "situation": "sustained"}),
    Seen("same linear twice", evidence={"family": "matmul", "situation": "deterministic"}),
    Seen("index out of bounds", evidence={"family": "index"}),
]


def with_bad(*bad: Seen) -> list[Seen]:
    """A healthy device but for these."""
    known = {each.probe: each for each in HEALTHY}
    whole = [
        Seen(each.probe, each.status, each.error, each.bound, each.seconds, _evidence(known, each)) for each in bad
    ]
    return [*(each for each in HEALTHY if each.probe not in {one.probe for one in bad}), *whole]


def _evidence(known: dict[str, Seen], each: Seen) -> dict[str, Any]:
    before = known[each.probe].evidence if each.probe in known else {}
    return {**before, **each.evidence}


def _silent(probe: str) -> dict[str, Any]:
    return {
        **find(probe).traits(""),
        "silent": ["a kernel in forward"],
        "why": "a kernel does not give the known answer",
    }


def case_of(results: list[Seen], cures: dict[str, Any] | None = None, **more: Any) -> Case:
    found = search(results, backend="rocm", run=Device(cures or {}).run, env={})
    return Case(results, found, **more)


TABLE: dict[str, tuple[list[Seen], str, str, str | None]] = {
    "nothing is wrong": (HEALTHY, "trusted", "", None),
    "it cannot be opened": (
        with_bad(Seen("first step", "crashed")),
        "refused",
        "first step kills its process",
        "probe-crashed",
    ),
    "its first step raises": (
        with_bad(Seen("first step", "failed", evidence={"why": "no kernel image"})),
        "refused",
        "first step is wrong",
        "device-does-not-start",
    ),
    "its first step is slow": (
        with_bad(Seen("first step", "failed", 90.0, 60.0, evidence={"second_s": 0.1})),
        "trusted",
        "",
        "slow-first-launch",
    ),
    "memory does not hold": (
        with_bad(Seen("memory pattern", "failed", 12.0, 0.0, evidence={"wrong_words": 12})),
        "refused",
        "memory pattern is wrong",
        "wrong-copies",
    ),
    "less memory than it says": (
        with_bad(
            Seen("memory limit", "failed", 0.4, 0.1, evidence={"reached_bytes": 6 << 30, "reported_bytes": 8 << 30})
        ),
        "use_with_care",
        "memory limit is wrong",
        "less-memory-than-reported",
    ),
    "a crash in the forward pass": (
        with_bad(Seen("conv2d fp32 forward", "crashed", evidence={"signal": "SIGSEGV"})),
        "refused",
        "conv2d fp32 forward kills its process",
        "probe-crashed",
    ),
    "a hang in the backward pass": (
        with_bad(Seen("conv2d fp32 backward", "hung", seconds=60.0)),
        "inference_only",
        "conv2d fp32 backward hangs",
        "probe-hung",
    ),
    "a wrong forward pass": (
        with_bad(Seen("conv2d fp32 forward", "failed", 0.3, 1e-5)),
        "refused",
        "conv2d fp32 forward is wrong",
        "wrong-forward",
    ),
    "wrong gradients, right results": (
        with_bad(Seen("conv2d fp32 backward", "failed", 1e3, 1e-5)),
        "inference_only",
        "conv2d fp32 backward is wrong",
        "wrong-backward",
    ),
    "training goes elsewhere": (
        with_bad(Seen("conv2d fp32 training", "failed", 0.1, 1e-4)),
        "inference_only",
        "conv2d fp32 training is wrong",
        "wrong-training",
    ),
    "wrong in fp16 alone": (
        with_bad(Seen("conv2d fp16 forward", "failed", 0.9, 1e-2)),
        "use_with_care",
        "conv2d fp16 forward fails unless holdfast takes care",
        "wrong-in-low-precision",
    ),
    "double backward": (
        with_bad(Seen("conv2d fp32 double", "failed", None, None, evidence={"why": "nan"})),
        "use_with_care",
        "conv2d fp32 double is wrong",
        "not-finite-in-double-backward",
    ),
    "wrong beside a second process": (
        with_bad(Seen("network in company", "crashed")),
        "use_with_care",
        "network in company fails unless holdfast takes care",
        "fails-with-a-second-process",
    ),
    "wrong under load": (
        with_bad(Seen("sustained load", "failed", 0.1, 1e-4, evidence={"after_s": 11.0})),
        "refused",
        "sustained load is wrong",
        "wrong-under-load",
    ),
    "a crash under load": (
        with_bad(Seen("sustained load", "crashed")),
        "refused",
        "sustained load kills its process",
        "fails-under-load",
    ),
    "other bits the second time": (
        with_bad(Seen("same linear twice", "failed", 2.0, 0.0)),
        "trusted",
        "",
        "not-deterministic",
    ),
    "kernels write nothing": (
        with_bad(Seen("known answers", "failed", evidence={"silent": ["attention in forward"], "why": "attention"})),
        "refused",
        "known answers is wrong",
        "kernels-write-nothing",
    ),
    "kernels of bf16 write nothing": (
        with_bad(Seen("known answers bf16", "failed", evidence=_silent("known answers bf16"))),
        "use_with_care",
        "known answers bf16 is wrong",
        "kernels-write-nothing",
    ),
    "kernels of Triton write nothing": (
        with_bad(Seen("known answers of Triton", "failed", evidence=_silent("known answers of Triton"))),
        "use_with_care",
        "known answers of Triton fails unless holdfast takes care",
        "kernels-write-nothing",
    ),
    "a bad index goes unnoticed": (
        with_bad(Seen("index out of bounds", "failed", evidence={"why": "an index out of bounds was not noticed"})),
        "trusted",
        "",
        "no-checks-in-kernels",
    ),
    "it took the machine down": (
        with_bad(
            Seen(
                "conv2d fp32 backward", "skipped", evidence={"took_machine_down": True, "time": "2026-11-14T01:02:03Z"}
            )
        ),
        "refused",
        "conv2d fp32 backward took the machine down",
        "froze-the-machine",
    ),
    "in fp16 it took the machine down": (
        with_bad(Seen("conv2d fp16 backward", "skipped", evidence={"took_machine_down": True})),
        "use_with_care",
        "conv2d fp16 backward took the machine down",
        "froze-the-machine",
    ),
    "nothing was measured": ([Seen("first step", "skipped")], "refused", "no probe passed", None),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_follows(name: str) -> None:
    results, state, why, slug = TABLE[name]
    case = case_of(results)
    assert decide(case) == (state, why)
    slugs = {finding.about.slug for finding in diagnosis.of_results("cuda:0", results, case.found)}
    assert slugs == ({slug} if slug else set())


@pytest.mark.parametrize("name", TABLE)
def test_every_finding_is_a_sentence(name: str) -> None:
    results, *_ = TABLE[name]
    for finding in diagnosis.of_results("cuda:0", results):
        assert "{" not in finding.sentence()
        assert json.loads(json.dumps(finding.to_json()))["code"].startswith("D")


def test_what_took_the_machine_down_says_how_to_try_it_again() -> None:
    (finding,) = diagnosis.of_results("cuda:0", TABLE["it took the machine down"][0])
    assert finding.sentence() == "the last use of it (conv2d fp32 backward) took the machine down on 2026-11-14"
    assert finding.remedy is not None
    assert finding.remedy.commands == ("holdfast doctor --again --device cuda:0",)


def test_what_is_cured_is_used_with_care() -> None:
    cure = {"conv2d fp32 forward": lambda env: env.get("HSA_ENABLE_SDMA") == "0"}
    results = with_bad(Seen("conv2d fp32 forward", "crashed"))
    case = case_of(results, cure)
    verdict = judge("cuda:0", case, diagnosis.of_results("cuda:0", results, case.found))
    assert (verdict.state, verdict.trainable) == ("use_with_care", True)
    assert verdict.policy.remedies == ("sdma-off",)
    assert verdict.policy.env == {"HSA_ENABLE_SDMA": "0"}
    assert [each.about.slug for each in verdict.findings] == ["probe-crashed", "trains-with-a-remedy"]
    assert verdict.findings[1].sentence() == (
        "conv2d fp32 forward passes with copies by the shaders instead of the DMA engines"
    )


def test_one_reason_is_one_finding() -> None:
    bad = [Seen(f"{layer} fp16 forward", "failed", 0.9, 1e-2) for layer in ("conv2d", "linear", "attention")]
    right = [Seen(f"{layer} fp32 forward") for layer in ("conv2d", "linear", "attention")]
    (finding,) = diagnosis.of_results("cuda:0", [*bad, *right])
    assert finding.about.slug == "wrong-in-low-precision"
    assert finding.evidence["also"] == ["linear fp16 forward", "attention fp16 forward"]


@pytest.mark.parametrize(
    ("trust", "state", "why"),
    [
        (Trust("trusted"), "trusted", ""),
        (Trust("unknown"), "trusted", ""),
        (Trust("probation", why="it failed in calm-heron"), "use_with_care", "it failed in calm-heron"),
        (Trust("quarantined", why="the machine went down 2 times"), "refused", "the machine went down 2 times"),
    ],
)
def test_what_the_ledger_knows_counts(trust: Trust, state: str, why: str) -> None:
    assert decide(Case(HEALTHY, trust=trust)) == (state, why)


def test_what_cannot_be_probed_is_refused_with_the_reason() -> None:
    assert decide(Case([], unusable="no driver has taken the card")) == ("refused", "no driver has taken the card")


# The policy ---------------------------------------------------------------------------------------------------------


def test_a_healthy_device_needs_nothing() -> None:
    policy = policy_for(case_of(HEALTHY))
    assert policy.plain
    assert policy.precisions == ("fp32", "fp16", "bf16")
    assert policy.dtype is None


def test_a_precision_that_is_wrong_is_switched_off() -> None:
    policy = policy_for(case_of(with_bad(Seen("conv2d fp16 forward", "failed", 0.9, 1e-2))))
    assert policy.precisions == ("fp32", "bf16")
    assert policy.env == {"HOLDFAST_REMEDIES": "fp16-off"}


def test_fp32_alone_is_named() -> None:
    bad = [Seen("conv2d fp16 forward", "hung"), Seen("linear bf16 backward", "crashed")]
    policy = policy_for(case_of(with_bad(*bad)))
    assert (policy.precisions, policy.dtype) == (("fp32",), "float32")
    assert policy.env == {"HOLDFAST_REMEDIES": "fp16-off,bf16-off"}


def test_a_precision_nobody_has_tried_is_left_to_the_script() -> None:
    assert Policy(("fp32",)).dtype is None


def test_memory_that_is_not_there_is_kept_free() -> None:
    results = TABLE["less memory than it says"][0]
    headroom = policy_for(case_of(results)).memory_headroom_bytes
    assert headroom is not None and (2 << 30) <= headroom < (3 << 30)
    assert policy_for(case_of(results)).env == {"HOLDFAST_REMEDIES": f"headroom={headroom}"}


def test_a_batch_that_is_wrong_is_made_smaller() -> None:
    results = [Seen(f"network fp32 batch {size} training", "failed" if size > 7 else "passed") for size in (1, 7, 8)]
    policy = policy_for(case_of(results))
    assert policy.microbatch == 7
    assert policy.env == {"HOLDFAST_REMEDIES": "microbatch=7"}


def test_a_kernel_that_fails_is_switched_off() -> None:
    results = [*HEALTHY, Seen("attention fp32 flash forward", "failed", 1.0, 0.1), Seen("attention fp32 math forward")]
    policy = policy_for(Case(results, search(results, backend="cuda", run=Device({}).run, env={})))
    assert policy.sdpa_off == ("flash",)
    assert policy.env == {"HOLDFAST_REMEDIES": "sdpa-no-flash"}


# On disk ------------------------------------------------------------------------------------------------------------


def test_a_verdict_comes_back_from_json() -> None:
    results = with_bad(Seen("conv2d fp16 forward", "failed", 0.9, 1e-2))
    case = case_of(results)
    verdict = judge(
        "cuda:0",
        case,
        diagnosis.of_results("cuda:0", results, case.found),
        name="Radeon RX 7900 XTX",
        arch="gfx1100",
        measured_at="2026-11-15T00:21:07.000Z",
        valid_while={"torch": "2.8.0"},
    )
    back = Verdict.from_json(json.loads(json.dumps(verdict.to_json())))
    assert back is not None
    assert back.to_json() == verdict.to_json()


@pytest.mark.parametrize(
    "data",
    [None, [], {}, {"verdict": "trusted"}, {"id": "cuda:0", "verdict": "splendid"}, {"id": 3, "verdict": "trusted"}],
)
def test_what_is_no_verdict_is_none(data: object) -> None:
    assert Verdict.from_json(data) is None


def test_a_policy_of_a_stranger_is_cleaned() -> None:
    env = {"A": 1, "LD_PRELOAD": "/tmp/x.so", "HSA_ENABLE_SDMA": "/tmp/x.so", "GPU_MAX_HW_QUEUES": "1"}
    data = {"env": env, "precisions": "fp32", "microbatch": -1, "memory_headroom_bytes": True}
    assert Policy.from_json(data) == Policy(env={"GPU_MAX_HW_QUEUES": "1"})
    assert Policy.from_json("x") == Policy()


def test_found_is_empty_by_default() -> None:
    assert Found().cure_of("x") is None
