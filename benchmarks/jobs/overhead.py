"""What protecting every step costs: the same loop bare and under holdfast, in turns, inside one run.

    holdfast train benchmarks/jobs/overhead.py size=550k rounds=12 steps=10
    holdfast train benchmarks/jobs/overhead.py size=3m rounds=20 steps=100 --device cuda:0

Each round times `steps` steps of every loop, so a noisy machine disturbs all of them alike; the figure is the
median over the rounds of (loop / bare) - 1. Lightning and Accelerate take part where they are installed.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import models
import torch
from torch import nn

import holdfast


class Bank:
    """Random windows that lie on the device: the loaders deliver numbers, so the loop is what is measured."""

    def __init__(self, size: str, device: torch.device) -> None:
        shape = models.SIZES[size]
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(64, shape["channels"], shape["length"], generator=generator).to(device)
        self.y = torch.randn(64, generator=generator).to(device)

    def loss(self, model: nn.Module, numbers: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(self.x[numbers]), self.y[numbers])


def fresh(size: str, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = models.make(size).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def endless(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    while True:
        yield from make()


def bare(size: str, bank: Bank, device: torch.device, batches: Iterator[Any]) -> Callable[[int], None]:
    return loop(*fresh(size, device), bank, batches, torch.Tensor.backward)


def accelerated(size: str, bank: Bank, device: torch.device, batches: Iterator[Any]) -> Callable[[int], None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device.type == "cpu")
    return loop(*accelerator.prepare(*fresh(size, device)), bank, batches, accelerator.backward)


def loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    bank: Bank,
    batches: Iterator[Any],
    backward: Callable[[torch.Tensor], None],
) -> Callable[[int], None]:
    """The loop as everybody writes it."""

    def run(steps: int) -> None:
        for _ in range(steps):
            (numbers,) = next(batches)
            numbers = numbers.to(bank.x.device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            backward(bank.loss(model, numbers))
            optimizer.step()

    return run


def lightning(size: str, bank: Bank, device: torch.device, batches: Iterator[Any]) -> Callable[[int], None]:
    import pytorch_lightning as pl

    network, _ = fresh(size, torch.device("cpu"))

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            return bank.loss(self.network, batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    class Pausing(pl.Callback):
        """Lightning owns its loop, so it runs in a thread of its own and waits here between its turns."""

        def __init__(self) -> None:
            self.left = 0
            self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)

        def on_train_batch_start(self, *_: Any) -> None:
            if self.left == 0:
                self.turn.acquire()

        def on_train_batch_end(self, *_: Any) -> None:
            self.left -= 1
            if self.left == 0:
                wait_for(device)
                self.done.release()

    class Feed(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return batches

    pausing = Pausing()
    trainer = pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=1,
        max_steps=10**9,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[pausing],
    )
    loader = torch.utils.data.DataLoader(Feed(), batch_size=None)
    threading.Thread(target=lambda: trainer.fit(Module(), loader), daemon=True).start()

    def run(steps: int) -> None:
        pausing.left = steps
        pausing.turn.release()
        pausing.done.acquire()

    return run


def protected(session: holdfast.Session, size: str, bank: Bank, data: holdfast.Loader) -> Callable[[int], None]:
    model, optimizer = fresh(size, session.device)
    session.protect(model=model, optimizer=optimizer, data=data)
    batches = endless(lambda: session.batches(data))

    def loss_of(batch: Any) -> torch.Tensor:
        return bank.loss(model, batch[0])

    def run(steps: int) -> None:
        for _ in range(steps):
            session.step(loss_of, next(batches))

    return run


def train(
    session: holdfast.Session,
    *,
    size: str = "550k",
    rounds: int = 12,
    steps: int = 10,
    others: bool = True,
    result: str = "",
) -> None:
    device, batch = session.device, models.BATCHES[size]
    numbers = torch.arange((rounds + 2) * steps * batch) % 64
    dataset = torch.utils.data.TensorDataset(numbers)
    bank = Bank(size, device)
    pin = device.type == "cuda"
    plain = torch.utils.data.DataLoader(dataset, batch_size=batch, pin_memory=pin)
    data = holdfast.Loader(dataset, batch_size=batch, pin_memory=pin)
    loops = {
        "bare": bare(size, bank, device, endless(lambda: iter(plain))),
        "holdfast": protected(session, size, bank, data),
    }
    if others and importlib.util.find_spec("accelerate"):
        loops["accelerate"] = accelerated(size, bank, device, endless(lambda: iter(plain)))
    if others and importlib.util.find_spec("pytorch_lightning"):
        loops["lightning"] = lightning(size, bank, device, endless(lambda: iter(plain)))
    loops["bare again"] = bare(size, bank, device, endless(lambda: iter(plain)))
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds + 1):
        order = list(loops) if turn % 2 else list(reversed(loops))
        for name in order:
            took = timed(loops[name], steps, device)
            if turn:  # the first round warms up
                times[name].append(took / steps)
        session.progress(turn, rounds, "rounds")
    report = {
        "size": size,
        "parameters": sum(p.numel() for p in models.make(size).parameters()),
        "device": str(device),
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "batch": batch,
        "rounds": rounds,
        "steps": steps,
        "bare_ms": round(1e3 * statistics.median(times["bare"]), 4),
        "overhead_percent": {name: spread(times[name], times["bare"]) for name in loops if name != "bare"},
    }
    print(json.dumps(report))
    if result:
        Path(result).write_text(json.dumps(report, indent=2) + "\n")


def timed(run: Callable[[int], None], steps: int, device: torch.device) -> float:
    wait_for(device)
    began = time.perf_counter()
    run(steps)
    wait_for(device)
    return time.perf_counter() - began


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def spread(times: list[float], base: list[float]) -> dict[str, float]:
    ratios = sorted(100 * (mine / theirs - 1) for mine, theirs in zip(times, base, strict=True))
    quarter = len(ratios) // 4
    return {
        "median": round(statistics.median(ratios), 3),
        "low": round(ratios[quarter], 3),
        "high": round(ratios[-1 - quarter], 3),
    }


if __name__ == "__main__":
    holdfast.main(train)
