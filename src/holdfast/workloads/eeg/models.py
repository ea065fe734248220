"""The networks of the EEG workload: (batch, channels, samples) in volts go in, features over time come out.

    backbone = build("tempo", channels=129, samples=200, rate=100.0)     # our own
    backbone = build("unet", channels=129, samples=200, rate=100.0)      # our own, with a coarse view of the window
    backbone = build("transformer", channels=129, samples=1000)          # the baseline, about 550K parameters
    backbone = build("EEGNeX", channels=129, samples=200, rate=100.0)    # any model of braindecode, by its name
    backbone.norm.fit(windows)                                           # channel scales, kept in the weights
    backbone.sequence(x)                                                 # (batch, backbone.width, backbone.steps)
    backbone.summary(x)                                                  # (batch, backbone.summary_width)

This file and heads.py import nothing but torch (braindecode only where it is asked for) and run on torch 2.2.2: a
submission to the competition carries both as they are, so what was trained is what is served.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

OWN = ("tempo", "transformer", "unet")
"""Names that are ours; any other is looked up in braindecode."""


class RobustNorm(nn.Module):
    """Each channel in units of its own typical deviation, clipped: volts, artefacts and a flat reference are all fine.

    The scales are measured once on training windows (median absolute deviation) and are part of the weights, so a
    single window at inference gets exactly what training windows got. A channel that never moves is silenced.
    """

    gain: torch.Tensor
    centre: torch.Tensor

    def __init__(self, channels: int, limit: float = 8.0) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("gain", torch.ones(channels))
        self.register_buffer("centre", torch.zeros(channels))

    def fit(self, windows: torch.Tensor) -> None:
        """Measure the scales on (n, channels, samples)."""
        flat = windows.detach().float().transpose(0, 1).reshape(windows.shape[1], -1)
        finite = torch.nan_to_num(flat)
        centre = finite.median(dim=1).values
        spread = (finite - centre[:, None]).abs().median(dim=1).values * 1.4826
        moves = spread > 1e-3 * spread.median().clamp_min(1e-30)
        self.centre.copy_(centre)
        self.gain.copy_(torch.where(moves, 1.0 / spread.clamp_min(1e-30), torch.zeros_like(spread)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = (x.float() - self.centre[:, None]) * self.gain[:, None]
        return torch.nan_to_num(scaled).clamp(-self.limit, self.limit)


class Filtered(nn.Module):
    """How Tempo and UNet begin: spatial filters, then one filter over time for each. Both keep the time axis.

    The two layers are linear, so the mean square of their output is band power: `summary` has its logarithm.
    The second one goes down to about 50 Hz; the power of what it keeps is the same.
    """

    def __init__(self, channels: int, samples: int, rate: float, width: int) -> None:
        super().__init__()
        self.channels, self.samples, self.width = channels, samples, width
        stride = max(1, round(rate / 50.0))
        self.steps = (samples + stride - 1) // stride
        self.summary_width = 2 * width
        self.norm = RobustNorm(channels)
        self.spatial = nn.Conv1d(channels, width, 1, bias=False)
        reach = 2 * (round(0.25 * rate) // 2) + 1
        self.bands = nn.Conv1d(width, width, reach, stride, padding=reach // 2, groups=width, bias=False)
        self.enter = nn.BatchNorm1d(width)

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """Spatially and temporally filtered, (batch, width, steps)."""
        filtered: torch.Tensor = self.bands(self.spatial(self.norm(x)))
        return filtered

    def sequence(self, x: torch.Tensor) -> torch.Tensor:
        return self._deep(self.linear(x))

    def _deep(self, filtered: torch.Tensor) -> torch.Tensor:
        """What the layers of a kind of net make of the filtered window, (batch, width, steps)."""
        raise NotImplementedError

    def summary(self, x: torch.Tensor) -> torch.Tensor:
        filtered = self.linear(x)
        power = filtered.float().square().mean(dim=2).add(1e-4).log()
        return torch.cat([power, self._deep(filtered).mean(dim=2)], dim=1)


class Tempo(Filtered):
    """Spatial filters, then depthwise convolutions that see ever more time: small, and it keeps the time axis."""

    def __init__(
        self, channels: int, samples: int, rate: float = 100.0, width: int = 32, blocks: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__(channels, samples, rate, width)
        self.blocks = nn.ModuleList(_Block(width, dilation=2**number, dropout=dropout) for number in range(blocks))

    def _deep(self, filtered: torch.Tensor) -> torch.Tensor:
        hidden = functional.silu(self.enter(filtered))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class _Block(nn.Module):
    def __init__(self, width: int, dilation: int, dropout: float, kernel: int = 9) -> None:
        super().__init__()
        reach = dilation * (kernel // 2)
        self.time = nn.Conv1d(width, width, kernel, padding=reach, dilation=dilation, groups=width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Conv1d(width, width, 1)
        self.drop = nn.Dropout1d(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.drop(self.mix(functional.silu(self.norm(self.time(x)))))
        return x + inner


class UNet(Filtered):
    """Spatial filters, then down to a coarse view of the window and up again: it sees far, and keeps the time axis.

    Begun like Tempo; what the coarse view finds is put back at the place where it was.
    """

    def __init__(
        self, channels: int, samples: int, rate: float = 100.0, width: int = 24, depth: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__(channels, samples, rate, width)
        self.down = nn.ModuleList(_Block(width, 1, dropout, kernel=7) for _ in range(depth + 1))
        self.up = nn.ModuleList(_Block(width, 1, dropout, kernel=7) for _ in range(depth))
        self.join = nn.ModuleList(nn.Conv1d(2 * width, width, 1) for _ in range(depth))

    def _deep(self, filtered: torch.Tensor) -> torch.Tensor:
        hidden, finer = functional.silu(self.enter(filtered)), []
        for block in list(self.down)[:-1]:
            hidden = block(hidden)
            finer.append(hidden)
            hidden = functional.avg_pool1d(hidden, 2, ceil_mode=True)
        hidden = self.down[-1](hidden)
        for block, join in zip(self.up, self.join):  # noqa: B905 - equal by construction; torch 2.2 traces it
            fine = finer.pop()
            wide = functional.interpolate(hidden, size=fine.shape[2], mode="linear", align_corners=False)
            hidden = block(join(torch.cat([wide, fine], dim=1)))
        found: torch.Tensor = hidden
        return found


class Transformer(nn.Module):
    """The baseline: projection to 128, learned positions, two layers with four heads, and the mean over time.

    As it was first written, it is `attention_dropout=True, token_rate=0`. Two things about that are slow. Attention
    that drops weights cannot use the fast kernels: PyTorch writes out every attention matrix; dropping whole features
    of a window regularises as well and costs next to nothing. And a token per sample is many tokens: EEG that was
    filtered to 45 Hz and sampled at 500 Hz says nothing more than at 125 Hz, so samples (and positions) are averaged
    until there are no more than `token_rate` tokens per second. The weights are the same ones in every case.
    """

    def __init__(
        self,
        channels: int,
        samples: int,
        rate: float = 100.0,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        attention_dropout: bool = False,
        token_rate: float = 125.0,
    ) -> None:
        super().__init__()
        self.channels, self.samples, self.width, self.summary_width = channels, samples, width, width
        self.pool = max(1, math.floor(rate / token_rate)) if token_rate else 1
        self.steps = samples // self.pool
        self.norm = RobustNorm(channels)
        self.project = nn.Linear(channels, width)
        self.positions = nn.Parameter(torch.zeros(1, samples, width))
        kind = nn.TransformerEncoderLayer if attention_dropout else _FastLayer
        self.layers = nn.ModuleList(kind(width, heads, 4 * width, dropout, batch_first=True) for _ in range(layers))

    def sequence(self, x: torch.Tensor) -> torch.Tensor:
        seen, positions = self.norm(x), self.positions[:, : x.shape[2]].transpose(1, 2)
        if self.pool > 1:  # averaging before the projection is the same as after it, and there is less to project
            seen, positions = functional.avg_pool1d(seen, self.pool), functional.avg_pool1d(positions, self.pool)
        tokens = (self.project(seen.transpose(1, 2)) + positions.transpose(1, 2)).contiguous()
        for layer in self.layers:
            tokens = layer(tokens)
        found: torch.Tensor = tokens.transpose(1, 2)
        return found

    def summary(self, x: torch.Tensor) -> torch.Tensor:
        return self.sequence(x).mean(dim=2)


class _FastLayer(nn.TransformerEncoderLayer):
    """The same weights and the same formula as PyTorch's layer, with dropout of whole features instead of numbers."""

    def forward(self, src: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        batch, length, width = src.shape
        attention = self.self_attn
        qkv = functional.linear(src, attention.in_proj_weight, attention.in_proj_bias)
        query, key, value = qkv.view(batch, length, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        mixed = attention.out_proj(seen.transpose(1, 2).reshape(batch, length, width))
        hidden = self.norm1(src + self._thin(mixed))
        inner = self.linear2(functional.relu(self.linear1(hidden)))
        out: torch.Tensor = self.norm2(hidden + self._thin(inner))
        return out

    def _thin(self, x: torch.Tensor) -> torch.Tensor:
        rate = self.dropout1.p
        if not self.training or rate == 0:
            return x
        kept = torch.rand(x.shape[0], 1, x.shape[2], device=x.device, dtype=torch.float32) >= rate
        return x * (kept.to(x.dtype) / (1.0 - rate))


class Foreign(nn.Module):
    """A model of braindecode behind our channel scales. It gives one vector per window: there is no time axis left."""

    def __init__(self, name: str, channels: int, samples: int, rate: float, width: int = 64) -> None:
        super().__init__()
        import braindecode.models as zoo

        self.channels, self.samples, self.width, self.steps, self.summary_width = channels, samples, width, 0, width
        self.norm = RobustNorm(channels)
        self.model = getattr(zoo, name)(n_chans=channels, n_outputs=width, n_times=samples, sfreq=rate)

    def summary(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(self.norm(x))
        return out.reshape(len(x), -1)

    sequence = summary


def build(name: str, *, channels: int, samples: int, rate: float = 100.0, **options: Any) -> nn.Module:
    """The backbone called `name`."""
    if name == "tempo":
        return Tempo(channels, samples, rate, **options)
    if name == "unet":
        return UNet(channels, samples, rate, **options)
    if name == "transformer":
        return Transformer(channels, samples, rate, **options)
    return Foreign(name, channels, samples, rate, **options)


def parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(math.prod(each.shape) for each in model.parameters())
