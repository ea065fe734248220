"""The child of `holdfast optimize --verify`: loads a bundle's engine, answers the kept inputs, times itself.

It is asked like worker.py, in JSON lines. The digests are compared here once more, right before the engine reads files.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from holdfast.optimize import bundle, worker
from holdfast.optimize.post import apply

_BEGAN = time.perf_counter()


class Checker:
    """Holds the engine."""

    def __init__(self, work: Path) -> None:
        self.manifest: dict[str, Any] = {}
        self.engine: Any = None
        self.inputs: list[Any] = []

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "load":
            opened = bundle.open_bundle(Path(command["folder"]))
            self.manifest, self.inputs, self.engine = opened.manifest, bundle.kept(opened)[0], opened.engine()
            return {"cold_s": time.perf_counter() - _BEGAN}
        if command["do"] == "answers":
            return {"answers": [each.tolist() for each in self.engine.run_all(self.inputs)]}
        times: list[float] = []
        until = time.perf_counter() + float(command["seconds"])
        while len(times) < command["count"] and (not times or time.perf_counter() < until):
            at = len(times) % len(self.inputs[0])
            began = time.perf_counter()
            apply(self.manifest.get("post"), self.engine.run([each[at : at + 1] for each in self.inputs]))
            times.append(time.perf_counter() - began)
        return {"times": times}


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], Checker))
