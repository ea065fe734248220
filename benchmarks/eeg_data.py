"""EEG data: windows a second into a training loop, cached reads, memory, and what is in the simulated set.

import eeg_data
eeg_data.reading(scratch, quick=False)["at_500_hz"]["ratio"]

All ratios are of rounds that take turns in one process. The recordings are simulated. Needs the extra `eeg`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Bound, at_most, exactly  # first: it lets a benchmark import holdfast from src/

from holdfast.workloads.eeg import bids, cache, simulate
from holdfast.workloads.eeg.demo import demo_data
from holdfast.workloads.eeg.prepare import prepare

LIMIT = 2 << 30
"""Bytes of address space for everything that works on the large set; numpy and Python are in it, too."""
BATCH = 64


def reading(scratch: Path, quick: bool) -> dict[str, Any]:
    """EEG windows a second into a training loop against braindecode, and a cached window against a plain memmap."""
    rounds = 2 if quick else 7
    quiet()
    return {
        "at_500_hz": windows_per_second(scratch / "500", rounds, seconds=40 if quick else 200, rate=500),
        "at_100_hz": windows_per_second(scratch / "100", rounds, seconds=60 if quick else 300, rate=100),
        "cached_read": cached_read(scratch / "100", rounds),
    }


def reading_bounds(measured: dict[str, Any]) -> list[Bound]:
    read = measured["cached_read"]
    return [
        at_least("windows a second against braindecode's DataLoader, 500 Hz", measured["at_500_hz"]["ratio"], 10),
        at_least("windows a second against braindecode's DataLoader, 100 Hz", measured["at_100_hz"]["ratio"], 10),
        at_most("a window of a batch against a raw memmap read", read["batch_ratio"], 2.0),
        at_most("a window by itself against a raw memmap read", read["window_ratio"], 2.0),
    ]


def memory_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        at_least("gigabytes of windows", measured["cache_gb"], 4.0, quick=False),
        at_most("gigabytes of address space of each process", measured["limit_gb"], 2.2),
        exactly("an epoch was read", measured["epoch_finite"], True),
    ]


def truth_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        at_least("mean r of a ridge over the four factors", measured["factors_mean_r"], 0.2, quick=False),
        at_least("r of a ridge on the response time", measured["response_time_r"], 0.3, quick=False),
    ]


def quiet() -> None:
    warnings.simplefilter("ignore")


def at_least(what: str, measured: float, limit: float, *, quick: bool = True) -> Bound:
    return Bound(what, measured, limit, measured >= limit, quick)


# Into the training loop -------------------------------------------------------------------------------------


def windows_per_second(folder: Path, rounds: int, seconds: float, rate: int) -> dict[str, Any]:
    """Shuffled batches of 4-s windows of the same recordings as tensors: ours from the disk, theirs from RAM.

    Ours come out of the loader that the workload trains with, with targets and nothing varied.
    """
    import mne
    import torch
    from braindecode.datasets import BaseConcatDataset, RawDataset
    from braindecode.preprocessing import create_fixed_length_windows
    from torch.utils.data import DataLoader

    import holdfast
    from holdfast.workloads.eeg.training import Samples

    torch.set_num_threads(1)
    data = simulate.write(folder / "data", subjects=4, runs=0, rate=rate, rest_seconds=seconds, flaws=False)
    report = prepare(data, folder / "cache", kind="challenge2", rate=rate, band=None, notch=None, bad="keep")
    windows = cache.open(report.folder)
    raws = [mne.io.read_raw_bdf(each.path, preload=True, verbose="error") for each in bids.look(data).recordings]
    theirs = create_fixed_length_windows(
        BaseConcatDataset([RawDataset(raw) for raw in raws]),
        window_size_samples=4 * rate,
        window_stride_samples=2 * rate,
        drop_last_window=True,
        verbose="error",
    )
    assert len(theirs) == len(windows)
    worst = max(
        float(np.abs(theirs[i][0] - windows[i][0]).max() / np.abs(theirs[i][0]).max()) for i in (0, 7, len(windows) - 1)
    )
    loader = DataLoader(theirs, batch_size=BATCH, shuffle=True)
    samples = Samples(windows, np.arange(len(windows)), np.zeros((len(windows), 1), np.float32))
    mine = holdfast.Loader(samples, batch_size=BATCH, shuffle=True)

    def with_braindecode() -> None:
        for batch in loader:
            assert batch[0].shape[1:] == (129, 4 * rate)

    def with_holdfast() -> None:
        for batch in mine:
            assert batch[0].shape[1:] == (129, 4 * rate)

    ours, braindecode = _turns(with_holdfast, with_braindecode, rounds)
    return {
        "windows": len(windows),
        "holdfast": round(len(windows) / ours),
        "braindecode": round(len(windows) / braindecode),
        "ratio": round(braindecode / ours, 1),
        "largest_difference": worst,
    }


def cached_read(folder: Path, rounds: int) -> dict[str, Any]:
    """A random window through the cache against the same bytes out of a plain memmap."""
    windows = cache.open(folder / "cache" / "challenge2-100hz")
    plain = np.memmap(windows.folder / cache.SIGNALS, "<f4", "r", shape=(len(windows), 129, 400))
    order = np.random.default_rng(1).permutation(len(windows)).tolist()

    def one_by_one() -> None:
        for index in order:
            windows[index]

    def batches() -> None:
        for _ in windows.batches(order, BATCH):
            pass

    def raw() -> None:
        for index in order:
            np.array(plain[index])

    single, bare = _turns(one_by_one, raw, rounds)
    batch, bare_again = _turns(batches, raw, rounds)
    each = 1e6 / len(order)
    return {
        "memmap_us": round(bare * each, 1),
        "window_us": round(single * each, 1),
        "batch_us": round(batch * each, 1),
        "window_ratio": round(single / bare, 2),
        "batch_ratio": round(batch / bare_again, 2),
    }


def _turns(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The medians of both in seconds of the processor, after one round that does not count.

    They take turns, and waiting for a processor does not count: the machine may be busy. Both work in one thread on
    what is in memory already, so that on a quiet machine these are the seconds of the clock, too.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for work, kept in ((one, times[0]), (other, times[1])):
            began = time.process_time()
            work()
            if number:
                kept.append(time.process_time() - began)
    return statistics.median(times[0]), statistics.median(times[1])


# Memory -----------------------------------------------------------------------------------------------------

WORK = """
import json, resource, sys, time
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))      # its children have it, too
import numpy as np
from holdfast.workloads.eeg import cache, simulate
from holdfast.workloads.eeg.prepare import prepare
if __name__ == "__main__":
    folder, subjects = sys.argv[1], int(sys.argv[2])
    began = time.monotonic()
    data = simulate.write(folder + "/data", subjects=subjects, runs=0, rest_seconds=2000.0, flaws=False, workers=2)
    simulated = time.monotonic()
    report = prepare(data, folder + "/cache", kind="challenge2", workers=2)
    prepared = time.monotonic()
    windows = cache.open(report.folder)
    order, total = np.random.default_rng(0).permutation(len(windows)), 0.0
    for start in range(0, len(order), 64):                     # an epoch, shuffled
        total += float(np.abs(windows.batch(order[start : start + 64])).sum())
    print(json.dumps({
        "windows": len(windows), "bytes": len(windows) * 129 * 400 * 4, "finite": bool(np.isfinite(total)),
        "simulate_s": simulated - began, "prepare_s": prepared - simulated, "epoch_s": time.monotonic() - prepared,
        "reader_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "child_peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }))
"""


def memory(scratch: Path, quick: bool) -> dict[str, Any]:
    """An EEG set twice as large as the address space of any process that simulates, prepares or reads it."""
    folder, gigabytes = scratch / "large", 0.3 if quick else 4.1
    folder.mkdir(parents=True)
    (folder / "work.py").write_text(WORK)  # a file: the processes of a pool import it
    subjects = max(1, round(gigabytes * 1e9 / (999 * 129 * 400 * 4)) + 1)
    words = [sys.executable, str(folder / "work.py"), str(folder), str(subjects), str(LIMIT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000, env=environment)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    told = json.loads(done.stdout)
    return {
        "windows": told["windows"],
        "cache_gb": round(told["bytes"] / 1e9, 2),
        "limit_gb": round(LIMIT / 1e9, 2),
        "reader_peak_gb": round(told["reader_peak"] / 1e9, 2),
        "preparing_process_peak_gb": round(told["child_peak"] / 1e9, 2),
        "simulate_s": round(told["simulate_s"], 1),
        "prepare_s": round(told["prepare_s"], 1),
        "epoch_s": round(told["epoch_s"], 1),
        "epoch_finite": told["finite"],
    }


# What is in the simulated set -------------------------------------------------------------------------------


def truth(scratch: Path, quick: bool) -> dict[str, Any]:
    """What a ridge learns of the simulated EEG set, across subjects: the least that a network should."""
    began = time.perf_counter()
    windows = demo_data(scratch, 0, **({"subjects": 24} if quick else {}))
    made = time.perf_counter() - began
    rest, task = windows["challenge2"], windows["challenge1"]
    people = np.unique(rest.table["subject"])
    power = np.array([_band_power(rest, name) for name in people])
    first = [int(np.flatnonzero(rest.table["subject"] == name)[0]) for name in people]
    factors = np.array([[rest.table[name][row] for name in bids.FACTORS] for row in first])
    rs = _ridge(power, factors, people, 1000.0)
    signals = task.signals[:]
    signals = signals - np.median(signals, axis=2, keepdims=True)
    usual = np.median(np.abs(signals), axis=(0, 2))[None, :, None] * 1.4826 + 1e-7
    few = np.clip(signals / usual, -5, 5).reshape(len(task), 129, 20, 10).mean(axis=3)[:, ::4].reshape(len(task), -1)
    response = _ridge(few, task.table["response_time"][:, None], task.table["subject"], 3000.0)
    return {
        "subjects": len(people),
        "made_s": round(made, 1),
        "factors_r": {name: round(float(r), 2) for name, r in zip(bids.FACTORS, rs, strict=True)},
        "factors_mean_r": round(float(np.mean(rs)), 2),
        "response_time_r": round(float(response[0]), 2),
    }


def _band_power(rest: cache.Windows, subject: str) -> Any:
    signals = rest.batch(np.flatnonzero(rest.table["subject"] == subject))
    signals = signals - np.median(signals, axis=2, keepdims=True)
    power = np.median(np.abs(np.fft.rfft(signals * np.hanning(signals.shape[2]), axis=2)) ** 2, axis=0)
    frequencies = np.fft.rfftfreq(signals.shape[2], 1 / rest.rate)
    bands = ((1, 3), (4, 7), (7, 12), (16, 26), (30, 45))
    rows = [np.log(power[:, (frequencies >= low) & (frequencies < high)].mean(axis=1) + 1e-16) for low, high in bands]
    return np.concatenate(rows)


def _ridge(features: Any, targets: Any, groups: Any, strength: float) -> Any:
    """Correlation of prediction and truth over ten folds of subjects."""
    names = np.unique(groups)
    fold = {name: number % 10 for number, name in enumerate(np.random.default_rng(0).permutation(names))}
    folds = np.array([fold[name] for name in groups])
    guess = np.zeros_like(targets)
    for number in range(10):
        train, test = folds != number, folds == number
        mean, spread = features[train].mean(axis=0), features[train].std(axis=0) + 1e-9
        x, y = (features[train] - mean) / spread, targets[train] - targets[train].mean(axis=0)
        weights = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ y)
        guess[test] = (features[test] - mean) / spread @ weights + targets[train].mean(axis=0)
    return [np.corrcoef(guess[:, k], targets[:, k])[0, 1] for k in range(targets.shape[1])]
