"""Weights of a detector of ours on disk: safetensors, and beside them `detector.json`, which says what they are for.

keep_about(run_folder, net, checked, side)             # written before the first step
net, about = load("runs/detection-…")                  # a run, or a .safetensors file beside its detector.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.detection import pretrained, saved, tensors
from holdfast.workloads.detection.index import Checked
from holdfast.workloads.detection.model import Detector


def keep_about(folder: Path, net: Detector, checked: Checked, side: int, classes: str = "") -> None:
    files.write_json(
        folder / saved.ABOUT,
        {"schema": 1, "size": net.size, "channels": net.channels, "names": checked.names, "imgsz": side,
         "backbone": net.named, "data": checked.file, "classes": classes, "generated": checked.generated},
    )  # fmt: skip


def load(where: Path) -> tuple[Detector, dict[str, Any]]:
    """The trained detector of a run, or of a file; in evaluation mode."""
    path, about = saved.find(where)
    net = Detector(len(about["names"]), int(about["channels"]), str(about["size"]), str(about.get("backbone", "")))
    fitting = pretrained.ours(tensors.read(path), net)
    missing = [key for key in net.state_dict() if key not in fitting]
    if missing:
        raise UserError(f"the weights in {path} do not fit", cause=f"`{missing[0]}` is missing or has another shape")
    net.load_state_dict(fitting)
    return net.eval(), about
