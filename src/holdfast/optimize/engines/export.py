"""torch.export: the graph alone, run by PyTorch; in a file of its own form (graph.py), which holds no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.optimize.engines.running import Engine, of_module, torch_predict

FILE = "model.json"
TRAVELS = ("graph.py",)
PRECISIONS = ("fp32",)
PREDICT = torch_predict('load(HERE / "{file}")', "torch, safetensors, numpy", "import torch\nfrom graph import load")


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    from holdfast.optimize.build import program
    from holdfast.optimize.graph_writer import write

    write(program(work, about), target)


def load(path: Path, about: dict[str, Any]) -> Engine:
    from holdfast.optimize.graph import load

    return of_module(load(path), about)
