"""A deterministic job for a CUDA device: convolutions, attention, dropout, BatchNorm, AdamW, a scheduler.

    holdfast train benchmarks/jobs/cuda_job.py --device cuda:0

With `greedy` one batch in so many needs `need_gb` more device memory: above the cap of `cap_gb` it does not fit.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

import holdfast


class Data(torch.utils.data.Dataset):
    def __init__(self, side: int) -> None:
        self.side = side

    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(3, self.side, self.side), index % 10


class Net(nn.Module):
    def __init__(self, norm: bool, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64) if norm else nn.Identity(), nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.attention = nn.TransformerEncoderLayer(128, 4, 256, dropout=dropout, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.features(x).flatten(2).transpose(1, 2)
        return self.head(self.attention(tokens).mean(1))


def train(
    session: holdfast.Session,
    *,
    epochs: int = 8,
    side: int = 32,
    norm: bool = True,
    dropout: float = 0.1,
    sgd: bool = False,
    greedy: int = 0,
    cap_gb: float = 0.0,
    need_gb: float = 0.0,
) -> None:
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False  # its rounding would be most of what the comparison sees
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    if cap_gb and session.device.type == "cuda":
        total = torch.cuda.get_device_properties(session.device).total_memory
        torch.cuda.set_per_process_memory_fraction(cap_gb * 2**30 / total)
    model = Net(norm, dropout)
    kind = torch.optim.SGD if sgd else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    data = holdfast.Loader(Data(side), batch_size=32, shuffle=True)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)

    def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = batch
        if greedy and x.is_cuda and session.step_count % greedy == greedy - 1:  # a batch that needs memory by its size
            ballast = torch.empty(int(need_gb * 2**30 * x.shape[0] / 32), dtype=torch.uint8, device=x.device)
            del ballast
        return nn.functional.cross_entropy(model(x), y)

    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            loss = session.step(loss_of, batch, clip=1.0)
            scheduler.step()
        session.log(train_loss=loss)


if __name__ == "__main__":
    holdfast.main(train)
