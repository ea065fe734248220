"""Samples: the same for the same (seed, epoch, index), boxes where the pixels are, memory that stays small."""

from __future__ import annotations

from math import ceil, floor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import holdfast
from holdfast.base.errors import UserError
from holdfast.workloads.detection import augment, generate, training
from holdfast.workloads.detection.augment import EMPTY, Views
from holdfast.workloads.detection.images import Kept
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.looks import Looks
from holdfast.workloads.detection.samples import Samples, Still
from holdfast.workloads.detection.training import prepared
from tests.workloads.detection import small


def bright(size: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """A dark image with one bright rectangle, and its box."""
    image = np.full((size, size, 1), 10, np.uint8)
    image[16:40, 8:24] = 250
    return image, np.array([[0, 8, 16, 24, 40]], np.float32)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("whole", [True, False])
def test_boxes_are_where_the_pixels_are(seed: int, whole: bool) -> None:
    np.random.seed(seed)
    views = Views(light=0.0, upside=0.5)
    image, boxes = bright()
    if whole:
        made, moved = augment.mosaic([(image, boxes)] * 4, 96, views)
    else:
        made, moved = augment.alone(image, boxes, 96, views)
    made, moved = augment.finish(made, moved, views)
    lit = made[..., 0] > 180
    covered = np.zeros_like(lit)
    for _, x1, y1, x2, y2 in moved.tolist():
        inside = lit[ceil(y1) : floor(y2), ceil(x1) : floor(x2)]
        assert inside.mean() > 0.85, (x1, y1, x2, y2)
        covered[max(0, int(y1) - 2) : int(y2) + 3, max(0, int(x1) - 2) : int(x2) + 3] = True
    strays = (lit & ~covered).sum()
    assert strays <= 0.25 * 4 * 16 * 24 * (1 if whole else 0.5)  # only what was cut down to a rest has no box


def test_a_grey_image_keeps_its_order_of_heat() -> None:
    np.random.seed(3)
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    lit, _ = augment.finish(ramp, np.zeros((0, 5), np.float32), Views(flip=0.0))
    assert (np.diff(lit.reshape(-1).astype(int)) >= 0).all() and not np.array_equal(lit, ramp)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_depend_on_seed_epoch_and_index_alone(tmp_path: Path, workers: int) -> None:
    part = open_set(str(small.yolo(tmp_path, train=6))).splits["train"]

    def batches(epoch: int, kept: Kept | None, workers: int = 0) -> list[torch.Tensor]:
        data = holdfast.Loader(
            Samples(part, 64, 1, Views(), kept), batch_size=3, shuffle=True, seed=5, num_workers=workers
        )
        values = [each.value for each in data.batches(epoch=epoch, start=0)]
        data.close()
        return [tensor for value in values for tensor in value]

    first = batches(0, None)
    again = batches(0, Kept(6, 64, 1, 1 << 20), workers)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], batches(1, None)[0])


def test_an_image_that_cannot_be_read_any_more_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = open_set(str(small.yolo(tmp_path))).splits["train"]
    Path(part.path(1)).write_bytes(b"gone")
    samples = Samples(part, 64, 1, Views(mosaic=0.0))
    for _ in range(2):
        np.random.seed(0)
        image, boxes, _ = samples[1]
        assert image.shape == (1, 64, 64) and boxes[0, 0] >= 0
    assert capsys.readouterr().out.count("001.png cannot be read, another image takes its place") == 1


def test_a_sheet_is_no_larger_than_needed(tmp_path: Path) -> None:
    part = open_set(str(small.yolo(tmp_path))).splits["train"]
    still = Still(part, 128, 1)
    image, number = still[2]
    assert still.shape == (96, 128) and image.shape == (1, 96, 128) and int(number) == 2
    assert Still(part, 64, 1).shape == (64, 64)
    assert (Still(part, 64, 1)[0][0][0, 48:] == EMPTY).all()


def test_the_scale_of_a_batch_is_in_the_batch() -> None:
    batch = torch.zeros(2, 1, 128, 128, dtype=torch.uint8), torch.tensor([[[1.0, 8, 8, 64, 64]], [[-1.0] * 5]]), None
    sizes = set()
    for draw in (0.0, 0.5, 1.0):
        x, targets = prepared((*batch[:2], torch.tensor([draw, 0.3])), 0.5)
        sizes.add(x.shape[-1])
        assert targets[0, 0, 0] == 1 and targets[0, 0, 3] == 64 * x.shape[-1] / 128 and (targets[1, :, 0] == -1).all()
        same, _ = prepared((*batch[:2], torch.tensor([draw, 0.9])), 0.5)
        assert same.shape == x.shape
    assert sizes == {64, 128, 192}


def test_a_side_is_rounded_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert training._side(416) == 416 and capsys.readouterr().out == ""
    assert training._side(420) == 416 and capsys.readouterr().out == "imgsz=420 is no multiple of 32: 416\n"
    with pytest.raises(UserError, match="too small"):
        training._side(7)
    assert training._side(416, 0.75) == 320 and capsys.readouterr().out == "imgsz=416, shrink=0.75: 320\n"
    assert training._side(64, 0.1) == 32
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match="shrink"):
            training._side(416, wrong)


@pytest.mark.parametrize(("train", "val", "every"), [(320, 80, 2), (20_000, 1_000, 1), (100, 100, 7)])
def test_scores_take_a_twentieth_of_the_time_at_most(train: int, val: int, every: int) -> None:
    assert training.now_and_then(train, val) == every
    assert val / 3 <= 0.05 * every * train


def test_looking_takes_a_fifth_of_the_time_at_most_whatever_it_costs() -> None:
    """An epoch of 10 s and looks of 7 s: every fourth epoch from then on; what the user gave is kept."""
    looks = Looks(1)
    assert looks.due(0, 30)
    looks.took(look_s=7.0, epoch_s=10.0)
    seen = [epoch for epoch in range(1, 30) if looks.due(epoch, 30)]
    assert seen == [3, 7, 11, 15, 19, 23, 27, 29] and 7.0 / (looks.every * 10.0) <= 0.2
    looks.took(look_s=0.1, epoch_s=10.0)
    assert looks.every == 4
    looks.learned(92.9)
    assert looks.words() == "scores on the validation set took 7 % of the time (every 4 epochs and after the last)"
    fixed = Looks(1, given=True)
    fixed.took(look_s=7.0, epoch_s=10.0)
    assert fixed.every == 1


@pytest.mark.parametrize(("text", "size"), [("off", 0), ("2GB", 2 << 30), ("1.5m", 3 << 19), ("100", 100)])
def test_the_size_of_the_cache(text: str, size: int) -> None:
    assert training._room(text) == size


def test_the_generated_set_says_that_it_is_generated_and_its_boxes_are_warm(tmp_path: Path) -> None:
    data = generate.write(tmp_path / "set", train=16, val=8, seed=4)
    checked = open_set(str(data))
    assert checked.generated and checked.names == list(generate.NAMES) and not len(checked.problems)
    clip = generate.Clip(np.random.default_rng(1), 160, 128)
    image, boxes = clip.frame(2)
    assert len(boxes)
    for _, x1, y1, x2, y2 in boxes.astype(int).tolist():
        assert image[y1:y2, x1:x2].mean() > clip.ground[y1:y2, x1:x2].mean() + 8
    again = generate.write(tmp_path / "again", train=16, val=8, seed=4)
    first, second = (sorted((each.parent / "images/train").iterdir())[5].read_bytes() for each in (data, again))
    assert first == second


def test_sixteen_bits_are_generated_and_read(tmp_path: Path) -> None:
    checked = open_set(str(generate.write(tmp_path, train=8, val=2, bits=16)))
    image = Samples(checked.splits["train"], 160, 1, Views()).image(0)
    assert image.dtype == np.uint8 and image.max() == 255 and checked.grey


def test_what_has_no_known_class_is_masked_and_objects_over_it_are_seen(tmp_path: Path) -> None:
    """Class 7 does not exist: its place is grey in training and in evaluation, the box that overlaps it is not."""
    data = small.yolo(tmp_path)
    (tmp_path / "labels/train/000.txt").write_text("7 0.5 0.5 0.5 0.5\n0 0.3125 0.5 0.25 0.5\n")
    part = open_set(str(data)).splits["train"]
    assert part.boxes(0)[:, 0].tolist() == [0] and part.counts(2) == [5, 2]
    raw = np.asarray(Image.open(part.path(0)))  # 64 x 48: the mask is x 16 to 48, y 12 to 36, the box x 12 to 28
    for samples in (Samples(part, 64, 1, Views()), Still(part, 64, 1)):
        seen = samples.image(0)[..., 0]
        assert (seen[12:36, 28:48] == EMPTY).all()
        assert np.array_equal(seen[12:36, 12:28], raw[12:36, 12:28]) and np.array_equal(seen[:12], raw[:12])


def test_boxes_that_are_too_many_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small.yolo(tmp_path)
    lines = ["0 0.25 0.5 0.3 0.6", "0 0.75 0.25 0.125 0.25"]
    (tmp_path / "labels/train/000.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("holdfast.workloads.detection.samples.MOST_BOXES", 1)
    part = open_set(str(data)).splits["train"]
    np.random.seed(0)
    image, boxes, _ = Samples(part, 64, 1, Views(mosaic=0.0, scale=0.0, shift=0.0, flip=0.0, light=0.0))[0]
    assert boxes.shape == (1, 5) and boxes[0, 3] < 32, "the larger one stays"
    assert (image[0, 8 + 6 : 8 + 18, 44:52] == EMPTY).all()
