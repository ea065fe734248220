"""Does it help to start from weights of another set? The same steps from scratch, from weights, and half frozen.

    python benchmarks/detection_transfer.py A/data.yaml B/data.yaml --steps 120 --out results.json

A network is trained on A. Then, for each seed, B is learned in the same number of steps from nothing, from the weights
of A, and from those with the first two stages frozen. All arms have the same network and batches of the same size, so
that equal steps are equal CPU time, which is measured as well. AP50 is as COCO counts it (101 points of recall).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import common  # first: it lets a benchmark import holdfast from src/
import numpy as np
import torch
from safetensors.torch import save_file
from torch.optim.swa_utils import AveragedModel

from holdfast.workloads.detection import pretrained, training
from holdfast.workloads.detection.augment import Views
from holdfast.workloads.detection.evaluate import LEAST, in_pixels, to_image
from holdfast.workloads.detection.images import Kept
from holdfast.workloads.detection.index import Checked, Index, open_set
from holdfast.workloads.detection.loss import detection_loss
from holdfast.workloads.detection.model import Detector, folded
from holdfast.workloads.detection.samples import Samples, Still

SEEDS = (0, 1, 2)


class Endless(torch.utils.data.IterableDataset[Any]):
    """Samples drawn from a seed, for each loader process its own."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __iter__(self) -> Any:
        told = torch.utils.data.get_worker_info()
        np.random.seed((self.seed * 1000 + (told.id if told else 0)) % 2**32)
        while True:
            yield self.samples[int(np.random.randint(len(self.samples)))]


def learn(
    checked: Checked, given: argparse.Namespace, steps: int, seed: int, start: Path | None, frozen: int
) -> tuple[Detector, float]:
    """A network after so many steps, and the CPU time that they took."""
    side, device = given.imgsz, given.device
    torch.manual_seed(seed)
    channels = 1 if checked.grey else 3
    net = Detector(len(checked.names), channels, given.size)
    if start is not None:
        print("  " + pretrained.inherit(net, start).lines()[0], flush=True)
    net.freeze(frozen)
    net.to(device).train()
    part = checked.splits["train"]
    samples = Samples(part, side, channels, Views(), Kept(len(part), side, channels, 2 << 30))
    loader = torch.utils.data.DataLoader(Endless(samples, seed), batch_size=16)
    average = AveragedModel(net, multi_avg_fn=training._moving(0.998), use_buffers=True)
    optimizer = torch.optim.AdamW(training._groups(net, 0.05), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: training.pace(step, steps, 0.1))
    began = time.process_time()
    for number, batch in enumerate(loader):
        x, targets = training.prepared([each.to(device, non_blocking=True) for each in batch], 0.0)
        loss = detection_loss(net, net(x), targets, (x.shape[2], x.shape[3]))[0]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
        if number + 1 == steps:
            break
    made: Any = average.module
    return made.eval(), time.process_time() - began


@torch.inference_mode()
def ap50(net: Detector, index: Index, classes: int, given: argparse.Namespace) -> float:
    """The mean over classes that occur."""
    side, device = given.imgsz, given.device
    still = Still(index, side, net.channels)
    looking = folded(net)
    found = []
    for number in range(len(still)):
        rows = looking.detect(still[number][0][None].to(device) / 255, score=LEAST)[0]
        found.append(to_image(rows.float().cpu().numpy(), index.size(number), side)[:100])
    values = [ap_of(found, index, kind) for kind in range(classes) if index.counts(classes)[kind]]
    return float(np.mean(values))


def ap_of(found: list[Any], index: Index, kind: int) -> float:
    """Precision at 101 recalls, as COCO takes their mean; an object is found once, by the surest answer."""
    hits, total = [], 0
    for number, rows in enumerate(found):
        truth = in_pixels(index, number)
        truth = truth[truth[:, 0] == kind, 1:]
        total += len(truth)
        taken = np.zeros(len(truth), bool)
        for row in rows[rows[:, 5] == kind]:
            low, high = np.maximum(row[:2], truth[:, :2]), np.minimum(row[2:4], truth[:, 2:])
            both = np.prod(np.maximum(high - low, 0), 1)
            over = both / (np.prod(row[2:4] - row[:2]) + np.prod(truth[:, 2:] - truth[:, :2], 1) - both + 1e-9)
            over[taken] = 0.0
            best = int(over.argmax()) if len(over) else -1
            right = best >= 0 and over[best] >= 0.5
            if right:
                taken[best] = True
            hits.append((float(row[4]), right))
    hits.sort(key=lambda each: -each[0])
    right = np.cumsum([each for _, each in hits])
    precision = right / np.arange(1, len(hits) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(right / max(1, total), np.linspace(0, 1, 101), side="left")
    return float(np.mean([precision[each] if each < len(precision) else 0.0 for each in at]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="nano")
    parser.add_argument("--imgsz", type=int, default=160)
    parser.add_argument("--before", type=int, default=400, help="steps on the first set")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", default="detection-transfer.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, second = (open_set(each) for each in given.data)
    net, seconds = learn(first, given, given.before, 100, None, 0)
    before = ap50(net, first.splits["val"], len(first.names), given)
    print(f"on {Path(first.file).parent.name}: AP50 {before:.3f} in {seconds:.0f} CPU-seconds", flush=True)
    start = Path(given.out).with_suffix(".safetensors")
    save_file({f"average.module.{name}": value.cpu().contiguous() for name, value in net.state_dict().items()}, start)
    sets = {"from": Path(first.file).parent.name, "to": Path(second.file).parent.name}
    told: dict[str, Any] = {
        "part": "detection-transfer", "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python benchmarks/detection_transfer.py", *(Path(each).name for each in sys.argv[1:])]),
        "machine": common.machine(), "versions": common.versions(),
        "settings": {key: getattr(given, key) for key in ("device", "size", "imgsz", "before", "steps")},
        **sets, "ap50_first": round(before, 4), "rows": [],
    }  # fmt: skip
    for seed in SEEDS:
        for arm, path, frozen in (("scratch", None, 0), ("weights", start, 0), ("frozen", start, 2)):
            net, seconds = learn(second, given, given.steps, seed, path, frozen)
            score = ap50(net, second.splits["val"], len(second.names), given)
            told["rows"].append({"arm": arm, "seed": seed, "ap50": round(score, 4), "cpu_s": round(seconds, 1)})
            print(told["rows"][-1], flush=True)
            common.write(Path(given.out), told)
    start.unlink()


if __name__ == "__main__":
    main()
