"""Items of work in several processes, until a time: each item gets its share of what is left.

    rows = through(items, workers=14, limit=420.0)      # {"do": "looks", …} in, a row for each, printed as it comes
    python -m benchmarks.zoo.crowd                      # a worker: one line of JSON in, one out

A process that dies or hangs costs its item and is replaced. Items for which no time is left are rows that say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
Row = dict[str, Any]


def through(items: list[Row], *, workers: int, limit: float) -> list[Row]:
    """All of them, or as many as fit."""
    until = time.monotonic() + limit
    todo: queue.SimpleQueue[Row] = queue.SimpleQueue()
    for item in items:
        todo.put(item)
    rows: list[Row] = []
    lock = threading.Lock()

    def work() -> None:
        worker = _Worker()
        while True:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                break
            left = until - time.monotonic()
            share = left * workers / (todo.qsize() + workers)
            row = worker.do({**item, "seconds": 0.85 * share}, min(left, 3 * share + 60)) if left > 2 else None
            row = row or {**item, "failed": "no time was left"}
            with lock:
                rows.append(row)
                print(json.dumps(row), flush=True)
        worker.end()

    threads = [threading.Thread(target=work) for _ in range(min(workers, len(items)))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return rows


class _Worker:
    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def do(self, item: Row, patience: float) -> Row:
        """A row, whatever happens."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.zoo.crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(item).encode() + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], patience)[0]:
                raise TimeoutError(f"no answer in {patience:.0f} s")
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"its process ended with {process.wait(10)}")
            row: Row = json.loads(line)
            if row.pop("leave", False):
                self.end()
            return row
        except Exception as error:  # a row must come, and the next item a process
            self.end()
            return {**item, "failed": f"{type(error).__name__}: {error}"}

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()


def main() -> None:
    words = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no row
    sys.path[:0] = [str(ROOT)]
    sys.path.append(str(ROOT / ".packages"))
    import torch

    torch.set_num_threads(1)
    from benchmarks.zoo import items

    for line in sys.stdin:
        item = json.loads(line)
        try:
            row = items.DO[item["do"]](item)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:300]}"
            row = {**item, "failed": text, "leave": "CUDA" in text or "cuda" in text}
        print(json.dumps(row), file=words, flush=True)


if __name__ == "__main__":
    main()
