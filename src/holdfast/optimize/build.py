"""What engines make their files of: the module, its graph, or its ONNX file. Runs in a child process of its own.

    export_onnx(work, model, Path("model.onnx"), names, outputs)       # once; ONNX Runtime and OpenVINO start from it
    model_of(work, about)                                              # the module, rewritten as the candidate asks
    program(work, about)                                               # its graph, by torch.export
    onnx_of(work, about)                                               # its ONNX file
    calibration_rows(work, names)                                      # real inputs, one at a time

A model that cannot be exported is told with the operator that stands in the way; the other engines go on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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


def model_of(work: Path, about: dict[str, Any]) -> Any:
    """The module as this candidate wants it."""
    from holdfast.optimize.subject import load_model

    model = load_model(about["spec"]).eval()
    if about.get("merge", 1) > 1:
        from holdfast.optimize.rewrite import merged

        model = merged(model, examples(work, 1), int(about["merge"])).eval()
    return model


def program(work: Path, about: dict[str, Any]) -> Any:
    return exported(model_of(work, about), tuple(examples(work)))


def exported(model: Any, given: tuple[Any, ...], *, gathered: bool = False) -> Any:
    """The graph of a module, for batches of any size; `gathered` if its forward takes *inputs."""
    import torch

    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes: Any = tuple({0: batch} for _ in given)
    with torch.no_grad():
        return torch.export.export(model, given, dynamic_shapes=(shapes,) if gathered else shapes)


def onnx_of(work: Path, about: dict[str, Any]) -> Path:
    """The exported file that this candidate starts from; one of its own if the model was rewritten for it."""
    if about.get("merge", 1) == 1:
        return work / ONNX
    target = work / f"merge{about['merge']}.onnx"
    if not target.exists():
        names = [[each["name"] for each in about[key]] for key in ("inputs", "outputs")]
        export_onnx(work, model_of(work, about), target, *names)
    return target


def calibration_rows(work: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """Up to MOST_CALIBRATION real inputs."""
    found = arrays(work / "calibration.npz")
    for at in range(min(len(found[0]), MOST_CALIBRATION)):
        yield {name: each[at : at + 1] for name, each in zip(names, found, strict=True)}
