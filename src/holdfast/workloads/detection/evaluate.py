"""How good it is: COCO's mean average precision, per class, and which things are taken for which.

    found = find_all(net, still, device, choice)         # per image rows x1 y1 x2 y2 score class, in its own pixels
    scores = evaluate(found, index, names)               # pycocotools does the counting
    scores.map50, scores.map, scores.classes
    confusion(found, index, len(names))                  # truth by rows, answers by columns, the last one is "nothing"
    worst(found, index)                                  # images with the most mistakes first

Images without any box count: what is found there is a mistake.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import holdfast
from holdfast.workloads.detection.answers import to_image as to_image
from holdfast.workloads.detection.index import Index

if TYPE_CHECKING:  # pictures are drawn where torch is not needed
    import torch

    from holdfast.workloads.detection.model import Detector
    from holdfast.workloads.detection.samples import Still

Found = list[NDArray[np.float32]]
"""For each image rows of x1 y1 x2 y2 score class, in pixels of the image, the surest first."""
LEAST = 0.001
"""What COCO is given; the curve needs the unsure answers as well."""
SHOWN = 0.25
"""What counts as an answer in the confusion matrix and on pictures."""
SAME = 0.45
"""The overlap from which on an answer is about a thing there."""


def find_all(net: Detector, still: Still, device: torch.device, choice: Any = None, *, batch: int = 16) -> Found:
    """What the net sees in every image, in order."""
    import torch

    from holdfast.workloads.detection.model import folded

    found: Found = [np.zeros((0, 6), np.float32)] * len(still)
    loader = holdfast.Loader(still, batch_size=batch, seed=0)
    net = folded(net)
    detect = (lambda x: net.detect(x, score=LEAST)) if choice is None else choice_detect(net, choice, device)
    with torch.inference_mode():
        for pixels, numbers in loader:
            for rows, number in zip(detect(pixels.to(device) / 255), numbers.tolist(), strict=True):
                found[number] = to_image(rows.float().cpu().numpy(), still.index.size(number), still.side)
    return found


def choice_detect(net: Detector, choice: Any, device: torch.device) -> Any:
    """Detection in the precision that was chosen for training."""
    import torch

    if choice.precision != "bf16":
        return lambda x: net.detect(x, score=LEAST)

    def detect(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return net.detect(x, score=LEAST)

    return detect


@dataclass
class Scores:
    """COCO's figures."""

    map: float
    """Mean over IoU 0.50 to 0.95, and over classes that occur."""
    map50: float
    classes: list[dict[str, Any]] = field(default_factory=list)
    """name, boxes, ap50, ap; None where a class does not occur."""
    curves: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 101)))
    """Precision at recall 0, 0.01 … 1 for each class, at IoU 0.5; -1 where a class does not occur."""


def evaluate(found: Found, index: Index, names: list[str]) -> Scores:
    """As COCO counts: at most 100 answers an image, all sizes together."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, answers = COCO(), _answers(found)
    with contextlib.redirect_stdout(io.StringIO()):
        truth.dataset = as_coco(index, names)
        truth.createIndex()
        counts = index.counts(len(names))
        if not len(answers):
            curves = np.where(np.array(counts)[:, None] > 0, np.zeros((len(names), 101)), -1.0)
            return Scores(0.0, 0.0, _classes(names, counts, np.zeros(len(names)), np.zeros(len(names))), curves)
        judged = COCOeval(truth, truth.loadRes(answers), "bbox")
        judged.evaluate()
        judged.accumulate()
    precision = judged.eval["precision"][:, :, :, 0, -1]  # IoU, recall, class; all areas, 100 answers
    per_class = np.where(precision > -1, precision, np.nan)
    with np.errstate(invalid="ignore"), contextlib.suppress(RuntimeWarning):
        ap = np.array([_mean(per_class[:, :, number]) for number in range(len(names))])
        ap50 = np.array([_mean(per_class[0, :, number]) for number in range(len(names))])
    return Scores(
        _mean(ap) if np.isfinite(ap).any() else 0.0,
        _mean(ap50) if np.isfinite(ap50).any() else 0.0,
        _classes(names, counts, ap50, ap),
        np.asarray(precision[0].T, np.float64),
    )


def _mean(values: NDArray[np.float64]) -> float:
    good = values[np.isfinite(values)]
    return float(good.mean()) if good.size else float("nan")


def _classes(names: list[str], counts: list[int], ap50: Any, ap: Any) -> list[dict[str, Any]]:
    rows = zip(names, counts, ap50, ap, strict=True)
    return [
        {"name": name, "boxes": count, "ap50": float(fifty) if count else None, "ap": float(all_) if count else None}
        for name, count, fifty, all_ in rows
    ]


def as_coco(index: Index, names: list[str]) -> dict[str, Any]:
    """The truth as a COCO file would hold it."""
    images, boxes = [], []  # type: list[dict[str, Any]], list[dict[str, Any]]
    for number in range(len(index)):
        width, height = index.size(number)
        images.append({"id": number, "width": width, "height": height})
        for kind, x1, y1, x2, y2 in index.boxes(number).tolist():
            box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
            boxes.append({"id": len(boxes) + 1, "image_id": number, "category_id": int(kind), "bbox": box,
                          "area": box[2] * box[3], "iscrowd": 0})  # fmt: skip
    kinds = [{"id": number, "name": name} for number, name in enumerate(names)]
    return {"info": {}, "images": images, "annotations": boxes, "categories": kinds}


def _answers(found: Found) -> NDArray[np.float64]:
    """Rows of image, x, y, width, height, score, class, as pycocotools takes them."""
    rows = []
    for number, each in enumerate(found):
        if len(each):
            box = each.astype(np.float64)
            wide = np.column_stack([box[:, :2], box[:, 2:4] - box[:, :2], box[:, 4], box[:, 5]])
            rows.append(np.column_stack([np.full(len(box), float(number)), wide]))
    return np.concatenate(rows) if rows else np.zeros((0, 7))


# Mistakes -----------------------------------------------------------------------------------------------------


def pairs(answers: NDArray[np.float32], truth: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Which answer is about which thing: the largest overlaps first, each once; classes play no part."""
    if not len(answers) or not len(truth):
        return []
    low = np.maximum(answers[:, None, :2], truth[None, :, 1:3])
    high = np.minimum(answers[:, None, 2:4], truth[None, :, 3:5])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    areas = np.prod(answers[:, 2:4] - answers[:, :2], axis=1)[:, None] + np.prod(truth[:, 3:5] - truth[:, 1:3], axis=1)
    overlap = both / np.maximum(areas - both, 1e-9)
    made, used = [], (set(), set())  # type: list[tuple[int, int]], tuple[set[int], set[int]]
    for flat in np.argsort(-overlap, axis=None, kind="stable"):
        one, other = divmod(int(flat), len(truth))
        if overlap[one, other] < SAME:
            break
        if one not in used[0] and other not in used[1]:
            made.append((one, other))
            used[0].add(one)
            used[1].add(other)
    return made


def in_pixels(index: Index, number: int) -> NDArray[np.float32]:
    width, height = index.size(number)
    return index.boxes(number) * np.array([1, width, height, width, height], np.float32)


def confusion(found: Found, index: Index, classes: int, *, score: float = SHOWN) -> NDArray[np.int64]:
    """Truth by rows, answers by columns; the last row and column stand for nothing there, nothing found."""
    table = np.zeros((classes + 1, classes + 1), np.int64)
    for number, each in enumerate(found):
        answers, truth = each[each[:, 4] >= score], in_pixels(index, number)
        made = pairs(answers, truth)
        for one, other in made:
            table[int(truth[other, 0]), int(answers[one, 5])] += 1
        for other in set(range(len(truth))) - {other for _, other in made}:
            table[int(truth[other, 0]), classes] += 1
        for one in set(range(len(answers))) - {one for one, _ in made}:
            table[classes, int(answers[one, 5])] += 1
    return table


def worst(found: Found, index: Index, *, score: float = SHOWN, most: int = 12) -> list[tuple[int, int, int]]:
    """Images with the largest share of mistakes first: number, things missed, wrong answers."""
    judged = []
    for number, each in enumerate(found):
        answers, truth = each[each[:, 4] >= score], in_pixels(index, number)
        right = sum(1 for one, other in pairs(answers, truth) if answers[one, 5] == truth[other, 0])
        missed, wrong = len(truth) - right, len(answers) - right
        judged.append(((missed + wrong) / max(1, len(truth) + wrong), missed + wrong, number, missed, wrong))
    judged.sort(key=lambda each: (-each[0], -each[1], each[2]))
    return [(number, missed, wrong) for share, _, number, missed, wrong in judged[:most] if share > 0]
