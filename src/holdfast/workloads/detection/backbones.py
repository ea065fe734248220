"""A classification network of torchvision as the backbone of a detector: the image at 1/8, 1/16 and 1/32.

    backbone = Foreign("resnet18", channels=1, widths=(64, 128, 288))

The network is torchvision's own, built without weights; nothing is downloaded. Its stages are run one after the other,
and the last one at each of the three sizes is used, through a 1x1 convolution that gives it the width of the neck.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.base.errors import UserError

STRIDES = (8, 16, 32)


class Foreign(nn.Module):
    """Its stages as children, so that the first ones can be frozen, then the three convolutions."""

    def __init__(self, name: str, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        stages = _stages(name)
        _first_kernel(stages, channels)
        sizes = _sizes(stages, channels)
        self.ends = []
        for stride in STRIDES:
            at = [number for number, (_, seen) in enumerate(sizes) if seen == stride]
            if not at:
                raise UserError(f"backbone={name} cannot be used", cause=f"it never shrinks the image to 1/{stride}")
            self.ends.append(at[-1])
        self.count = self.ends[-1] + 1
        for number, (part, stage) in enumerate(stages[: self.count]):
            self.add_module(f"stage{number}_{part.replace('.', '_')}", stage)
        self.parts = [part for part, _ in stages[: self.count]]
        self.fit = nn.ModuleList(nn.Conv2d(sizes[at][0], width, 1) for at, width in zip(self.ends, widths, strict=True))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen: list[Tensor] = []
        for number, stage in enumerate(list(self.children())[: self.count]):
            x = stage(x)
            if number in self.ends:
                seen.append(self.fit[len(seen)](x))
        return seen[0], seen[1], seen[2]


def _stages(name: str) -> list[tuple[str, nn.Module]]:
    """The network's own parts, in the order in which it runs them, without its classifier."""
    from torchvision import models

    try:
        whole = models.get_model(name, weights=None)
    except ValueError:
        raise UserError(
            f"there is no backbone {name!r}", hints=["a network of torchvision: resnet18, efficientnet_b0 …"]
        ) from None
    found: list[tuple[str, nn.Module]] = []
    for part, module in whole.named_children():
        if part in ("avgpool", "fc", "classifier", "head", "heads"):
            break
        if part in ("features", "layers", "trunk_output") and isinstance(module, nn.Sequential):
            found += [(f"{part}.{inner}", each) for inner, each in module.named_children()]
        else:
            found.append((part, module))
    return found


def _first_kernel(stages: list[tuple[str, nn.Module]], channels: int) -> None:
    """Its first convolution for images of so many channels."""
    for at, (name, stage) in enumerate(stages):
        if isinstance(stage, nn.Conv2d):
            stages[at] = name, _with_channels(stage, channels)
            return
        for parent in stage.modules():
            for part, module in parent.named_children():
                if isinstance(module, nn.Conv2d):
                    setattr(parent, part, _with_channels(module, channels))
                    return


def _with_channels(old: nn.Conv2d, channels: int) -> nn.Conv2d:
    if old.in_channels == channels:
        return old
    made = nn.Conv2d(channels, old.out_channels, old.kernel_size, old.stride, old.padding, bias=old.bias is not None)  # type: ignore[arg-type]
    made.weight.data.copy_(channels_as(old.weight.data, channels))
    if made.bias is not None and old.bias is not None:
        made.bias.data.copy_(old.bias.data)
    return made


@torch.no_grad()
def _sizes(stages: list[tuple[str, nn.Module]], channels: int) -> list[tuple[int, int]]:
    """Channels and stride after each stage, seen by running them once."""
    side, found = 128, []
    x = torch.zeros(1, channels, side, side)
    for part, stage in stages:
        stage.eval()
        try:
            x = stage(x)
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise UserError(
                f"this network cannot be a backbone: `{part}`", cause=str(error).splitlines()[0][:160]
            ) from None
        stage.train()
        found.append((int(x.shape[1]), side // int(x.shape[-1])) if x.ndim == 4 else (0, 0))
    return found


def channels_as(kernel: Tensor, channels: int) -> Tensor:
    """The first kernel of a network for so many channels: the same answer for a grey image."""
    if kernel.ndim != 4 or kernel.shape[1] == channels:
        return kernel
    grey = kernel.sum(1, keepdim=True)
    return grey if channels == 1 else grey.expand(-1, channels, -1, -1) / channels
