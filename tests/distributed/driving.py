"""Ranks without an agent: forked from a process that has torch, so that a test costs a second and not fifteen.

python -m tests.distributed.driving FOLDER      every scenario of test_ranks.py, results as JSON on stdout
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.console.order import create, read_order
from holdfast.distributed import rank as life
from holdfast.distributed.job import Job
from holdfast.distributed.place import JOB, RUN, Place
from holdfast.run.folder import RunFolder
from holdfast.state import layout
from holdfast.state.weights_file import read_said

SCRIPT = Path(__file__).parent / "job.py"
PATIENCE = 60.0


class Ranks:
    """One run of several ranks, started by hand as often as wanted."""

    def __init__(self, folder: Path, ranks: int, *words: str, run: RunFolder | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ranks = ranks
        self.seen = folder / "seen"
        self.seen.mkdir(exist_ok=True)
        words = (*words, f"seen={self.seen}", "watchdog.setup=20s", f"run.folder={folder}", "run.threads=1")
        self.order = read_order(str(SCRIPT), list(words), device="cpu")
        self.run = run or create(self.order)
        self.job = Job(Path(tempfile.mkdtemp(prefix="holdfast-job-test-", dir=folder)))
        self.starts = 0

    def start(self) -> list[int]:
        """All ranks until they have ended; their exit codes."""
        port = free_port()
        pids = [self._fork(rank, port) for rank in range(self.ranks)]
        self.starts += 1
        codes = []
        deadline = time.monotonic() + PATIENCE
        for pid in pids:
            while True:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes.append(os.waitstatus_to_exitcode(status))
                    break
                if time.monotonic() > deadline:
                    os.kill(pid, 9)
                time.sleep(0.01)
        return codes

    def until_over(self, most: int = 5) -> list[list[int]]:
        """As the agent does: again, as long as a rank ends badly."""
        codes = [self.start()]
        while any(codes[-1]) and len(codes) < most:
            codes.append(self.start())
        return codes

    def _fork(self, rank: int, port: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"})
        os.environ.update({RUN: str(self.run.path), JOB: str(self.job.path)})
        place = Place(
            rank, self.ranks, rank, self.ranks, self.starts, os.getppid(), str(self.run.path), str(self.job.path)
        )
        life.leave(life.live(self.order, place, lambda: self.run))

    def weights(self) -> dict[str, list[float]]:
        from safetensors.torch import load_file

        found = load_file(self.run.path / "final.safetensors")
        return {name: tensor.flatten().tolist() for name, tensor in found.items()}

    def result(self) -> dict[str, Any]:
        receipt = self.run.receipt() or {}
        return {
            "outcome": self.job.outcome,
            "sha256": receipt.get("weights_sha256"),
            "receipt": receipt,
            "best": _best_of(self.run.path / "best.safetensors"),
            "epochs": [event.data["epoch"] for event in self.run.events() if event.kind == "epoch"],
            "faults": [event.data for event in self.run.events() if event.kind == "fault"],
            "seen": {path.stem: path.read_text().splitlines() for path in sorted(self.seen.glob("rank*.txt"))},
            "checkpoints": sorted(path.name for path in (self.run.path / "checkpoints").glob("[0-9]*")),
        }


def _best_of(path: Path) -> dict[str, Any] | None:
    """What the file says of itself, and a digest of the weights in it."""
    if not path.exists():
        return None
    said = read_said(path)
    return {"best": json.loads(said["best"]), "sha256": layout.weights_sha256(path.read_bytes())}


def free_port() -> int:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


DEATHS = (
    "0:3:peers",
    "1:3:backward",
    "0:4:optimizer",
    "1:4:snapshot",
    "0:5:data",
    "1:6:peers",
    "0:7:loop",
    "0:9:backward",
)
"""Rank, step and phase."""


def scenarios(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    undisturbed = Ranks(folder / "two", 2)
    codes = undisturbed.until_over()
    yield "two", {"codes": codes, **undisturbed.result()}
    for number, die in enumerate(DEATHS):
        ranks = Ranks(folder / f"death-{number}", 2, f"die={die}")
        yield f"death {die}", {"codes": ranks.until_over(), **ranks.result()}
    for name, times in (("once", 1), ("twice", 2), ("never", 0)):
        ranks = Ranks(folder / f"full-{name}", 2, f"full=1:4:{times}", "plain=true")
        yield f"full {name}", {"codes": ranks.until_over(), **ranks.result()}
    for number in (1, 2, 3):  # the last batch has one sample: of three ranks, two have none
        ranks = Ranks(folder / f"ragged-{number}", number, "plain=true", "length=19", "batch=6")
        yield f"ragged {number}", {"codes": ranks.until_over(), "weights": ranks.weights(), **ranks.result()}
    stopped = Ranks(folder / "stopped", 2, "stop=3")
    yield "stopped", {"codes": stopped.until_over(), **stopped.result()}
    more = Ranks(folder / "stopped", 3, run=RunFolder.open(stopped.run.path))
    yield "three", {"codes": more.until_over(), **more.result()}
    failed = Ranks(folder / "failed", 2, "fail=1")
    yield "failed", {"codes": failed.until_over(), **failed.result()}


if __name__ == "__main__":
    import torch._dynamo

    import holdfast.distributed.rank_link  # noqa: F401 - once, here, and not in every fork

    torch.set_num_threads(1)
    found = dict(scenarios(Path(sys.argv[1])))
    print(json.dumps(found))
