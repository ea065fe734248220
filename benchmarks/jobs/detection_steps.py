"""Steps of our detector on a CPU: as tuned and plain, in turns.

    python detection_steps.py DATA SIDE BATCH STEPS [neighbour]

With `neighbour` a process keeps one core busy meanwhile, and the tuned step is compared with one of a single thread.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from holdfast.planning.measure import Choice, Training, tune
from holdfast.workloads.detection.augment import Views
from holdfast.workloads.detection.images import Kept, room
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.loss import detection_loss
from holdfast.workloads.detection.model import Detector
from holdfast.workloads.detection.samples import Samples
from holdfast.workloads.detection.training import prepared

BUSY = "while True: pass"


def main() -> None:
    data, side, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    checked = open_set(data)
    part = checked.splits["train"]
    samples = Samples(part, side, 1, Views(), Kept(len(part), side, 1, room()))

    def loss_of(net, pieces):
        x, targets = prepared(pieces, 0.0)
        return detection_loss(net, net(x), targets, (side, side))[0]

    trial = Training(Detector(len(checked.names), 1, "tiny"), loss_of, samples, batch=batch, steps=10**6)
    if sys.argv[5:] == ["neighbour"]:
        with subprocess.Popen([sys.executable, "-c", BUSY]) as neighbour:
            try:
                print(json.dumps(beside(trial, steps)))
            finally:
                neighbour.kill()
        return
    result = tune(trial.make, trial.knobs(), budget_s=60.0)
    plain, tuned = in_turns(trial, Choice(), result.choice, steps)
    told = {"plain_s": plain, "tuned_s": tuned, "choice": result.choice.words(), "tuner_speedup": result.speedup}
    print(json.dumps(told))


def beside(trial: Training, steps: int) -> dict:
    """The tuner decides under load, as it would in a run that starts on a busy machine."""
    result = tune(trial.make, trial.knobs(), budget_s=60.0)
    one = dataclasses.replace(result.choice, threads=1)
    single, tuned = in_turns(trial, one, result.choice, steps)
    return {"one_thread_s": single, "tuned_s": tuned, "tuned_over_one": tuned / single, "choice": result.choice.words()}


def in_turns(trial: Training, one: Choice, other: Choice, steps: int) -> list[float]:
    made = [trial.make(choice) for choice in (one, other)]
    times: list[list[float]] = [[], []]
    for number in range(steps + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            made[which]()
            if number:
                times[which].append(time.perf_counter() - began)
    return [statistics.median(each) for each in times]


if __name__ == "__main__":
    main()
