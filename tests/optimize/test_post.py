"""The suppression that travels in a bundle says what torchvision's does."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.optimize.post import apply

POST = {"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300}


@pytest.mark.parametrize("score", [0.001, 0.1, 0.25, 0.9])
def test_the_same_boxes_as_torchvision(score: float) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision", reason="needs the extra `detection`")
    from holdfast.workloads.detection.model import chosen

    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 100, (400, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 40, (400, 2))], axis=1).astype(np.float32)
    scores = (rng.uniform(0, 1, (400, 3)) ** 4).astype(np.float32)
    mine = apply({**POST, "score": score}, [boxes[None], scores[None]])[0]
    theirs = chosen(torch.from_numpy(boxes), torch.from_numpy(scores), score, 0.6, 300).numpy()
    assert mine.shape == theirs.shape and np.allclose(mine, theirs, atol=1e-4)


def test_nothing_found_is_an_empty_table() -> None:
    assert apply(POST, [np.zeros((1, 5, 4), np.float32), np.zeros((1, 5, 2), np.float32)])[0].shape == (0, 6)
