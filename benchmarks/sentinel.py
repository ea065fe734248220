"""How far apart are a right device and the CPU? Clean samples by the thousand, per precision, and then wrong ones.

    python benchmarks/sentinel.py --device cuda --samples 10000          # four precisions at once, in four processes
    python benchmarks/sentinel.py --device cpu --precisions bf16 --samples 2000

Every sample is compared as the sentinel of a run compares it, on networks that are trained a little in between: a
transformer, a convolutional one with batch statistics (also channels_last), a recurrent one. An alarm is what would
have cost the device its trust: a disagreement that was there in two rechecks as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

from windows import Windows  # noqa: E402

from holdfast.runtime.replay import Replay  # noqa: E402
from holdfast.runtime.sentinel import RECHECKS, Sentinel  # noqa: E402
from holdfast.runtime.transaction import Work  # noqa: E402
from holdfast.settinggroups import SentinelSettings  # noqa: E402
from holdfast.testing.pretend import DEVICE as PRETEND  # noqa: E402

BATCH = 16
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(16, 32, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0].mean(dim=1))


def jobs() -> dict[str, tuple[nn.Module, Callable[[], list[Tensor]], Callable[[Tensor, Tensor], Tensor]]]:
    return {
        "transformer": (
            Windows(),
            lambda: [torch.randn(BATCH, 129, 200), torch.rand(BATCH)],
            nn.functional.mse_loss,
        ),
        "convolutions": (
            Images(),
            lambda: [torch.randn(BATCH, 3, 24, 24), torch.randint(10, (BATCH,))],
            nn.functional.cross_entropy,
        ),
        "channels_last": (
            Images().to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            lambda: [
                torch.randn(BATCH, 3, 24, 24).to(memory_format=torch.channels_last),
                torch.randint(10, (BATCH,)),
            ],
            nn.functional.cross_entropy,
        ),
        "recurrent": (
            Recurrent(),
            lambda: [torch.randn(BATCH, 20, 16), torch.randint(4, (BATCH,))],
            nn.functional.cross_entropy,
        ),
    }


def measure(device: torch.device, precision: str, samples: int) -> dict[str, Any]:
    """One precision: the spread of clean errors, the alarms among them, and which corruptions are found."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    found: dict[str, Any] = {}
    for name, (model, make, loss_of) in jobs().items():
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(device.type) if precision == "fp16" and device.type == "cuda" else None
        kind = DTYPES.get(precision)

        def step(batch: list[Tensor], model: nn.Module = model, loss_of: Any = loss_of, kind: Any = kind) -> Tensor:
            with torch.autocast(device.type, kind, enabled=kind is not None):
                out = model(batch[0])
            return loss_of(out.float(), batch[1])

        sentinel = Sentinel(Replay({"model": model}, home=device), device, SentinelSettings())
        work = Work(step, make(), [optimizer], scaler, None, 1, None)
        found[name] = _clean(sentinel, work, make, optimizer, scaler, device, samples // len(jobs()))
        found[name]["wrong"] = _wrong(sentinel, work, model)
    return {
        "precision": precision,
        "samples": sum(each["samples"] for each in found.values()),
        "alarms": sum(each["alarms"] for each in found.values()),
        "networks": found,
    }


def _clean(
    sentinel: Sentinel, work: Work, make: Any, optimizer: Any, scaler: Any, device: torch.device, samples: int
) -> dict[str, Any]:
    errors: list[tuple[float, str]] = []
    alarms = rechecked = 0
    bound = 0.0
    began = time.perf_counter()
    for number in range(samples):
        work.batch = make()
        opinion = sentinel._compare(work, 0)
        sentinel.checks += 1
        errors.append((opinion.error, opinion.tensor))
        bound = opinion.bound
        if not opinion.agrees:
            rechecked += 1
            alarms += not any(sentinel._compare(work, turn).agrees for turn in range(1, RECHECKS + 1))
        if number % 10 == 9:
            optimizer.zero_grad()
            loss = work.fn([tensor.to(device) for tensor in work.batch])
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
    errors.sort()
    return {
        "samples": samples,
        "alarms": alarms,
        "rechecked": rechecked,
        "bound": bound,
        "error": {
            "p50": errors[len(errors) // 2][0],
            "p99": errors[len(errors) * 99 // 100][0],
            "max": errors[-1][0],
            "worst_tensor": errors[-1][1],
        },
        "seconds_each": round((time.perf_counter() - began) / samples, 5),
    }


def _wrong(sentinel: Sentinel, work: Work, model: nn.Module) -> dict[str, bool]:
    """Each corruption for itself: found at once?"""
    sizes = {name: p.grad for name, p in model.named_parameters()}
    name = max((name for name in sizes if sizes[name] is not None), key=lambda key: float(sizes[key].norm()))  # type: ignore[union-attr]
    parameter = dict(model.named_parameters())[name]
    home = parameter.data_ptr()

    def at_home(how: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda grad: how(grad) if parameter.data_ptr() == home else grad

    def exponent(bit: int) -> Callable[[Tensor], Tensor]:
        def flip(grad: Tensor) -> Tensor:
            grad = grad.float().clone(memory_format=torch.contiguous_format)
            grad.view(torch.int32).view(-1)[:: max(1, grad.numel() // 16)] ^= 1 << bit
            return grad

        return flip

    found = {}
    corruptions = {
        "scaled by 1000": lambda g: g * 1e3,
        "zeroed": lambda g: g * 0.0,
        "exponent bit 27": exponent(27),
        "exponent bit 30": exponent(30),
    }
    for label, how in corruptions.items():
        handle = parameter.register_hook(at_home(how))
        opinions = [sentinel._compare(work, turn) for turn in range(RECHECKS + 1)]
        found[label] = not any(opinion.agrees for opinion in opinions)
        handle.remove()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--one", help="this precision, in this process; prints JSON")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    words = parser.parse_args()
    if words.one:
        device = PRETEND if words.device == "cpu" else torch.device(words.device, 0)
        print(json.dumps(measure(device, words.one, words.samples)))
        return
    command = [sys.executable, __file__, "--device", words.device, "--samples", str(words.samples), "--one"]
    running = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True)
        for name in words.precisions.split(",")
    }
    results = {}
    for name, process in running.items():
        out, _ = process.communicate()
        results[name] = json.loads(out.splitlines()[-1]) if process.returncode == 0 else {"failed": process.returncode}
        print(name, json.dumps(results[name])[:2000], flush=True)
    if words.out:
        words.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
