"""A finished detector as something to make fast: its network, validation images, and its score. Needs torch.

    model(folder, {})            # images in, boxes and scores out; suppression follows outside
    subject(folder, {})          # a Subject with its images
    score(work, about, engine, outputs)       # COCO's figures

What a run folder holds is untrusted: it is read by the workload's own readers, which check it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.base import files
from holdfast.optimize.engines import Arrays, Engine
from holdfast.optimize.post import apply
from holdfast.optimize.subject import Subject
from holdfast.workloads.detection.evaluate import LEAST, evaluate, to_image
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.model import BINS, points
from holdfast.workloads.detection.samples import Still, sheet
from holdfast.workloads.detection.weights import load

MOST_IMAGES = 128


class _Decoded(nn.Module):
    """Images in 0..255 as they are stored; boxes in pixels and scores come out, suppression follows outside."""

    def __init__(self, net: Any, shape: tuple[int, int]) -> None:
        super().__init__()
        self.net = net
        at, stride = points(shape, torch.device("cpu"))
        self.register_buffer("at", at, persistent=False)
        self.register_buffer("stride", stride, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        raw = self.net(images.float() / 255).float()
        return self.net.boxes(raw, self.at, self.stride), raw[..., 4 * BINS :].sigmoid()


def _stills(about: dict[str, Any]) -> tuple[Any, Any, Any]:
    checked = open_set(str(about["data"]), classes=str(about.get("classes", "")))
    side, channels = int(about["imgsz"]), int(about["channels"])
    return checked, Still(checked.splits["val"], side, channels), Still(checked.splits["train"], side, channels)


def model(folder: Path, spec: dict[str, Any]) -> nn.Module:
    net, about = load(folder)
    _, still, _ = _stills(about)
    return _Decoded(net, still.shape).eval()


def subject(folder: Path, spec: dict[str, Any]) -> Subject:
    net = model(folder, spec)
    about = files.read_json(folder / "detector.json") or {}
    checked, still, train = _stills(about)

    def some(images: Any, most: int) -> Any:
        whole = [np.asarray(images[number][0]).transpose(1, 2, 0) for number in range(min(len(images), most))]
        return np.stack([sheet(each, still.shape).transpose(2, 0, 1) for each in whole])

    contract = {
        "given": f"images as they are stored (0..255), channels first, fitted into {still.shape[1]} x {still.shape[0]}",
        "size": list(still.shape),
        "longer_side": int(about["imgsz"]),
        "classes": checked.names,
        "gives": "rows x1 y1 x2 y2 score class in pixels of the sheet, after non-maximum suppression",
    }
    return Subject(
        folder.name, net, [some(still, MOST_IMAGES)], ["images"], outputs=["boxes", "scores"],
        calibration=[some(train, 64)], contract=contract,
        score={"kind": "detection", "data": checked.file, "classes": str(about.get("classes", "")),
               "side": int(about["imgsz"]), "compared": [1]},
        post={"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300},
        notes=["the images are GENERATED"] if checked.generated else [],
    )  # fmt: skip


def score(work: Path, about: dict[str, Any], engine: Engine, outputs: Arrays) -> dict[str, float]:
    """COCO's figures, after the non-maximum suppression of the bundle."""
    told = about["score"]
    checked = open_set(told["data"], classes=str(told.get("classes", "")))
    index = checked.splits["val"].taken(np.arange(len(outputs[0]), dtype=np.int64))
    rows = apply({**about["post"], "score": LEAST}, outputs)
    found = [to_image(each, index.size(number), int(told["side"])) for number, each in enumerate(rows)]
    scores = evaluate(found, index, checked.names)
    return {"map": scores.map, "map50": scores.map50}
