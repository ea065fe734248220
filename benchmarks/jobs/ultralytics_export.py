"""What ultralytics' own export gains for its own model, in a process of its own: one line of JSON.

    python ultralytics_export.py 160 2.0        # side of the image, seconds

It is not a dependency of this project (AGPL) and nothing of it is used here; who has it installed sees it as a peer.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false")


def main() -> int:
    side, seconds = int(sys.argv[1]), float(sys.argv[2])
    import numpy as np
    import ultralytics

    image = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place:
        os.chdir(place)
        eager = ultralytics.YOLO("yolo11n.yaml")
        eager.save("net.pt")
        said = os.dup(1)
        os.dup2(2, 1)  # it prints to stdout
        exported = ultralytics.YOLO(
            ultralytics.YOLO("net.pt").export(format="onnx", imgsz=side, simplify=False), task="detect"
        )
        found = _turns(eager, exported, image, side, seconds)
        os.write(said, (json.dumps({"version": ultralytics.__version__, **found}) + "\n").encode())
        Path("net.pt").unlink()
    return 0


def _turns(eager: Any, exported: Any, image: Any, side: int, seconds: float) -> dict[str, Any]:
    times: dict[str, list[float]] = {"eager": [], "exported": []}
    until = time.perf_counter() + seconds
    while len(times["eager"]) < 6 or time.perf_counter() < until:
        for name, model in (("eager", eager), ("exported", exported)):
            began = time.perf_counter()
            model.predict(image, imgsz=side, device="cpu", verbose=False, save=False)
            times[name].append(time.perf_counter() - began)
    p50 = {name: statistics.median(each[2:]) for name, each in times.items()}
    return {"eager_ms": round(1000 * p50["eager"], 2), "exported_ms": round(1000 * p50["exported"], 2),
            "times_eager": round(p50["eager"] / p50["exported"], 2)}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
