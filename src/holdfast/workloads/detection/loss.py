"""How the detector is taught: which points answer for which box, and what a wrong answer costs.

    total, parts = detection_loss(net, raw, targets, shape)      # targets (batch, most, 5): class x1 y1 x2 y2, or -1
    pairs = assign(scores, boxes, targets, at, stride)           # which point stands for which object

Points are chosen by what they say at the moment (task-aligned assignment, Feng et al. 2021, arXiv:2108.07755): those
inside of an object that are both sure of its class and close to its box. They learn its class with a soft target
(how close they are), its box by complete IoU (Zheng et al. 2020, arXiv:1911.08287) and the spread of its sides by
distribution focal loss (Li et al. 2020, arXiv:2006.04388). Everything here is computed in fp32, whatever the net used.

Pairs of points and objects are kept as lists, since almost all of the possible ones are no candidates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.workloads.detection.model import BINS, FIRST, STRIDES, Detector, points

TOPMOST = 10
"""Points that may answer for one object."""
SURE, CLOSE = 0.5, 6.0
"""How much the class score and the overlap count when points are chosen."""
BOX, SIDES, CLASS = 7.5, 1.5, 0.5
"""Weights of the parts of the loss."""
TINY = 1e-9


class Pairs(NamedTuple):
    """Points that answer for an object: which image, which point, which of its objects, how well it does (0..1)."""

    image: Tensor
    point: Tensor
    object: Tensor
    worth: Tensor


def detection_loss(net: Detector, raw: Tensor, targets: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and its parts (class, box, sides) without gradients."""
    with torch.autocast(raw.device.type, enabled=False):
        raw = raw.float()
        targets = targets[:, : max(1, int((targets[..., 0] >= 0).sum(1).max()))]
        at, stride = points(shape, raw.device)
        boxes = net.boxes(raw, at, stride)
        logits = raw[..., 4 * BINS :]
        pairs = assign(logits.detach().sigmoid(), boxes.detach(), targets, at, stride)

        wanted = torch.zeros_like(logits)
        truth = targets[pairs.image, pairs.object]
        wanted[pairs.image, pairs.point, truth[:, 0].long()] = pairs.worth
        total = pairs.worth.sum().clamp(min=1.0)
        of_class = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / total

        apart = 1.0 - complete_iou(boxes[pairs.image, pairs.point], truth[:, 1:])
        of_box = (apart * pairs.worth).sum() / total
        sides = raw[pairs.image, pairs.point, : 4 * BINS].unflatten(-1, (4, BINS))
        spread = _focal_sides(sides, truth[:, 1:], at[pairs.point], stride[pairs.point])
        of_sides = (spread * pairs.worth).sum() / total
        loss = CLASS * of_class + BOX * of_box + SIDES * of_sides
        return loss, torch.stack([of_class, of_box, of_sides]).detach()


@torch.no_grad()
def assign(scores: Tensor, boxes: Tensor, targets: Tensor, at: Tensor, stride: Tensor) -> Pairs:
    """Each object gets the best of the points inside of it, each point at most one object."""
    there = targets[..., 0] >= 0
    corners = targets[..., 1:]
    # An object smaller than two cells of the finest grid is looked for in their place, or no point would be inside.
    middle, half = (corners[..., :2] + corners[..., 2:]) / 2, (corners[..., 2:] - corners[..., :2]) / 2
    half = half.clamp(min=float(STRIDES[0]))
    low, high = middle - half, middle + half
    inside = (at[:, 0] > low[..., None, 0]) & (at[:, 0] < high[..., None, 0]) & there[..., None]
    inside &= (at[:, 1] > low[..., None, 1]) & (at[:, 1] < high[..., None, 1])
    image, object, point = inside.nonzero(as_tuple=True)

    truth = targets[image, object]
    overlap = iou(boxes[image, point], truth[:, 1:])
    sure = scores[image, point, truth[:, 0].long()]
    fit = sure.pow(SURE) * overlap.pow(CLOSE)
    off = (at[point] - middle[image, object]) / half[image, object]
    fit = fit + TINY * (2.0 - off.square().sum(1))  # where all say nonsense, the middle is best

    number = image * targets.shape[1] + object
    kept = _best_of_each(number, fit, TOPMOST)
    image, object, point, fit, overlap, number = (x[kept] for x in (image, object, point, fit, overlap, number))
    kept = _best_of_each(image * len(at) + point, overlap, 1)
    image, object, point, fit, overlap, number = (x[kept] for x in (image, object, point, fit, overlap, number))

    # The best point of an object is wanted to be as sure as its box is good, the others in proportion.
    count = targets.shape[0] * targets.shape[1]
    best_fit = torch.zeros(count, device=fit.device).scatter_reduce(0, number, fit, "amax")
    best_overlap = torch.zeros(count, device=fit.device).scatter_reduce(0, number, overlap, "amax")
    worth = fit / best_fit[number].clamp(min=TINY * TINY) * best_overlap[number].clamp(min=0.05)
    return Pairs(image, point, object, worth)


def _best_of_each(group: Tensor, value: Tensor, most: int) -> Tensor:
    """Indices of the `most` largest values of every group; ties go to the first, so that it is always the same."""
    order = value.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    sorted_group = group[order]
    places = torch.arange(len(order), device=group.device)
    begins = torch.ones_like(sorted_group, dtype=torch.bool)
    begins[1:] = sorted_group[1:] != sorted_group[:-1]
    first = torch.where(begins, places, 0).cummax(0).values if len(order) else places
    return order[places - first < most].sort().values


def _focal_sides(sides: Tensor, truth: Tensor, at: Tensor, stride: Tensor) -> Tensor:
    """Cross entropy with the two values that the true distance of a side lies between, mean over the four."""
    distance = torch.cat([at - truth[:, :2], truth[:, 2:] - at], 1) / stride[:, None] - FIRST
    distance = distance.clamp(0, BINS - 1.01)
    low = distance.floor()
    weight = distance - low
    log = sides.log_softmax(-1)
    below = log.gather(-1, low.long()[..., None])[..., 0]
    above = log.gather(-1, low.long()[..., None] + 1)[..., 0]
    return -(below * (1 - weight) + above * weight).mean(1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union, pair by pair."""
    return _overlap(a, b)[0]


def _overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    size = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
    both = size.prod(1)
    union = (a[:, 2:] - a[:, :2]).clamp(min=0).prod(1) + (b[:, 2:] - b[:, :2]).clamp(min=0).prod(1) - both
    return both / (union + 1e-7), union


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU less a penalty for centres that are apart and for another shape: it pulls boxes that do not touch, too."""
    overlap, _ = _overlap(a, b)
    around = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    diagonal = around.square().sum(1) + 1e-7
    apart = (a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]).square().sum(1) / 4
    mine, theirs = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    angle = torch.atan(theirs[:, 0] / (theirs[:, 1] + 1e-7)) - torch.atan(
        mine[:, 0] / (mine[:, 1].clamp(min=1e-3) + 1e-7)
    )
    shape = 4 / math.pi**2 * angle.square()
    with torch.no_grad():
        share = shape / (1 - overlap + shape + 1e-7)
    return overlap - apart / diagonal - share * shape
