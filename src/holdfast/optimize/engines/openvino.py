"""OpenVINO, on the CPU. It reads the ONNX file, or the module itself where ONNX has no operator for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.optimize.engines.running import CALLS, Arrays, Engine, Predict, Times
from holdfast.optimize.model_files import check_openvino

if TYPE_CHECKING:
    from holdfast.optimize.processor import Machine

FILE = "model.xml"
PRECISIONS = ("fp32", "fp16", "bf16", "int8-static")
PACKAGES = ("openvino",)
ONNX = "used"
FIXED = True
PREDICT = Predict(
    "openvino, numpy",
    'sys.modules.setdefault("openvino_telemetry", None)  # it would tell its makers\nimport openvino',
    """settings = {settings}
core = openvino.Core()
model = core.read_model(HERE / "{file}")
{fixed}run = core.compile_model(model, "CPU", settings)

def predict(*inputs):
    inputs = [np.asarray(x, kind) for x, kind in zip(inputs, {kinds})]
    return {post}({answers})
""",
)
_ANSWERS = "[*run(inputs).values()]"
_ONE_BY_ONE = (
    f"{_ANSWERS} if len(inputs[0]) == 1 else [np.concatenate(each) for each in zip(\n"
    "        *(run([x[at : at + 1] for x in inputs]).values() for at in range(len(inputs[0]))))]"
)


def blanks(about: dict[str, Any]) -> dict[str, str]:
    fixed = ""
    if about.get("fixed"):
        sizes = {number: [1, *map(int, each["shape"])] for number, each in enumerate(about["inputs"])}
        fixed = f"model.reshape({sizes!r})  # one input at a time: it is faster that way\n"
    return {"settings": repr(_settings(about)), "fixed": fixed, "answers": _ONE_BY_ONE if fixed else _ANSWERS}


def why_not(precision: str, machine: Machine) -> str:
    """Static int8 begins with the ranges that ONNX Runtime finds."""
    missing = [name for name in ("onnx", "onnxruntime") if name not in machine.packages]
    return machine.without(missing[0]) if precision == "int8-static" and missing else ""


def _settings(about: dict[str, Any]) -> dict[str, Any]:
    """How OpenVINO is asked to compile."""
    kinds = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
    return {
        "INFERENCE_PRECISION_HINT": kinds.get(about["precision"], "f32"),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(about["threads"]),
        "NUM_STREAMS": "1",
    }


def _quiet() -> Any:
    """The package, which would tell its makers that it was imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as if it were not installed
    import openvino

    return openvino


def load(path: Path, about: dict[str, Any]) -> Engine:
    check_openvino(path)
    openvino = _quiet()
    core = openvino.Core()
    model = core.read_model(path)
    if about.get("fixed"):
        model.reshape({number: [1, *each["shape"]] for number, each in enumerate(about["inputs"])})
    request = core.compile_model(model, "CPU", _settings(about)).create_infer_request()
    count = len(about["outputs"])

    def run(inputs: Sequence[NDArray[Any]]) -> Arrays:
        request.infer([np.ascontiguousarray(each) for each in inputs], share_inputs=True)
        return [np.array(request.get_output_tensor(number).data) for number in range(count)]

    return Engine(run, one_by_one=bool(about.get("fixed")))


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    from holdfast.optimize.build import ONNX as EXPORTED
    from holdfast.optimize.build import CannotExport, examples, model_of, onnx_of
    from holdfast.optimize.engines.onnxruntime import quantize_static

    openvino = _quiet()
    if (work / EXPORTED).exists():
        source = onnx_of(work, about)
        if about["precision"] == "int8-static":  # the ranges ONNX Runtime found; OpenVINO reads them
            source = target.with_suffix(".ranges.onnx")
            quantize_static(work, onnx_of(work, about), source, [each["name"] for each in about["inputs"]])
        model = openvino.Core().read_model(source)
    else:  # what ONNX has no operator for, OpenVINO may read off the module itself
        given = examples(work)
        if about["precision"] == "int8-static":
            raise CannotExport("static int8 starts from ONNX, and it cannot be exported to that")
        model = openvino.convert_model(
            model_of(work, about), example_input=tuple(given) if len(given) > 1 else given[0]
        )
        for port, each in zip(model.inputs, about["inputs"], strict=True):
            port.get_node().set_partial_shape(openvino.PartialShape([-1, *each["shape"]]))
        model.validate_nodes_and_infer_types()
    openvino.save_model(model, target, compress_to_fp16=False)
    target.with_suffix(".ranges.onnx").unlink(missing_ok=True)


def profile(path: Path, about: dict[str, Any], one: Sequence[Any]) -> Times:
    openvino = _quiet()
    core = openvino.Core()
    request = core.compile_model(
        core.read_model(path), "CPU", {**_settings(about), "PERF_COUNT": True}
    ).create_infer_request()
    spent: Times = {}
    request.infer(one)
    for _ in range(CALLS):
        request.infer(one)
        for info in request.profiling_info:
            key = (info.node_name, info.node_type)
            spent.setdefault(key, []).append(info.real_time.total_seconds())
    return spent
