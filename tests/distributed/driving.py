"""Ranks without an agent: forked from a process that has torch, so that a test costs a second and not fifteen.

python -m tests.distributed.driving FOLDER      names of scenarios on stdin, their results as JSON on stdout
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.console.order import create, read_order
from holdfast.distributed import rank as life
from holdfast.distributed import rank_end, roster
from holdfast.distributed.job import Job
from holdfast.distributed.place import JOB, LAUNCHER, RUN, Place
from holdfast.run.folder import RunFolder
from holdfast.state import layout
from holdfast.state.weights_file import read_said

SCRIPT = Path(__file__).parent / "job.py"
SHARDED = Path(__file__).parent / "sharded_job.py"
PATIENCE = 180.0


class Ranks:
    """One run of several ranks, started by hand as often as wanted."""

    stays = False

    def __init__(
        self, folder: Path, ranks: int, *words: str, run: RunFolder | None = None, script: Path = SCRIPT
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ranks = ranks
        self.seen = folder / "seen"
        self.seen.mkdir(exist_ok=True)
        words = (*words, f"seen={self.seen}", "watchdog.setup=20s", f"run.folder={folder}", "run.threads=1")
        self.order = read_order(str(script), list(words), device="cpu")
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
            rank, self.ranks, rank, self.ranks, self.starts, os.getppid(), str(self.run.path), str(self.job.path),
            stays=self.stays,
        )  # fmt: skip
        rank_end.leave(life.live(self.order, place, lambda: self.run))

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


class Staying(Ranks):
    """Ranks that stay when one is lost: what the agent of `holdfast launch` does, without its nursery."""

    stays = True

    def until_over(self, most: int = 8) -> list[list[int]]:
        """The exit codes of all processes of each rank, in order."""
        codes: list[list[int]] = [[] for _ in range(self.ranks)]
        os.environ[LAUNCHER] = str(os.getpid())
        self.pids: list[list[int]] = [[self._fork(rank, 0)] for rank in range(self.ranks)]
        number, deadline = self._publish(1), time.monotonic() + PATIENCE
        while any(len(ended) < len(started) for ended, started in zip(codes, self.pids, strict=True)):
            lost = [rank for rank in range(self.ranks) if self._ended(rank, codes[rank], deadline)]
            for rank in lost:
                if len(self.pids[rank]) < most:
                    self.pids[rank].append(self._fork(rank, 0))
            if lost or (roster.asked(self.job, number) and not self._dying()):
                number = self._publish(number + 1)
            time.sleep(0.01)
        return codes

    def _ended(self, rank: int, codes: list[int], deadline: float) -> bool:
        """Whether its process has ended badly just now."""
        if len(codes) == len(self.pids[rank]):
            return False
        pid = self.pids[rank][-1]
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            codes.append(os.waitstatus_to_exitcode(status))
        return bool(done and codes[-1])

    def _dying(self) -> bool:
        """A connection breaks a moment before the process that held it has ended."""
        time.sleep(0.2)
        options = os.WNOHANG | os.WEXITED | os.WNOWAIT
        return os.waitid(os.P_ALL, 0, options) is not None

    def _publish(self, number: int) -> int:
        roster.publish(self.job, roster.Roster(number, {rank: pids[-1] for rank, pids in enumerate(self.pids)}))
        return number


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

STAYS = {
    "0:3:peers": "auto",
    "0:4:optimizer": "3",
    "0:5:data": "1",
    "0:7:loop": "auto",
    "0:9:backward": "5",
}
"""Those after which the other rank stays, and how often the ranks commit."""
WRAPPED = {
    "undisturbed": ("plain=true",),
    "forward": ("plain=true", "full=1:4:1", "snapshot.every=1"),
    "backward": ("plain=true", "full=0:4:1:backward", "snapshot.every=1"),
    "between": ("plain=true", "full=0:4:1:backward", "snapshot.every=5"),
    "update": ("plain=true", "full=1:4:1:optimizer", "snapshot.every=5"),
    "twice": ("plain=true", "full=1:4:2:backward", "snapshot.every=1"),
    "whole": (),
    "death": ("die=1:4:backward", "snapshot.every=5"),
}
FOUR = {"undisturbed": (), "death": ("die=1:4:backward", "snapshot.every=1")}
"""Of four ranks with a wrapper: with three or more, the order in which numbers are added shows."""
"""What happens to ranks whose model is in DistributedDataParallel."""
FULL = {"never": 0, "once": 1, "twice": 2}
"""How often one rank runs out of memory in one step."""


class Scenarios:
    """Every scenario by its name; a scenario runs when its result is asked for first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks: dict[str, Ranks] = {}
        self.results: dict[str, dict[str, Any]] = {}

    def result(self, name: str) -> dict[str, Any]:
        if name not in self.results:
            ranks = self.ranks[name] = self._made(name)
            self.results[name] = {"codes": ranks.until_over(), **ranks.result()}
            if isinstance(ranks, Staying):
                self.results[name]["pids"] = ranks.pids
            if name.startswith(("ragged", "parts")) and (ranks.run.path / "final.safetensors").exists():
                self.results[name]["weights"] = ranks.weights()
        return self.results[name]

    def _with_parts(self, folder: Path, of: str) -> Ranks:
        """Ranks that hold parts of the model (FSDP2)."""
        if of.startswith("then"):  # "then 3": those that were stopped go on with another number
            ranks = int(of.split()[1])
            self.result(f"parts stopped {ranks}")
            run = RunFolder.open(self.ranks[f"parts stopped {ranks}"].run.path)
            words = ["whole=true"] if ranks == 1 else []
            return Staying(self.folder / f"parts-stopped-{ranks}", ranks, *words, run=run, script=SHARDED)
        if of == "tied then":
            self.result("parts tied")
            run = RunFolder.open(self.ranks["parts tied"].run.path)
            return Staying(self.folder / "parts-tied", 3, "tied=true", run=run, script=SHARDED)
        if of == "torchrun":
            return Ranks(folder, 2, "die=1:4:backward", script=SHARDED)
        count, *given = PARTS[of.partition(" ")[0]]
        return Staying(folder, int(count), *map(str, given), script=SHARDED)

    def _made(self, name: str) -> Ranks:
        kind, _, of = name.partition(" ")
        folder = self.folder / name.replace(" ", "-").replace(":", "-")
        ragged = ("plain=true", "length=19", "batch=6")  # the last batch has one sample: of three ranks, two have none
        if kind == "death":
            return Ranks(folder, 2, f"die={of}")
        if kind == "stay":
            return Staying(folder, 2, f"die={of}", f"snapshot.every={STAYS[of]}")
        if kind == "four":
            return Staying(folder, 4, "ddp=true", "plain=true", *FOUR[of])
        if kind == "ddp":
            return Staying(folder, 2, "ddp=true", *WRAPPED[of])
        if kind == "parts":
            return self._with_parts(folder, of)
        if kind == "full":
            return Ranks(folder, 2, f"full=1:4:{FULL[of]}", "plain=true")
        if kind == "ragged":
            return Staying(folder, 2, *ragged, "ddp=true") if of == "wrapped" else Ranks(folder, int(of), *ragged)
        if name == "three":
            self.result("stopped")
            stopped = self.ranks["stopped"]
            return Ranks(self.folder / "stopped", 3, run=RunFolder.open(stopped.run.path))
        if name == "once in a process":
            return Staying(folder, 2, "die=1:4:backward", "once=true")
        return Ranks(folder, 2, *{"two": (), "stopped": ("stop=3",), "failed": ("fail=1",)}[name])


PARTS = {
    "one": (1, "whole=true"),
    "alone": (1, "whole=true", "epochs=8"),
    "two": (2,),
    "forward": (2, "die=1:4:forward", "snapshot.every=1"),
    "backward": (2, "die=0:4:backward", "snapshot.every=3"),
    "optimizer": (2, "die=1:4:optimizer", "snapshot.every=1"),
    "full": (2, "full=1:4:1"),
    "replicas": (4, "mesh=2"),
    "replica": (4, "mesh=2", "die=3:4:backward", "snapshot.every=1"),
    "clipped": (3, "clip=0.5", "look=true"),
    "looking": (3, "clip=0.5", "look=true", "die=2:7:forward"),
    "stopped": (2, "stop=3"),
    "often": (2, "full=1:4:2"),
    "torn": (2, "die=1:11:snapshot"),
    "uneven": (2, "length=19", "batch=6", "accumulate=3"),
    "uneven-alone": (1, "whole=true", "length=19", "batch=6", "accumulate=3"),
    "tied": (2, "tied=true", "stop=3"),
    "tied-alone": (1, "tied=true", "whole=true"),
}
"""What happens to ranks that share the state out, and how many they are."""


def serve(folder: Path) -> None:
    """Names of scenarios on stdin, a line each; their results as lines of JSON on stdout."""
    scenarios = Scenarios(folder)
    for line in sys.stdin:
        print(json.dumps(scenarios.result(line.strip())), flush=True)


if __name__ == "__main__":
    import torch._dynamo

    import holdfast.distributed.rank_link  # noqa: F401 - once, here, and not in every fork

    torch.set_num_threads(1)
    serve(Path(sys.argv[1]))
