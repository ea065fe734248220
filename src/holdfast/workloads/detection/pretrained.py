"""Starting from weights: those of a detector of ours, of a YOLO checkpoint's backbone, or of a torchvision backbone.

    taken = inherit(net, Path("weights.safetensors"))      # a Taken: which tensors, from what, and what was left
    for line in taken.lines(): print(line)

What does not fit is left as it is and said. A first layer for three channels fits one for grey images when its kernels
are added up (a grey image is the same in all three), and the other way around.

YOLOv8's backbone has the same blocks as ours under other names: its C2f computes both halves of ours with one kernel,
and its last kernel sees more than ours, of which the columns that we have are taken. torchvision's networks are used
as they are (`backbones.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from holdfast.base.errors import UserError
from holdfast.workloads.detection.backbones import Foreign, channels_as
from holdfast.workloads.detection.model import SIZES, Detector
from holdfast.workloads.detection.tensors import read

_PREFIXES = ("average.module.", "model.", "module.", "")
"""Whose weights, the best first: the moving average of a run, its live ones, or a plain file."""
_STEM = "backbone.stem.0.weight"
_YOLO_STAGES = {"quarter": (1, 2), "eighth": (3, 4), "sixteenth": (5, 6), "last": (7, 8)}
_YOLO_POOLING = 9


@dataclass
class Taken:
    """What was taken from a file."""

    file: str
    kind: str
    tensors: int
    wanted: int
    missing: list[str] = field(default_factory=list)
    """Tensors of the detector that start anew."""
    unused: list[str] = field(default_factory=list)
    """Tensors of the file that nothing was made of."""

    def lines(self) -> list[str]:
        """What was taken and what was not, in words."""
        told = [f"weights from {self.file} ({self.kind}): {self.tensors} of {self.wanted} tensors"]
        if self.missing:
            told.append(f"  start anew: {_grouped(self.missing)}")
        if self.unused:
            told.append(f"  not used of the file: {_grouped(self.unused)}")
        return told


def _grouped(names: list[str]) -> str:
    """By their first parts, with a count: a list of two hundred tensors says nothing."""
    counts: dict[str, int] = {}
    for name in names:
        group = ".".join(name.split(".")[:2])
        counts[group] = counts.get(group, 0) + 1
    shown = [f"{name} ({count})" for name, count in list(counts.items())[:12]]
    return ", ".join(shown) + (f" and {len(counts) - 12} more" if len(counts) > 12 else "")


def backbone_of(file: str) -> str:
    """The network of torchvision whose weights a file has by its name, as torchvision calls it; empty if none."""
    if not file or Path(file).suffix not in (".pth", ".pt"):
        return ""
    from torchvision.models import list_models

    name = Path(file).stem.split("-")[0]
    return name if name in list_models() else ""


def inherit(net: Detector, path: Path) -> Taken:
    """Start from these weights; UserError if they are not weights of anything that is known here."""
    found = read(path)
    if net.named and not any(name.startswith(("average.module.", "model.backbone.")) for name in found):
        assert isinstance(net.backbone, Foreign)
        return take(net.backbone, path)
    fitting, kind, unused = ours(found, net), "a detector", []  # type: dict[str, Tensor], str, list[str]
    if len(fitting) < len(net.state_dict()) // 4 and "model.0.conv.weight" in found:
        used: set[str] = set()
        fitting, kind = dict(_of_yolo(found, net, used)), "the backbone of a YOLO checkpoint"
        unused = [name for name in found if name not in used and not name.endswith("num_batches_tracked")]
    wanted = net.state_dict()
    if len(fitting) < len(wanted) // (2 if kind == "a detector" else 10):
        raise UserError(
            f"the weights in {path} are not those of this detector",
            cause=f"{len(fitting)} of {len(wanted)} tensors fit",
            hints=[f"give the size they were trained with: size={' or '.join(SIZES)}",
                   "for a file of torchvision say which network it is: backbone=resnet18"],
        )  # fmt: skip
    net.load_state_dict(fitting, strict=False)
    missing = [name for name in wanted if name not in fitting and not name.endswith("num_batches_tracked")]
    return Taken(path.name, kind, len(fitting), len(wanted), missing, unused)


def take(backbone: Foreign, path: Path) -> Taken:
    """The weights of the file, as far as they are those of this network."""
    found = read(path)
    wanted, fitting, used = backbone.state_dict(), {}, set()  # type: dict[str, Tensor], dict[str, Tensor], set[str]
    first = next((name for name, value in found.items() if value.ndim == 4), "")
    for number, part in enumerate(backbone.parts):
        ours = f"stage{number}_{part.replace('.', '_')}"
        for name, value in found.items():
            target = ours + name[len(part) :]
            if name.startswith(part + ".") and target in wanted:
                value = channels_as(value, wanted[target].shape[1]) if name == first else value
                if value.shape == wanted[target].shape:
                    fitting[target] = value
                    used.add(name)
    if len(fitting) < len(wanted) // 4:
        raise UserError(
            f"the weights in {path} are not those of this backbone",
            cause=f"{len(fitting)} of {len(wanted)} tensors fit",
        )
    backbone.load_state_dict(fitting, strict=False)
    missing = [f"backbone.{name}" for name in wanted if name not in fitting]
    unused = [name for name in found if name not in used]
    return Taken(path.name, "a torchvision network", len(fitting), len(wanted), missing, unused)


def ours(found: dict[str, Tensor], net: Detector) -> dict[str, Tensor]:
    """The tensors of the best kind that is there, under the names of the net."""
    wanted = net.state_dict()
    for prefix in _PREFIXES:
        hits = {key: found[prefix + key] for key in wanted if prefix + key in found}
        if hits:
            if _STEM in hits:
                hits[_STEM] = channels_as(hits[_STEM], wanted[_STEM].shape[1])
            return {key: value for key, value in hits.items() if value.shape == wanted[key].shape}
    return {}


# YOLO -----------------------------------------------------------------------------------------------------------


def _of_yolo(found: dict[str, Tensor], net: Detector, used: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Pairs of our name and a tensor of its shape, as far as the blocks are the same."""
    wanted = net.state_dict()
    for name, value, source in _yolo_pairs({key: value.float() for key, value in found.items()}):
        if name == _STEM:
            value = channels_as(value, wanted[_STEM].shape[1])
        if name in wanted and value.shape == wanted[name].shape:
            used.add(source)
            yield name, value.to(wanted[name].dtype).contiguous()


def _yolo_pairs(found: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, str]]:
    yield from _conv(found, "model.0", "backbone.stem")
    for stage, (down, block) in _YOLO_STAGES.items():
        yield from _conv(found, f"model.{down}", f"backbone.{stage}.0")
        yield from _c2f(found, f"model.{block}", f"backbone.{stage}.1")
    yield from _conv(found, f"model.{_YOLO_POOLING}.cv1", "backbone.last.2.less")
    yield from _conv(found, f"model.{_YOLO_POOLING}.cv2", "backbone.last.2.more")


def _conv(
    found: dict[str, Tensor], theirs: str, ours: str, rows: slice = slice(None)
) -> Iterator[tuple[str, Tensor, str]]:
    """A convolution and its normalisation, or some rows of both."""
    if f"{theirs}.conv.weight" in found:
        yield f"{ours}.0.weight", found[f"{theirs}.conv.weight"][rows], f"{theirs}.conv.weight"
    for part in ("weight", "bias", "running_mean", "running_var"):
        if f"{theirs}.bn.{part}" in found:
            yield f"{ours}.1.{part}", found[f"{theirs}.bn.{part}"][rows], f"{theirs}.bn.{part}"


def _c2f(found: dict[str, Tensor], theirs: str, ours: str) -> Iterator[tuple[str, Tensor, str]]:
    first = found.get(f"{theirs}.cv1.conv.weight")
    if first is None:
        return
    half = first.shape[0] // 2
    yield from _conv(found, f"{theirs}.cv1", f"{ours}.aside", slice(0, half))
    yield from _conv(found, f"{theirs}.cv1", f"{ours}.through", slice(half, None))
    depth = len({match[1] for name in found if (match := re.match(rf"{re.escape(theirs)}\.m\.(\d+)\.", name))})
    for number in range(depth):
        yield from _conv(found, f"{theirs}.m.{number}.cv1", f"{ours}.blocks.{number}.first")
        yield from _conv(found, f"{theirs}.m.{number}.cv2", f"{ours}.blocks.{number}.second")
    last = found.get(f"{theirs}.cv2.conv.weight")
    if last is not None and last.shape[1] >= 2 * half:
        columns = torch.cat([last[:, :half], last[:, -half:]], 1)  # what goes around, and what the last block says
        yield f"{ours}.join.0.weight", columns, f"{theirs}.cv2.conv.weight"
        for name, value, source in _conv(found, f"{theirs}.cv2", f"{ours}.join"):
            if not name.endswith(".0.weight"):
                yield name, value, source
