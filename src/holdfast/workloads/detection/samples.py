"""What the loader is given: images with their boxes, for training (other views each time) and for evaluation (as is).

    train = Samples(index, 416, channels=1, views=Views())       # (uint8 image, boxes (most, 5), a draw for the scale)
    valid = Still(index, 416, channels=1)                        # (uint8 image, index, scale)

Everything random comes from numpy, which the Loader seeds from (seed, epoch, index): the same sample has the same bits
after any restart. Boxes are padded with class -1, so that every sample has the same shape. An image that turns out
to be unreadable only now is replaced by the next one that can be read, and said so: training does not stop for it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

from holdfast.workloads.detection import images
from holdfast.workloads.detection.augment import EMPTY, Views, alone, finish, mosaic
from holdfast.workloads.detection.images import Kept, Pixels
from holdfast.workloads.detection.images import sheet as sheet
from holdfast.workloads.detection.index import Index
from holdfast.workloads.detection.labels import Boxes
from holdfast.workloads.detection.masks import hidden

MOST_BOXES = 500
"""Boxes of one training sample, four images together; if there are more, the largest stay, the others are masked."""


class _Images(Dataset[tuple[torch.Tensor, ...]]):
    """Images of an index at one size, kept decoded as far as memory goes."""

    def __init__(self, index: Index, side: int, channels: int, kept: Kept | None = None) -> None:
        self.index, self.side, self.channels = index, side, channels
        self.kept = kept
        self.bad: set[int] = set()

    def __len__(self) -> int:
        return len(self.index)

    def source(self, index: int) -> str:
        return self.index.path(index)

    def image(self, index: int) -> Pixels:
        """The image with its longer side as wanted; Bad if it cannot be read."""
        found = self.kept.get(index) if self.kept is not None else None
        if found is None:
            whole = images.fitted(images.pixels(self.index.path(index), self.channels), self.side)
            found = hidden(whole, _grown(self.index.masks(index), whole), self.boxes(index, whole))
            if self.kept is not None:
                self.kept.put(index, found)
        return found

    def boxes(self, index: int, image: Pixels) -> Boxes:
        return _grown(self.index.boxes(index), image)


def _grown(rows: Boxes, image: Pixels) -> Boxes:
    """From shares of the image to its pixels."""
    height, width = image.shape[:2]
    return rows * np.array([1, width, height, width, height], np.float32)


class Samples(_Images):
    """For training."""

    def __init__(self, index: Index, side: int, channels: int, views: Views, kept: Kept | None = None) -> None:
        super().__init__(index, side, channels, kept)
        self.views = views
        pieces = 4 if views.mosaic else 1
        self.most = max(1, min(MOST_BOXES, pieces * index.most_boxes))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        draw = np.random.random()
        if np.random.random() < self.views.mosaic:
            others = np.random.randint(len(self), size=3)
            four = [self._read(int(each)) for each in (index, *others)]
            image, boxes = mosaic(four, self.side, self.views)
        else:
            image, boxes = alone(*self._read(index), self.side, self.views)
        image, boxes = finish(image, boxes, self.views)
        if len(boxes) > self.most:
            image, boxes = self._fewer(image, boxes)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), self._padded(boxes), torch.tensor(draw)

    def _read(self, index: int) -> tuple[Pixels, Boxes]:
        for step in range(len(self)):
            here = (index + step) % len(self)
            try:
                image = self.image(here)
                return image, self.boxes(here, image)
            except images.Bad as bad:
                if here not in self.bad:
                    self.bad.add(here)
                    print(f"! {self.index.path(here)} cannot be read, another image takes its place: {bad}", flush=True)
        raise images.Bad("unreadable", "none of the images can be read any more")

    def _fewer(self, image: Pixels, boxes: Boxes) -> tuple[Pixels, Boxes]:
        """The largest boxes; the objects of the others are masked, or they would be background."""
        area = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])
        order = np.argsort(-area, kind="stable")
        kept = boxes[np.sort(order[: self.most])]
        return hidden(image, boxes[order[self.most :]], kept), kept

    def _padded(self, boxes: Boxes) -> torch.Tensor:
        padded = np.full((self.most, 5), -1, np.float32)
        padded[: len(boxes)] = boxes
        return torch.from_numpy(padded)


class Still(_Images):
    """For evaluation and prediction: the image in the upper left corner of the smallest sheet that fits them all."""

    def __init__(self, index: Index, side: int, channels: int) -> None:
        super().__init__(index, side, channels)
        scale = side / self.index.sizes[:, :2].max(axis=1) if len(index) else np.ones(1)
        sizes = np.round(self.index.sizes[:, :2] * scale[:, None]) if len(index) else np.full((1, 2), side)
        wide, high = (int(-(-each // 32) * 32) for each in sizes.max(axis=0))
        self.shape = (min(high, side), min(wide, side))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            image = self.image(index)
        except images.Bad as bad:
            print(f"! {self.index.path(index)} cannot be read, scored as an empty image: {bad}", flush=True)
            image = np.full((*self.shape, self.channels), EMPTY, np.uint8)
        return torch.from_numpy(sheet(image, self.shape).transpose(2, 0, 1).copy()), torch.tensor(index)
