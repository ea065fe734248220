"""Gradients of convolutions as matrix products: the same gradients, and no trace of it outside of a backward."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from holdfast.planning import kernels, measure
from holdfast.planning.choice import Choice

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()
    torch._C._set_mkldnn_enabled(True)  # whatever other tests of this process have left
    yield
    torch._C._set_mkldnn_enabled(before[0])
    torch._C._set_nnpack_enabled(before[1])


def gradients(choice: Choice, seen: list[bool]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = choice.arrange(nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 4, 3, padding=1)))
    x = torch.randn(16, 3, 20, 20)

    def note(grad: torch.Tensor) -> torch.Tensor:
        seen.append(torch._C._get_mkldnn_enabled())
        return grad

    def compute(batch: torch.Tensor) -> torch.Tensor:
        seen.append(torch._C._get_mkldnn_enabled())
        y = net(batch)
        y.register_hook(note)
        return y.square().mean()

    choice.loss(compute, CPU)(x).backward()
    seen.append(torch._C._get_mkldnn_enabled())
    return [each.grad.clone() for each in net.parameters() if each.grad is not None]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_the_same_gradients_and_the_same_bits_every_time(layout: str) -> None:
    plain, mine, again = ([], [], [])  # type: tuple[list[bool], list[bool], list[bool]]
    wanted = gradients(Choice(layout=layout), plain)
    found = gradients(Choice(layout=layout, kernels="gemm_backward"), mine)
    twice = gradients(Choice(layout=layout, kernels="gemm_backward"), again)
    assert plain == [True, True, True]
    assert mine == again == [True, False, True]  # forward as always, backward without, and back again
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(wanted, found, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(found, twice, strict=True))


def test_a_backward_that_raises_leaves_nothing_behind_for_the_next_step() -> None:
    conv = nn.Conv2d(1, 1, 1)

    def fail(grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("in the middle")

    def compute(batch: torch.Tensor) -> torch.Tensor:
        assert torch._C._get_mkldnn_enabled()
        y = conv(batch)
        if len(batch) == 1:
            y.register_hook(fail)
        return y.sum()

    step = kernels.gemm_backward(compute)
    with pytest.raises(RuntimeError, match="in the middle"):
        step(torch.ones(1, 1, 4, 4)).backward()
    step(torch.ones(2, 1, 4, 4)).backward()
    assert torch._C._get_mkldnn_enabled()


def test_what_a_remedy_has_switched_off_stays_off() -> None:
    torch._C._set_mkldnn_enabled(False)
    seen: list[bool] = []
    gradients(Choice(kernels="gemm_backward"), seen)
    assert seen == [False, False, False]
    assert not kernels.worth_a_try()


def test_it_is_a_knob_where_it_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = measure.Training(nn.Conv2d(1, 1, 1), lambda net, b: net(b[0]).sum(), [], batch=8)
    for machine, offered in (("aarch64", True), ("x86_64", False)):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        names = [knob.name for knob in trial.knobs()]
        assert ("kernels" in names) == offered
        assert not offered or names.index("kernels") < names.index("layout")
    assert Choice.from_json({**Choice().to_json(), "kernels": "magic"}) is None
    assert Choice(kernels="gemm_backward").words() == "gradients of convolutions by matrix products"
