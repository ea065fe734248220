"""A child that misbehaves when asked to: it crashes, hangs, talks nonsense, or refuses to end politely."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.optimize import worker


class Unruly:
    def __init__(self, work: Path) -> None:
        self.work = work

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        what = command["do"]
        if what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "exit":
            print("the last words", file=sys.stderr, flush=True)
            os._exit(7)
        if what == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if what == "child":
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            return {"pid": pid}
        if what == "environment":
            return {"inductor": os.environ["TORCHINDUCTOR_CACHE_DIR"], "triton": os.environ["TRITON_CACHE_DIR"]}
        if what == "raise":
            raise RuntimeError("no such kernel\nand a long explanation")
        print("a library prints", flush=True)
        os.write(1, b"a C library prints {}\n")
        return {"hello": True}


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], Unruly))
