"""A submission tried before it is sent: the score it would get, and whether served windows are the trained ones.

    result = rehearse(path, {1: folder1, 2: folder2}, data=Path("data"), python=python)
    result["overall"], result["parity"], result["memory_bytes"]

The windows are cut anew from the recordings with mne, as a scorer would, and not with the code that made the training
windows: what differs between the two shows here and not on the leaderboard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import bids, cache, scores, submission
from holdfast.workloads.eeg.splits import Rows, split

Floats = NDArray[np.float32]
RATE = 100.0
"""Hertz of the windows that the competition hands out."""
LABEL = {1: "response_time", 2: "externalizing"}


def rehearse(
    path: Path, folders: dict[int, Path], *, data: Path | None, python: str, device: str = "cpu"
) -> dict[str, Any]:
    """Ask the zip about the held-out windows of both runs; scores, times, memory, parity."""
    asked: dict[int, tuple[Floats, list[tuple[int, int]]]] = {}
    known: dict[int, dict[str, Any]] = {}
    for number, folder in folders.items():
        known[number] = _held_out(number, folder, data)
        asked[number] = (known[number]["served"], batches(known[number]["subjects"]))
    told = submission.attempt(path, python, asked, rate=RATE, device=device)
    found: dict[str, Any] = {"torch": told["torch"], "python": told["python"], "memory_bytes": told["memory_bytes"]}
    for number, facts in known.items():
        said = told["challenges"][str(number)]
        answers = np.array(said["answers"], dtype=np.float64)
        if len(answers) != len(facts["truth"]) or not np.isfinite(answers).all():
            raise UserError(
                f"the submission gave {len(answers)} answers to {len(facts['truth'])} windows, or not numbers"
            )
        low, high = scores.interval(scores.nrmse, facts["truth"], answers, facts["subjects"])
        found[f"challenge{number}"] = {
            "nrmse": scores.rounded(scores.nrmse(facts["truth"], answers)),
            "nrmse_low": scores.rounded(low),
            "nrmse_high": scores.rounded(high),
            **scores.no_score(facts["truth"], facts["subjects"]),
            "windows": len(answers),
            "subjects": len(set(facts["subjects"].tolist())),
            "seconds": round(said["seconds"], 3),
            "slowest_batch_s": round(said["slowest_batch_s"], 4),
            "simulated": facts["simulated"],
            "parity": _parity(facts, answers, folders[number]),
        }
    if {1, 2} <= set(known):
        one, two = (found[f"challenge{number}"]["nrmse"] for number in (1, 2))
        found["overall"] = None if one is None or two is None else round(scores.overall(one, two), 4)
    return found


def _held_out(number: int, folder: Path, data: Path | None) -> dict[str, Any]:
    """The windows of the test subjects of a run: as they were trained on, and as they are served."""
    about = submission.described(folder)
    windows = cache.open(str(about["cache"]))
    truth = windows.table[LABEL[number]]
    parts = split(windows.table, valid=str(about["valid"]), test=str(about["test"]), keep=np.isfinite(truth))
    rows = parts.test if len(parts.test) else parts.valid
    length = int(about["samples"])
    spare = windows.samples - length
    trained = windows.batch(rows)[:, :, spare // 2 : spare // 2 + length]
    trained = np.ascontiguousarray(trained)
    cut = None if data is None else served(data, windows, rows, spare // 2, round(length / windows.rate * RATE))
    return {
        "truth": truth[rows],
        "subjects": windows.table["subject"][rows],
        "trained": trained,
        "served": trained if cut is None else cut,
        "checked": cut is not None,
        "simulated": bool(windows.simulated),
    }


def served(data: Path, windows: Any, rows: Rows, skip: int, length: int) -> Floats:
    """The same windows cut out of the recordings with mne, in volts at 100 Hz."""
    where = {each.name: each for each in bids.look(data).recordings}
    table, shift = (
        windows.table,
        float(windows.meta.get("recipe", {}).get("shift", 0.0)) if windows.kind == "challenge1" else 0.0,
    )
    out = np.zeros((len(rows), len(windows.channels), length), np.float32)
    for name in sorted(set(table["recording"][rows].tolist())):
        if name not in where:
            raise UserError(f"{data} has no recording {name}", hints=["name the data set that the cache was made of"])
        signals = _recording(where[name].path, windows.channels)
        for place in np.flatnonzero(table["recording"][rows] == name):
            start = (
                round(float(table["onset"][rows[place]]) * RATE)
                + round(shift * RATE)
                + round(skip / windows.rate * RATE)
            )
            piece = signals[:, start : start + length]
            out[place, :, : piece.shape[1]] = piece
    return out


def _recording(path: Path, channels: list[str]) -> Floats:
    try:
        import mne
    except ImportError:
        hints = ["pip install 'holdfast[eeg]'", "or leave `--data` out: windows are then those of the cache"]
        raise UserError("cutting windows anew needs mne", cause="not installed", hints=hints) from None
    raw = mne.io.read_raw(path, preload=True, verbose="error")
    if abs(raw.info["sfreq"] - RATE) > 1e-6:  # as the copies of the competition were made
        raw.filter(0.5, 50.0 if raw.info["sfreq"] > 101 else None, verbose="error").resample(RATE, verbose="error")
    missing = [name for name in channels if name not in raw.ch_names]
    if missing:
        raise UserError(f"{path.name} has no channel {missing[0]}")
    found: Floats = raw.get_data(picks=channels).astype(np.float32)
    return found


def batches(subjects: Any, most: int = 64) -> list[tuple[int, int]]:
    """(first, last + 1) of batches in order that never mix two subjects."""
    found: list[tuple[int, int]] = []
    start = 0
    for place in range(1, len(subjects) + 1):
        if place == len(subjects) or subjects[place] != subjects[start] or place - start == most:
            found.append((start, place))
            start = place
    return found


def _parity(facts: dict[str, Any], answers: Any, folder: Path) -> dict[str, Any]:
    """How far served windows are from the trained ones, and the zip's answers from those of this torch."""
    trained, cut = facts["trained"], facts["served"]
    same = trained.shape == cut.shape
    scale = float(np.std(trained)) or 1.0
    mine = own_answers(folder, trained)
    return {
        "served_windows_checked": facts["checked"],
        "windows_largest_difference_sd": float(np.abs(trained - cut).max()) / scale if same else None,
        "answers_largest_difference": float(np.abs(answers - mine).max()),
        "answers_sd": float(np.std(mine)),
    }


def own_answers(folder: Path, trained: Floats) -> Any:
    """What the trained net says here, with the code and the torch that trained it."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from holdfast.workloads.eeg import heads, models, serving

    about = submission.described(folder)
    net = serving.build(about, models, heads)
    try:
        net.load_state_dict(load_file(folder / "final.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        hints = [f"`holdfast fsck {folder.name}` says what is good"]
        cause = str(error).splitlines()[0]
        raise UserError(f"the weights of {folder.name} cannot be used", cause=cause, hints=hints) from None
    net.eval()
    with torch.inference_mode():
        said = [
            net(torch.from_numpy(trained[start : start + 256]))[:, about["column"]]
            for start in range(0, len(trained), 256)
        ]
    return torch.cat(said).double().numpy()
