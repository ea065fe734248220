"""A built model that runs: numpy arrays in, numpy arrays out.

Engine(run).run([windows])                    # a list of arrays, one for each output
of_module(module, about)                      # anything of torch that takes and gives tensors
torch_predict("torch.jit.load(…)")            # what such an engine writes into a bundle's predict.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
Times = dict[tuple[str, str], list[float]]
"""Seconds in each call, by layer and kind."""
HALF = {"bf16": "bfloat16", "fp16": "float16"}
"""Precisions that autocast gives, and what torch calls them."""
CALLS = 5
"""Calls of a profile; their median is told."""


@dataclass(frozen=True, slots=True)
class Predict:
    """What an engine needs in the `predict.py` of a bundle: see optimize/predict_template.py."""

    needs: str
    """What has to be installed: `onnxruntime, numpy`."""
    imports: str
    body: str
    """Defines `predict(*inputs)`. {threads}, {file}, {kinds}, {count}, {post} and what `blanks` gives are filled in."""

    def fill(self, about: dict[str, Any], post: str, blanks: dict[str, str]) -> str:
        """The body for this candidate; `post` is what its outputs go through."""
        return self.body.format(
            threads=int(about["threads"]),
            file=about["file"],
            post=post,
            kinds=repr([each["dtype"] for each in about["inputs"]]),
            count=len(about["outputs"]),
            **blanks,
        )


class Engine:
    """What runs a model."""

    def __init__(
        self,
        run: Callable[[Sequence[NDArray[Any]]], Arrays],
        *,
        one_by_one: bool = False,
        together: Callable[[Sequence[Sequence[NDArray[Any]]]], Arrays] | None = None,
    ) -> None:
        self._run, self._one_by_one, self._together = run, one_by_one, together

    def run(self, inputs: Sequence[NDArray[Any]]) -> Arrays:
        """All outputs for a batch."""
        if not self._one_by_one or len(inputs[0]) == 1:
            return self._run(inputs)
        parts = [self._run([each[at : at + 1] for each in inputs]) for at in range(len(inputs[0]))]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def run_together(self, asked: Sequence[Sequence[NDArray[Any]]]) -> Arrays:
        """All outputs for the inputs of several callers, in their order."""
        if self._together is not None:
            return self._together(asked)
        return self.run([np.concatenate(column) for column in zip(*asked, strict=True)])

    def run_all(self, inputs: Sequence[NDArray[Any]], batch: int = 32) -> Arrays:
        """As many inputs as there are, in pieces."""
        count = len(inputs[0])
        parts = [self.run([each[at : at + batch] for each in inputs]) for at in range(0, count, batch)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def of_module(module: Any, about: dict[str, Any], *, gradients: bool = False) -> Engine:
    """Something that takes and gives tensors."""
    import torch

    torch.set_num_threads(int(about["threads"]))
    device = torch.device(about.get("device", "cpu"))
    kind = getattr(torch, HALF[about["precision"]]) if about["precision"] in HALF else None
    if about["precision"] == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def run(inputs: Sequence[NDArray[Any]]) -> Arrays:
        quiet: Any = contextlib.nullcontext() if gradients else torch.inference_mode()
        cast: Any = contextlib.nullcontext() if kind is None else torch.autocast(device.type, dtype=kind)
        with quiet, cast:
            found = module(*(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in inputs))
        found = found if isinstance(found, (tuple, list)) else (found,)
        return [each.detach().float().cpu().numpy() for each in found]

    return Engine(run)


def torch_predict(load: str, needs: str = "torch, numpy", imports: str = "import torch") -> Predict:
    """For a file that gives a module of torch, by this expression."""
    return Predict(needs, imports, _TORCH.replace("{load}", load))


_TORCH = """torch.set_num_threads({threads})
module = {load}

def predict(*inputs):
    with torch.inference_mode():
        found = module(*(torch.from_numpy(np.asarray(x, kind)) for x, kind in zip(inputs, {kinds})))
    return {post}([each.float().numpy() for each in (found if isinstance(found, (tuple, list)) else [found])])
"""
