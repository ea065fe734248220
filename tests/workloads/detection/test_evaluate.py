"""Scores: pycocotools and torchmetrics agree on the same answers, and mistakes are counted where they were made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.workloads.detection import pictures
from holdfast.workloads.detection.evaluate import Scores, confusion, evaluate, in_pixels, to_image, worst
from holdfast.workloads.detection.index import Index, open_set
from tests.workloads.detection import small

NAMES = ["dot", "bar"]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    small.yolo(tmp_path, train=2, val=6)
    (tmp_path / "labels/val/003.txt").write_text("")
    return open_set(str(tmp_path)).splits["val"]


def answers(index: Index, seed: int) -> list[np.ndarray]:
    """The truth, moved a little, some of it missed or called wrong, some things that are not there."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(len(index)):
        rows = []
        for kind, *box in in_pixels(index, number).tolist():
            if random.random() < 0.8:
                moved = np.array(box) + random.normal(0, 1.5, 4)
                rows.append([*moved, random.uniform(0.3, 1), kind if random.random() < 0.8 else 1 - kind])
        for _ in range(random.integers(0, 3)):
            x, y = random.uniform(0, 40, 2)
            rows.append([x, y, x + 12, y + 10, random.uniform(0.05, 0.9), float(random.integers(2))])
        found.append(np.array(sorted(rows, key=lambda row: -row[4]), np.float32).reshape(-1, 6))
    return found


@pytest.mark.all
@pytest.mark.parametrize("seed", range(4))
def test_pycocotools_and_torchmetrics_agree(index: Index, seed: int) -> None:
    metrics = pytest.importorskip("torchmetrics.detection", reason="torchmetrics is not installed")
    found = answers(index, seed)
    ours = evaluate(found, index, NAMES)
    theirs = metrics.MeanAveragePrecision(box_format="xyxy", class_metrics=True)
    for number, rows in enumerate(found):
        truth = torch.from_numpy(in_pixels(index, number))
        seen = torch.from_numpy(rows)
        theirs.update(
            [{"boxes": seen[:, :4], "scores": seen[:, 4], "labels": seen[:, 5].long()}],
            [{"boxes": truth[:, 1:], "labels": truth[:, 0].long()}],
        )
    told = theirs.compute()
    assert ours.map == pytest.approx(float(told["map"]), abs=1e-6)
    assert ours.map50 == pytest.approx(float(told["map_50"]), abs=1e-6)
    assert [each["ap"] for each in ours.classes] == pytest.approx(told["map_per_class"].tolist(), abs=1e-6)
    assert 0.1 < ours.map < ours.map50 < 1.0


def test_perfect_and_empty_answers(index: Index) -> None:
    truth = [in_pixels(index, number) for number in range(len(index))]
    perfect = [np.column_stack([each[:, 1:], np.full(len(each), 0.9), each[:, 0]]).astype(np.float32) for each in truth]
    assert evaluate(perfect, index, NAMES).map == pytest.approx(1.0)
    assert worst(perfect, index) == []
    nothing = [np.zeros((0, 6), np.float32)] * len(index)
    scores = evaluate(nothing, index, NAMES)
    assert scores.map == scores.map50 == 0.0 and scores.curves.shape == (2, 101)


def test_a_class_that_does_not_occur_has_no_score(index: Index) -> None:
    scores = evaluate(answers(index, 1), index, [*NAMES, "unicorn"])
    assert scores.classes[2] == {"name": "unicorn", "boxes": 0, "ap50": None, "ap": None}
    assert scores.map50 == pytest.approx(evaluate(answers(index, 1), index, NAMES).map50)


def test_who_is_taken_for_whom(index: Index) -> None:
    found = [np.zeros((0, 6), np.float32) for _ in range(len(index))]
    kind, *box = in_pixels(index, 0)[0].tolist()
    found[0] = np.array([[*box, 0.9, 1 - kind], [0, 0, 5, 5, 0.8, 1], [0, 40, 9, 47, 0.1, 0]], np.float32)
    table = confusion(found, index, 2)
    assert table[int(kind), 1 - int(kind)] == 1 and table[2, 1] == 1 and table[2, 0] == 0
    assert table[:2].sum() == len(index.table) and table[:2, 2].sum() == len(index.table) - 1
    assert worst(found, index)[0] == (0, 2, 2)


def test_boxes_go_back_to_the_image() -> None:
    rows = np.array([[10, 20, 70, 90, 0.5, 1]], np.float32)
    assert to_image(rows, (128, 96), 64).tolist() == [pytest.approx([20, 40, 128, 96, 0.5, 1])]


def test_pictures_are_drawn_for_any_score(index: Index, tmp_path: Path) -> None:
    found = answers(index, 2)
    for scores in (evaluate(found, index, NAMES), Scores(0.0, 0.0)):
        pictures.curves(scores, NAMES).save(tmp_path / "curves.png")
    sheet = pictures.worst_sheet(found, index, NAMES, worst(found, index), channels=1)
    table = pictures.confusion_table(confusion(found, index, 2), NAMES)
    assert sheet.width > 300 and table.width > 200
    assert pictures.worst_sheet(found, index, NAMES, [], channels=1).height > 100
    drawn = pictures.drawn(np.zeros((40, 40, 1), np.uint8), found[0], NAMES)
    assert isinstance(drawn, Image.Image) and np.asarray(drawn).max() > 200
