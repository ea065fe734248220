"""A small transformer learns response times from windows of simulated recordings.

    holdfast train examples/windows.py
    holdfast chaos examples/windows.py --faults sigkill@40,hang@70,oom_in_step@100
    python examples/windows.py epochs=2

129 channels at 100 Hz, as in the recordings this is modelled on; a burst in some channels comes earlier or later
in each window, and the network learns when. Everything is made from a seed, so nothing has to be downloaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import holdfast

CHANNELS, LENGTH = 129, 200


class Recordings(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Noise with a burst at a time between 0.4 s and 1.6 s; training windows are shifted a little each time."""

    def __init__(self, count: int, *, first: int = 0, shift: bool = True) -> None:
        self.count, self.first, self.shift = count, first, shift
        self.channels = torch.randn(CHANNELS, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        own = torch.Generator().manual_seed(self.first + index)
        onset = 0.4 + 1.2 * torch.rand((), generator=own)
        time = torch.arange(LENGTH) / 100
        burst = torch.exp(-(((time - onset) / 0.08) ** 2))
        window = torch.randn(CHANNELS, LENGTH, generator=own) + 0.35 * self.channels[:, None] * burst
        if self.shift:  # augmentation: drawn from the loader's seed for this sample, the same after any restart
            window = window + 0.1 * torch.randn(CHANNELS, LENGTH)
        return window, onset


class Windows(nn.Module):
    """Channels to width, positions, two transformer layers; each position votes for the time it stands for."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.project = nn.Conv1d(CHANNELS, width, kernel_size=5, stride=4, padding=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, LENGTH // 4, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x).transpose(1, 2) + self.positions
        votes = self.head(self.encoder(tokens)).squeeze(-1).softmax(dim=1)
        return votes @ (torch.arange(votes.shape[1], device=x.device) * 0.04)


def train(
    session: holdfast.Session,
    *,
    epochs: int = 5,
    windows: int = 480,
    batch: int = 16,
    lr: float = 1e-3,
    workers: int = 0,
) -> None:
    model = Windows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    data = holdfast.Loader(Recordings(windows), batch_size=batch, shuffle=True, num_workers=workers)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(data))
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    held_out = [Recordings(128, first=10**6, shift=False)[index] for index in range(128)]
    x, y = (torch.stack(parts).to(session.device) for parts in zip(*held_out, strict=True))

    for _ in session.epochs(epochs):
        for recordings in session.batches(data):
            loss = session.step(lambda b: nn.functional.mse_loss(model(b[0]), b[1]), recordings, clip=1.0)
            scheduler.step()
        with session.evaluating():
            guess = model(x)
            session.log(
                train_loss=loss,
                valid_loss=nn.functional.mse_loss(guess, y),
                valid_r=torch.corrcoef(torch.stack([guess, y]))[0, 1],
            )


if __name__ == "__main__":
    holdfast.main(train)
