"""`holdfast train detection`: a detector for your boxes, or for a generated thermal-like set if none are given.

    holdfast train detection                                                 on the generated set
    holdfast train detection data=bccd/data.yaml imgsz=320 epochs=60         YOLO folders, COCO JSON, Pascal VOC
    holdfast train detection data=my.yaml size=nano multiscale=0.25          smaller net, changing sizes
    holdfast train detection data=my.yaml weights=runs/…/final.safetensors   from weights you have
    holdfast train detection data=my.yaml weights=resnet18-f37072fd.pth freeze=5

A script like any user's: it uses the session and nothing else of the runtime. What is trained is in `model.py`, how in
`loss.py`; the data are checked before the first step (`index.py`), and what is wrong with them is in the run folder.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchvision.ops  # noqa: F401  (named here, so that it is loaded before workers are forked)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.base.folders import write_whole
from holdfast.planning import measure
from holdfast.workloads.detection import generate, images, pretrained, reporting
from holdfast.workloads.detection.about import about_data
from holdfast.workloads.detection.augment import Views
from holdfast.workloads.detection.evaluate import Found, evaluate, find_all
from holdfast.workloads.detection.index import Checked, cache_folder, open_set
from holdfast.workloads.detection.looks import Looks
from holdfast.workloads.detection.loss import detection_loss
from holdfast.workloads.detection.model import SIZES, Detector, parameters
from holdfast.workloads.detection.samples import Samples, Still
from holdfast.workloads.detection.weights import keep_about
from holdfast.workloads.losses import Losses

GENERATED: dict[str, Any] = {"imgsz": 128, "epochs": 10, "size": "nano"}
USUAL: dict[str, Any] = {"imgsz": 416, "epochs": 30, "size": "tiny"}


def train(
    session: holdfast.Session,
    *,
    data: str = "",
    classes: str = "",
    size: str = "",
    imgsz: int = 0,
    batch: int = 16,
    epochs: int = 0,
    lr: float = 2e-3,
    weight_decay: float = 0.05,
    warmup: float = 0.1,
    ema: float = 0.998,
    mosaic: float = 1.0,
    calm: float = 0.2,
    scale: float = 0.5,
    flip: float = 0.5,
    upside: float = 0.0,
    light: float = 1.0,
    multiscale: float = 0.0,
    shrink: float = 1.0,
    weights: str = "",
    backbone: str = "",
    freeze: int = 0,
    evaluate_every: int = 0,
    cache: str = "auto",
    workers: int = -1,
    tune: bool = True,
    precision: str = "",
) -> None:
    """One run: data, net, training, report."""
    checked = the_set(session, data, classes)
    usual = GENERATED if not data else USUAL
    side, epochs, size = _side(imgsz or usual["imgsz"], shrink), epochs or usual["epochs"], size or usual["size"]
    if size not in SIZES:
        raise UserError(f"size is {size!r}", cause=f"there are: {', '.join(SIZES)}")
    part, channels = checked.splits["train"], 1 if checked.grey else 3
    if batch > len(part):
        print(f"batch {batch} is more than the {len(part)} images: {len(part)}", flush=True)
        batch = len(part)

    backbone = backbone or pretrained.backbone_of(weights)
    net = Detector(len(checked.names), channels, size, backbone)
    if weights:
        taken = pretrained.inherit(net, Path(weights).expanduser())
        print("\n".join(taken.lines()), flush=True)
    if freeze:
        print(f"frozen: {', '.join(net.freeze(freeze))}", flush=True)
    print(f"{size}: {parameters(net):,} parameters, {side} px, {channels} channel{'s' * (channels > 1)}", flush=True)
    keep_about(session.run.folder, net, checked, side, classes)

    kept = images.Kept(len(part), side, channels, _room(cache))
    views = Views(mosaic=mosaic, scale=scale, flip=flip, upside=upside, light=light)
    lively = Samples(part, side, channels, views, kept)
    quiet = Samples(part, side, channels, replace(views, mosaic=0.0, scale=scale / 2), kept)
    still = Still(checked.splits["val"], side, channels)

    def loss_of(net: Any, batch: Any) -> Tensor:
        x, targets = prepared(batch, multiscale)
        shape = (x.shape[2], x.shape[3])
        return detection_loss(net, net(x), targets, shape)[0]

    steps = epochs * (len(part) // batch)
    # Compiling takes minutes and its backward of max_pool2d does not build on CPUs (pytorch#193581): not tried.
    fixed: dict[str, Any] = {"compile": False}
    fixed |= {"precision": precision} if precision else {}
    fixed |= {"workers": workers} if workers >= 0 else {}
    trial = measure.Training(net, loss_of, lively, batch=batch, lr=lr, steps=steps)
    choice = measure.for_session(session, trial, tuned=tune, fixed=fixed)
    choice.arrange(net)
    average = AveragedModel(net, multi_avg_fn=_moving(ema), use_buffers=True)
    averaged: Any = average.module
    optimizer = torch.optim.AdamW(_groups(net, weight_decay), lr=lr, fused=_one_kernel(session.device))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps, warmup))
    loaders = [
        holdfast.Loader(each, batch_size=batch, shuffle=True, drop_last=True, num_workers=choice.workers)
        for each in (lively, quiet)
    ]
    losses = Losses(len(loaders[0]))
    session.protect(
        model=net, average=average, optimizer=optimizer, schedule=schedule, losses=losses,
        mosaics=loaders[0], plain=loaders[1],
    )  # fmt: skip
    compute = choice.loss(lambda b: loss_of(net, b), session.device)
    calm_from = epochs - round(calm * epochs) if mosaic else 0
    looks = Looks(max(0, evaluate_every) or now_and_then(len(part), len(still)), given=evaluate_every > 0)
    if looks.every > 1 and not looks.given:
        say = f"the validation set is scored every {looks.every} epochs and after the last"
        print(f"{say}, to keep that under a fifth of the time (`evaluate_every=1`: each)", flush=True)
    found: Found = []

    for epoch in session.epochs(epochs):
        losses.begin(epoch)
        began = time.monotonic()
        for each in session.batches(loaders[epoch >= calm_from]):
            losses.add(session.step(compute, each, clip=10.0, accumulate=choice.pieces))
            schedule.step()
            average.update_parameters(net)
        numbers = {"train_loss": losses.mean()}
        learned = time.monotonic()
        looks.learned(learned - began)
        if looks.due(epoch, epochs):
            with session.evaluating():
                found = find_all(averaged, still, session.device, choice)
                scores = evaluate(found, checked.splits["val"], checked.names)
            numbers |= {"val_map50": scores.map50, "val_map": scores.map}
            looks.took(time.monotonic() - learned, learned - began)
        session.log(**numbers)

    if looks.learning_s:  # a worker that came for the report alone has learned nothing
        print(looks.words(), flush=True)
    with session.evaluating():  # scores and pictures of many images take longer than a step may
        if not found:  # the worker that trained the last epoch is not this one
            found = find_all(averaged, still, session.device, choice)
        reporting.report(session, found, checked, still)


def the_set(session: holdfast.Session, data: str, classes: str = "") -> Checked:
    """The data that were named, or the generated set; what is wrong with them is told and kept."""
    if not data:
        folder = cache_folder() / "generated-1"
        if not (folder / "data.yaml").exists():
            generate.write(folder, progress=session.progress)
        data = str(folder / "data.yaml")
    outside = session.settings.data.outside
    bound = session.run.folder / "index.npz"
    checked = open_set(data, tell=session.progress, bound=bound, outside=outside, classes=classes)
    told = "GENERATED thermal-like images" if checked.generated else f"{checked.kind} data"
    counts = ", ".join(f"{len(part):,} {name}" for name, part in checked.splits.items())
    print(
        f"{told}: {counts}; {len(checked.names)} classes ({', '.join(checked.names[:8])}) in {checked.file}", flush=True
    )
    for note in checked.notes:
        print(f"note: {note}", flush=True)
    if len(checked.problems):
        where = session.run.folder / "problems.txt"
        write_whole(where, ("\n".join(checked.problems.lines()) + "\n").encode(errors="replace"))
        for line in checked.problems.summary():
            print(f"! {line}", flush=True)
        print(f"  each by file and line in {where}", flush=True)
    files.write_json(session.run.folder / "dataset.json", about_data(checked), durable=False)
    return checked


def _side(wanted: int, shrink: float = 1.0) -> int:
    if wanted < 32:
        raise UserError(f"imgsz={wanted} is too small", hints=["use a multiple of 32, from 32 on"])
    if not 0.0 < shrink <= 1.0:
        raise UserError(f"shrink={shrink:g} is wrong", cause="it is a share of imgsz, more than 0 and at most 1")
    side = max(32, round(wanted * shrink / 32) * 32)
    if shrink < 1.0:
        print(f"imgsz={wanted}, shrink={shrink:g}: {side}", flush=True)
    elif side != wanted:
        print(f"imgsz={wanted} is no multiple of 32: {side}", flush=True)
    return side


def now_and_then(train: int, val: int) -> int:
    """Epochs from one score to the next: looking takes a third of learning, and may take a twentieth of a run."""
    return max(1, math.ceil(20 * val / (3 * train)))


def _one_kernel(device: torch.device) -> bool:
    """Whether one kernel can update all weights: four times as fast as one operation after the other on a CPU."""
    return device.type in ("cpu", "cuda")


def _room(cache: str) -> int:
    """Bytes for decoded images: `auto`, `off`, or an amount like 2GB."""
    if cache == "auto":
        return images.room()
    if cache in ("off", "0", "no", "false"):
        return 0
    text, unit = cache.lower().removesuffix("b"), 1
    for letter, factor in (("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)):
        if text.endswith(letter):
            text, unit = text[:-1], factor
    try:
        return max(0, int(float(text) * unit))
    except (ValueError, OverflowError):
        raise UserError(f"cache is {cache!r}", hints=["use auto, off, or an amount such as 2GB"]) from None


def prepared(batch: Any, multiscale: float) -> tuple[Tensor, Tensor]:
    """Images in 0..1, at the size that the first sample of the batch drew: the same whenever the batch is computed."""
    x, targets, draw = batch[0] / 255, batch[1], batch[2]
    if multiscale:
        side = x.shape[-1]
        factor = 1.0 + multiscale * (2.0 * float(draw[0]) - 1.0)
        new = max(32, round(side * factor / 32) * 32)
        if new != side:
            x = F.interpolate(x, size=(new, new), mode="bilinear", align_corners=False)
            grown = torch.full((5,), new / side, device=targets.device)
            grown[0] = 1.0
            targets = targets * grown
    return x, targets


def _moving(decay: float) -> Any:
    """The moving average of the weights; it forgets faster at the start, when there is little worth remembering."""

    def update(averages: Any, current: Any, count: Any) -> None:
        keep = decay * (1.0 - math.exp(-(float(count) + 1.0) / 100.0))
        if averages[0].is_floating_point():
            get_ema_multi_avg_fn(keep)(averages, current, count)
        else:
            for average, now in zip(averages, current, strict=True):
                average.copy_(now)

    return update


def _groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Only the kernels of convolutions are drawn towards zero."""
    learning = [each for each in net.parameters() if each.requires_grad]
    kernels = [each for each in learning if each.ndim > 1]
    others = [each for each in learning if each.ndim <= 1]
    return [{"params": kernels, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def pace(step: int, steps: int, warmup: float) -> float:
    """Up at first, then down along a cosine to a fiftieth."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm))))


if __name__ == "__main__":
    holdfast.main(train)
