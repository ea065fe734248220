"""TorchScript: traced and frozen, where that still helps. Its file is a program: it is measured and never bundled."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from holdfast.optimize.engines.running import Engine, of_module, torch_predict

FILE = "model.ts"
PRECISIONS = ("fp32",)
BUNDLED = False
PREDICT = torch_predict('torch.jit.load(str(HERE / "{file}"))')


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    import torch

    from holdfast.optimize.build import examples, model_of

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model_of(work, about), tuple(examples(work)), check_trace=False)
        torch.jit.freeze(traced).save(str(target))


def load(path: Path, about: dict[str, Any]) -> Engine:
    import torch

    return of_module(torch.jit.load(str(path)), about)
