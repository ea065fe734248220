"""Where the time of a call goes, by layer: of a torch module by hooks, of an engine by its own profiler.

rows = profile(folder, about, subject, inputs)      # [{"layer": "layers.0", "kind": "Linear", "seconds": 0.004}, …]

The rows are in order of their share. An engine that does not say gives none.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]
Times = dict[tuple[str, str], list[float]]
"""Seconds in each call, by layer and kind."""
CALLS = 5


def profile(folder: Path, about: dict[str, Any], subject: dict[str, Any], inputs: list[Any]) -> Rows:
    """The median of a few calls at batch 1."""
    one = [np.ascontiguousarray(each[:1]) for each in inputs]
    if about["engine"] == "onnxruntime":
        found = _onnxruntime(folder / about["file"], about, one)
    elif about["engine"] == "openvino":
        found = _openvino(folder / about["file"], about, one)
    else:
        found = _torch(subject, about, one)
    medians = {key: statistics.median(times) for key, times in found.items()}  # one call may have had to wait
    rows = [{"layer": key[0], "kind": key[1], "seconds": seconds} for key, seconds in medians.items() if seconds > 0]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _torch(subject: dict[str, Any], about: dict[str, Any], one: list[Any]) -> Times:
    """Time of each module without that of the modules inside it."""
    import torch

    from holdfast.optimize.subject import load_model

    torch.set_num_threads(int(about["threads"]))
    model = load_model(subject["spec"]).eval()
    torch.backends.mha.set_fastpath_enabled(False)  # one fused call would hide what is inside
    spent: Times = {}
    open_calls: list[list[float]] = []

    def before(module: Any, _: Any) -> None:
        open_calls.append([time.perf_counter(), 0.0])

    def after(name: str) -> Any:
        def hook(module: Any, _: Any, __: Any) -> None:
            began, inside = open_calls.pop()
            took = time.perf_counter() - began
            key = (name or "(the rest)", type(module).__name__)
            spent.setdefault(key, []).append(took - inside)
            if open_calls:
                open_calls[-1][1] += took

        return hook

    tensors = [torch.from_numpy(each) for each in one]
    with torch.inference_mode():
        model(*tensors)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after(name))
        for _ in range(CALLS):
            model(*tensors)
    return spent


def _onnxruntime(path: Path, about: dict[str, Any], one: list[Any]) -> Times:
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


def _openvino(path: Path, about: dict[str, Any], one: list[Any]) -> Times:
    from holdfast.optimize.engines import openvino_settings, quiet_openvino

    openvino = quiet_openvino()
    core = openvino.Core()
    request = core.compile_model(
        core.read_model(path), "CPU", {**openvino_settings(about), "PERF_COUNT": True}
    ).create_infer_request()
    spent: Times = {}
    request.infer(one)
    for _ in range(CALLS):
        request.infer(one)
        for info in request.profiling_info:
            key = (info.node_name, info.node_type)
            spent.setdefault(key, []).append(info.real_time.total_seconds())
    return spent
