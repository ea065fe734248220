"""The networks: what they promise about sizes, scales, time and speed-ups that must not change the answer."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.workloads.eeg import heads, models, serving


def windows(count: int = 4, channels: int = 8, samples: int = 200) -> torch.Tensor:
    return 1e-5 * torch.randn(count, channels, samples, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("rate", [100.0, 250.0, 500.0])
@pytest.mark.parametrize("name", ["tempo", "transformer", "unet"])
def test_shapes_are_as_promised(name: str, rate: float) -> None:
    samples = round(2 * rate)
    net = models.build(name, channels=8, samples=samples, rate=rate).eval()
    x = windows(samples=samples)
    assert net.sequence(x).shape == (4, net.width, net.steps)  # type: ignore[operator]
    assert net.summary(x).shape == (4, net.summary_width)  # type: ignore[operator]


def test_the_baseline_has_about_550_thousand_parameters() -> None:
    net = models.build("transformer", channels=129, samples=1000, rate=500.0)
    head = heads.Net(net, heads.ScalarHead(net, pooled=True))
    assert 500_000 < models.parameters(head) < 600_000


@pytest.mark.long
def test_a_model_of_braindecode_by_its_name() -> None:
    pytest.importorskip("braindecode")
    net = models.build("EEGNeX", channels=8, samples=200, rate=100.0)
    for head in (heads.TimeHead(net), heads.ScalarHead(net), heads.FactorsHead(net, ("externalizing",))):
        assert heads.Net(net, head).eval()(windows()).shape == (4, 1)


# Scales ---------------------------------------------------------------------------------------------------------


def test_volts_and_microvolts_give_the_same_and_a_flat_channel_is_silent() -> None:
    x = windows(64)
    x[:, 5] = 0.0
    volts, micro = models.RobustNorm(8), models.RobustNorm(8)
    volts.fit(x)
    micro.fit(1e6 * x)
    assert torch.allclose(volts(x), micro(1e6 * x), atol=1e-4)
    assert volts(x)[:, 5].abs().max() == 0
    assert volts(x)[:, 0].std() == pytest.approx(1.0, abs=0.05)


def test_an_artefact_is_clipped_and_does_not_set_the_scale() -> None:
    x = windows(64)
    before = models.RobustNorm(8)
    before.fit(x)
    x[0, 2, :100] = 0.4  # volts: a loose electrode
    after = models.RobustNorm(8)
    after.fit(x)
    assert after.gain[2] == pytest.approx(float(before.gain[2]), rel=0.02)
    assert after(x).abs().max() <= 8.0


def test_what_is_not_a_number_does_not_spread() -> None:
    x = windows()
    x[1, 3, 7] = float("nan")
    net = models.build("tempo", channels=8, samples=200).eval()
    assert torch.isfinite(net.sequence(x)).all()  # type: ignore[operator]


# The fast layer is the slow one ---------------------------------------------------------------------------------


def test_without_dropout_the_fast_layer_is_pytorchs_own() -> None:
    torch.manual_seed(0)
    slow = models.Transformer(8, 50, width=32, attention_dropout=True).eval()
    fast = models.Transformer(8, 50, width=32)
    fast.load_state_dict(slow.state_dict())
    fast.eval()
    x = windows(samples=50)
    assert torch.allclose(slow.sequence(x), fast.sequence(x), atol=2e-6)
    fast.train()
    for module in fast.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    gradients = []
    for net in (slow, fast):
        net.zero_grad()
        net.summary(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None and other is not None
        assert torch.allclose(one, other, atol=2e-4, rtol=1e-3)


def test_dropping_features_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer = models.Transformer(8, 10, width=32, dropout=0.5).layers[0]
    x = torch.ones(2000, 3, 32)
    thinned = layer._thin(x)  # type: ignore[operator, union-attr]
    assert thinned.mean() == pytest.approx(1.0, abs=0.02)
    assert ((thinned == 0) | (thinned == 2)).all()
    assert (thinned.std(dim=1) == 0).all()  # the same for every moment of a window


def test_averaged_samples_are_all_that_a_slow_signal_holds() -> None:
    """500 Hz of something below 45 Hz: 125 averages a second miss next to nothing of it."""
    t = torch.arange(1000) / 500.0
    for hertz, kept in ((5.0, 0.995), (10.0, 0.98), (45.0, 0.8)):
        wave = torch.sin(2 * torch.pi * hertz * t)[None, None]
        averaged = nn.functional.avg_pool1d(wave, 4)
        assert float(averaged.std() / wave.std()) > kept
    net = models.Transformer(129, 1000, rate=500.0)
    assert net.steps == 250
    assert models.Transformer(129, 200, rate=100.0).steps == 200
    assert models.Transformer(129, 1000, rate=500.0, token_rate=0).steps == 1000


# Heads ----------------------------------------------------------------------------------------------------------


class Given(nn.Module):
    """A backbone that says what it is told."""

    def __init__(self, steps: int, width: int = 4) -> None:
        super().__init__()
        self.steps, self.width, self.summary_width = steps, width, width

    def sequence(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def summary(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=2)


def test_the_time_head_reads_the_moment_of_a_peak() -> None:
    head = heads.TimeHead(Given(100), start=0.5, seconds=2.0)
    assert float(head.times[0]) == pytest.approx(0.51) and float(head.times[-1]) == pytest.approx(2.49)
    raw = torch.full((1, 100), -50.0)
    raw[0, 30] = 50.0
    assert float(head.read(raw)) == pytest.approx(0.5 + 30.5 * 0.02)
    assert float(head.read(torch.zeros(1, 100))) == pytest.approx(1.5)


def test_its_loss_is_smallest_where_the_press_is() -> None:
    head = heads.TimeHead(Given(100))
    wanted = torch.tensor([[1.3]])
    losses = {}
    for place in (0.8, 1.2, 1.3, 1.4, 2.0):
        raw = -0.5 * ((head.times - place) / head.sigma).square()[None]
        losses[place] = float(head.loss(raw, wanted))
    assert min(losses, key=lambda place: losses[place]) == 1.3
    assert losses[1.3] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("press", [0.2, 3.4])
def test_a_press_outside_of_the_window_has_a_finite_loss(press: float) -> None:
    head = heads.TimeHead(Given(100))
    assert torch.isfinite(head.loss(torch.zeros(1, 100), torch.tensor([[press]])))


def test_plain_regression_can_tell_moments_apart_and_the_pooled_one_cannot() -> None:
    early, late = torch.zeros(1, 4, 6), torch.zeros(1, 4, 6)
    early[0, 1, 1], late[0, 1, 4] = 5.0, 5.0
    plain, pooled = heads.ScalarHead(Given(6)), heads.ScalarHead(Given(6), pooled=True)
    assert float(plain.raw(Given(6), early)) != pytest.approx(float(plain.raw(Given(6), late)))
    assert float(pooled.raw(Given(6), early)) == pytest.approx(float(pooled.raw(Given(6), late)))


def test_factors_are_counted_only_where_they_are_known() -> None:
    torch.manual_seed(0)
    head = heads.FactorsHead(Given(1), ("p_factor", "externalizing")).eval()
    targets = torch.tensor([[1.0, float("nan"), 10.0, 1.0], [2.0, float("nan"), 12.0, float("nan")]])
    head.fit(targets)
    raw = head.raw(Given(1), torch.randn(2, 4, 5)).detach().requires_grad_()
    loss = head.loss(raw, targets)
    loss.backward()
    assert torch.isfinite(loss)
    assert raw.grad is not None
    assert (raw.grad[:, 1] == 0).all()  # nobody's label
    assert raw.grad[1, 3] == 0 and raw.grad[0, 3] != 0
    assert head.read(torch.zeros(1, 4))[0, 0] == pytest.approx(1.5)  # nothing known: the mean


def test_an_ensemble_answers_with_the_mean_and_trains_each_on_its_own_folds() -> None:
    torch.manual_seed(0)
    members = [heads.Net(Given(6), heads.ScalarHead(Given(6))) for _ in range(2)]
    both = heads.Ensemble(list(members))
    x, y = torch.randn(8, 4, 6), torch.rand(8, 1)
    assert torch.allclose(both(x), (members[0](x) + members[1](x)) / 2)
    fold = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    both.loss(x, y, fold).backward()
    grads = [members[0].head.out.weight.grad.clone(), members[1].head.out.weight.grad.clone()]
    both.zero_grad()
    (members[0].loss(x[4:], y[4:]) / 2).backward()
    assert torch.allclose(members[0].head.out.weight.grad, grads[0])
    assert not torch.equal(grads[0], grads[1])


def test_a_pooled_ensemble_reads_the_mean_of_what_its_members_see_and_is_served_so() -> None:
    torch.manual_seed(0)
    about = {"model": "unet", "members": 3, "channels": 8, "samples": 200, "rate": 100.0, "options": {}, "head": "time",
             "start": 0.5, "pooled": True}  # fmt: skip
    net: Any = serving.build(about, models, heads).eval()
    x = 1e5 * windows(6)  # the norm of a fresh net changes nothing
    with torch.no_grad():
        seen = torch.stack([member.head.raw(member.backbone, x) for member in net.members]).mean(dim=0)
        wanted = (seen.softmax(dim=1) * net.members[0].head.times).sum(dim=1, keepdim=True)
        assert torch.allclose(net(x), wanted, atol=1e-6)
        apart = serving.build({**about, "pooled": False}, models, heads).eval()
        apart.load_state_dict(net.state_dict())
        assert not torch.allclose(apart(x), wanted, atol=1e-6)


def test_coral_is_zero_for_equal_and_large_for_unequal_covariances() -> None:
    torch.manual_seed(0)
    same = torch.randn(200, 5)
    domain = torch.arange(200) % 2
    other = same.clone()
    other[domain == 1] *= 3
    assert float(heads.coral(same, domain)) < 0.01 < 0.05 < float(heads.coral(other, domain))
    assert float(heads.coral(1e-4 * other, domain)) == pytest.approx(float(heads.coral(other, domain)), rel=0.01)
    assert float(heads.coral(same, torch.zeros(200))) == 0.0


# What travels in a submission -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["models.py", "heads.py", "serving.py", "competition.py"])
def test_what_is_shipped_imports_torch_and_nothing_else(name: str) -> None:
    path = Path(models.__file__).parent / name
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"torch", "braindecode"}
    assert foreign == set()
