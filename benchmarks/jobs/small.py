"""A job of short steps for counting faults and watching the supervisor: dropout, AdamW, a scheduler, augmentation.

    holdfast train benchmarks/jobs/small.py epochs=10
    holdfast train benchmarks/jobs/small.py epochs=10 workers=2 times=times.txt

With `times` it notes when each batch was there (`loop`) and when each step was committed (`data`, the phase that begins
right after a commit): one line each, with the steps done and the time, from every worker of the run.
"""

from __future__ import annotations

import time

import torch
from torch import nn

import holdfast
from holdfast.base.board import Phase


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        own = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=own) + 0.1 * torch.randn(16), index % 4


def network(width: int = 32, norm: bool = True) -> nn.Module:
    normal = nn.BatchNorm1d(width) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(16, width), normal, nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))


def keep_times(session: holdfast.Session, path: str) -> None:
    """The session's own phases, as the chaos kit sees them: a loop body cannot see its own commit."""
    file = open(path, "a", buffering=1)  # noqa: SIM115 (open as long as the worker lives, however it ends)

    def note(phase: Phase) -> None:
        if phase in (Phase.DATA, Phase.LOOP):
            file.write(f"{phase.label} {session._position.step} {time.time()}\n")

    session._phase_hooks.append(note)


def train(
    session: holdfast.Session,
    *,
    epochs: int = 10,
    batch: int = 16,
    width: int = 32,
    norm: bool = True,
    workers: int = 0,
    times: str = "",
) -> None:
    model = network(width, norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    data = holdfast.Loader(Data(), batch_size=batch, shuffle=True, num_workers=workers)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    if times:
        keep_times(session, times)
    for _ in session.epochs(epochs):
        for samples in session.batches(data):
            session.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), samples)
            scheduler.step()


if __name__ == "__main__":
    holdfast.main(train)
