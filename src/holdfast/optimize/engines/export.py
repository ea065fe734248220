"""torch.export: the graph alone, run by PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.optimize.engines.running import Engine, of_module, torch_predict

FILE = "model.pt2"
PRECISIONS = ("fp32",)
PREDICT = torch_predict('torch.export.load(HERE / "{file}").module()')


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    import torch

    from holdfast.optimize.build import program

    torch.export.save(program(work, about), target)


def load(path: Path, about: dict[str, Any]) -> Engine:
    import torch

    return of_module(torch.export.load(path).module(), about)
