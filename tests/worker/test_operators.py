"""What a look sees, what it costs, and what a real GPU has shown that the CPU does not."""

from __future__ import annotations

import contextlib
import math
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.injection.pretend import DEVICE
from holdfast.run.setting_groups import SentinelSettings
from holdfast.worker.operators.case import Case
from holdfast.worker.operators.comparison import compare
from holdfast.worker.operators.recorder import Recorder
from holdfast.worker.operators.zeros import silent
from holdfast.worker.sentinel import Sentinel

CASES = sorted((Path(__file__).parent / "cases").glob("*.safetensors"))


def recorder(**more: Any) -> Recorder:
    watch = Recorder(torch.device("cpu"), label="pretend:0", seed=0, **more)
    watch.most_s = math.inf  # a busy machine must not change what is taken
    return watch


# Numbers of a healthy H200 -------------------------------------------------------------------------------------------


def test_the_numbers_of_a_gpu_are_here() -> None:
    assert len(CASES) == 4


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_healthy_gpu_is_not_accused(path: Path) -> None:
    """Winograd's convolutions mix places that a sum has no term of; sigmoid's gradient rounds to bf16 three times;
    attention in fp16 rounds small weights and gradients to multiples of the smallest number."""
    finding = compare(Case.load(path))
    assert finding.agrees and not finding.skipped, finding.text


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_same_numbers_with_a_real_error_are(path: Path) -> None:
    case = Case.load(path)
    for out in case.outputs.values():
        rows = out.view(-1, out.shape[1] if out.shape[-1] == 1 else out[0].numel())
        rows[: max(1, len(rows) // 2)] = 0.0
    finding = compare(case)
    assert not finding.agrees and finding.share > 0.05, finding


# Attention -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "shared", "length", "causal", "dtype"),
    [
        (4, 4, 24, True, torch.float32),
        (4, 2, 24, False, torch.bfloat16),
        (2, 2, 600, True, torch.bfloat16),
        (4, 1, 600, False, torch.float32),
    ],
)
def test_attention_is_compared_forward_and_backward(
    heads: int, shared: int, length: int, causal: bool, dtype: torch.dtype
) -> None:
    """Heads that are shared, and sequences of which a look takes some places: right ones agree, wrong ones do not."""
    watch = recorder()
    watch.everything = True
    torch.manual_seed(0)
    sizes = [(2, number, length, 32) for number in (heads, shared, shared)]
    query, key, value = (torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes)
    with watch.look(1):
        out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=heads != shared)
        (out.float() * torch.linspace(-1, 1, 32)).sum().backward()
    cases = [case for case in watch.taken() if case.title.startswith("_scaled_dot_product")]
    assert sorted(case.part for case in cases) == ["backward", "forward"]
    for case in cases:
        assert (finding := compare(case)).agrees and not finding.skipped, finding
        case.outputs[0][..., : case.outputs[0].shape[-2] // 2, :] *= -1.0
        assert not compare(case).agrees, case.described()


class Dropping(TorchDispatchMode):
    """A device whose attention drops out, which the CPU's does not; one head is wrong, if asked for."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wrong = wrong

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name != "aten::_scaled_dot_product_flash_attention_for_cpu":
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value", "dropout_p"), args, strict=False)) | (kwargs or {})
        share = given.pop("dropout_p", 0.0)
        out, *rest = func(**given)
        out = out * (torch.rand_like(out) >= share) if share else out.clone()
        if self.wrong:
            out[:, 0] = 0.0
        return out, *rest


@pytest.mark.parametrize("wrong", [False, True])
def test_attention_that_drops_out_is_asked_again_without(wrong: bool) -> None:
    """It cannot be computed again as it was. The step draws the same numbers as without the look."""
    x = torch.randn(1, 2, 8, 16)
    drawn = []
    for looks in (False, True):
        watch = recorder()
        torch.manual_seed(7)
        with Dropping(wrong), watch.look(1) if looks else contextlib.nullcontext():
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.5)
            drawn.append(torch.rand(3))
    assert torch.equal(*drawn)
    cases = [case for case in watch.taken() if case.title == "_scaled_dot_product_flash_attention_for_cpu"]
    findings = [compare(case) for case in cases]
    assert [finding.skipped for finding in findings] == [""]
    assert findings[0].agrees or wrong
    if wrong and cases[0].outputs[0].count_nonzero() == 0:  # a look takes one head of the two
        assert not findings[0].agrees


def test_attention_that_cannot_be_asked_again_is_left_alone() -> None:
    watch = recorder()
    x = torch.randn(1, 2, 8, 16)
    with watch.look(1), pytest.raises(RuntimeError):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.5)
    assert watch.taken() == []


def test_unsigned_numbers_are_described() -> None:
    """The seeds of attention in half precision: an operator that has them is compared, and named."""
    case = Case("aten::mm", "", [], {}, tensors=[torch.ones(2, 2), torch.tensor([7], dtype=torch.uint64)])
    assert case.described() == "mm in forward, float32 [2, 2]"


# A look knows the calls of the step ----------------------------------------------------------------------------------


def test_a_look_after_the_first_touches_what_it_takes_alone() -> None:
    watch = recorder()
    watch.operators = 2
    small = [torch.ones(number + 2) for number in range(12)]

    def step(more: int = 0) -> None:
        for each in [*small, *small[:more]]:
            torch.mul(each, 2)

    met, taken = [], []
    for more in (0, 0, 0, 1, 1, 1):
        with watch.look(1):
            look = watch._open
            step(more)
        assert look is not None
        met.append(sum(look.met.values()))
        taken.append(len(watch.taken()))
    assert met == [12, 2, 2, 2, 13, 2]  # the fourth step makes another call: the fifth look lists them anew
    assert taken[1:] == [2] * 5


def test_a_look_that_takes_long_takes_less() -> None:
    watch = recorder()
    before = watch.operators
    watch.spent(0.2, usual=0.01)
    assert watch.operators == before // 2
    watch.spent(0.2, usual=1.0)  # a fifth of a step is little
    assert watch.operators == before // 2 + 2
    for _ in range(40):
        watch.spent(9.0, usual=1.0)
    assert watch.operators == 4
    for _ in range(40):
        watch.spent(0.0, usual=1.0)
    assert watch.operators == before


# Every kind gets its turn --------------------------------------------------------------------------------------------


def deep() -> tuple[nn.Module, Tensor]:
    """Sixty kinds of operators, each of its own shape."""
    layers = [nn.Linear(number + 8, number + 9) for number in range(12)]
    return nn.Sequential(*[each for layer in layers for each in (layer, nn.Tanh())]), torch.randn(5, 8)


def test_a_look_whose_time_is_over_takes_nothing_more() -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    watch = recorder()

    def taken() -> int:
        with watch.look():
            network(torch.randn(4, 8)).square().mean().backward()
        return len(watch.taken())

    assert taken() > 3
    watch.most_s = 0.0
    assert [taken() for _ in range(3)] == [1, 1, 1]
    watch.spent(0.0, usual=0.01)  # of 50 ms the step itself takes 10, and a look half of what is left
    assert watch.most_s == pytest.approx(0.02)
    watch.spent(0.0, usual=1.0)
    assert watch.most_s == pytest.approx(0.5)
    assert taken() > 3


@pytest.mark.all
def test_looks_come_to_every_operator() -> None:
    """Also where the budget is spent before the backward comes, and where some can never be compared."""
    model, x = deep()
    watch = recorder()
    watch.operators = 6
    parts: Counter[str] = Counter()
    for number in range(40):
        with watch.look(number):
            model(F.dropout(x)).sum().backward()
        parts.update(case.part for case in watch.taken())
    kinds = len(watch.seen)
    assert kinds >= 60 and min(watch.seen.values()) >= 2, watch.seen
    assert parts["backward"] > 80 and parts["forward"] > 60


def test_what_cannot_be_compared_takes_no_room() -> None:
    """Twelve kinds that can, and one that is too large: from the second look on there are always four of the twelve."""
    watch = recorder()
    watch.operators = 4
    big = torch.zeros(1 << 21)
    small = [torch.ones(size) for size in range(2, 14)]
    for number in range(8):
        with watch.look(number):
            torch.cat([big, big])
            for each in small:
                torch.mul(each, 2)
        taken = watch.taken()
        assert number == 0 or [case.title for case in taken] == ["mul"] * 4
    assert watch.left_alone["cat: too large to be compared"] == 1


def test_a_large_grouped_convolution_is_compared() -> None:
    watch = recorder()
    layer = nn.Conv2d(32, 32, 3, groups=16)
    with watch.look(1):
        layer(torch.randn(64, 32, 20, 20))
    cases = watch.taken()
    assert [compare(case).agrees for case in cases if case.title == "convolution"] == [True], watch.left_alone


# Parts of a step -----------------------------------------------------------------------------------------------------


def test_a_look_is_at_one_part_of_a_step(tmp_path: Path) -> None:
    """Forward, backward or update: all get their turn, and outside of its part a look sees nothing."""
    sentinel = Sentinel(DEVICE, SentinelSettings(), label="pretend:0", seed=0)
    sentinel.recorder.most_s = math.inf
    model, x = deep()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    seen: Counter[str] = Counter()
    sentinel.enters("forward")
    for number in range(9):
        with sentinel.recorder.look(number, parts=True):
            for part in ("to_device", "forward", "backward", "optimizer"):
                sentinel.enters(part)
                if part == "forward":
                    loss = model(x).sum()
                elif part == "backward":
                    loss.backward()
                elif part == "optimizer":
                    optimizer.step()
        titles = {case.title for case in sentinel.recorder.taken()}
        groups = [bool(titles & group) for group in ({"tanh", "addmm"}, {"tanh_backward"}, {"addcdiv_", "lerp_"})]
        assert sum(groups) == 1, titles
        seen[("forward", "backward", "optimizer")[groups.index(True)]] += 1
    assert set(seen) == {"forward", "backward", "optimizer"}
    assert torch._C._len_torch_dispatch_stack() == 0
    sentinel.close()


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    watch = recorder()
    for parts in (False, True):
        with pytest.raises(ZeroDivisionError), watch.look(1, parts=parts):
            watch.enters("forward")
            raise ZeroDivisionError
        assert torch._C._len_torch_dispatch_stack() == 0


# Compiled code -------------------------------------------------------------------------------------------------------


@pytest.mark.all
def test_compiled_code_runs_compiled_under_a_look() -> None:
    """A look that made it run uncompiled would change the roundings of that step."""
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        def run(*given: Any) -> Any:
            calls.append(1)
            return graph.forward(*given)

        return run

    model = torch.compile(nn.Linear(4, 4), backend=backend)
    watch = recorder()
    for number in range(3):
        with watch.look(number):
            model(torch.randn(number + 2, 4))
        assert len(calls) == number + 1


# Silent kernels ------------------------------------------------------------------------------------------------------


def test_known_answers_are_asked_in_bf16_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels than those of fp32. A device that is no CPU is asked; here the CPU stands in for it."""
    from holdfast.worker.operators import zeros

    right = zeros._computed
    place = torch.device("meta")
    monkeypatch.setattr(zeros, "_wrong", lambda function, inputs, device: _asked(right, function, inputs))
    assert silent(place) == ["a matrix product of bf16 in forward"]


def _asked(computed: Any, function: Any, inputs: list[Tensor]) -> list[str]:
    """A product of bf16 that writes nothing, on a device that is right otherwise."""
    out, _ = computed(function, inputs)
    broken = function is torch.matmul and inputs[0].dtype == torch.bfloat16
    return ["forward"] if broken and out.dtype == torch.bfloat16 else []


def test_triton_counts_only_where_the_script_has_kernels_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's optimizers import Triton: for most scripts nothing is ever compiled with it."""
    triton = pytest.importorskip("triton")
    from holdfast.worker.operators import zeros

    for name in ("compile_fx", "compiler_bisector"):
        monkeypatch.delitem(sys.modules, f"torch._inductor.{name}", raising=False)
    assert not zeros.uses_triton()
    kernels = types.ModuleType("kernels_of_a_script")
    monkeypatch.setitem(sys.modules, "kernels_of_a_script", kernels)
    kernels.double = triton.jit(_a_kernel)  # type: ignore[attr-defined]
    assert zeros.uses_triton()


def _a_kernel(x):  # type: ignore[no-untyped-def]
    return x
