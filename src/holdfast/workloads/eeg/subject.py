"""A finished EEG run as something to make fast: its network, windows nobody trained on, and its score. Needs torch.

    model(folder, {})            # the network, with the column a caller wants
    subject(folder, {})          # a Subject with its validation windows

What a run folder holds is untrusted: it is read by the workload's own readers, which check it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from holdfast.base.errors import UserError
from holdfast.optimize.subject import MOST_VALIDATION, Subject, load_weights
from holdfast.workloads.eeg import cache, heads, models, serving, submission
from holdfast.workloads.eeg.splits import split


class _Column(nn.Module):
    """The number a caller wants out of what the net gives."""

    def __init__(self, net: nn.Module, column: int) -> None:
        super().__init__()
        self.net, self.column = net, column

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found[:, self.column : self.column + 1]


def model(folder: Path, spec: dict[str, Any]) -> nn.Module:
    about = submission.described(folder)
    net = serving.build(about, models, heads)
    load_weights(net, folder / "final.safetensors")
    return _Column(net, int(about["column"])).train()


def subject(folder: Path, spec: dict[str, Any]) -> Subject:
    about = submission.described(folder)
    windows = cache.open(Path(about["cache"]))
    name = str(about["names"][about["column"]])
    if name not in windows.table or len(windows.channels) != about["channels"] or windows.samples < about["samples"]:
        raise UserError(f"the windows in {windows.folder} are not those of {folder.name}")
    truth = windows.table[name]
    parts = split(windows.table, valid=about["valid"], test=about["test"], keep=np.isfinite(truth))
    rows = np.sort(
        np.random.default_rng(0).permutation(parts.test if len(parts.test) else parts.valid)[:MOST_VALIDATION]
    )
    calibration = np.sort(np.random.default_rng(1).permutation(parts.train)[:128])

    def cut(chosen: Any) -> Any:
        spare = windows.samples - int(about["samples"])
        return np.ascontiguousarray(windows.batch(chosen)[:, :, spare // 2 : spare // 2 + int(about["samples"])])

    contract = {
        "given": f"EEG in volts, {about['channels']} channels x {about['samples']} samples at {about['rate']:g} Hz",
        "channels": list(windows.channels),
        "rate_hz": about["rate"],
        "starts_after_stimulus_s": about.get("start"),
        "normalisation": "inside the model: each channel by its median and deviation, measured on training windows",
        "gives": f"{name}" + (" in seconds" if name == "response_time" else ""),
        "prepared_with": {key: windows.meta.get(key) for key in ("kind", "key", "parameters") if key in windows.meta},
    }
    notes = ["the windows are SIMULATED EEG"] if windows.simulated else []
    return Subject(
        folder.name, model(folder, spec), [cut(rows)], ["windows"], outputs=[name], calibration=[cut(calibration)],
        score={"kind": "regression"}, targets={"targets": truth[rows, None].astype(np.float64)}, contract=contract,
        notes=notes,
    )  # fmt: skip
