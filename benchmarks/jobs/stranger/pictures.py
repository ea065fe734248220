"""A ViT on JPEG files that loader processes decode; ViT-B/16 by default, `layers=2 width=64` for a small machine."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from windows import Windows, arguments

import holdfast

CLASSES = 100


class Vit(nn.Module):
    def __init__(self, size: int, layers: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (size // 16) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.body(tokens).mean(1))  # type: ignore[no-any-return]


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """The same JPEG files again and again, each cut out at another place."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.files = [_jpeg(number, size + 32) for number in range(16)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        left, top = torch.randint(0, 32, (2,)).tolist()
        cut = picture.crop((left, top, left + self.size, top + self.size))
        raw = torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8)
        return raw.view(self.size, self.size, 3).permute(2, 0, 1).float().div(255.0), index % CLASSES


def _jpeg(number: int, size: int) -> bytes:
    noise = torch.randint(0, 256, (size // 8, size // 8, 3), generator=torch.Generator().manual_seed(number))
    small = Image.frombytes("RGB", (size // 8, size // 8), bytes(noise.to(torch.uint8).flatten().tolist()))
    file = io.BytesIO()
    small.resize((size, size)).save(file, "JPEG", quality=90)
    return file.getvalue()


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        return cross_entropy(model(x), y)


def train(
    session: holdfast.Session,
    *,
    times: str = "",
    steps: int = 100,
    batch: int = 64,
    size: int = 224,
    layers: int = 12,
    width: int = 768,
    workers: int = 4,
    window: int = 5,
) -> None:
    model = Vit(size, layers, width).to(session.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=session.device.type == "cuda")
    data = holdfast.Loader(Pictures(steps * batch, size), batch_size=batch, shuffle=True, num_workers=workers)
    session.protect(model=model, optimizer=optimizer, data=data)
    windows = Windows(times, session.device, window)
    for _ in session.epochs(1):
        for samples in session.batches(data):
            session.step(lambda b: loss_of(model, b[0], b[1]), samples)
            windows.step()


def bare(
    *, device: str, times: str, steps: int, batch: int, size: int, layers: int, width: int, workers: int, window: int
) -> None:
    where = torch.device(device)
    model = Vit(size, layers, width).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=where.type == "cuda")
    data = DataLoader(
        Pictures(steps * batch, size),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=where.type == "cuda",
    )
    windows = Windows(times, where, window)
    for x, y in data:
        optimizer.zero_grad()
        loss_of(model, x.to(where, non_blocking=True), y.to(where, non_blocking=True)).backward()
        optimizer.step()
        windows.step()


if __name__ == "__main__":
    sizes = {"batch": 64, "size": 224, "layers": 12, "width": 768, "workers": 4}
    bare(**arguments(device="cpu", times="", steps=100, **sizes, window=5))
