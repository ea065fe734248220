"""Subjects out of runs of the workloads: EEG (windows, Pearson r), detection (images, mAP), ecosystem (a policy).

of_run(Path("runs/eeg-challenge1-…"), {"kind": "run"})           # a Subject with its validation set and its score
of_run(folder, {"kind": "run", "species": "prey"})               # which of the two policies

What a run folder holds is untrusted: it is read by the workloads' own readers, which check it. Needs torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import files
from holdfast.errors import UserError
from holdfast.optimize.subject import MOST_VALIDATION, Subject

MOST_IMAGES = 128
ABOUT = ("net.json", "detector.json", "ecosystem.json")


def of_run(folder: Path, spec: dict[str, Any]) -> Subject:
    """The subject of a finished run."""
    return _makers(folder)(folder, spec)  # type: ignore[no-any-return]


def model_of_run(folder: Path, spec: dict[str, Any]) -> nn.Module:
    """Only its network."""
    return {"net.json": eeg_model, "detector.json": detection_model, "ecosystem.json": policy_model}[_kind(folder)](
        folder, spec
    )


def _kind(folder: Path) -> str:
    for name in ABOUT:
        if (folder / name).is_file():
            return name
    raise UserError(
        f"{folder.name} is not a run that can be optimized by itself",
        cause=f"it has none of {', '.join(ABOUT)}",
        hints=["name the model: `holdfast optimize script.py:build --weights RUN/final.safetensors --data val.npz`"],
    )


def _makers(folder: Path) -> Any:
    return {"net.json": _eeg, "detector.json": _detection, "ecosystem.json": _ecosystem}[_kind(folder)]


# EEG --------------------------------------------------------------------------------------------------------------


class _Column(nn.Module):
    """The number a caller wants out of what the net gives."""

    def __init__(self, net: nn.Module, column: int) -> None:
        super().__init__()
        self.net, self.column = net, column

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found[:, self.column : self.column + 1]


def eeg_model(folder: Path, spec: dict[str, Any]) -> nn.Module:
    from holdfast.workloads.eeg import heads, models, serving, submission

    about = submission.described(folder)
    net = serving.build(about, models, heads)
    _load(net, folder / "final.safetensors")
    return _Column(net, int(about["column"])).train()


def _eeg(folder: Path, spec: dict[str, Any]) -> Subject:
    from holdfast.workloads.eeg import cache, submission
    from holdfast.workloads.eeg.splits import split

    about = submission.described(folder)
    windows = cache.open(Path(about["cache"]))
    name = str(about["names"][about["column"]])
    if name not in windows.table or len(windows.channels) != about["channels"] or windows.samples < about["samples"]:
        raise UserError(f"the windows in {windows.folder} are not those of {folder.name}")
    truth = windows.table[name]
    parts = split(windows.table, valid=about["valid"], test=about["test"], keep=np.isfinite(truth))
    rows = np.sort(
        np.random.default_rng(0).permutation(parts.test if len(parts.test) else parts.valid)[:MOST_VALIDATION]
    )
    calibration = np.sort(np.random.default_rng(1).permutation(parts.train)[:128])

    def cut(chosen: Any) -> Any:
        spare = windows.samples - int(about["samples"])
        return np.ascontiguousarray(windows.batch(chosen)[:, :, spare // 2 : spare // 2 + int(about["samples"])])

    contract = {
        "given": f"EEG in volts, {about['channels']} channels x {about['samples']} samples at {about['rate']:g} Hz",
        "channels": list(windows.channels),
        "rate_hz": about["rate"],
        "starts_after_stimulus_s": about.get("start"),
        "normalisation": "inside the model: each channel by its median and deviation, measured on training windows",
        "gives": f"{name}" + (" in seconds" if name == "response_time" else ""),
        "prepared_with": {key: windows.meta.get(key) for key in ("kind", "key", "parameters") if key in windows.meta},
    }
    notes = ["the windows are SIMULATED EEG"] if windows.simulated else []
    return Subject(
        folder.name, eeg_model(folder, spec), [cut(rows)], ["windows"], outputs=[name], calibration=[cut(calibration)],
        score={"kind": "regression"}, targets={"targets": truth[rows, None].astype(np.float64)}, contract=contract,
        notes=notes,
    )  # fmt: skip


def _load(net: nn.Module, path: Path, prefix: str = "") -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
        net.load_state_dict({key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read", cause=str(error)[:200]) from None
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not fit", cause=str(error)[:300]) from None


# Detection --------------------------------------------------------------------------------------------------------


class _Decoded(nn.Module):
    """Images in 0..255 as they are stored; boxes in pixels and scores come out, suppression follows outside."""

    def __init__(self, net: Any, shape: tuple[int, int]) -> None:
        super().__init__()
        from holdfast.workloads.detection.model import points

        self.net = net
        at, stride = points(shape, torch.device("cpu"))
        self.register_buffer("at", at, persistent=False)
        self.register_buffer("stride", stride, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        from holdfast.workloads.detection.model import BINS

        raw = self.net(images.float() / 255).float()
        return self.net.boxes(raw, self.at, self.stride), raw[..., 4 * BINS :].sigmoid()


def _stills(about: dict[str, Any]) -> tuple[Any, Any, Any]:
    from holdfast.workloads.detection.index import open_set
    from holdfast.workloads.detection.samples import Still

    checked = open_set(str(about["data"]), classes=str(about.get("classes", "")))
    side, channels = int(about["imgsz"]), int(about["channels"])
    return checked, Still(checked.splits["val"], side, channels), Still(checked.splits["train"], side, channels)


def detection_model(folder: Path, spec: dict[str, Any]) -> nn.Module:
    from holdfast.workloads.detection.weights import load

    net, about = load(folder)
    _, still, _ = _stills(about)
    return _Decoded(net, still.shape).eval()


def _detection(folder: Path, spec: dict[str, Any]) -> Subject:
    from holdfast.workloads.detection.samples import sheet

    model = detection_model(folder, spec)
    about = files.read_json(folder / "detector.json") or {}
    checked, still, train = _stills(about)

    def some(images: Any, most: int) -> Any:
        whole = [np.asarray(images[number][0]).transpose(1, 2, 0) for number in range(min(len(images), most))]
        return np.stack([sheet(each, still.shape).transpose(2, 0, 1) for each in whole])

    contract = {
        "given": f"images as they are stored (0..255), channels first, fitted into {still.shape[1]} x {still.shape[0]}",
        "size": list(still.shape),
        "longer_side": int(about["imgsz"]),
        "classes": checked.names,
        "gives": "rows x1 y1 x2 y2 score class in pixels of the sheet, after non-maximum suppression",
    }
    return Subject(
        folder.name, model, [some(still, MOST_IMAGES)], ["images"], outputs=["boxes", "scores"],
        calibration=[some(train, 64)], contract=contract,
        score={"kind": "detection", "data": checked.file, "classes": str(about.get("classes", "")),
               "side": int(about["imgsz"]), "compared": [1]},
        post={"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300},
        notes=["the images are GENERATED"] if checked.generated else [],
    )  # fmt: skip


# Ecosystem --------------------------------------------------------------------------------------------------------


def _ecosystem_about(folder: Path) -> tuple[dict[str, Any], Any]:
    from holdfast.workloads.ecosystem.rules import Rules

    about = files.read_json(folder / "ecosystem.json") or {}
    return about, Rules.from_json(about.get("rules"))


def policy_model(folder: Path, spec: dict[str, Any]) -> nn.Module:
    from holdfast.workloads.ecosystem.policy import Policy, size_of

    about, _ = _ecosystem_about(folder)
    net = Policy(size_of(str(about.get("preset"))))
    _load(net, folder / "final.safetensors", f"{spec.get('species', 'predators')}.")
    return net.eval()


def _ecosystem(folder: Path, spec: dict[str, Any]) -> Subject:
    from holdfast.workloads.ecosystem.rollout import Driver, collect
    from holdfast.workloads.ecosystem.rules import PREDATOR, PREY
    from holdfast.workloads.ecosystem.world import World

    species = str(spec.get("species", "predators"))
    if species not in ("predators", "prey"):
        raise UserError(f"species is {species!r}", cause="there are predators and prey")
    model = policy_model(folder, spec)
    _, rules = _ecosystem_about(folder)
    mine, other = (PREDATOR, PREY) if species == "predators" else (PREY, PREDATOR)
    torch.manual_seed(0)
    tracks = []
    for seed in (11, 12):
        gathered = collect(World(rules, seed), {mine: Driver(model), other: Driver(None)}, 12, torch.device("cpu"))
        tracks.append(gathered.tracks[mine])
    given = [
        [torch.cat(getattr(track, name)).numpy()[:MOST_VALIDATION] for name in ("own", "others")] for track in tracks
    ]
    return Subject(
        f"{folder.name} {species}", model, given[0], ["own", "others"], outputs=["logits", "value"],
        calibration=given[1],
        score={"kind": "policy", "species": species, "rules": rules.to_json(), "worlds": 8, "steps": 40},
        contract={"given": "what each animal sees: its own features and those of its neighbours, one row an animal",
                  "gives": "logits of the actions, and the value"},
    )  # fmt: skip
