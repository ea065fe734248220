"""Steps of our detector on a CPU, whole ones: batch, loss, gradients, clipping, update, moving average.

    python detection_steps.py tune DATA SIDE BATCH                       the choice of the tuner, as JSON
    python detection_steps.py turns DATA SIDE BATCH STEPS CHOICE         tuned and plain PyTorch, in turns
    python detection_steps.py neighbour DATA SIDE BATCH STEPS CHOICE     while another process keeps a core busy

Plain is the same net and the same loss as a plain loop computes them. Beside a busy neighbour the tuner chooses the
number of threads anew, as it would in a run that starts there, and its choice is compared with a single thread.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch
from torch.optim.swa_utils import AveragedModel

from holdfast import Loader
from holdfast.planning.measure import Choice, Knob, Training, tune
from holdfast.workloads.detection.augment import Views
from holdfast.workloads.detection.images import Kept, room
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.loss import detection_loss
from holdfast.workloads.detection.model import Detector
from holdfast.workloads.detection.samples import Samples
from holdfast.workloads.detection.training import _moving, prepared

CPU = torch.device("cpu")
BUSY = "while True: pass"
TUNED_BATCH = 4
"""A step of 16 images takes many seconds on a small CPU: the tuner of a run measures with fewer as well."""


def loss_of(net: Any, batch: Any) -> torch.Tensor:
    x, targets = prepared(batch, 0.0)
    return detection_loss(net, net(x), targets, (x.shape[2], x.shape[3]))[0]


class Job:
    """The set, and ways to train on it."""

    def __init__(self, data: str, side: int, batch: int) -> None:
        checked = open_set(data)
        part = checked.splits["train"]
        self.samples = Samples(part, side, 1, Views(), Kept(len(part), side, 1, room()))
        self.classes, self.batch = len(checked.names), batch

    def trial(self) -> Training:
        batch = min(self.batch, TUNED_BATCH)
        return Training(Detector(self.classes, 1, "tiny"), loss_of, self.samples, batch=batch)

    def loop(self, choice: Choice) -> Callable[[], float]:
        torch.manual_seed(0)
        net = Detector(self.classes, 1, "tiny")
        choice.arrange(net)
        average = AveragedModel(net, multi_avg_fn=_moving(0.998), use_buffers=True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True if choice != Choice() else None)
        data = Loader(self.samples, batch_size=self.batch, shuffle=True, seed=0, num_workers=choice.workers)
        compute = choice.loss(lambda batch: loss_of(net, batch), CPU)
        threads, waiting = torch.get_num_threads(), iter(())

        def step() -> float:
            nonlocal waiting
            batch = next(waiting, None)
            if batch is None:
                waiting = iter(data)
                batch = next(waiting)
            choice.apply()
            optimizer.zero_grad()
            loss = compute(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            average.update_parameters(net)
            torch.set_num_threads(threads)
            return float(loss.detach())

        return step


def in_turns(ways: Sequence[Callable[[], float]], steps: int) -> list[float]:
    times: list[list[float]] = [[] for _ in ways]
    for number in range(steps + 1):
        for which in range(len(ways)) if number % 2 else reversed(range(len(ways))):
            began = time.perf_counter()
            ways[which]()
            if number:  # the first one warms up
                times[which].append(time.perf_counter() - began)
    return [statistics.median(each) for each in times]


def main() -> None:
    what, data, side, batch, *more = sys.argv[1:]
    job = Job(data, int(side), int(batch))
    if what == "tune":
        trial = job.trial()
        result = tune(trial.make, trial.knobs(), budget_s=60.0)
        print(json.dumps({"choice": result.choice.to_json(), "words": result.words(), "speedup": result.speedup}))
        return
    steps, choice = int(more[0]), Choice.from_json(json.loads(more[1]))
    assert choice is not None
    if what == "turns":
        plain, tuned = in_turns([job.loop(Choice()), job.loop(choice)], steps)
        print(json.dumps({"plain_s": plain, "tuned_s": tuned, "threads": torch.get_num_threads()}))
        return
    with subprocess.Popen([sys.executable, "-c", BUSY]) as neighbour:
        try:
            print(json.dumps(beside(job, choice, steps)))
        finally:
            neighbour.kill()


def beside(job: Job, choice: Choice, steps: int) -> dict[str, Any]:
    """The tuner decides under load, as it would in a run that starts on a busy machine."""
    many = dataclasses.replace(choice, threads=0)
    one = dataclasses.replace(choice, threads=1)
    job.batch = min(job.batch, TUNED_BATCH)
    found = tune(job.trial().make, [Knob("threads", (0, 1))], start=many, budget_s=20.0).choice
    ways = {1: one, torch.get_num_threads(): many}
    took = dict(zip(ways, in_turns([job.loop(each) for each in ways.values()], steps), strict=True))
    chosen = found.threads or torch.get_num_threads()
    return {"step_s_by_threads": took, "threads_chosen": chosen, "tuned_over_one": round(took[chosen] / took[1], 3),
            "batch": job.batch}  # fmt: skip


if __name__ == "__main__":
    main()
