"""Open a large set as a run would, up to its first batch. `python detection_large.py DATA`"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import holdfast.workloads.detection.training  # the libraries are loaded before: their memory is not the set's
from holdfast.data.loader import Loader
from holdfast.workloads.detection.augment import Views
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.samples import Samples


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    before, began, cpu = peak_mb(), time.monotonic(), time.process_time()
    checked = open_set(sys.argv[1])
    opened = time.monotonic() - began
    samples = Samples(checked.splits["train"], 64, 1, Views())
    next(iter(Loader(samples, batch_size=16, shuffle=True, seed=0)))
    took = time.monotonic() - began
    told = {
        "images": len(samples),
        "warm": checked.warm,
        "opened_s": round(opened, 2),
        "to_first_batch_s": round(took, 2),
    }
    told |= {"cpu_s": round(time.process_time() - cpu, 2), "load": os.getloadavg()[0]}
    print(json.dumps({**told, "before_mb": round(before, 1), "grown_mb": round(peak_mb() - before, 1)}))


if __name__ == "__main__":
    assert holdfast.workloads.detection.training
    main()
