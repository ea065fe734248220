"""What somebody writes who uses ONNX Runtime by hand: images of a folder through a network, boxes into a JSON file.

    python onnx_by_hand.py NET.onnx FOLDER OUT.json --batch 8 --score 0.25

Sessions as they come, one image or some at a time, every point decoded, suppression of each class after the other.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

BINS, FIRST, STRIDES = 16, -1, (8, 16, 32)


def points(side: int) -> tuple[np.ndarray, np.ndarray]:
    places, strides = [], []
    for stride in STRIDES:
        count = side // stride
        y, x = np.meshgrid(np.arange(count) + 0.5, np.arange(count) + 0.5, indexing="ij")
        places.append(np.stack([x, y], -1).reshape(-1, 2) * stride)
        strides.append(np.full(count * count, stride))
    return np.concatenate(places), np.concatenate(strides)[:, None]


def suppressed(boxes: np.ndarray, scores: np.ndarray, overlap: float = 0.6) -> list[int]:
    order, kept = scores.argsort()[::-1], []
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    while len(order):
        first, rest = order[0], order[1:]
        kept.append(int(first))
        low, high = np.maximum(boxes[first, :2], boxes[rest, :2]), np.minimum(boxes[first, 2:], boxes[rest, 2:])
        both = np.prod(np.maximum(high - low, 0), axis=1)
        order = rest[both <= overlap * (area[first] + area[rest] - both)]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("net")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--score", type=float, default=0.25)
    parser.add_argument("--side", type=int, default=416)
    given = parser.parse_args()
    session = onnxruntime.InferenceSession(given.net, providers=["CPUExecutionProvider"])
    grey = session.get_inputs()[0].shape[1] == 1
    at, stride = points(given.side)
    paths = sorted(given.folder.iterdir())
    found = []
    for start in range(0, len(paths), given.batch):
        some, scales = [], []
        for path in paths[start : start + given.batch]:
            image = Image.open(path).convert("L" if grey else "RGB")
            scale = given.side / max(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)))
            sheet = np.full((given.side, given.side, 1 if grey else 3), 114, np.uint8)
            sheet[: image.height, : image.width] = np.asarray(image).reshape(image.height, image.width, -1)
            some.append(sheet.transpose(2, 0, 1))
            scales.append(scale)
        raw = session.run(None, {"images": np.stack(some)})[0]
        for path, said, scale in zip(paths[start:], raw, scales, strict=False):
            spread = np.exp(said[:, : 4 * BINS].reshape(-1, 4, BINS))
            sides = (spread @ (np.arange(BINS) + FIRST)) / spread.sum(-1) * stride
            boxes = np.concatenate([at - sides[:, :2], at + sides[:, 2:]], 1)
            sure = 1 / (1 + np.exp(-said[:, 4 * BINS :]))
            rows = []
            for kind in range(sure.shape[1]):
                likely = np.flatnonzero(sure[:, kind] > given.score)
                for number in suppressed(boxes[likely], sure[likely, kind]):
                    here = likely[number]
                    rows.append([*(boxes[here] / scale).round(2).tolist(), float(sure[here, kind]), kind])
            found.append({"path": str(path), "found": rows})
    given.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
