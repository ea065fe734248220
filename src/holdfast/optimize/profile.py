"""Where the time of a call goes, by layer: of a torch module by hooks, of an engine by its own profiler.

rows = profile(folder, about, subject, inputs)      # [{"layer": "layers.0", "kind": "Linear", "seconds": 0.004}, …]

The rows are in order of their share. An engine that does not say gives none.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.optimize.engines import kinds
from holdfast.optimize.engines.running import CALLS, Times

Rows = list[dict[str, Any]]


def profile(folder: Path, about: dict[str, Any], subject: dict[str, Any], inputs: list[Any]) -> Rows:
    """The median of a few calls at batch 1."""
    one = [np.ascontiguousarray(each[:1]) for each in inputs]
    kind = kinds().get(about["engine"])
    if kind is None:
        found = _torch(subject, about, one)
    elif kind.profile is not None:
        found = kind.profile(folder / about["file"], about, one)
    else:
        return []
    medians = {key: statistics.median(times) for key, times in found.items()}  # one call may have had to wait
    rows = [{"layer": key[0], "kind": key[1], "seconds": seconds} for key, seconds in medians.items() if seconds > 0]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _torch(subject: dict[str, Any], about: dict[str, Any], one: list[Any]) -> Times:
    """Time of each module without that of the modules inside it."""
    import torch

    from holdfast.optimize.subject import load_model

    torch.set_num_threads(int(about["threads"]))
    model = load_model(subject["spec"]).eval()
    torch.backends.mha.set_fastpath_enabled(False)  # one fused call would hide what is inside
    spent: Times = {}
    open_calls: list[list[float]] = []

    def before(module: Any, _: Any) -> None:
        open_calls.append([time.perf_counter(), 0.0])

    def after(name: str) -> Any:
        def hook(module: Any, _: Any, __: Any) -> None:
            began, inside = open_calls.pop()
            took = time.perf_counter() - began
            key = (name or "(the rest)", type(module).__name__)
            spent.setdefault(key, []).append(took - inside)
            if open_calls:
                open_calls[-1][1] += took

        return hook

    tensors = [torch.from_numpy(each) for each in one]
    with torch.inference_mode():
        model(*tensors)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after(name))
        for _ in range(CALLS):
            model(*tensors)
    return spent
