"""The detector: one small network of dense convolutions that says for every point of an image what is there.

    net = Detector(classes=4, channels=1, size="tiny")
    raw = net(images)                            # (batch, points, 4 * BINS + classes), images in 0..1
    boxes, scores = net.decode(raw)              # corner boxes in pixels, scores in 0..1
    found = net.detect(images, score=0.25)       # per image (count, 6): x1 y1 x2 y2 score class, after NMS

        image ── stem ── 1/4 ── 1/8 ──┬── 1/16 ──┬── 1/32 + pooling          the backbone
                                      │          │           │
                                 down ▲     down ▲           ▼ up            the neck: top down, then bottom up
                                      └── head   └── head    └── head        what (classes) apart from where (boxes)

Written from the papers: cross-stage partial blocks (Wang et al. 2020, arXiv:1911.11929), spatial pyramid pooling (He
et al. 2014, arXiv:1406.4729), path aggregation (Liu et al. 2018, arXiv:1803.01534), a decoupled anchor-free head (FCOS,
Tian et al. 2019, arXiv:1904.01355; YOLOX, Ge et al. 2021, arXiv:2107.08430), box sides as distributions (generalized
focal loss, Li et al. 2020, arXiv:2006.04388). Convolutions are dense on purpose: depthwise ones gain nothing from bf16
on CPUs. How it is taught stands in `loss.py`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from holdfast.workloads.detection.backbones import Foreign

STRIDES = (8, 16, 32)
BINS = 16
"""A side's distance from its point is spread over so many values, in units of the level's stride, from FIRST on."""
FIRST = -1
"""A point may lie a little outside of its box: objects smaller than the finest grid are found by a neighbour."""
MOST = 300
"""Boxes that one image may have at most."""


@dataclass(frozen=True, slots=True)
class Size:
    """How wide and deep."""

    widths: tuple[int, int, int, int, int]
    depths: tuple[int, int, int, int]
    head: int


SIZES = {
    "nano": Size((16, 24, 48, 96, 160), (1, 1, 2, 1), 48),
    "tiny": Size((16, 32, 64, 128, 288), (1, 2, 3, 1), 64),
}


class Conv(nn.Sequential):
    """Convolution, normalisation, activation."""

    def __init__(self, inner: int, outer: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outer, eps=1e-3, momentum=0.1),  # 0.03 leaves traces of its start in a run of 150 steps
            nn.SiLU(),  # in place it would copy its input first, which the backward needs
        )


class Bottleneck(nn.Module):
    """Two 3x3 convolutions, and a way around them where `around`."""

    def __init__(self, width: int, around: bool) -> None:
        super().__init__()
        self.first, self.second = Conv(width, width, 3), Conv(width, width, 3)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.around else y


class Partial(nn.Module):
    """A cross-stage partial block: half of the channels go through the bottlenecks, the other half around them."""

    def __init__(self, inner: int, outer: int, depth: int, around: bool = True) -> None:
        super().__init__()
        half = outer // 2
        self.aside, self.through = Conv(inner, half), Conv(inner, half)
        self.blocks = nn.Sequential(*(Bottleneck(half, around) for _ in range(depth)))
        self.join = Conv(2 * half, outer)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.join(torch.cat([self.aside(x), self.blocks(self.through(x))], 1))
        return y


class Pooling(nn.Module):
    """Spatial pyramid pooling with windows of 5, 9 and 13, each taken from the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.less = Conv(width, width // 2)
        self.more = Conv(width * 2, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.less(x)]
        for _ in range(3):
            kept.append(F.max_pool2d(kept[-1], 5, 1, 2))
        y: Tensor = self.more(torch.cat(kept, 1))
        return y


class Backbone(nn.Module):
    """The image at 1/8, 1/16 and 1/32."""

    def __init__(self, channels: int, size: Size) -> None:
        super().__init__()
        w, d = size.widths, size.depths
        self.stem = Conv(channels, w[0], 3, 2)
        self.quarter = nn.Sequential(Conv(w[0], w[1], 3, 2), Partial(w[1], w[1], d[0]))
        self.eighth = nn.Sequential(Conv(w[1], w[2], 3, 2), Partial(w[2], w[2], d[1]))
        self.sixteenth = nn.Sequential(Conv(w[2], w[3], 3, 2), Partial(w[3], w[3], d[2]))
        self.last = nn.Sequential(Conv(w[3], w[4], 3, 2), Partial(w[4], w[4], d[3]), Pooling(w[4]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = self.eighth(self.quarter(self.stem(x)))
        middle = self.sixteenth(fine)
        return fine, middle, self.last(middle)


class Neck(nn.Module):
    """Path aggregation: meaning goes down to the fine levels, places come back up."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        a, b, c = size.widths[2:]
        self.middle = Partial(c + b, b, 1, around=False)
        self.fine = Partial(b + a, a, 1, around=False)
        self.to_middle, self.middle_again = Conv(a, a, 3, 2), Partial(a + b, b, 1, around=False)
        self.to_coarse, self.coarse_again = Conv(b, b, 3, 2), Partial(b + c, c, 1, around=False)

    def forward(self, fine: Tensor, middle: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle = self.middle(torch.cat([_grown(coarse, middle), middle], 1))
        fine = self.fine(torch.cat([_grown(middle, fine), fine], 1))
        middle = self.middle_again(torch.cat([self.to_middle(fine), middle], 1))
        coarse = self.coarse_again(torch.cat([self.to_coarse(middle), coarse], 1))
        return fine, middle, coarse


def _grown(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[2:], mode="nearest")


class Head(nn.Module):
    """What is here, and how far away its four sides are: two branches for each level."""

    def __init__(self, inner: int, width: int, classes: int, stride: int) -> None:
        super().__init__()
        self.where = nn.Sequential(Conv(inner, width, 3), Conv(width, width, 3), nn.Conv2d(width, 4 * BINS, 1))
        self.what = nn.Sequential(Conv(inner, width, 3), Conv(width, width, 3), nn.Conv2d(width, classes, 1))
        last_where, last_what = self.where[-1], self.what[-1]
        assert isinstance(last_where, nn.Conv2d) and isinstance(last_what, nn.Conv2d)
        assert last_where.bias is not None and last_what.bias is not None
        # At the start each box is about four strides wide, and a handful of points of an image are believed in.
        sides = -0.5 * (torch.arange(BINS) + FIRST - 2.0).abs()
        last_where.bias.data.copy_(sides.repeat(4))
        last_what.bias.data.fill_(math.log(5 / classes / (416 / stride) ** 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.where(x), self.what(x)], 1).flatten(2).transpose(1, 2)


class Detector(nn.Module):
    """Backbone, neck and a head for each level."""

    bins: Tensor

    def __init__(self, classes: int, channels: int = 3, size: str = "tiny", backbone: str = "") -> None:
        super().__init__()
        self.classes, self.channels, self.size, self.named = classes, channels, size, backbone
        self.frozen = 0
        made = SIZES[size]
        if backbone:
            self.backbone: nn.Module = Foreign(backbone, channels, made.widths[2:])
        else:
            self.backbone = Backbone(channels, made)
        self.neck = Neck(made)
        self.heads = nn.ModuleList(
            Head(width, made.head, classes, stride) for width, stride in zip(made.widths[2:], STRIDES, strict=True)
        )
        self.register_buffer("bins", torch.arange(BINS, dtype=torch.float32) + FIRST, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """All that the heads say, for the points of the finest level first."""
        levels = self.neck(*self.backbone(images))
        return torch.cat([head(level) for head, level in zip(self.heads, levels, strict=True)], 1)

    def freeze(self, stages: int) -> list[str]:
        """The first so many stages of the backbone are neither trained nor do they gather statistics; their names."""
        self.frozen = stages
        found = [name for name, _ in self._stages()]
        for _, stage in self._stages():
            stage.requires_grad_(False)
        self.train(self.training)
        return found

    def _stages(self) -> list[tuple[str, nn.Module]]:
        return list(self.backbone.named_children())[: self.frozen]

    def train(self, mode: bool = True) -> Detector:
        super().train(mode)
        for _, stage in self._stages():
            stage.eval()
        return self

    def decode(self, raw: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Boxes as corners in pixels of an image of this (height, width), and a score for each class."""
        raw = raw.float()
        return self.boxes(raw, *points(shape, raw.device)), raw[..., 4 * BINS :].sigmoid()

    def boxes(self, raw: Tensor, at: Tensor, stride: Tensor) -> Tensor:
        """The expected distance of each side from its point, as corners."""
        # A product and a sum, not a matrix product: autocast would round that to bf16, and boxes with it.
        sides = (raw[..., : 4 * BINS].unflatten(-1, (4, BINS)).softmax(-1) * self.bins).sum(-1)
        sides = sides * stride[:, None]
        return torch.cat([at - sides[..., :2], at + sides[..., 2:]], -1)

    @torch.no_grad()
    def detect(self, images: Tensor, *, score: float = 0.25, overlap: float = 0.6, most: int = MOST) -> list[Tensor]:
        """Boxes of each image as rows x1 y1 x2 y2 score class, best first; those of one class do not overlap more."""
        height, width = images.shape[2:]
        boxes, scores = self.decode(self(images), (height, width))
        return [chosen(each, sure, score, overlap, most) for each, sure in zip(boxes, scores, strict=True)]


def points(shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The middle of every cell of every level, in pixels, and its stride."""
    places, strides = [], []
    for stride in STRIDES:
        rows, columns = -(-shape[0] // stride), -(-shape[1] // stride)
        y, x = torch.meshgrid(
            torch.arange(rows, device=device) + 0.5, torch.arange(columns, device=device) + 0.5, indexing="ij"
        )
        places.append(torch.stack([x, y], -1).flatten(0, 1) * stride)
        strides.append(torch.full((rows * columns,), float(stride), device=device))
    return torch.cat(places), torch.cat(strides)


def chosen(boxes: Tensor, scores: Tensor, score: float, overlap: float, most: int, candidates: int = 3000) -> Tensor:
    """Non-maximum suppression within each class; a point may stand for more than one class."""
    from torchvision.ops import batched_nms

    place, kind = (scores > score).nonzero(as_tuple=True)
    sure = scores[place, kind]
    if len(sure) > candidates:
        sure, best = sure.topk(candidates)
        place, kind = place[best], kind[best]
    kept = batched_nms(boxes[place], sure, kind, overlap)[:most]
    return torch.cat([boxes[place[kept]], sure[kept, None], kind[kept, None].to(sure.dtype)], 1)


class Deployed(nn.Module):
    """The detector with its NMS, for export: images in 0..255 as they come, fixed sizes in and out.

    Returns (batch, MOST, 6) rows as of `Detector.detect`; rows that are not used have score 0.
    """

    def __init__(self, net: Detector, shape: tuple[int, int], *, score: float = 0.25, overlap: float = 0.6) -> None:
        super().__init__()
        self.net, self.shape, self.score, self.overlap = net.eval(), shape, score, overlap

    def forward(self, images: Tensor) -> Tensor:
        from torchvision.ops import nms

        boxes, scores = self.net.decode(self.net(images.float() / 255), self.shape)
        best, kind = scores.max(-1)
        rows = []
        for number in range(images.shape[0]):
            sure, at = best[number].topk(min(1000, best.shape[1]))
            corners, kinds = boxes[number][at], kind[number][at].to(sure.dtype)
            # Boxes of different classes are moved apart, so that one call is enough.
            apart = corners + kinds[:, None] * (2.0 * max(self.shape))
            kept = nms(apart, sure, self.overlap)[:MOST]
            found = torch.cat([corners[kept], sure[kept, None], kinds[kept, None]], 1)
            found = found * (found[:, 4:5] > self.score)
            rows.append(F.pad(found, (0, 0, 0, MOST))[:MOST])
        return torch.stack(rows)


def folded(net: Detector) -> Detector:
    """A copy for looking only: each normalisation is part of its convolution. The same answers up to rounding."""
    copied = copy.deepcopy(net).eval()
    for block in copied.modules():
        if isinstance(block, Conv):
            conv, norm = block[0], block[1]
            assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
            block[0], block[1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    return copied


def parameters(net: nn.Module) -> int:
    return sum(each.numel() for each in net.parameters())
