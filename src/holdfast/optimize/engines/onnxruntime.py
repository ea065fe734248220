"""ONNX Runtime, on the CPU: fp32, and the smaller numbers its quantizers make."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from holdfast.optimize.engines.running import CALLS, Arrays, Engine, Predict, Times
from holdfast.optimize.model_files import check_onnx

FILE = "model.onnx"
PRECISIONS = ("fp32", "fp16", "int8-dynamic", "int8-static", "int8-weights")
PACKAGES = ("onnxruntime", "onnx")
ONNX = "needed"
PREDICT = Predict(
    "onnxruntime, numpy",
    "import onnxruntime",
    """options = onnxruntime.SessionOptions()
{options}session = onnxruntime.InferenceSession(str(HERE / "{file}"), options, providers=["CPUExecutionProvider"])
names, kinds = [each.name for each in session.get_inputs()], [np.dtype(each) for each in {kinds}]
outputs = [each.name for each in session.get_outputs()]

def predict({arguments}):
    return {post}(session.run(outputs, {{{feed}}}))
""",
)
ALONE = True
"""Its own settings may be faster for a program that does nothing else: both are measured."""
_CAREFUL = """options.intra_op_num_threads = {threads}
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
"""


def blanks(about: dict[str, Any]) -> dict[str, str]:
    """Each input is written out: a loop over them takes 5 microseconds, and small models answer in 30."""
    count = range(len(about["inputs"]))
    return {
        "options": "" if about.get("alone") is True else _CAREFUL.format(threads=int(about["threads"])),
        "arguments": ", ".join(f"x{number}" for number in count),
        "feed": ", ".join(f"names[{number}]: np.asarray(x{number}, kinds[{number}])" for number in count),
    }


def load(path: Path, about: dict[str, Any]) -> Engine:
    import onnxruntime

    check_onnx(path)
    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(about["threads"])
    # Threads that go on spinning after a call take the processor from whoever is next: from the baseline while it is
    # compared, which would make this engine look many times faster than it is, and later from the server's own work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if about["precision"] == "defaults" or about.get("spin") is True:
        options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[NDArray[Any]]) -> Arrays:
        found: Arrays = session.run(None, dict(zip(names, inputs, strict=True)))
        return found

    return Engine(run)


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    from holdfast.optimize.build import onnx_of

    source = onnx_of(work, about)
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
        quantize_static(work, source, target, [each["name"] for each in about["inputs"]])


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


def quantize_static(work: Path, source: Path, target: Path, names: list[str]) -> None:
    """With ranges found on real inputs. OpenVINO reads such a file, too."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from holdfast.optimize.build import calibration_rows

    ready = target.with_suffix(".ready.onnx")
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    quantization.CalibrationDataReader.register(_Reader)
    quantization.quantize_static(
        ready, target, _Reader(calibration_rows(work, names)),  # type: ignore[arg-type,unused-ignore]
        quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        weight_type=quantization.QuantType.QInt8, activation_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    ready.unlink(missing_ok=True)


def profile(path: Path, about: dict[str, Any], one: Sequence[Any]) -> Times:
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="holdfast-profile-") as place:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(about["threads"])
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(place) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        given = {port.name: array for port, array in zip(session.get_inputs(), one, strict=True)}
        for _ in range(CALLS):
            session.run(None, given)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: Times = {}
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time"):
            name = str(event["name"]).removesuffix("_kernel_time")
            key = (name, str(event.get("args", {}).get("op_name", "")))
            spent.setdefault(key, []).append(float(event["dur"]) / 1e6)
    return spent
