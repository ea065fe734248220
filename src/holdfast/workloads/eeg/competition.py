"""The competition in small: loads an unpacked submission the way the cluster does, and asks it about windows.

    python competition.py ORDER.json       # run by the Python of the environment that is to be tried

It needs nothing but torch and never imports holdfast. The models are loaded before any data are read, windows come in
their order in batches, one subject at most, under `torch.inference_mode`, and the answers are flattened. ORDER.json
names the folder and the windows (raw float32); the answers, times and memory go to the file it names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import warnings
from typing import Any


def main(order_path: str) -> int:
    with open(order_path, encoding="utf-8") as file:
        order: dict[str, Any] = json.load(file)
    warnings.simplefilter("ignore")  # torch 2.2.2 with numpy 2 says at length what serving.py knows
    import torch

    device = torch.device(order["device"])
    os.chdir(order["folder"])
    spec = importlib.util.spec_from_file_location("submission", os.path.join(order["folder"], "submission.py"))
    assert spec is not None and spec.loader is not None
    submission = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = submission
    spec.loader.exec_module(submission)
    entry = submission.Submission(order["rate"], device)
    models = {number: getattr(entry, f"get_model_challenge_{number}")().eval() for number in (1, 2)}
    found: dict[str, Any] = {"torch": torch.__version__, "python": sys.version.split()[0], "challenges": {}}
    for number, model in models.items():
        about = order["challenges"].get(str(number))
        if about is not None:
            found["challenges"][str(number)] = _asked(torch, model, about, device)
    found["memory_bytes"] = _memory()
    found["holdfast_imported"] = any(name.partition(".")[0] == "holdfast" for name in sys.modules)
    with open(order["result"], "w", encoding="utf-8") as file:
        json.dump(found, file)
    return 0


def _memory() -> int:
    """The most this process has used; 0 where that cannot be asked."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _asked(torch: Any, model: Any, about: dict[str, Any], device: Any) -> dict[str, Any]:
    count, channels, samples = about["shape"]
    with open(about["windows"], "rb") as file:
        data = bytearray(file.read())
    windows = torch.frombuffer(data, dtype=torch.float32).reshape(count, channels, samples)
    answers: list[float] = []
    took = []
    with torch.inference_mode():
        for start, stop in about["batches"]:
            batch = windows[start:stop].to(device)
            began = time.perf_counter()
            out = model.forward(batch).reshape(-1).float().cpu()
            took.append(time.perf_counter() - began)
            answers += out.tolist()
    return {"answers": answers, "seconds": sum(took), "slowest_batch_s": max(took, default=0.0)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
