"""Small caches of windows with a known answer in them, made in milliseconds.

challenge1(folder)      # a bump at the press, over noise
challenge2(folder)      # one factor in the power of a rhythm, age in another
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.workloads.eeg import cache

CHANNELS, RATE = 8, 100.0
RELEASES = ("R1", "R2", "R5")


def challenge1(
    folder: Path,
    *,
    subjects: int = 12,
    trials: int = 16,
    seed: int = 0,
    releases: Sequence[str] = RELEASES,
    restless: Sequence[str] = (),
) -> Path:
    """Two-second windows from half a second after the stimulus; the press bends half of the channels.

    `restless` are releases whose other channels are loud in one trial and quiet in the next.
    """
    random = np.random.default_rng(seed)
    rows, signals = [], []
    t = np.arange(200) / RATE + 0.5
    for number in range(subjects):
        own = random.normal(1.5, 0.15)
        for trial in range(trials):
            press = float(np.clip(own + random.normal(0, 0.3), 0.6, 2.4))
            noise = random.normal(0, 1.0, (CHANNELS, 200))
            noise[: CHANNELS // 2] += 2.5 * np.exp(-0.5 * ((t - press) / 0.08) ** 2)
            release = releases[number % len(releases)]
            noise[CHANNELS // 2 :] *= np.exp(random.normal(0, 1.5)) if release in restless else 1.0
            noise[-1] = 0.0  # the reference
            signals.append((noise * 1e-5).astype(np.float32))
            row = _row(number, random, "contrastChangeDetection", response_time=press, onset=10.0 * trial)
            rows.append({**row, "release": release})
    return _write(folder, "challenge1", signals, rows)


def challenge2(
    folder: Path, *, subjects: int = 24, windows: int = 8, seed: int = 1, releases: Sequence[str] = RELEASES
) -> Path:
    """Four-second windows at rest; the factors are in the power at 10 Hz, age in that at 4 Hz."""
    random = np.random.default_rng(seed)
    rows, signals = [], []
    t = np.arange(400) / RATE
    for number in range(subjects):
        factor, age = random.normal(), random.uniform(6, 18)
        for each in range(windows):
            noise = random.normal(0, 1.0, (CHANNELS, 400))
            noise[:3] += np.exp(0.5 * factor) * np.sin(2 * np.pi * (10 * t + random.random()))
            noise[3:5] += (age / 10) * np.sin(2 * np.pi * (4 * t + random.random()))
            signals.append((noise * 1e-5).astype(np.float32))
            values = {name: factor + random.normal(0, 0.2) for name in ("p_factor", "attention", "internalizing")}
            row = _row(number, random, "RestingState", onset=4.0 * each, externalizing=factor, **values)
            rows.append({**row, "age": age, "release": releases[number % len(releases)]})
    return _write(folder, "challenge2", signals, rows)


def _row(number: int, random: Any, task: str, **values: Any) -> dict[str, Any]:
    return {
        "recording": f"sub-{number:02d}_task-{task}",
        "subject": f"S{number:02d}",
        "release": RELEASES[number % len(RELEASES)],
        "task": task,
        "kind": "trial",
        "sex": "MF"[number % 2],
        "age": 6.0 + number % 12,
        **values,
    }


def _write(folder: Path, kind: str, signals: list[Any], rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    stacked = np.stack(signals)
    (folder / cache.SIGNALS).write_bytes(stacked.astype("<f4").tobytes())
    names = [f"E{number + 1}" for number in range(CHANNELS)]
    meta = {
        "kind": kind,
        "rate": RATE,
        "channels": names,
        "samples": stacked.shape[2],
        "simulated": True,
        "key": f"{kind}-small",
    }
    table = {name: np.array([str(row.get(name, "")) for row in rows]) for name in cache.WORDS}
    table |= {name: np.array([float(row.get(name, np.nan)) for row in rows]) for name in cache.NUMBERS}
    cache.finish(folder, meta, table)
    return folder
