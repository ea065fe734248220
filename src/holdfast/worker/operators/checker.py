"""The process that compares: takes cases by their paths, computes each in fp64, says what it found. Low priority.

    python -m holdfast.worker.operators.checker --parent PID        # started by checker_client.py, never by hand

One line of JSON in, one out. It sees no device, uses one thread, and ends when nobody writes to it any more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.base import processes

if __name__ == "__main__" and "--parent" in sys.argv:  # before torch, which takes seconds to import
    processes.die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.nice(19)


def check(paths: list[str]) -> dict[str, Any]:
    """The cases of one look."""
    from holdfast.worker.operators.case import Case
    from holdfast.worker.operators.comparison import compare

    began = time.process_time()
    findings = []
    for path in paths:
        finding = compare(Case.load(Path(path)))
        findings.append({**finding.to_json(), "path": path})
    return {"findings": findings, "seconds": time.process_time() - began}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.worker.operators.checker")
    parser.add_argument("--parent", type=int)
    parser.parse_args()
    import torch

    torch.set_num_threads(1)
    words = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        print(json.dumps(check(json.loads(line)["paths"])), file=words, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
