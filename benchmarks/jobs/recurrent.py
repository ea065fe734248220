"""Recurrent layers in half precision on a device, by shape and by the way they are asked for, against float64.

    python benchmarks/jobs/recurrent.py cuda:0

One line for each: how far the output is off. A right one in fp16 is off by less than a hundredth.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def off(compute: Callable[[], Any], right: torch.Tensor) -> float:
    """Relative to the size of what is right; not a number where the device has no such kernel."""
    try:
        found: torch.Tensor = compute()[0]
    except RuntimeError:
        return float("nan")
    return float((found.detach().cpu().double() - right).norm() / right.norm())


def main(device: str) -> int:
    kind = device.partition(":")[0]
    print(f"torch {torch.__version__} cudnn {torch.backends.cudnn.version() if kind == 'cuda' else None}")
    shapes = itertools.product((nn.LSTM, nn.GRU), (48, 64, 128), (1, 2), (8, 12), (True, False))
    for cell, hidden, layers, steps, batch_first in shapes:
        torch.manual_seed(0)
        net = cell(32, hidden, num_layers=layers, batch_first=batch_first)
        inputs = torch.randn((8, steps, 32) if batch_first else (steps, 8, 32))
        right = copy.deepcopy(net).double()(inputs.double())[0].detach()
        there, moved = copy.deepcopy(net).to(device), inputs.to(device)
        said = {"fp32": off(lambda: there(moved), right)}  # noqa: B023  (computed at once)
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            with torch.autocast(kind, dtype):
                said[f"autocast {name}"] = off(lambda: there(moved), right)  # noqa: B023
            with torch.autocast(kind, dtype), torch.no_grad():
                said[f"autocast {name}, no grad"] = off(lambda: there(moved), right)  # noqa: B023
            lower, low = copy.deepcopy(net).to(device, dtype), moved.to(dtype)
            said[f"all {name}"] = off(lambda: lower(low), right)  # noqa: B023
        shape = f"{cell.__name__} hidden {hidden} layers {layers} steps {steps} batch_first {batch_first}"
        print(f"{shape}: {', '.join(f'{name} {value:.1e}' for name, value in said.items())}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
