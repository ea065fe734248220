"""Weights of a detector on disk: safetensors, and beside them `detector.json`, which says what they are for.

keep_about(run_folder, net, checked, side)             # written before the first step
net, about = load("runs/detection-…")                  # a run, or a .safetensors file beside its detector.json
inherit(net, Path("weights.safetensors"))              # what fits is taken; says in words how much
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast import files
from holdfast.errors import UserError
from holdfast.workloads.detection import saved
from holdfast.workloads.detection.index import Checked
from holdfast.workloads.detection.model import SIZES, Detector

_PREFIXES = ("average.module.", "model.", "module.", "")
"""Whose weights, the best first: the moving average of a run, its live ones, or a plain file."""


def keep_about(folder: Path, net: Detector, checked: Checked, side: int, classes: str = "") -> None:
    files.write_json(
        folder / saved.ABOUT,
        {"schema": 1, "size": net.size, "channels": net.channels, "names": checked.names, "imgsz": side,
         "data": checked.file, "classes": classes, "generated": checked.generated},
    )  # fmt: skip


def read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read", cause=str(error)[:200], hints=["it has to be safetensors"]) from None


def _mine(found: dict[str, Tensor], net: Detector) -> dict[str, Tensor]:
    """The tensors of the best kind that is there, under the names of the net."""
    wanted = net.state_dict()
    for prefix in _PREFIXES:
        hits = {key: found[prefix + key] for key in wanted if prefix + key in found}
        if hits:
            return {key: value for key, value in hits.items() if value.shape == wanted[key].shape}
    return {}


def inherit(net: Detector, path: Path) -> str:
    """Start from these weights; heads for other classes stay as they are."""
    fitting = _mine(read_weights(path), net)
    count = len(net.state_dict())
    if len(fitting) < count // 2:
        raise UserError(
            f"the weights in {path} are not those of this detector",
            cause=f"{len(fitting)} of {count} tensors fit",
            hints=[f"give the size they were trained with: size={' or '.join(SIZES)}"],
        )
    net.load_state_dict(fitting, strict=False)
    return f"weights from {path.name}: {len(fitting)} of {count} tensors"


def load(where: Path) -> tuple[Detector, dict[str, Any]]:
    """The trained detector of a run, or of a file; in evaluation mode."""
    path, about = saved.find(where)
    net = Detector(len(about["names"]), int(about["channels"]), str(about["size"]))
    fitting = _mine(read_weights(path), net)
    missing = [key for key in net.state_dict() if key not in fitting]
    if missing:
        raise UserError(f"the weights in {path} do not fit", cause=f"`{missing[0]}` is missing or has another shape")
    net.load_state_dict(fitting)
    return net.eval(), about
