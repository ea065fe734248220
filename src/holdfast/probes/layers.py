"""The small networks of the probes: each trains, is smooth, and is built around one kind of layer.

    layer = build("conv2d")             # a module whose weights depend on its name alone
    inputs = layer.inputs(batch=8)      # on the CPU, the same each time
    layer(inputs)                       # (batch, features): compared with a target of its own

Smooth, because at a kink two right devices may part: where a sum is almost zero, one of them rounds it up and the
other down. Large enough that libraries choose the kernels they choose for real models.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LABELS, WORDS = 10, 50


class Layer(nn.Module):
    """What is common: inputs and targets that depend on the name and the batch alone."""

    shape: tuple[int, ...] = (16, 16, 16)
    small: tuple[int, ...] = ()
    """The shape of an input on a CPU, if that is another one: there it takes time, and the kernels are the same."""
    integers: int = 0
    """Inputs are indices below this number."""

    @property
    def depth(self) -> int:
        """Steps that feed on each other, each with the rounding of those before it: more than one in a recurrence."""
        return 1

    def inputs(self, batch: int) -> Tensor:
        source = torch.Generator().manual_seed(zlib.crc32(type(self).__name__.encode()) + batch)
        if self.integers:
            indices = torch.randint(self.integers, (batch, *self.shape), generator=source)
            indices[0, 0], indices[-1, -1] = 0, self.integers - 1  # the bounds themselves
            return indices
        return torch.randn(batch, *self.shape, generator=source)

    def loss(self, output: Tensor, batch: int) -> Tensor:
        """The distance to a target that is never reached."""
        source = torch.Generator().manual_seed(7 + batch)
        target = torch.randn(output.shape, generator=source, dtype=torch.float32)
        wide = output if output.dtype == torch.float64 else output.float()
        return F.mse_loss(wide, target.to(output.device, wide.dtype))


class Linear(Layer):
    shape = (192,)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(192, 256), nn.Linear(256, 32)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(F.gelu(self.first(x)))
        return out


class Convolution(Layer):
    """Two convolutions of one kind and a mean over what is left of the picture."""

    def __init__(self, kind: type[nn.Module], shape: tuple[int, ...], **options: int) -> None:
        super().__init__()
        self.shape, self.small = shape, (shape[0], *(side // 2 for side in shape[1:]))
        wide = 2 * shape[0]
        self.first = kind(shape[0], wide, 3, padding=1, **options)
        self.second = kind(wide, wide, 3, stride=2, padding=1, **options)
        self.head = nn.Linear(wide, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        features = F.gelu(self.second(F.gelu(self.first(x))))
        out: Tensor = self.head(features.flatten(2).mean(2))
        return out


class Attention(Layer):
    shape, small = (48, 64), (16, 64)

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2)).mean(1)
        return out


class Recurrent(Layer):
    shape, small = (12, 32), (5, 32)

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.cell = kind(32, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, LABELS)

    @property
    def depth(self) -> int:
        return self.shape[0] + self.cell.num_layers - 1

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


class Normed(Layer):
    """A convolution, the norm, a smooth bend, and a head."""

    small = (16, 8, 8)

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 24, 3, padding=1, bias=False)
        self.norm = norm
        self.head = nn.Linear(24, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        if isinstance(self.norm, nn.LayerNorm):
            features = self.norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        else:
            features = self.norm(features)
        out: Tensor = self.head(F.gelu(features).flatten(2).mean(2))
        return out


class Embedding(Layer):
    shape = (24,)
    integers = WORDS

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 48), nn.Linear(48, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.words(x)).mean(1))
        return out


class Pooling(Layer):
    """The largest is taken of the inputs themselves, which are the same on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16 * 2 * 16, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([F.max_pool2d(x, 4), F.avg_pool2d(x, 4)], 1)
        out: Tensor = self.head(F.adaptive_avg_pool2d(both, 4).flatten(1))
        return out


class Interpolate(Layer):
    shape = (8, 12, 12)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 12, 1)
        self.head = nn.Linear(36, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        sizes = [
            F.interpolate(features, size=19, mode="bilinear", align_corners=False),
            F.interpolate(features, size=19, mode="nearest"),
            F.interpolate(features, size=19, mode="bicubic", align_corners=False),
        ]
        out: Tensor = self.head(torch.cat([torch.tanh(each).flatten(2).mean(2) for each in sizes], 1))
        return out


class Scatter(Layer):
    """Gather, index_add and scatter_add: many values into one place."""

    shape = (40, 16)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 24), nn.Linear(24, LABELS)
        self.register_buffer("places", (torch.arange(40) * 7) % 12, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features, places = self.first(x), self.places
        assert isinstance(places, Tensor)
        where = places[None, :, None].expand(features.shape[0], -1, 24)
        empty = torch.zeros(features.shape[0], 12, 24, dtype=features.dtype, device=features.device)
        summed = empty.scatter_add(1, where, features) + empty.index_add(1, places, features)
        out: Tensor = self.head(torch.tanh(summed.gather(1, where)).mean(1))
        return out


class Entropy(Layer):
    """Softmax and cross-entropy, with labels."""

    shape = (96,)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(96, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.softmax(x, 1) * 96)
        return out

    def loss(self, output: Tensor, batch: int) -> Tensor:
        wide = output if output.dtype == torch.float64 else output.float()
        return F.cross_entropy(wide, (torch.arange(len(output)) % LABELS).to(output.device), label_smoothing=0.1)


class Fourier(Layer):
    shape = (4, 64)

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 33) / 4)
        self.head = nn.Linear(4 * 64, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        filtered = torch.fft.irfft(torch.fft.rfft(x) * self.weights, n=64)
        out: Tensor = self.head(filtered.flatten(1))
        return out


class Network(Layer):
    """The layers most models are made of: convolution, batch norm, attention, layer norm, a linear layer."""

    shape, small = (3, 20, 20), (3, 12, 12)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.tokens = nn.LayerNorm(32)
        self.qkv, self.head = nn.Linear(32, 96), nn.Linear(32, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        features = F.gelu(self.second(F.gelu(self.norm(self.first(x)))))
        tokens = self.tokens(features.flatten(2).transpose(1, 2))
        query, key, value = self.qkv(tokens).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.head(mixed.transpose(1, 2).flatten(2).mean(1))
        return out


_BUILD: dict[str, Callable[[], Layer]] = {
    "linear": Linear,
    "conv1d": lambda: Convolution(nn.Conv1d, (16, 64)),
    "conv2d": lambda: Convolution(nn.Conv2d, (16, 16, 16)),
    "conv3d": lambda: Convolution(nn.Conv3d, (4, 8, 8, 8)),
    "depthwise": lambda: Convolution(nn.Conv2d, (16, 16, 16), groups=16),
    "grouped": lambda: Convolution(nn.Conv2d, (16, 16, 16), groups=4),
    "transposed": lambda: Convolution(nn.ConvTranspose2d, (16, 8, 8), output_padding=0),
    "attention": Attention,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "batchnorm": lambda: Normed(nn.BatchNorm2d(24)),
    "layernorm": lambda: Normed(nn.LayerNorm(24)),
    "groupnorm": lambda: Normed(nn.GroupNorm(4, 24)),
    "embedding": Embedding,
    "pooling": Pooling,
    "interpolate": Interpolate,
    "scatter": Scatter,
    "entropy": Entropy,
    "fft": Fourier,
    "network": Network,
}


def build(name: str, *, small: bool = False) -> Layer:
    torch.manual_seed(zlib.crc32(name.encode()))
    layer = _BUILD[name]()
    if small and layer.small:
        layer.shape = layer.small
    return layer
