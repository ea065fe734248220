"""Remedies: what is tried for what, in which order, and what a search makes of the answers. No process, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices import flags, remedies
from holdfast.devices.remedies import catalogue, environment, named, search, suited
from holdfast.devices.traits import FAMILIES, LOW, STATUSES, Traits, traits


@dataclass(frozen=True)
class Seen:
    """A result as a probe gives it."""

    probe: str
    status: str = "passed"
    error: float | None = None
    bound: float | None = None
    seconds: float = 0.5
    evidence: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cuda:0"


class Device:
    """A card whose probes pass once the environment is right; `asked` is every process that was started."""

    def __init__(self, cures: Mapping[str, Callable[[Mapping[str, str]], bool]]) -> None:
        self.cures = cures
        self.asked: list[tuple[str, dict[str, str]]] = []

    def run(self, probe: str, env: Mapping[str, str]) -> Seen:
        self.asked.append((probe, dict(env)))
        passes = self.cures.get(probe, lambda env: False)(env)
        return Seen(probe, "passed" if passes else "crashed")


# The catalogue ------------------------------------------------------------------------------------------------------


def test_there_are_more_than_twenty_and_each_says_what_it_costs() -> None:
    assert len(catalogue()) >= 20
    assert len([remedy for remedy in catalogue() if remedy.tried]) >= 20
    for remedy in catalogue():
        assert remedy.text and remedy.cost and remedy.source, remedy.name
        assert not remedy.text.endswith("."), remedy.name
        assert remedy.env or remedy.flags or remedy.avoid, remedy.name


def test_rows_use_only_words_that_exist() -> None:
    known = set(remedies.BACKENDS.values())
    for remedy in catalogue():
        assert set(remedy.backends) <= known and remedy.backends, remedy.name
        assert set(remedy.families) <= set(FAMILIES), remedy.name
        assert set(remedy.states) <= set(STATUSES), remedy.name
        assert set(remedy.precisions) <= {"fp32", *LOW}, remedy.name
        assert set(remedy.flags) <= set(flags.FLAGS), remedy.name
        assert remedy.avoid in ("", "precision", "channels_last", "batch", "shapes", "compile", "sdpa", "company")


def test_switches_for_what_is_done_without_exist() -> None:
    assert {f"{name}-off" for name in LOW} <= set(flags.FLAGS)
    assert {f"sdpa-no-{name}" for name in ("flash", "efficient", "cudnn")} <= set(flags.FLAGS)


@pytest.mark.parametrize(
    ("backend", "about", "status", "env", "first"),
    [
        ("rocm", Traits("conv", "backward"), "crashed", {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, "no-masquerade"),
        ("rocm", Traits("conv", "backward"), "crashed", {}, "miopen-fast-find"),
        ("rocm", Traits("attention", "forward", "fp16"), "failed", {}, "exact-reductions"),
        ("rocm", Traits("attention", "forward"), "hung", {}, "sdpa-no-flash"),
        ("rocm", Traits("transfer"), "hung", {}, "sdma-off"),
        ("rocm", Traits("transfer"), "hung", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "sdma-off"),
        ("rocm", Traits("matmul", "forward"), "failed", {}, "hipblaslt-off"),
        ("cuda", Traits("matmul", "forward", "fp32"), "failed", {}, "tf32-off"),
        ("cuda", Traits("conv", "forward", "fp32"), "crashed", {}, "cudnn-benchmark-off"),
        ("cuda", Traits("memory"), "failed", {}, "cudnn-benchmark-off"),
        ("mps", Traits("fft", "forward"), "failed", {}, "mps-fallback"),
        ("cpu", Traits("conv", "forward"), "failed", {}, "mkldnn-off"),
    ],
)
def test_what_is_tried_first(backend: str, about: Traits, status: str, env: dict[str, str], first: str) -> None:
    assert suited(backend, about, status, env)[0].name == first


def test_nothing_of_another_maker_is_tried() -> None:
    for backend in ("cuda", "mps", "cpu", "xpu"):
        for family in FAMILIES:
            listed = suited(backend, Traits(family, "backward", "fp32"), "crashed", {"HSA_OVERRIDE_GFX_VERSION": "1"})
            assert not [
                remedy for remedy in listed if any(name.startswith(("HSA", "MIOPEN")) for name, _ in remedy.env)
            ]


def test_the_segments_of_the_allocator_are_fixed_only_where_somebody_has_set_them_free() -> None:
    names = [remedy.name for remedy in suited("rocm", Traits("memory"), "hung", {})]
    assert "fixed-segments" not in names
    env = {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}
    assert "fixed-segments" in [remedy.name for remedy in suited("rocm", Traits("memory"), "hung", env)]


def test_switches_travel_in_one_variable() -> None:
    chosen = [named("sdma-off"), named("sdpa-math"), named("miopen-off")]
    assert environment([each for each in chosen if each]) == {
        "HSA_ENABLE_SDMA": "0",
        "HOLDFAST_REMEDIES": "sdpa-math,cudnn-off",
    }
    assert environment([]) == {}
    assert flags.named({"HOLDFAST_REMEDIES": "cudnn-off, nonsense,,sdpa-math"}) == ["cudnn-off", "sdpa-math"]


def test_recurrent_layers_do_without_the_library_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        monkeypatch.setattr(kind, "forward", kind.forward)  # restored afterwards
    net, inputs = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    before = net(inputs)[0]
    seen: list[bool] = []
    asked = torch.nn.LSTM.check_forward_args

    def watched(*args: object) -> None:
        seen.append(torch.backends.cudnn.enabled)
        asked(*args)

    monkeypatch.setattr(torch.nn.LSTM, "check_forward_args", watched)
    assert flags.apply({"HOLDFAST_REMEDIES": "rnn-plain"}) == ["rnn-plain"]
    assert torch.equal(net(inputs)[0], before)
    assert seen == [False] and torch.backends.cudnn.enabled, "on again for everything else"


def test_what_a_user_types(monkeypatch: pytest.MonkeyPatch) -> None:
    masquerade, queue = named("no-masquerade"), named("one-queue")
    assert masquerade and queue
    monkeypatch.setattr("sys.platform", "linux")
    assert masquerade.commands() == ["unset HSA_OVERRIDE_GFX_VERSION"]
    assert queue.commands() == ["export GPU_MAX_HW_QUEUES=1"]
    monkeypatch.setattr("sys.platform", "win32")
    assert queue.commands() == ["$env:GPU_MAX_HW_QUEUES = '1'"]


# The search ---------------------------------------------------------------------------------------------------------


def test_remedies_are_tried_one_by_one_until_one_helps() -> None:
    card = Device({"conv2d fp32 backward": lambda env: env.get("MIOPEN_DEBUG_CONV_WINOGRAD") == "0"})
    found = search([Seen("conv2d fp32 backward", "crashed")], backend="rocm", run=card.run, env={})
    assert [cure.remedy.name for cure in found.cures] == ["miopen-no-winograd"]
    assert [attempt.remedy.name for attempt in found.attempts] == [
        "miopen-fast-find",
        "miopen-immediate",
        "miopen-no-winograd",
    ]
    assert not found.uncured and not found.unsearched
    assert card.asked[-1] == ("conv2d fp32 backward", {"MIOPEN_DEBUG_CONV_WINOGRAD": "0"})


def test_a_cure_is_tried_on_the_other_failures_first() -> None:
    off = lambda env: env.get("HSA_ENABLE_SDMA") == "0"  # noqa: E731
    card = Device({"transfer pinned": off, "transfer async": off})
    failed = [Seen("transfer pinned", "hung"), Seen("transfer async", "hung")]
    found = search(failed, backend="rocm", run=card.run, env={})
    assert [(cure.remedy.name, cure.cured) for cure in found.cures] == [
        ("sdma-off", ("transfer pinned", "transfer async"))
    ]
    assert len(card.asked) == 2


def test_what_is_left_is_searched_with_the_cure_in_place() -> None:
    card = Device(
        {
            "transfer pinned": lambda env: env.get("HSA_ENABLE_SDMA") == "0",
            "attention fp32 forward": lambda env: (
                env.get("HSA_ENABLE_SDMA") == "0" and "sdpa-math" in env.get("HOLDFAST_REMEDIES", "")
            ),
        }
    )
    failed = [Seen("transfer pinned", "crashed", seconds=0.1), Seen("attention fp32 forward", "crashed")]
    found = search(failed, backend="rocm", run=card.run, env={})
    assert [cure.remedy.name for cure in found.cures] == ["sdma-off", "sdpa-math"]
    assert environment(cure.remedy for cure in found.cures) == {
        "HSA_ENABLE_SDMA": "0",
        "HOLDFAST_REMEDIES": "sdpa-math",
    }


def test_two_cures_that_do_not_agree_are_not_both_believed() -> None:
    card = Device(
        {
            "transfer pinned": lambda env: env.get("HSA_ENABLE_SDMA") == "0" and "HOLDFAST_REMEDIES" not in env,
            "attention fp32 forward": lambda env: "sdpa-no-flash" in env.get("HOLDFAST_REMEDIES", ""),
        }
    )
    failed = [Seen("transfer pinned", "crashed", seconds=0.1), Seen("attention fp32 forward", "crashed")]
    found = search(failed, backend="rocm", run=card.run, env={})
    assert [cure.remedy.name for cure in found.cures] == ["sdpa-no-flash"]
    assert [each.probe for each in found.uncured] == ["transfer pinned"]


def test_nothing_helps() -> None:
    card = Device({})
    found = search([Seen("conv2d fp32 forward", "hung")], backend="cuda", run=card.run, env={})
    assert not found.cures
    assert [each.probe for each in found.uncured] == ["conv2d fp32 forward"]
    tried = {attempt.remedy.name for attempt in found.attempts}
    assert {"cudnn-benchmark-off", "cudnn-off", "launch-blocking"} <= tried
    assert "miopen-off" not in tried


def test_a_search_ends_with_its_time() -> None:
    now = [0.0]
    card = Device({})

    def slow(probe: str, env: Mapping[str, str]) -> Seen:
        now[0] += 60.0
        return card.run(probe, env)

    found = search(
        [Seen("conv2d fp32 forward", "hung")], backend="rocm", run=slow, env={}, budget_s=150, clock=lambda: now[0]
    )
    assert len(card.asked) == 3
    assert found.unsearched


def test_a_pretend_device_may_need_any_of_them() -> None:
    card = Device({"network fp32 training": lambda env: env.get("PYTORCH_MPS_PREFER_METAL") == "1"})
    found = search([Seen("network fp32 training", "failed", 1.0, 0.1)], backend=None, run=card.run, env={})
    assert [cure.remedy.name for cure in found.cures] == ["mps-metal"]


# Doing without ------------------------------------------------------------------------------------------------------

WITHOUT = {
    "precision": (
        [Seen("conv2d fp16 backward", "failed", 1.0, 0.1), Seen("conv2d fp32 backward")],
        ("no-low-precision", "fp16", "fp16-off"),
    ),
    "channels_last": (
        [Seen("batchnorm fp32 channels_last backward", "failed", 1.0, 0.1), Seen("batchnorm fp32 backward")],
        ("no-channels-last", "channels_last", ""),
    ),
    "batch": (
        [
            Seen("network fp32 batch 32 training", "failed", 1.0, 0.1),
            Seen("network fp32 batch 7 training", "failed", 1.0, 0.1),
            Seen("network fp32 batch 1 training"),
        ],
        ("smaller-batch", "more than 1 at once", ""),
    ),
    "shapes": (
        [Seen("network fp32 changing shapes training", "failed", 1.0, 0.1), Seen("network fp32 training")],
        ("fixed-shapes", "changing shapes", ""),
    ),
    "sdpa": (
        [Seen("attention fp32 flash forward", "failed", 1.0, 0.1), Seen("attention fp32 math forward")],
        ("no-sdpa-kernel", "flash attention", "sdpa-no-flash"),
    ),
    "company": (
        [
            Seen("network in company", "failed", evidence={"family": "training", "situation": "company"}),
            Seen("network fp32 training"),
        ],
        ("no-company", "a second process", ""),
    ),
    "compile": (
        [
            Seen("compiled network training", "failed", evidence={"family": "compile", "situation": "compile"}),
            Seen("network fp32 training"),
        ],
        ("compile-off", "compile", ""),
    ),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_what_passes_without_it_is_cured_by_doing_without(what: str) -> None:
    results, (name, without, switch) = WITHOUT[what]
    found = search(results, backend="cuda", run=Device({}).run, env={})
    assert not found.uncured
    (cure,) = found.cures
    assert (cure.remedy.name, cure.without, cure.switch) == (name, without, switch)
    assert set(cure.cured) == {each.probe for each in results if each.status == "failed"}


@pytest.mark.parametrize("what", WITHOUT)
def test_what_fails_without_it_as_well_is_not_cured(what: str) -> None:
    results, _ = WITHOUT[what]
    every = [Seen(each.probe, "failed", 1.0, 0.1, evidence=each.evidence) for each in results]
    found = search(every, backend="cuda", run=Device({}).run, env={})
    assert not found.cures
    assert len(found.uncured) == len(every)


def test_the_largest_batch_that_passed_is_kept() -> None:
    results = [
        Seen(f"network fp32 batch {size} training", "failed" if size > 7 else "passed") for size in (1, 7, 8, 32)
    ]
    found = search(results, backend="rocm", run=Device({}).run, env={})
    (cure,) = found.cures
    assert cure.keep == 7


# Traits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "evidence", "about"),
    [
        ("conv2d fp16 backward", {}, Traits("conv", "backward", "fp16")),
        ("network fp16 batch 7 training", {}, Traits("training", "training", "fp16", batch=7)),
        ("attention bf16 flash forward", {}, Traits("attention", "forward", "bf16", sdpa="flash")),
        ("depthwise fp32 channels_last forward", {}, Traits("conv", "forward", "fp32", channels_last=True)),
        ("sustained load", {}, Traits("other", situation="sustained")),
        ("network fp32", {"family": "training", "situation": "company"}, Traits("training", situation="company")),
        ("nobody knows", {}, Traits("other")),
        ("x", {"family": "fft", "phase": "backward", "precision": "bf16"}, Traits("fft", "backward", "bf16")),
        ("x", {"family": "nonsense", "batch": "7"}, Traits("other")),
    ],
)
def test_what_a_probe_is_about(name: str, evidence: dict[str, Any], about: Traits) -> None:
    assert traits(Seen(name, evidence=evidence)) == about


def test_what_no_setting_can_cure_is_not_tried_for_minutes() -> None:
    card = Device({})
    no_code = {"why": "RuntimeError: HIP error: invalid device function", "family": "launch"}
    search([Seen("first step", "failed", evidence=no_code)], backend="rocm", run=card.run, env={})
    assert card.asked == []
    search(
        [Seen("first step", "failed", evidence=no_code)],
        backend="rocm",
        run=card.run,
        env={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"},
    )
    assert card.asked == [("first step", {"HOLDFAST_REMEDIES": "no-masquerade"})]


def test_the_page_of_the_doctor_lists_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    for remedy in catalogue():
        assert f"| `{remedy.name}` |" in page and f"| {remedy.text} | {remedy.cost} |" in page, remedy.name
    assert page.count("\n| `", page.index("| remedy |"), page.index("The last ones")) == len(catalogue())
