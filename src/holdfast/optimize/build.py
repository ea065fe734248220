"""Building a candidate: from a torch module to the file that an engine loads. Runs in a child process of its own.

    export_onnx(model, inputs, Path("model.onnx"), names, outputs)     # once; ONNX Runtime and OpenVINO start from it
    build(work, about, folder)                                         # the candidate `about` names, into `folder`

A model that cannot be exported is told with the operator that stands in the way; the other engines go on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.optimize.engines import quiet_openvino
from holdfast.optimize.subject import arrays

ONNX = "model.onnx"
MOST_CALIBRATION = 128


class CannotExport(Exception):
    """The exporter's reason in a line, with the operator where it names one."""


def examples(work: Path, count: int = 2) -> list[Any]:
    """Two real inputs: an exporter takes a batch of one for a fixed size."""
    import torch

    found = arrays(work / "inputs.npz")
    return [torch.from_numpy(np.resize(each[:count], (count, *each.shape[1:]))) for each in found]


def export_onnx(work: Path, model: Any, target: Path, inputs: list[str], outputs: list[str]) -> str:
    """Write the ONNX file; returns which exporter did it."""
    import torch

    given = tuple(examples(work))
    model = model.eval()
    batch = torch.export.Dim("batch", min=1, max=4096)
    reasons = []
    for way in ("dynamo", "torchscript"):
        more: dict[str, Any] = (
            {"dynamo": True, "dynamic_shapes": tuple({0: batch} for _ in given), "verbose": False}
            if way == "dynamo"
            else {"dynamo": False, "dynamic_axes": {name: {0: "batch"} for name in (*inputs, *outputs)}}
        )
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                torch.backends.mha.set_fastpath_enabled(False)
                torch.onnx.export(model, given, str(target), input_names=inputs, output_names=outputs, **more)
            _check(target)
            return way
        except Exception as error:  # exporters raise whatever they meet
            reasons.append(_operator(error))
    raise CannotExport(next((each for each in reasons if "operator" in each), reasons[0]))


def _check(target: Path) -> None:
    import onnx

    model = onnx.load(target, load_external_data=True)
    if not model.graph.node:
        raise ValueError("the exported graph is empty")
    del model.graph.value_info[:]  # sizes of the example that an exporter left in it: quantizers stumble over them
    onnx.save(model, target)  # one file: weights that were written beside it come in
    for beside in target.parent.glob(f"{target.name}.data"):
        beside.unlink()


def _operator(error: BaseException) -> str:
    """Which operator it was, out of a message of many lines."""
    text, seen = "", error
    while seen is not None:
        text += f"{seen}\n"
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    for pattern in (
        r"operator '?([\w:.]+)'? to ONNX",
        r"OpOverload\(op='([\w:.]+)'",
        r"(aten[.:]+[\w.:]+)[^\n]*not supported",
        r"[Uu]nsupported (?:operator|function)[:\s'\"]+([\w:.]+)",
        r"\b((?:aten|prims|torchvision|prim)[:.]{1,2}[\w.]+)",
    ):
        match = re.search(pattern, text)
        if match:
            return f"the operator {match[1]} cannot be exported to ONNX"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"it cannot be exported to ONNX: {(lines or [type(error).__name__])[0][:200]}"


def build(work: Path, about: dict[str, Any], folder: Path) -> None:
    """Make the file of a candidate."""
    folder.mkdir(parents=True, exist_ok=True)
    {
        "export": _export,
        "torchscript": _torchscript,
        "aot": _aot,
        "onnxruntime": _onnxruntime,
        "openvino": _openvino,
    }[about["engine"]](work, about, folder / about["file"])


def model_of(work: Path, about: dict[str, Any]) -> Any:
    """The module as this candidate wants it."""
    from holdfast.optimize.subject import load_model

    model = load_model(about["spec"]).eval()
    if about.get("merge", 1) > 1:
        from holdfast.optimize.rewrite import merged

        model = merged(model, examples(work, 1), int(about["merge"])).eval()
    return model


def _program(work: Path, about: dict[str, Any]) -> Any:
    import torch

    given = tuple(examples(work))
    batch = torch.export.Dim("batch", min=1, max=4096)
    with torch.no_grad():
        return torch.export.export(model_of(work, about), given, dynamic_shapes=tuple({0: batch} for _ in given))


def _export(work: Path, about: dict[str, Any], target: Path) -> None:
    import torch

    torch.export.save(_program(work, about), target)


def _torchscript(work: Path, about: dict[str, Any], target: Path) -> None:
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model_of(work, about), tuple(examples(work)), check_trace=False)
        torch.jit.freeze(traced).save(str(target))


def _aot(work: Path, about: dict[str, Any], target: Path) -> None:
    import torch

    torch._inductor.aoti_compile_and_package(_program(work, about), package_path=str(target))


def _onnx(work: Path, about: dict[str, Any]) -> Path:
    """The exported file that this candidate starts from; one of its own if the model was rewritten for it."""
    if about.get("merge", 1) == 1:
        return work / ONNX
    target = work / f"merge{about['merge']}.onnx"
    if not target.exists():
        names = [[each["name"] for each in about[key]] for key in ("inputs", "outputs")]
        export_onnx(work, model_of(work, about), target, *names)
    return target


# ONNX Runtime ---------------------------------------------------------------------------------------------------


def _onnxruntime(work: Path, about: dict[str, Any], target: Path) -> None:
    source = _onnx(work, about)
    if about["precision"] in ("fp32", "defaults"):
        target.write_bytes(source.read_bytes())
    elif about["precision"] == "fp16":
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)
    elif about["precision"] == "int8-dynamic":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)
    elif about["precision"] == "int8-weights":
        import onnx
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        smaller = MatMulNBitsQuantizer(onnx.load(source), bits=8, block_size=32, is_symmetric=True)
        smaller.process()
        smaller.model.save_model_to_file(str(target))
    else:
        _static_onnx(work, source, target, [each["name"] for each in about["inputs"]])


class _Reader:
    """Calibration inputs as ONNX Runtime wants them, one at a time."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self._rows = rows

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._rows

    def set_range(self, start_index: int, end_index: int) -> None:
        raise NotImplementedError


def calibration_rows(work: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """Up to MOST_CALIBRATION real inputs."""
    found = arrays(work / "calibration.npz")
    for at in range(min(len(found[0]), MOST_CALIBRATION)):
        yield {name: each[at : at + 1] for name, each in zip(names, found, strict=True)}


def _static_onnx(work: Path, source: Path, target: Path, names: list[str]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = target.with_suffix(".ready.onnx")
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    CalibrationDataReader.register(_Reader)
    quantize_static(
        ready, target, _Reader(calibration_rows(work, names)),  # type: ignore[arg-type,unused-ignore]
        quant_format=QuantFormat.QDQ, per_channel=True, weight_type=QuantType.QInt8, activation_type=QuantType.QInt8,
    )  # fmt: skip
    ready.unlink(missing_ok=True)


# OpenVINO -------------------------------------------------------------------------------------------------------


def _openvino(work: Path, about: dict[str, Any], target: Path) -> None:
    openvino = quiet_openvino()
    if (work / ONNX).exists():
        source = _onnx(work, about)
        if about["precision"] == "int8-static":  # the ranges ONNX Runtime found; OpenVINO reads them
            source = target.with_suffix(".ranges.onnx")
            _static_onnx(work, _onnx(work, about), source, [each["name"] for each in about["inputs"]])
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
