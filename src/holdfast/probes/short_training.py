"""The probe child: a little training on one device, compared with the CPU. It may crash or hang; that is its job.

    python -m holdfast.probes.short_training --device cuda:0            one line of JSON, exit code 0 if all is right

Memory is written and read back; a product is held against float64; then a small network with convolution,
attention, normalisation and a linear layer is trained a few steps on the device and on the CPU from the same
weights, and losses, gradients and weights are compared. All in fp32 with TF32 off, so that what is left is
rounding. Bounds are far above that and far below what a broken kernel does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from holdfast.base import processes
from holdfast.devices import flags
from holdfast.injection.ailments import Patient, find

if __name__ == "__main__" and "--parent" in sys.argv:  # before torch, which takes seconds to import
    processes.die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 3
MEMORY = 64 << 20
PRODUCT, TRAINING = 1e-5, 1e-4
"""Bounds on relative errors in the 2-norm. An H200 is off by 2e-7 and 3e-6 in fp32, by 3e-4 and 1e-3 with TF32."""
THREADS = 1
"""A run is training on this CPU meanwhile."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    error: float | None
    bound: float | None
    seconds: float
    why: str = ""


class Net(nn.Module):
    """The layers most models are made of, small."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(32)
        self.to_qkv = nn.Linear(32, 96)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = F.gelu(self.second(F.gelu(self.first(images))))
        tokens = self.norm(features.flatten(2).transpose(1, 2))
        query, key, value = self.to_qkv(tokens).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.head(mixed.transpose(1, 2).flatten(2).mean(1))
        return out


def check_memory(device: torch.device) -> tuple[float, float]:
    """What is written comes back, bit by bit."""
    pattern = torch.arange(MEMORY // 4, dtype=torch.int32)
    there = pattern.to(device)
    copy = there.clone()
    wrong = int((copy.bitwise_xor(there) != 0).sum()) + int((copy.cpu() != pattern).sum())
    return float(wrong), 0.0


def check_product(device: torch.device) -> tuple[float, float]:
    """A matrix product against float64."""
    source = torch.Generator().manual_seed(0)
    left, right = (torch.randn(384, 384, generator=source) for _ in range(2))
    return relative(left.to(device) @ right.to(device), left.double() @ right.double()), PRODUCT


def check_training(device: torch.device, spoil: Callable[[Tensor], Tensor] | None = None) -> tuple[float, float]:
    """A few steps on the device and on the CPU from the same weights: the worst of losses, gradients and weights."""
    here, there = _train(torch.device("cpu")), _train(device, spoil)
    errors = [relative(theirs, ours) for theirs, ours in zip(there, here, strict=True)]
    return max(errors), TRAINING


def _train(device: torch.device, spoil: Callable[[Tensor], Tensor] | None = None) -> list[Tensor]:
    torch.manual_seed(0)
    net = Net()
    images, labels = torch.randn(16, 3, 20, 20), torch.randint(10, (16,))
    net, images, labels = net.to(device), images.to(device), labels.to(device)
    for parameter in net.parameters() if spoil else ():
        parameter.register_hook(spoil)
    # A large epsilon: where a gradient is next to nothing, Adam would follow the sign of its rounding.
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3)
    seen: list[Tensor] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        seen += [loss.detach().cpu(), *(_gradient(each) for each in net.parameters())]
        optimizer.step()
    return [*seen, *(parameter.detach().cpu() for parameter in net.parameters())]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().cpu().clone()


def relative(found: Tensor, right: Tensor) -> float:
    """The distance in units of the right answer; infinite where anything is not finite."""
    distance = (found.cpu().double() - right.cpu().double()).norm() / right.cpu().double().norm().clamp_min(1e-12)
    return float(distance) if bool(torch.isfinite(distance)) else float("inf")


# In the child ---------------------------------------------------------------------------------------------------


def probe(device: torch.device, spoil: Callable[[Tensor], Tensor] | None = None) -> Iterator[Check]:
    """Check by check; the first that fails is the last."""
    checks: list[tuple[str, Callable[[], tuple[float, float]]]] = [
        ("memory", lambda: check_memory(device)),
        ("product", lambda: check_product(device)),
        ("training", lambda: check_training(device, spoil)),
    ]
    for name, check in checks:
        began = time.perf_counter()
        try:
            error, bound = check()
            ok, why = error <= bound, f"{name} is off by {error:.2g}, the bound is {bound:.2g}"
            told = error if math.isfinite(error) else None
            yield Check(name, ok, told, bound, round(time.perf_counter() - began, 3), "" if ok else why)
        except Exception as problem:  # whatever a device or its driver raises is the result
            ok = False
            first = str(problem).partition("\n")[0][:200]
            yield Check(name, False, None, None, round(time.perf_counter() - began, 3), f"{name}: {first}")
        if not ok:
            return


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.probes.short_training", description=__doc__)
    parser.add_argument("--device", required=True, help="as torch calls it, or pretend:0")
    parser.add_argument("--json", action="store_true", help="the only way it speaks; accepted for symmetry")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            os.nice(5)
    torch.set_num_threads(THREADS)
    flags.apply()
    _no_tf32()
    began = time.perf_counter()
    device, spoil = _open(args.device)
    checks = list(probe(device, spoil))
    failed = next((check.why for check in checks if not check.ok), None)
    said = {
        "schema": 1,
        "device": args.device,
        "ok": failed is None,
        "why": failed,
        "seconds": round(time.perf_counter() - began, 3),
        "torch": torch.__version__,
        "checks": [asdict(check) for check in checks],
    }
    print(json.dumps(said), flush=True)
    return 0 if failed is None else 1


def _no_tf32() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def _open(label: str) -> tuple[torch.device, Callable[[Tensor], Tensor] | None]:
    """The device to probe; a pretend one does here what it suffers from."""
    if not label.startswith("pretend"):
        return torch.device(label), None
    from holdfast.injection import pretend

    path = find()
    ailment = Patient(path, label).fails_probe() if path is not None else None
    if ailment is None:
        return pretend.DEVICE, None
    if ailment.kind != "wrong":
        pretend.suffer(ailment)
    return pretend.DEVICE, lambda gradient: pretend.spoil(gradient, ailment.how)


if __name__ == "__main__":
    sys.exit(main())
