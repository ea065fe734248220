"""A built model, loaded and run: numpy arrays in, numpy arrays out. One small class for each engine.

    engine = load(folder, {"engine": "onnxruntime", "file": "model.onnx", "threads": 2, "inputs": [{"name": "x"}]})
    engine.run([windows])            # a list of arrays, one for each output

ONNX Runtime and OpenVINO need no torch; the torch engines import it when they are loaded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
FILES = {
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "export": "model.pt2",
    "torchscript": "model.ts",
    "aot": "model.pt2",
}


class Engine:
    """What runs a model."""

    def __init__(self, run: Callable[[Sequence[NDArray[Any]]], Arrays], *, one_by_one: bool = False) -> None:
        self._run, self._one_by_one = run, one_by_one

    def run(self, inputs: Sequence[NDArray[Any]]) -> Arrays:
        """All outputs for a batch."""
        if not self._one_by_one or len(inputs[0]) == 1:
            return self._run(inputs)
        parts = [self._run([each[at : at + 1] for each in inputs]) for at in range(len(inputs[0]))]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def run_all(self, inputs: Sequence[NDArray[Any]], batch: int = 32) -> Arrays:
        """As many inputs as there are, in pieces."""
        count = len(inputs[0])
        parts = [self.run([each[at : at + batch] for each in inputs]) for at in range(0, count, batch)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def load(folder: Path, about: dict[str, Any]) -> Engine:
    """The engine of a built candidate or a bundle."""
    return _LOADERS[about["engine"]](folder / about["file"], about)


def _onnxruntime(path: Path, about: dict[str, Any]) -> Engine:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(about["threads"])
    # Threads that go on spinning after a call take the processor from whoever is next: from the baseline while it is
    # compared, which would make this engine look many times faster than it is, and later from the server's own work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if about["precision"] == "defaults":
        options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[NDArray[Any]]) -> Arrays:
        found: Arrays = session.run(None, dict(zip(names, inputs, strict=True)))
        return found

    return Engine(run)


def openvino_settings(about: dict[str, Any]) -> dict[str, Any]:
    """How OpenVINO is asked to compile."""
    kinds = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
    return {
        "INFERENCE_PRECISION_HINT": kinds.get(about["precision"], "f32"),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(about["threads"]),
        "NUM_STREAMS": "1",
    }


def quiet_openvino() -> Any:
    """The package, which would tell its makers that it was imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as if it were not installed
    import openvino

    return openvino


def _openvino(path: Path, about: dict[str, Any]) -> Engine:
    openvino = quiet_openvino()
    core = openvino.Core()
    model = core.read_model(path)
    if about.get("fixed"):
        model.reshape({number: [1, *each["shape"]] for number, each in enumerate(about["inputs"])})
    request = core.compile_model(model, "CPU", openvino_settings(about)).create_infer_request()
    count = len(about["outputs"])

    def run(inputs: Sequence[NDArray[Any]]) -> Arrays:
        request.infer([np.ascontiguousarray(each) for each in inputs], share_inputs=True)
        return [np.array(request.get_output_tensor(number).data) for number in range(count)]

    return Engine(run, one_by_one=bool(about.get("fixed")))


def _export(path: Path, about: dict[str, Any]) -> Engine:
    import torch

    return of_module(torch.export.load(path).module(), about)


def _torchscript(path: Path, about: dict[str, Any]) -> Engine:
    import torch

    return of_module(torch.jit.load(str(path)), about)


def _aot(path: Path, about: dict[str, Any]) -> Engine:
    import torch

    return of_module(torch._inductor.aoti_load_package(str(path)), about)


_LOADERS: dict[str, Callable[[Path, dict[str, Any]], Engine]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "export": _export,
    "torchscript": _torchscript,
    "aot": _aot,
}


def of_module(module: Any, about: dict[str, Any], *, gradients: bool = False) -> Engine:
    """Something that takes and gives tensors."""
    import torch

    torch.set_num_threads(int(about["threads"]))
    device = torch.device(about.get("device", "cpu"))
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(about["precision"])
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
