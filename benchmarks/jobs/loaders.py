"""What `holdfast.Loader` costs beside torch's DataLoader: cheap samples, batches of 256, both in turns in one process.

    python -m benchmarks.jobs.loaders                     # every dataset, 0 and 1 loader process
    python -m benchmarks.jobs.loaders --only points,noise --workers 0 --rounds 40

Each dataset is read by torch's loader, by ours as a run reads it (`batches` and `advance`, samples marked in a run
folder), and by torch's once more: the last says how much of a figure is noise. The figure is the median over the
rounds of one pass of ours over the two of torch beside it. `OTHERS` are classes of other projects: nothing is tuned
to them, and those that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from holdfast import Loader
from holdfast.data import sample_marks

BATCH = 256
BATCHES = 12
BOUND = 1.05
COUNT = BATCH * BATCHES


class Points(Dataset):  # type: ignore[type-arg]
    """Two tensors a sample."""

    def __init__(self) -> None:
        self.x = torch.randn(COUNT, 64)
        self.y = self.x.sum(dim=1, keepdim=True)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Several(Points):
    """Several samples by one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(zip(self.x[indices], self.y[indices], strict=True))


class Arrays(Points):
    """A dict of a numpy array and a number."""

    def __init__(self) -> None:
        self.table = np.random.default_rng(1).standard_normal((COUNT, 64), dtype=np.float32)

    def __getitem__(self, index: int) -> Any:
        return {"x": self.table[index], "y": index % 10}


class Noise(Points):
    """Draws from torch's generator."""

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + 0.1 * torch.randn(64), self.y[index]


class NumpyNoise(Arrays):
    """Draws from numpy's generator."""

    def __getitem__(self, index: int) -> Any:
        return {"x": self.table[index] + np.random.standard_normal(64).astype(np.float32), "y": index % 10}


class Flips(Points):
    """Draws from Python's generator."""

    def __getitem__(self, index: int) -> Any:
        return (self.x[index] if random.random() < 0.5 else -self.x[index]), self.y[index]


class Mixture(Points):
    """Draws from all three."""

    def __getitem__(self, index: int) -> Any:
        factor = 0.5 + random.random() + float(np.random.random())
        return factor * self.x[index] + torch.rand(64), self.y[index]


class SeveralNoises(Noise):
    """Several samples by one call, and each of them draws."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def _fake_pictures() -> Any:
    from torchvision.datasets import FakeData
    from torchvision.transforms import v2

    change = v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    return FakeData(COUNT, (3, 8, 8), 10, change)


def _pictures() -> Any:
    """CIFAR's class with pictures of its own shape, and the usual transforms of v1."""
    from torchvision import transforms
    from torchvision.datasets import CIFAR10

    data = CIFAR10.__new__(CIFAR10)
    data.data = np.random.default_rng(1).integers(0, 255, (COUNT, 32, 32, 3), dtype=np.uint8)
    data.targets = [index % 10 for index in range(COUNT)]
    crop = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    data.transform, data.target_transform = transforms.Compose(crop), None
    return data


def _still_pictures() -> Any:
    data = _pictures()
    from torchvision import transforms

    data.transform = transforms.ToTensor()
    return data


def _table() -> Any:
    from datasets import Dataset as Table

    rows = np.random.default_rng(1).standard_normal((COUNT, 16))
    return Table.from_dict({"x": rows.tolist(), "y": list(range(COUNT))}).with_format("torch")


OWN: dict[str, Callable[[], Any]] = {
    "points": Points,
    "several": Several,
    "arrays": Arrays,
    "subset": lambda: Subset(Points(), list(range(COUNT))),
    "several-subset": lambda: Subset(Several(), list(range(COUNT))),
    "joined": lambda: ConcatDataset([Subset(Points(), range(COUNT // 2)), Subset(Several(), range(COUNT // 2))]),
    "tensors": lambda: TensorDataset(torch.randn(COUNT, 64), torch.randn(COUNT, 1)),
    "noise": Noise,
    "noise-numpy": NumpyNoise,
    "flips": Flips,
    "mixture": Mixture,
    "several-noises": SeveralNoises,
}
OTHERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "FakeData": ("torchvision", _fake_pictures),
    "CIFAR10, cropped": ("torchvision", _pictures),
    "CIFAR10": ("torchvision", _still_pictures),
    "datasets.Dataset": ("datasets", _table),
}


class Ours:
    """A loader as a run reads it, one epoch after the other."""

    def __init__(self, dataset: Any, workers: int) -> None:
        self.loader = Loader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)

    def __iter__(self) -> Iterator[Any]:
        data = self.loader
        for batch in data.batches(data.epoch, data.cursor):
            yield batch.value
            data.advance(batch)
        data.finish_epoch()

    def close(self) -> None:
        self.loader.close()


def cpu_seconds() -> float:
    """Of this process and its loader processes."""
    processes = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in processes)


def seconds(loader: Any, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in loader:
        pass
    return clock() - began


def measure(make: Callable[[], Any], workers: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds a batch, and ratios of passes that followed each other."""
    theirs = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    dataset = make()
    first, second = (DataLoader(dataset, batch_size=BATCH, **theirs) for _ in range(2))
    ours = Ours(dataset, workers)
    with tempfile.TemporaryDirectory(prefix="holdfast-loaders-") as folder:
        sample_marks.begin(Path(folder))
        try:
            times: list[tuple[float, float, float]] = []
            for number in range(rounds + 2):
                order = [first, ours, second] if number % 2 else [second, ours, first]
                found = [seconds(each, clock) for each in order]
                if number >= 2:  # processes start, generators are found
                    times.append((found[0], found[1], found[2]))
        finally:
            ours.close()
            sample_marks.end()
    middle = statistics.median
    return {
        "torch_ms": 1e3 * middle([min(one, two) for one, _, two in times]) / BATCHES,
        "holdfast_ms": 1e3 * middle([held for _, held, _ in times]) / BATCHES,
        "ratio": middle([2.0 * held / (one + two) for one, held, two in times]),
        "torch_over_torch": middle([two / one for one, _, two in times]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--workers", default="0,1", help="numbers of loader processes, with commas")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cpu", action="store_true", help="compare CPU time: for a machine that others use, too")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    wanted = [name for name in args.only.split(",") if name]
    rows: list[dict[str, Any]] = []
    makers = {**OWN, **{name: make for name, (needs, make) in OTHERS.items() if importlib.util.find_spec(needs)}}
    print("| dataset | loader processes | torch ms | holdfast ms | ratio | torch/torch |\n|---|---|---|---|---|---|")
    for workers in map(int, args.workers.split(",")):
        for name, make in makers.items():
            if wanted and name not in wanted:
                continue
            row = measure(make, workers, args.rounds, cpu_seconds if args.cpu else time.perf_counter)
            rows.append({"dataset": name, "others": name in OTHERS, "workers": workers, **row})
            figures = " | ".join(f"{row[key]:.3f}" for key in ("torch_ms", "holdfast_ms", "ratio", "torch_over_torch"))
            print(f"| {name}{' (not ours)' if name in OTHERS else ''} | {workers} | {figures} |", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps({"bound": BOUND, "batch": BATCH, "rows": rows}, indent=1) + "\n")
    return int(any(row["ratio"] > BOUND for row in rows))


if __name__ == "__main__":
    sys.exit(main())
