"""A training as people have it, timed step by step, with the sentinel on and off in turns.

    holdfast train benchmarks/jobs/watched.py model=gpt124 seconds=40 out=steps.json --device cuda:0

MLP, CNN with BatchNorm, GPT of several sizes in bf16. One process, so that nothing but the sentinel differs between two
neighbouring windows. `out` is written at the end and holds the time of every step, and which of them were looked at.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import holdfast

GPT = {  # layers, width, heads, words, batch
    "gpt_tiny": (2, 32, 2, 32, 4),
    "gpt10": (4, 384, 6, 256, 32),
    "gpt124": (12, 768, 12, 1024, 16),
    "gpt350": (24, 1024, 16, 1024, 8),
    "gpt774": (36, 1280, 20, 1024, 8),
}
WORDS = 50304


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.ask(self.one(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.two(x))))


class Language(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class Data(torch.utils.data.Dataset):
    """Ready in memory: what is timed is the step."""

    def __init__(self, kind: str, words: int) -> None:
        self.kind, self.words = kind, words
        source = torch.Generator().manual_seed(0)
        if kind in GPT:
            self.x = torch.randint(words, (512, GPT[kind][3] + 1), generator=source)
        else:
            self.x = torch.randn(4096, *((64,) if kind == "mlp" else (3, 32, 32)), generator=source)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.kind in GPT:
            return self.x[index][:-1], self.x[index][1:]
        return self.x[index], self.x[index].flatten()[:1]


def network(kind: str, words: int) -> nn.Module:
    if kind in GPT:
        layers, width, heads, length, _ = GPT[kind]
        return Language(layers, width, heads, length, words)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1)]
    for _ in range(15):
        layers += [nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.Conv2d(128, 128, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1))


def train(
    session: holdfast.Session, *, model: str = "mlp", seconds: float = 30.0, window: float = 1.0, out: str = "",
    compiled: bool = False,
) -> None:  # fmt: skip
    words = 96 if model == "gpt_tiny" else WORDS
    made = network(model, words)
    on_gpu = session.device.type == "cuda"
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-4, fused=on_gpu)
    batch = GPT[model][4] if model in GPT else 256
    data = holdfast.Loader(Data(model, words), batch_size=batch, shuffle=True)
    session.protect(model=made, optimizer=optimizer, data=data)
    run = torch.compile(made) if compiled else made

    def loss_of(given: tuple[Tensor, Tensor]) -> Tensor:
        x, y = given
        if model == "mlp":
            return F.mse_loss(run(x), y)
        with torch.autocast(x.device.type, torch.bfloat16):
            found = run(x.contiguous(memory_format=torch.channels_last) if model == "cnn" else x)
        if model == "cnn":
            return F.mse_loss(found.float(), y)
        return F.cross_entropy(found.flatten(0, 1).float(), y.flatten())

    sentinel = session._attempts.vigil.sentinel
    rows: list[tuple[float, bool, int]] = []
    began = changed = last = time.perf_counter()
    on, since = True, 0
    for _ in session.epochs(1_000_000):
        for given in session.batches(data):
            session.step(loss_of, given)
            if on_gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            checks = sentinel.checks if sentinel is not None else 0
            rows.append((now - last, on, checks))
            if sentinel is not None and now - changed > window and len(rows) >= since + 8 and len(rows) >= 12:
                on, changed, since = not on, now, len(rows)
                sentinel.off = None if on else "a window without it"
            last = now
            if now - began > seconds:
                break
        if last - began > seconds:
            break
    Path(out).write_text(json.dumps({"model": model, "watched": sentinel is not None, "rows": rows, **_more(sentinel)}))


def _more(sentinel: object) -> dict[str, object]:
    with contextlib.suppress(AttributeError):
        recorder = sentinel.recorder  # type: ignore[attr-defined]
        return {"kinds": len(recorder.seen), "looked": recorder.looked, "left_alone": dict(recorder.left_alone),
                "checks": sentinel.checks, "rare": sentinel.rare}  # type: ignore[attr-defined]  # fmt: skip
    return {}


if __name__ == "__main__":
    holdfast.main(train)
