"""Wrong kernels on purpose, as they really are: does a look find them, after how many, and does it name the operator?

    python -m benchmarks.zoo.planted --looks 50 --out planted.json
    find("resnet18", "a tile of zeros", looks=50)        # {"found": 1, "named": True, …}
    curve("gpt2", "attention", "bf16")                   # which sizes of a relative error a look at the operator sees

Every kind is planted in an operator of each network that it makes sense for, in one kind of shape.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

from benchmarks.zoo.looks import _set_products, _to  # noqa: E402
from benchmarks.zoo.networks import make  # noqa: E402

from holdfast.worker.operators.confirmation import compare_here  # noqa: E402
from holdfast.worker.operators.recorder import Recorder  # noqa: E402

NETWORKS = ("mlp", "deep_cnn", "u_net", "gru", "tied", "resnet18", "gpt2", "llama", "EEGNet", "windows")
_PRODUCTS = ("mm", "addmm", "bmm", "convolution")
_BACKWARD = ("mm", "convolution_backward", "bmm")
_NORMS = ("native_batch_norm", "native_layer_norm", "native_group_norm", "cudnn_batch_norm", "_batch_norm_with_update")
_ATTENTION = tuple(
    f"_scaled_dot_product_{way}"
    for way in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
FAMILIES = {
    "products": ("mm", "addmm", "bmm"),
    "convolutions": ("convolution",),
    "convolutions, backward": ("convolution_backward",),
    "normalisation": _NORMS,
    "softmax": ("_softmax", "_log_softmax"),
    "attention": _ATTENTION,
    "attention, backward": tuple(f"{name}_backward" for name in _ATTENTION),
}
"""What the curve of detection is drawn for."""
SIZES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7)
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def _flat(out: Tensor) -> Tensor:
    return out.clone(memory_format=torch.contiguous_format)


def _tile(out: Tensor, value: float) -> Tensor:
    made = _flat(out)
    rows = made.reshape(-1, made.shape[-1])
    rows[: max(1, len(rows) // 4), : max(1, made.shape[-1] // 4)] = value
    return rows.reshape(made.shape)


def _warps(out: Tensor, bits: int) -> Tensor:
    made = _flat(out)
    kind = torch.int16 if made.element_size() == 2 else torch.int32
    made.view(-1)[3::32].view(kind).bitwise_xor_(bits if kind is torch.int32 else bits >> 16)
    return made


def _rows(out: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
    made = _flat(out)
    return how(made.reshape(-1, made.shape[-1])).reshape(made.shape)


def _swapped(rows: Tensor) -> Tensor:
    order = torch.arange(len(rows), device=rows.device)
    order[0], order[-1] = len(rows) - 1, 0
    return rows[order]


def _last_missing(rows: Tensor) -> Tensor:
    return torch.cat([rows[: -max(1, len(rows) // 8)], torch.zeros_like(rows[-max(1, len(rows) // 8) :])])


def _third(rows: Tensor) -> Tensor:
    return torch.arange(0, len(rows), 3, device=rows.device)


Kind = tuple[tuple[str, ...], Callable[[Tensor], Tensor], float, str]
KINDS: dict[str, Kind] = {
    "a tile of zeros": (_PRODUCTS, lambda out: _tile(out, 0.0), 1.0, ""),
    "a tile doubled": (_PRODUCTS, lambda out: out + _tile(out, 0.0).sub(out).neg(), 1.0, ""),
    "one bit, each warp": (_PRODUCTS, lambda out: _warps(out, 1 << 26), 1.0, ""),
    "several bits, each warp": (_PRODUCTS, lambda out: _warps(out, (1 << 30) | (1 << 22) | (1 << 20)), 1.0, ""),
    "low bits, each warp": (_PRODUCTS, lambda out: _warps(out, (1 << 19) | (1 << 20)), 1.0, ""),
    "backward scaled by 1.01": (_BACKWARD, lambda out: out * 1.01, 1.0, "backward"),
    "one look in five": (_PRODUCTS, lambda out: out * 1.1, 0.2, ""),
    "zeros": (_PRODUCTS, torch.zeros_like, 1.0, ""),
    "stale output": (_PRODUCTS, lambda out: torch.full_like(out, 0.5), 1.0, ""),
    "rows off by one": (_PRODUCTS, lambda out: _rows(out, lambda rows: rows.roll(1, 0)), 1.0, ""),
    "two rows swapped": (_PRODUCTS, lambda out: _rows(out, _swapped), 1.0, ""),
    "last tile missing": (_PRODUCTS, lambda out: _rows(out, _last_missing), 1.0, ""),
    "sums kept in bf16": (_PRODUCTS, lambda out: out.bfloat16().to(out.dtype), 1.0, ""),
    "a NaN": (_PRODUCTS, lambda out: _tile(out, float("nan")), 1.0, ""),
    "normalisation off": (_NORMS, lambda out: out * 1.002, 1.0, ""),
    "softmax off": (("_softmax", "_log_softmax", *_ATTENTION), lambda out: out * 0.999, 1.0, ""),
    "attention of a head zero": ((*_ATTENTION, *FAMILIES["attention, backward"]),
                                 lambda out: _rows(out, lambda rows: rows.clone().index_fill_(0, _third(rows), 0.0)),
                                 1.0, ""),
    "update scaled by 1.01": (("addcdiv_", "addcdiv", "lerp_"), lambda out: out.mul_(1.01), 1.0, ""),
}  # fmt: skip


SMALL = frozenset({"sums kept in bf16", "backward scaled by 1.01", "normalisation off", "softmax off"})
"""Errors that are no larger than what half precision rounds: they are planted in fp32. The curve shows the others."""


FEWEST = 10
"""Looks that each planted error gets, also where the time is over: the first look of a process takes seconds."""


class Planted(TorchDispatchMode):
    """One kernel, at one shape, is wrong."""

    def __init__(self, kind: Kind, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.how, self.rate, self.part = kind
        self.chance = random.Random(seed)
        self.target: str | None = None
        self.shown = 0
        self.choices: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name not in self.names or (self.part == "backward" and torch._C._current_graph_task_id() == -1):
            return out
        first = out if isinstance(out, Tensor) else next((each for each in out if isinstance(each, Tensor)), None)
        if first is None or not first.is_floating_point() or first.numel() < 64:
            return out
        key = f"{name} {list(first.shape)}"
        self.choices.append(key)
        if key != self.target or self.chance.random() >= self.rate:
            return out
        wrong = self.how(first)
        self.shown += not torch.equal(wrong, first)  # two rows of a matrix with one row cannot be swapped
        return wrong if isinstance(out, Tensor) else type(out)(wrong if each is first else each for each in out)


class _Job:
    """Steps of a network on a device."""

    def __init__(self, network: str, device: str, precision: str) -> None:
        _set_products("fp32")
        self.made, self.place, self.kind = make(network), torch.device(device), PRECISIONS[precision]
        self.made.model.to(self.place)
        self.optimizer = torch.optim.AdamW(self.made.model.parameters(), lr=1e-5, foreach=False)
        self.scaler = torch.amp.GradScaler(self.place.type, enabled=precision == "fp16", init_scale=2.0**10)

    def step(self) -> None:
        with torch.autocast(self.place.type, self.kind or torch.bfloat16, enabled=self.kind is not None):
            loss = self.made.loss(_to(self.made.batch(), self.place))
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.scaler.is_enabled() or self._finite():  # a session does not keep a step that is not finite
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _finite(self) -> bool:
        gradients = [each.grad for each in self.made.model.parameters() if each.grad is not None]
        return bool(torch.nn.utils.get_total_norm(gradients).isfinite())


def find(
    network: str, kind: str, *, looks: int = 50, precision: str = "fp32", seed: int = 0, device: str = "cpu",
    seconds: float = math.inf,
) -> dict[str, Any]:  # fmt: skip
    """Look until it is found."""
    began = time.perf_counter()
    job = _Job(network, device, precision)
    planted = Planted(KINDS[kind], seed)
    recorder = Recorder(job.place, label="pretend:0" if device == "cpu" else device, seed=seed)
    said: dict[str, Any] = {"network": network, "kind": kind, "precision": precision, "found": None, "named": False}
    with planted:
        job.step()
        if not planted.choices:
            return {**said, "none": True}
        planted.target = random.Random(seed).choice(sorted(set(planted.choices)))
        said["target"] = planted.target
        for number in range(1, looks + 1):
            with recorder.look(number):
                job.step()
            recorder.wait()
            for case in recorder.taken():
                finding = compare_here(case)
                if not finding.agrees:
                    named = finding.operator.startswith(f"{planted.target.partition(' ')[0]} in ")
                    return {**said, "found": number, "named": named, "text": finding.text}
            if time.perf_counter() - began > seconds and number >= FEWEST:
                row = {"shown": planted.shown, "looks": number, "late": number < looks}
                return {**said, **row} if planted.shown else {**said, "none": True}
    return {**said, "shown": planted.shown, "looks": looks} if planted.shown else {**said, "none": True}


def curve(
    network: str, family: str, precision: str, *, device: str = "cpu", looks: int = 2, seed: int = 0
) -> dict[str, Any]:
    """One operator of a family is off by a share of its result: which shares does a look at it see?"""
    names = FAMILIES[family]
    job = _Job(network, device, precision)
    seen: dict[str, bool] = {}
    planted = Planted((names, lambda out: out, 1.0, ""), seed)
    with planted:
        job.step()
    if not planted.choices:
        return {"network": network, "family": family, "precision": precision, "none": True}
    target = random.Random(seed).choice(sorted(set(planted.choices)))
    for size in SIZES:
        planted = Planted((names, lambda out, size=size: out * (1.0 + size), 1.0, ""), seed)  # type: ignore[misc]
        planted.target = target
        recorder = Recorder(job.place, label="pretend:0" if device == "cpu" else device, seed=seed)
        recorder.everything = True
        found = False
        for number in range(looks):
            with planted, recorder.look(number):
                job.step()
            recorder.wait()
            cases = [case for case in recorder.taken() if case.title == target.partition(" ")[0]]
            found = found or any(not compare_here(case).agrees for case in cases)
        seen[f"{size:g}"] = found
    return {"network": network, "family": family, "precision": precision, "target": target, "seen": seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, default=50)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for network in words.networks.split(","):
        for number, kind in enumerate(KINDS):
            row = find(network, kind, looks=words.looks, seed=number)
            if not row.get("none"):
                rows.append(row)
                print(json.dumps(row), flush=True)
    found = [row for row in rows if row["found"]]
    summary = {"planted": len(rows), "found": len(found), "named": sum(row["named"] for row in found)}
    print(json.dumps(summary))
    if words.out:
        words.out.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
