"""A detector that `holdfast optimize` has made fast, used like one that was just trained. Needs no torch.

finder = Bundled(Path("runs/calm-heron/bundle"))     # UserError if it is damaged, or no detector's
finder.find(image, score=0.25)                        # rows x1 y1 x2 y2 score class, in pixels of the image
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.detection import images
from holdfast.workloads.detection.images import Pixels

MANIFEST = "manifest.json"
EMPTY = 114
"""Where there is no image: as in training."""


def bundle_of(where: Path) -> Path | None:
    """The bundle that this folder is, or that `holdfast optimize` has put into this run; None if there is none."""
    if importlib.util.find_spec("holdfast.optimize") is None:
        return None
    return next((each for each in (where, where / "bundle") if (each / MANIFEST).is_file()), None)


class Bundled:
    """The bundle, its engine and its sheet of a fixed size."""

    def __init__(self, folder: Path) -> None:
        self.bundle: Any = importlib.import_module("holdfast.optimize.bundle").open_bundle(folder)
        manifest = self.bundle.manifest
        contract, post = manifest.get("contract"), manifest.get("post")
        names = contract.get("classes") if isinstance(contract, dict) else None
        shape = self.bundle.inputs[0]["shape"]
        if not isinstance(names, list) or not isinstance(post, dict) or len(shape) != 3 or shape[0] not in (1, 3):
            raise UserError(f"{folder} is not a bundle of a detector", cause="it takes no images, or names no classes")
        self.names = [str(each) for each in names]
        self.channels, self.height, self.width = (files.whole(each) for each in shape)
        self.words = f"{manifest['engine']}, {manifest['precision']}"

    def find_many(self, given: Sequence[Pixels], score: float = 0.25) -> list[NDArray[np.float32]]:
        """What is in each image. One after the other: the bundle was chosen for that."""
        return [self.find(each, score) for each in given]

    def find(self, image: Pixels, score: float = 0.25) -> NDArray[np.float32]:
        """What is in one image, the surest first."""
        self.bundle.manifest["post"] = {**self.bundle.manifest["post"], "score": score}
        height, width = image.shape[:2]
        scale = min(self.width / width, self.height / height)
        small = images.resized(image, (max(1, round(width * scale)), max(1, round(height * scale))))
        sheet = np.full((self.height, self.width, self.channels), EMPTY, np.uint8)
        sheet[: small.shape[0], : small.shape[1]] = small
        (rows,) = self.bundle.predict([sheet.transpose(2, 0, 1)[None]])
        found = np.array(rows, np.float32).reshape(-1, 6)
        found[:, [0, 2]] = (found[:, [0, 2]] * (width / small.shape[1])).clip(0, width)
        found[:, [1, 3]] = (found[:, [1, 3]] * (height / small.shape[0])).clip(0, height)
        return found
