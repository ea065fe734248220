"""A small job with everything that may differ between ranks: dropout, running means, a scheduler, random augmentation.

`plain` leaves out what is not the same in one process and in several; `die="1:4:backward"` kills rank 1 at step 4 in
that phase, once; `full="1:4:2"` has rank 1 run out of memory twice at step 4, `full="1:0:1"` in the first step that it
takes with another rank; `seen` is a folder where each rank writes which samples it was given; `once` does what a
process can do only once; `ddp` wraps the model as scripts under torchrun do, with several exchanges in each backward,
and `full="1:4:2:backward"` runs out of memory between two of them, `full="1:4:1:optimizer"` after all of them;
`wait="10 25"` waits before those steps until `seen` has a file go-10, then go-25; `double` computes in float64;
`lag="1:0.03"` has rank 1 read each sample so many seconds longer; each forward multiplies matrices of the size `work`;
the rank `deaf` ignores SIGTERM, as some scripts do; the samples `bad="5 17"` cannot be read, and those of `deadly` end
the process that reads them; `turn` does each step by hand in a transaction; the loss of the rank `half` is in bfloat16,
as autocast gives it on a card; `look="1:17"` evaluates on the same data after each epoch, and rank 1 cannot read sample
17 there; `lacks="1:8"` has rank 1 use an operator at step 8 that only the CPU has; `rounds` has updates on a device
other than the CPU differ in the last bit, and each rank write to `seen` which weights it begins each step with; the
process that rank `caught="1:8"` has first never comes back from the exchange of step 8; `gathers` has the loss of
each rank depend on the samples of all, as contrastive ones do; the
samples `nan` hold no numbers, those of `huge` have an infinite loss, and those of `steep` a finite loss with gradients
that are not; `glitch="1:8"` has rank 1 compute a loss at step 8 that is not finite, once, `glitch="1:8:9"` nine times;
`ponder="1:0.7"` has rank 1 take so many seconds longer for each part of a step that it computes again; the graph of the
wrapper of `ddp` is `static`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast
from holdfast.base.board import Phase


class Numbers(torch.utils.data.Dataset[Any]):
    """Each sample says which one it is; its noise is drawn anew in each epoch."""

    def __init__(self, length: int, lag: float = 0.0, bad: str = "", deadly: str = "", nan: str = "") -> None:
        self.length = length
        self.lag = lag
        self.bad = {int(each) for each in bad.split()}
        self.deadly = {int(each) for each in deadly.split()}
        self.nan = {int(each) for each in nan.split()}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        time.sleep(self.lag)
        if index in self.bad:
            raise ValueError(f"recording {index} ends too soon")
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        own = torch.Generator().manual_seed(index)
        x = torch.randn(8, generator=own) + 0.1 * torch.randn(8)
        label = (x.sum() > 0).long()
        return x * torch.nan if index in self.nan else x, label, index


def train(
    session: holdfast.Session,
    epochs: int = 2,
    length: int = 60,
    batch: int = 9,
    plain: bool = False,
    die: str = "",
    full: str = "",
    fail: int = -1,
    stop: int = -1,
    pause: float = 0.0,
    once: bool = False,
    ddp: bool = False,
    seen: str = "",
    wait: str = "",
    double: bool = False,
    lag: str = "",
    work: int = 0,
    deaf: int = -1,
    bad: str = "",
    deadly: str = "",
    turn: bool = False,
    look: str = "",
    half: int = -1,
    lacks: str = "",
    rounds: bool = False,
    caught: str = "",
    gathers: bool = False,
    nan: str = "",
    huge: str = "",
    steep: str = "",
    glitch: str = "",
    ponder: str = "",
    static: bool = False,
) -> None:
    torch.manual_seed(3)
    if session.rank == deaf and session.run.generation < 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if once:
        torch.set_num_interop_threads(1)  # RuntimeError the second time in a process
    own = [nn.ReLU()] if plain else [nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)]
    first = nn.Linear(8, 16)
    model: nn.Module = nn.Sequential(first, *own, nn.Linear(16, 2))
    if double:
        model.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    held_up = {int(rank): float(seconds) for rank, _, seconds in (each.partition(":") for each in lag.split())}
    matrix = torch.ones(work, work)
    numbers = Numbers(length, held_up.get(session.rank, 0.0), bad, deadly, nan)
    data = holdfast.Loader(numbers, batch_size=batch, shuffle=True, allow_missing=bool(look))
    if ddp:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4, static_graph=static)
    session.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    if rounds and session.device != torch.device("cpu"):
        optimizer.register_step_post_hook(lambda *_: _round_up(model))
    if die:
        _arm(session, *die.split(":"), Path(seen))
    tries = [0]
    if full.endswith("backward"):  # the last layer's gradients are being exchanged, those of the first are not there
        first.register_full_backward_hook(lambda *_: _run_out(session, full, tries, 0))
    if full.endswith("optimizer") and session.run.generation < 2:  # the agent's roster 1 is that of the first processes
        optimizer.register_step_pre_hook(lambda *_: _run_out(session, full, tries, 0))
    for epoch in session.epochs(epochs):
        for values in session.batches(data):

            def loss_of(part: Any) -> torch.Tensor:
                if full and full[-1].isdigit():
                    _run_out(session, full, tries, len(part[0]))
                if lacks == f"{session.rank}:{session._position.step + 1}" and session.device != torch.device("cpu"):
                    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
                if session.replaying and ponder.startswith(f"{session.rank}:"):
                    time.sleep(float(ponder.partition(":")[2]))
                for _ in range(8 if work else 0):
                    matrix @ matrix
                logits = model(part[0].double() if double else part[0])
                loss = nn.functional.cross_entropy(logits, part[1])
                if (rows := _among(part[2], huge)).any():
                    loss = loss + logits[rows].exp().sum() * torch.inf
                if gathers:
                    all_of_them = [loss.detach().reshape(1) for _ in range(session.ranks)]
                    torch.distributed.all_gather(all_of_them, loss.detach().reshape(1))
                    loss = loss + 0.0 * torch.cat(all_of_them).sum()
                if (rows := _among(part[2], steep)).any():
                    loss = loss + (logits[rows] * 0.0).sum().sqrt()
                if glitch and not session.replaying and _slips(session, glitch, Path(seen)):
                    loss = loss * torch.nan
                return loss.bfloat16() if session.rank == half else loss

            if str(session._position.step + 1) in wait.split():
                _wait(session, Path(seen) / f"go-{session._position.step + 1}")
            if caught == f"{session.rank}:{session._position.step + 1}" and session.run.generation < 2:
                torch.distributed.all_gather = lambda *_: time.sleep(1e6)
            if session.rank == fail:
                raise ValueError("this rank does not like the data")
            if rounds:
                _note_weights(session, model, Path(seen))
            if turn:

                def by_hand(values: Any = values, loss_of: Any = loss_of) -> None:
                    optimizer.zero_grad()
                    loss_of(values).backward()
                    optimizer.step()

                session.transaction(by_hand)
            else:
                session.step(loss_of, values)
            scheduler.step()
            if session.rank == 1 and session._position.step == stop:
                session._board.request_stop()
            if seen:
                name = f"part-{session.run.generation}-{session.rank}.txt" if wait else f"rank{session.rank}.txt"
                with open(Path(seen) / name, "a") as file:
                    file.write(f"{epoch} {session._position.step} {' '.join(map(str, values[2].tolist()))}\n")
            time.sleep(pause)
        if look:
            rank, _, sample = look.partition(":")
            numbers.bad = {int(sample)} if session.rank == int(rank) else set()
            assert sum(len(part[2]) for part in data) == length - len(numbers.bad) == length - len(data.missing)
            numbers.bad = set()
        session.log(valid_loss=float(epoch))  # the first epoch is the best
    if ddp:
        torch.distributed.destroy_process_group()


def _wait(session: holdfast.Session, until: Path) -> None:
    while not until.exists():
        session._board.beat()
        time.sleep(0.005)


@torch.no_grad()
def _round_up(model: nn.Module) -> None:
    for each in model.parameters():
        each.copy_(torch.nextafter(each, torch.full_like(each, torch.inf)))


def _note_weights(session: holdfast.Session, model: nn.Module, seen: Path) -> None:
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    with open(seen / f"weights-{session.rank}.txt", "a") as file:
        file.write(f"{session._position.step} {digest}\n")


def _run_out(session: holdfast.Session, full: str, tries: list[int], rows: int) -> None:
    rank, step, times = (int(word) for word in full.split(":")[:3])
    there = session._position.step + 1 == step if step else session.ranks > 1
    if session.rank == rank and there and tries[0] < times:
        tries[0] += 1
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 20.00 MiB ({rows} rows)")


def _among(samples: torch.Tensor, named: str) -> torch.Tensor:
    return torch.isin(samples, samples.new_tensor([int(each) for each in named.split()]))


def _slips(session: holdfast.Session, glitch: str, folder: Path) -> bool:
    rank, step, times = (int(word) for word in (*glitch.split(":"), "1")[:3])
    if (session.rank, session._position.step + 1) != (rank, step):
        return False
    before = len(list(folder.glob("slip-*")))
    (folder / f"slip-{before}").touch()
    return before < times


def _arm(session: holdfast.Session, rank: str, step: str, phase: str, folder: Path) -> None:
    """SIGKILL for this very process when it comes to that place, unless a predecessor was there."""
    marker = folder / f"died-{rank}-{step}-{phase}"
    if session.rank != int(rank) or marker.exists():
        return
    board, enter = session._board, session._board.enter

    def entered(now: Phase) -> None:
        enter(now)
        if now.label == phase and session._position.step >= int(step):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    board.enter = entered  # type: ignore[method-assign]
