"""A bundle without torch: a linear model as ONNX, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast.optimize import bundle

WEIGHT = np.arange(12, dtype=np.float32).reshape(6, 2) / 10
SUBJECT: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [6], "dtype": "float32"}],
    "outputs": [{"name": "y", "shape": [2], "dtype": "float32"}],
    "post": None,
    "contract": {"given": "six numbers"},
}
CHOSEN = {"engine": "onnxruntime", "precision": "fp32", "threads": 1, "device": "cpu", "fixed": False}


def model(target: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 6), ("y", 2))]
    graph = helper.make_graph([node], "small", kinds[:1], kinds[1:], [numpy_helper.from_array(WEIGHT, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), target)


def make(folder: Path) -> Path:
    built = folder / "built"
    built.mkdir(parents=True)
    model(built / "model.onnx")
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    more = {"name": "small", "score": {"kind": "none"}, "measured": {"p50": 0.001}, "max_loss": 0.005}
    return bundle.write(folder / "bundle", built, CHOSEN, SUBJECT, {"i0": x, "o0": x @ WEIGHT}, more, "<p>report</p>")
