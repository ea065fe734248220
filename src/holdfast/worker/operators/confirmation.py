"""Is it so? An operator that disagreed, computed again: the same numbers, other numbers, in a fresh process.

    folder = write_up(folder, case, finding, "cuda:0")               # case.safetensors, finding.json, again.py
    again = repeat(case, device, tries=3)                            # [Finding, …] in this process
    python -m holdfast.worker.operators.confirmation FOLDER --device cuda:0       # in a process of its own, JSON out

One disagreement is a suspicion. It is confirmed if most of the repetitions disagree as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.folders import Folder
from holdfast.injection import ailments
from holdfast.state.torch_private import without_dispatch_modes

if __name__ == "__main__" and "--parent" in sys.argv:  # before torch, which takes seconds to import
    processes.die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))

import torch
from torch import Tensor

from holdfast.worker.operators.case import DTYPES, Case, Slot, decoded, filled, operator, shape_of
from holdfast.worker.operators.comparison import METHOD, Finding, compare
from holdfast.worker.operators.recorder import Recorder

CASE, NUMBERS, SCRIPT = "case.safetensors", "finding.json", "again.py"
TRIES = 3


def compare_here(case: Case) -> Finding:
    """In this process, where the device may be a pretended one: the CPU's answer is never computed by it."""
    with without_dispatch_modes():
        return compare(case)


def repeat(case: Case, device: torch.device, *, tries: int = TRIES, label: str = "") -> list[Finding]:
    """The same inputs where all of them were kept, then random ones of the same shapes. What cannot be done is not."""
    findings = []
    for number in range(tries):
        for again in _again(case, device, number, label):
            findings.append(compare_here(again))
    return findings


def _again(case: Case, device: torch.device, number: int, label: str) -> list[Case]:
    """The operator once more on the device, recorded as in training."""
    kwargs, shapes = case.kwargs, None
    args = case.args
    if case.full:
        args, kwargs, shapes = [], decoded(case.full["kwargs"]), case.full["shapes"]
    if number == 0 and not case.full:
        tensors = [each.to(device) for each in case.tensors]
    else:
        listed = shapes if shapes is not None else [_described(each) for each in case.tensors]
        tensors = [made(each, 1000 * number + place).to(device) for place, each in enumerate(listed)]
        _as_measured(case, kwargs, tensors)
    recorder = Recorder(device, label=label or case.device, seed=number)
    recorder.everything = True
    call = operator(case.name, case.overload)
    with torch.no_grad(), _in_part(case.part), recorder.look(case.step):
        call(*filled(args, tensors), **filled(kwargs, tensors))
    recorder.wait()
    found = [each for each in recorder.taken() if each.name == case.name]
    for each in found:
        each.part = case.part
    return found


@contextlib.contextmanager
def _in_part(part: str) -> Iterator[None]:
    ailments.repeating.append(part)
    try:
        yield
    finally:
        ailments.repeating.pop()


def _described(tensor: Tensor) -> dict[str, Any]:
    shape = shape_of(tensor)
    return {"sizes": shape.sizes, "strides": shape.strides, "dtype": shape.dtype, "largest": shape.largest}


def _as_measured(case: Case, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """What is a deviation or a variance is not negative."""
    for name in ("rstd", "save_var", "save_invstd", "running_var"):
        place = kwargs.get(name)
        if isinstance(place, Slot):
            tensors[place.number].abs_().add_(0.1)


def made(shape: dict[str, Any], seed: int) -> Tensor:
    """Random numbers of this shape and layout."""
    source = torch.Generator().manual_seed(seed)
    dtype, sizes = DTYPES[shape["dtype"]], shape["sizes"]
    if dtype.is_floating_point:
        values = torch.randn(sizes, generator=source).to(dtype)
    elif dtype == torch.bool:
        values = torch.randint(0, 2, sizes, generator=source).bool()
    else:
        values = torch.randint(0, int(max(0, shape.get("largest", 0))) + 1, sizes, generator=source).to(dtype)
    order = sorted(range(len(sizes)), key=lambda dim: -shape["strides"][dim])
    back = [order.index(dim) for dim in range(len(sizes))]
    return values.permute(order).contiguous().permute(back) if len(sizes) > 1 else values


def confirmed(findings: list[Finding]) -> bool:
    """Most of the repetitions disagree, and there were two at least."""
    told = [each for each in findings if not each.skipped]
    wrong = sum(not each.agrees for each in told)
    return wrong >= 2 and 2 * wrong > len(told)


def write_up(folder: Path, case: Case, finding: Finding, device: str) -> Path:
    """Everything a stranger needs."""
    told = {**finding.to_json(), "text": finding.text, "method": METHOD, "device": device, "case": case.to_json()}
    files = {
        CASE: case.packed(),
        NUMBERS: f"{json.dumps(told, indent=2, default=str)}\n".encode(),
        SCRIPT: _script(case, finding, device).encode(),
    }
    with (
        Folder.at(folder.parent.parent) as run,
        run.below(folder.parent.name, make=True) as all_of_them,
        all_of_them.below(folder.name, make=True) as here,
    ):
        for name, data in files.items():
            here.replace(name, data)
    return folder


def _script(case: Case, finding: Finding, device: str) -> str:
    shapes = case.full["shapes"] if case.full else [_described(each) for each in case.tensors]
    sizes = ", ".join(f"{each['dtype']}{each['sizes']}" for each in shapes)
    return f'''"""{case.described()}: does {device} compute it as the CPU does?

{finding.text}

    python again.py                    # with holdfast installed; the numbers are in {CASE}
"""
# whole operator: {case.name}.{case.overload or "default"}({sizes})
from pathlib import Path

import torch

from holdfast.worker.operators.case import Case
from holdfast.worker.operators.comparison import compare
from holdfast.worker.operators.confirmation import open_device, repeat

case = Case.load(Path(__file__).with_name("{CASE}"))
print("as recorded:", compare(case).text)
for number, finding in enumerate(repeat(case, open_device("{device}"))):
    print("again" if number == 0 else "other numbers", "agrees" if finding.agrees else finding.text)
'''


def open_device(label: str) -> torch.device:
    """As a worker opens it. A pretended device that computes wrongly does so here as well."""
    if not label.startswith("pretend"):
        return torch.device(label)
    from holdfast.injection import pretend

    pretend.be_wrong(label)
    return pretend.DEVICE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.worker.operators.confirmation", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = Case.load(args.folder / CASE)
    _as_it_was(case)
    try:
        findings = repeat(case, open_device(args.device), label=args.device)
    except Exception as error:  # whatever a device raises: nothing is confirmed by it
        print(json.dumps({"confirmed": False, "why": f"{type(error).__name__}: {str(error)[:200]}"}), flush=True)
        return 0
    wrong = [each.text for each in findings if not each.agrees]
    said = {
        "confirmed": confirmed(findings),
        "by": f"a fresh process ({os.getpid()})",
        "tries": len(findings),
        "wrong": len(wrong),
        "why": wrong[0] if wrong else "the operator agrees with the CPU when it is computed again",
        "method": METHOD,
    }
    print(json.dumps(said), flush=True)
    return 0


def _as_it_was(case: Case) -> None:
    """Products of fp32 as the run computed them."""
    torch.set_float32_matmul_precision({"tf32": "high", "bf16": "medium"}.get(case.precision, "highest"))
    if case.device.startswith("cuda"):
        torch.backends.cudnn.allow_tf32 = case.precision == "tf32" or "conv" not in case.name


if __name__ == "__main__":
    sys.exit(main())
