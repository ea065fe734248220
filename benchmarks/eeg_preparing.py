"""`holdfast eeg prepare` against mne and braindecode, one core and all, and its result against double precision.

import eeg_preparing
eeg_preparing.preparing(scratch, quick=False)["speed"]["ratio_polyphase"]

Rounds take turns in one process. The recordings are simulated. Needs the extra `eeg`.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Bound, at_most, exactly  # first: it lets a benchmark import holdfast from src/
from eeg_data import at_least, quiet

from holdfast.workloads.eeg import bdf, bids, cache, filters, pool, simulate
from holdfast.workloads.eeg.prepare import prepare

BAND, NOTCH = (0.5, 45.0), 60.0


def preparing(scratch: Path, quick: bool) -> dict[str, Any]:
    """From EEG recordings to windows against mne and braindecode, and the result against double precision."""
    quiet()
    sizes = {"seconds": 20, "few": 2, "many": 4} if quick else {"seconds": 120, "few": 8, "many": 24}
    speed = prepare_speed(scratch, 1 if quick else 3, **sizes)
    return {"speed": speed, "accuracy": accuracy(scratch)}


def preparing_bounds(measured: dict[str, Any]) -> list[Bound]:
    speed, error = measured["speed"], measured["accuracy"]
    return [
        at_least("against mne and braindecode with their faster resampling", speed["ratio_polyphase"], 2, quick=False),
        at_least("against mne and braindecode with their default", speed["ratio_default"], 2, quick=False),
        at_least("times as fast with all cores as with one", speed["all_cores_against_one"], 1.5, quick=False),
        at_least(
            "all cores against mne and braindecode with all cores", speed["all_cores_against_theirs"], 2, quick=False
        ),
        exactly("the same bytes from any number of processes", speed["same_bytes"], True),
        at_most("error of what is stored against double precision, relative", error["stored_error"], 1e-6),
    ]


def prepare_speed(folder: Path, rounds: int, *, seconds: float, few: int, many: int) -> dict[str, Any]:
    """Recordings of 129 channels at 500 Hz from BIDS to windows: ours with digests and the cache, theirs in RAM.

    One process against one in seconds of the processor, which a busy machine does not change; all cores in seconds of
    the clock, the best of the rounds, which count only where the cores are free. Theirs keeps all recordings in memory,
    so it gets a few; what all cores give us is measured on many, where starting the processes is no large part of it.
    """
    shape: dict[str, Any] = {"rate": 500, "runs": 0, "rest_seconds": seconds, "flaws": False}
    data = simulate.write(folder / "data", subjects=few, **shape)
    larger = simulate.write(folder / "larger", subjects=many, **shape)
    cores = pool.usual_workers()

    def ours(source: Path, workers: int) -> Path:
        place = folder / ("cache" if source == data else "larger-cache")
        report = prepare(source, place, kind="challenge2", band=BAND, notch=NOTCH, workers=workers, rebuild=True)
        return report.folder / cache.SIGNALS

    works: dict[str, Callable[[], Any]] = {
        "many_one_process": lambda: ours(larger, 1),
        "many_all_cores": lambda: ours(larger, cores),
        "ours": lambda: ours(data, 1),
        "ours_all_cores": lambda: ours(data, cores),
        "default": lambda: _with_braindecode(data, "fft", 1),
        "polyphase": lambda: _with_braindecode(data, "polyphase", 1),
        "polyphase_all_cores": lambda: _with_braindecode(data, "polyphase", cores),
    }
    for name in ("polyphase_all_cores", "ours_all_cores"):  # imports and first-time set-up do not count
        works[name]()
    clock: dict[str, list[float]] = {name: [] for name in works}
    spent: dict[str, list[float]] = {name: [] for name in works}
    made: dict[str, set[str]] = {"many": set(), "ours": set()}
    for _ in range(rounds):
        for name, work in works.items():
            began, worked = time.perf_counter(), time.process_time()
            result = work()
            clock[name].append(time.perf_counter() - began)
            spent[name].append(time.process_time() - worked)
            if isinstance(result, Path):
                made[name.partition("_")[0]].add(hashlib.sha256(result.read_bytes()).hexdigest())
    cpu = {name: statistics.median(spent[name]) for name in ("ours", "default", "polyphase")}
    best = {name: min(each) for name, each in clock.items()}
    return {
        "recordings": {"few": few, "many": many},
        "seconds_each": seconds,
        "cores": cores,
        "one_process_cpu_s": {name: round(each, 2) for name, each in cpu.items()},
        "ratio_default": round(cpu["default"] / cpu["ours"], 1),
        "ratio_polyphase": round(cpu["polyphase"] / cpu["ours"], 1),
        "clock_s": {name: round(each, 2) for name, each in best.items()},
        "all_cores_against_one": round(best["many_one_process"] / best["many_all_cores"], 2),
        "all_cores_against_theirs": round(best["polyphase_all_cores"] / best["ours_all_cores"], 1),
        "all_cores_against_their_one": round(best["polyphase"] / best["ours_all_cores"], 1),
        "same_bytes": all(len(each) == 1 for each in made.values()),
    }


def _with_braindecode(data: Path, method: str, jobs: int) -> int:
    """The same with what a careful user of braindecode would write; windows stay in RAM there."""
    import mne
    from braindecode.datasets import BaseConcatDataset, RawDataset
    from braindecode.preprocessing import Preprocessor, create_fixed_length_windows, preprocess

    raws = [mne.io.read_raw_bdf(each.path, preload=True, verbose="error") for each in bids.look(data).recordings]
    dataset = BaseConcatDataset([RawDataset(raw) for raw in raws])
    steps = [
        Preprocessor("notch_filter", freqs=NOTCH, verbose="error"),
        Preprocessor("filter", l_freq=BAND[0], h_freq=BAND[1], h_trans_bandwidth=5.0, verbose="error"),
        Preprocessor("resample", sfreq=100, method=method, verbose="error"),
    ]
    preprocess(dataset, steps, n_jobs=jobs)
    windows = create_fixed_length_windows(
        dataset,
        window_size_samples=400,
        window_stride_samples=200,
        drop_last_window=True,
        preload=True,
        verbose="error",
    )
    return len(windows)


def accuracy(folder: Path) -> dict[str, Any]:
    """What is in the cache against plain convolutions in double precision, and against MNE's chain."""
    import mne
    from scipy import signal

    windows = cache.open(folder / "cache" / "challenge2-100hz")
    recording = next(each for each in bids.look(folder / "data").recordings if each.name == windows.row(0)["recording"])
    source = bdf.open(recording.path)
    some = [0, 5, 60, 100]
    raw = source.read(some)
    chain = filters.plan(source.rate, 100, band=BAND, notch=NOTCH)
    pad = chain.pad + 5000
    reference = np.pad(raw, ((0, 0), (pad, pad)), mode="reflect", reflect_type="odd")
    for taps in chain.taps:
        reference = signal.oaconvolve(reference, taps[None], mode="same", axes=1)
    reference = signal.resample_poly(reference, 1, 5, axis=1)[:, pad // 5 :][:, : chain.length(source.samples)]
    size = float(np.abs(reference).max())
    rows = np.flatnonzero(windows.table["recording"] == recording.name)
    starts = np.round(windows.table["onset"][rows] * 100).astype(int)
    stored = max(
        float(np.abs(windows.signals[row][some] - reference[:, start : start + 400]).max())
        for row, start in zip(rows, starts, strict=True)
    )
    theirs = mne.io.RawArray(raw.copy(), mne.create_info(len(some), source.rate, "eeg"), verbose="error")
    theirs.notch_filter(NOTCH, verbose="error")
    theirs.filter(*BAND, h_trans_bandwidth=5.0, verbose="error")
    default = theirs.copy().resample(100, verbose="error").get_data()
    polyphase = theirs.resample(100, method="polyphase", verbose="error").get_data()
    inside = slice(100, -100)
    return {
        "stored_error": stored / size,
        "double_error": float(np.abs(chain.apply(raw) - reference).max()) / size,
        "mne_polyphase_difference": float(np.abs(polyphase - reference)[:, inside].max()) / size,
        "mne_default_difference": float(np.abs(default - reference)[:, inside].max()) / size,
    }
