"""Small sets of boxes on disk, in every shape people keep them in.

yolo(folder)             # four grey images, `data.yaml`, two classes
spoil(folder)            # the same with one of each thing that can be wrong
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAMES = ("dot", "bar")


def image(path: Path, *, seed: int, size: tuple[int, int] = (64, 48), colour: bool = False) -> Path:
    """Noise that is different for every seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if colour else (size[1], size[0])
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, shape, dtype=np.uint8)).save(path)
    return path


def yolo(folder: Path, *, train: int = 4, val: int = 2, colour: bool = False, yaml: str = "") -> Path:
    """A sound set; returns its data.yaml."""
    seed = 0
    for part, count in (("train", train), ("val", val)):
        (folder / "labels" / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            seed += 1
            image(folder / "images" / part / f"{number:03d}.png", seed=seed, colour=colour)
            text = f"{number % 2} 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.2 0.2\n"
            (folder / "labels" / part / f"{number:03d}.txt").write_text(text)
    text = yaml or "path: .\ntrain: images/train\nval: images/val\nnames: [dot, bar]\n"
    (folder / "data.yaml").write_text(text)
    return folder / "data.yaml"


def spoil(folder: Path) -> Path:
    """One of everything; the lines are those the tests expect."""
    data = yolo(folder, train=8)
    labels, images = folder / "labels" / "train", folder / "images" / "train"
    (labels / "000.txt").write_text(
        "0 0.5 0.5 0.2 0.2\n"
        "7 0.5 0.5 0.2 0.2\n"  # 2: no such class
        "0 1.7 0.5 0.2 0.2\n"  # 3: outside
        "0 nan 0.5 0.2 0.2\n"  # 4: not finite
        "0 0.5 0.5 0.2\n"  # 5: four columns
        "0 0.5 0.5 0.0 0.2\n"  # 6: no area
        "0 abc 0.5 0.2 0.2\n"  # 7: no number
        "0 0.95 0.5 0.2 0.2\n"  # 8: over the edge
        "0 0.5 0.5 0.2 0.2\n"  # 9: a second time
        "0.5 0.5 0.5 0.2 0.2\n"  # 10: half a class
    )
    (labels / "001.txt").unlink()
    (labels / "orphan.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    whole = (images / "002.png").read_bytes()
    (images / "002.png").write_bytes(whole[: len(whole) // 2])
    (images / "003.png").write_bytes(b"this is no image")
    (labels / "004.txt").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "images" / "val" / "001.png").write_bytes((images / "005.png").read_bytes())
    return data


def coco(folder: Path) -> Path:
    """The four images as COCO, with annotations that are wrong in their own ways."""
    for number in range(4):
        image(folder / "images" / f"{number}.jpg", seed=number, colour=True)
    box = {"bbox": [10, 10, 20, 12], "iscrowd": 0}
    annotations = [
        {"id": 1, "image_id": 0, "category_id": 18, **box},
        {"id": 2, "image_id": 1, "category_id": 3, **box},
        {"id": 3, "image_id": 1, "category_id": 99, **box},
        {"id": 4, "image_id": 77, "category_id": 3, **box},
        {"id": 5, "image_id": 2, "category_id": 3, "bbox": [1, 2, 3], "iscrowd": 0},
        {"id": 6, "image_id": 2, "category_id": 3, "bbox": [1, 2, None, 4], "iscrowd": 0},
        {"id": 7, "image_id": 3, "category_id": 18, **box},
    ]
    told = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in range(4)],
        "annotations": annotations,
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
    }
    (folder / "annotations").mkdir()
    path = folder / "annotations" / "instances_train.json"
    path.write_text(json.dumps(told))
    held = {**told, "images": told["images"][3:], "annotations": annotations[6:]}
    (folder / "annotations" / "instances_val.json").write_text(json.dumps(held))
    return path


def voc(folder: Path) -> Path:
    """Pascal VOC with a list for each part."""
    (folder / "Annotations").mkdir(parents=True)
    for number in range(3):
        image(folder / "JPEGImages" / f"{number}.jpg", seed=number, colour=True)
        objects = "<object><name>dog</name><bndbox><xmin>11</xmin><ymin>5</ymin><xmax>30</xmax><ymax>28</ymax></bndbox>"
        wrong = (
            "\n<object><name>dog</name><bndbox><xmin>200</xmin><ymin>5</ymin><xmax>230</xmax><ymax>28</ymax></bndbox>"
        )
        text = f"<annotation><filename>{number}.jpg</filename><size><width>64</width><height>48</height></size>\n"
        text += f"{objects}</object>{wrong + '</object>' if number == 1 else ''}</annotation>"
        (folder / "Annotations" / f"{number}.xml").write_text(text)
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "train.txt").write_text("0\n1\n")
    (folder / "ImageSets" / "Main" / "val.txt").write_text("2\n")
    return folder


def lively(kind: Any, classes: int) -> Any:
    """A detector that finds a lot of nonsense, and is sure of each to another degree."""
    import torch

    torch.manual_seed(0)
    net = kind(classes, 1, "nano")
    with torch.no_grad():
        for _ in range(12):  # until its normalisations have seen something, a network says the same everywhere
            net(torch.rand(4, 1, 64, 64))
        for head in net.heads:
            head.what[-1].bias.fill_(-1.0)
            head.what[-1].weight.mul_(60.0)
            head.where[-1].weight.mul_(10.0)
    return net.eval()
