"""No answer leaves what training saw, and a window without a signal gets the mean: for every head."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.workloads.eeg import cache, challenge1, challenge2, heads, models
from tests.workloads.eeg import small

Nets = dict[str, tuple[Any, Any, Any]]
SILENT = ("zeros", "nan", "flat", "clipped", "clipped and huge", "one channel of eight")


def broken(kind: str, like: torch.Tensor) -> torch.Tensor:
    """A window as a recorder that has failed gives it."""
    x = like.clone()
    if kind == "zeros":
        return torch.zeros_like(x)
    if kind == "nan":
        return torch.full_like(x, torch.nan)
    if kind == "flat":
        return torch.full_like(x, 3e-4) + torch.arange(x.shape[1])[:, None] * 1e-5
    if kind == "clipped":
        return (x * 50).clamp(-2e-5, 2e-5)
    if kind == "clipped and huge":
        return (x * 1e6).clamp(-0.4, 0.4)
    x[:, 1:] = 0.0
    return x


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Nets:
    """Each head with a net that was not trained: its weights are wild, and nothing else holds it back."""
    folder = tmp_path_factory.mktemp("caches")
    one = cache.open(small.challenge1(folder / "one", trials=8))
    two = cache.open(small.challenge2(folder / "two", windows=4))
    rows = np.arange(len(one.table["subject"]))[: len(one) // 2]
    found: dict[str, tuple[Any, Any, Any]] = {}
    for head in ("time", "scalar"):
        net = challenge1.build_net(one, rows, model="tempo", head=head, members=2)
        found[head] = (net, one, one.table["response_time"][rows, None])
    rows = np.arange(len(two) // 2)
    names = challenge2.HEADS["four"]
    factors = np.stack([two.table[name] for name in names], axis=1).astype(np.float32)
    targets = np.concatenate([factors, factors[:, :2]], axis=1)
    net = challenge2.build_net(two, rows, targets, names, 200, model="tempo")
    found["four"] = (net, two, factors[rows])
    return found


@pytest.mark.sample(3, 1)
@pytest.mark.parametrize("head", ["time", "scalar", "four"])
def test_answers_stay_in_the_range_of_the_training_labels(nets: Nets, head: str) -> None:
    net, windows, labels = nets[head]
    net = copy.deepcopy(net).eval()
    for member in net.members:
        member.gain.fill_(40.0)  # a correction that is far too large
    x = torch.from_numpy(windows.batch(np.arange(64)))[:, :, :200]
    loud = torch.cat([x, x * 30, -x, x.flip(2)])
    said = net(loud).detach().numpy()
    low, high = np.nanmin(labels, axis=0), np.nanmax(labels, axis=0)
    assert (said >= low - 1e-6).all() and (said <= high + 1e-6).all()
    free = torch.stack([member.plain(loud) * member.gain for member in net.members]).mean(0).detach().numpy()
    assert ((free < low) | (free > high)).any()  # without the range they would


@pytest.mark.sample(6, 1)
@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("head", ["time", "scalar", "four"])
def test_a_window_without_a_signal_gets_the_training_mean(nets: Nets, head: str, kind: str) -> None:
    net, windows, labels = nets[head]
    net.eval()
    x = torch.from_numpy(windows.batch(np.arange(16)))[:, :, :200]
    mean = np.nanmean(labels.astype(np.float64), axis=0)
    np.testing.assert_allclose(net(broken(kind, x)).detach().numpy(), np.broadcast_to(mean, (16, len(mean))), rtol=1e-5)
    good = net(x).detach().numpy()
    assert not np.allclose(good, mean, rtol=1e-3)  # windows with a signal are read
    mixed = torch.cat([x[:1], broken(kind, x[1:2]), x[2:3]])
    np.testing.assert_allclose(net(mixed).detach().numpy()[[0, 2]], good[[0, 2]], rtol=1e-4, atol=1e-5)


def test_half_of_the_channels_is_enough(tmp_path: Path) -> None:
    """Bad channels are set to zero in preparing; that is no silence."""
    windows = cache.open(small.challenge1(tmp_path / "one"))
    norm = models.RobustNorm(small.CHANNELS)
    x = torch.from_numpy(windows.batch(np.arange(32)))
    norm.fit(x)
    assert heads.has_signal(x, norm).all()  # the eighth channel is the reference: it is flat, and was in training
    x[:, :3] = 0.0
    assert heads.has_signal(x, norm).all()
    x[:, :4] = 0.0
    assert not heads.has_signal(x, norm).any()


def test_weights_of_an_earlier_version_have_no_range(nets: Nets) -> None:
    net, windows, _ = nets["scalar"]
    old = {name: value for name, value in net.state_dict().items() if name.rpartition(".")[2] not in _NEW}
    fresh = challenge1.build_net(windows, np.arange(8), model="tempo", head="scalar", members=2)
    for member in fresh.members:
        member.lowest.fill_(-torch.inf), member.highest.fill_(torch.inf), member.usual.fill_(torch.nan)
    fresh.load_state_dict(old)
    x = torch.from_numpy(windows.batch(np.arange(4)))
    plain = torch.stack([member.plain(x) for member in net.eval().members]).mean(0)
    assert torch.allclose(fresh.eval()(x), plain)


_NEW = ("lowest", "highest", "usual")
