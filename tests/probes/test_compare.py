"""The optimizer of the probes is torch's own AdamW, and does not make a process import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from holdfast.devices import probe_catalog
from holdfast.probes.compare import EPSILON, RATE, AdamW

QUICK = """
import sys
from holdfast.devices import probe_catalog
from holdfast.probes import compare
from holdfast.probes.wrong_kernels import open_bench

bench = open_bench("cpu", lambda check: None)
for name in ("network bf16", "conv2d fp32"):
    spec = probe_catalog.find(name).to_json()
    assert all(outcome.ok for outcome in compare.train(bench, spec)), name
print("torch._dynamo" in sys.modules)
"""


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2), nn.Linear(2, 2))


def test_it_gives_the_bits_of_torch_s() -> None:
    mine, theirs = network(), network()
    own, known = AdamW(mine.parameters()), torch.optim.AdamW(theirs.parameters(), lr=RATE, eps=EPSILON)
    x = torch.randn(5, 3, 8, 8)
    for step in range(4):
        for model, optimizer in ((mine, own), (theirs, known)):
            optimizer.zero_grad()
            part = model[:4] if step % 2 else model  # in half of the steps the last layer has no gradient
            part(x).square().mean().backward()
            optimizer.step()
    assert all(map(torch.equal, mine.parameters(), theirs.parameters()))


def test_a_scaler_takes_it() -> None:
    model = network()
    before = [each.detach().clone() for each in model.parameters()]
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(torch.randn(2, 3, 8, 8)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not any(map(torch.equal, before, model.parameters()))


def test_the_quick_set_needs_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_known_answers_share_the_process_of_the_others() -> None:
    quick = [probe for probe in probe_catalog.select("cuda:0") if not probe.shares]
    assert [probe.name for probe in quick] == ["memory limit", "network in company"]
