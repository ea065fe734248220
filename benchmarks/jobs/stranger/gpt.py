"""A GPT on random tokens, bf16 on a GPU, fused AdamW; `compile=1` for torch.compile."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset
from windows import Windows, arguments

import holdfast

VOCABULARY = 50304


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.before(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.after(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))  # type: ignore[no-any-return]


def text(count: int, length: int) -> TensorDataset:
    return TensorDataset(torch.randint(VOCABULARY, (count, length + 1), generator=torch.Generator().manual_seed(1)))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        found = model(tokens[:, :-1])
        return cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())


def fill(device: torch.device, percent: int) -> torch.Tensor | None:
    """Take memory of the card until so much of it is left: somebody else is on it, too."""
    free, total = torch.cuda.mem_get_info(device)
    spare = free - total * percent // 100
    return torch.empty(spare, dtype=torch.uint8, device=device) if spare > 0 else None


def train(
    session: holdfast.Session,
    *,
    times: str = "",
    steps: int = 60,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    length: int = 1024,
    batch: int = 16,
    compile: int = 0,
    left: int = 100,
    window: int = 5,
) -> None:
    torch.set_float32_matmul_precision("high")
    model = Gpt(layers, width, heads, length).to(session.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=session.device.type == "cuda")
    data = holdfast.Loader(text(steps * batch, length), batch_size=batch, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    net = torch.compile(model) if compile else model
    windows = Windows(times, session.device, window)
    for _ in session.epochs(1):
        for samples in session.batches(data):
            loss = session.step(lambda b: loss_of(net, b[0]), samples)
            if left < 100 and session.step_count == 3:
                taken = fill(session.device, left)  # noqa: F841
            windows.step()
        session.log(train_loss=loss)


def bare(
    *,
    device: str,
    times: str,
    steps: int,
    layers: int,
    width: int,
    heads: int,
    length: int,
    batch: int,
    compile: int,
    left: int,
    window: int,
) -> None:
    torch.set_float32_matmul_precision("high")
    where = torch.device(device)
    model = Gpt(layers, width, heads, length).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=where.type == "cuda")
    net = torch.compile(model) if compile else model
    windows = Windows(times, where, window)
    for number, (tokens,) in enumerate(DataLoader(text(steps * batch, length), batch_size=batch, shuffle=True)):
        if left < 100 and number == 3:
            taken = fill(where, left)  # noqa: F841
        optimizer.zero_grad()
        loss = loss_of(net, tokens.to(where))
        loss.backward()
        optimizer.step()
        windows.step()
    print(float(loss))


if __name__ == "__main__":
    sizes = {"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch": 16}
    bare(**arguments(device="cpu", times="", steps=60, **sizes, compile=0, left=100, window=5))
