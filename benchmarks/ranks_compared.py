"""The part `ranks_compared` of bench.py: one of two ranks is killed once, with `holdfast launch` and three other tools.

All train jobs/killed_rank.py, once undisturbed, and then with SIGKILL for rank 1 in the middle of the second epoch. The
ways (torchrun, torchft, Ray Train, `holdfast launch`) take turns. torchft and Ray are none of our dependencies and are
left out unless TORCHFT_PYTHON and RAY_PYTHON name interpreters that have them and the same torch:

    python -m venv ray && ray/bin/pip install 'ray[train]' torch==2.12.1
    python -m venv torchft && torchft/bin/pip install torchft-nightly torch==2.12.1
    RAY_PYTHON=ray/bin/python TORCHFT_PYTHON=torchft/bin/python python benchmarks/bench.py --parts ranks_compared

The settings of torchft are those of its README, and each of its replicas is below a torchrun that restarts it. Ray has
a cluster of its own for each run, with two processors, and `max_failures=3`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import JOBS, Bound, command, end_group, exactly, say

JOB = JOBS / "killed_rank.py"
AT = 160
"""The step after which rank 1 is killed; an epoch has 100."""
EPOCHS = int(os.environ.get("HOLDFAST_BENCH_EPOCHS", "8"))
PATIENCE = 600.0
TORCHFT = os.environ.get("TORCHFT_PYTHON")
RAY = os.environ.get("RAY_PYTHON")
MISSING = {name for name, python in (("torchft", TORCHFT), ("ray", RAY)) if not python}


def ranks_compared(scratch: Path, quick: bool) -> dict[str, Any]:
    """Seconds until the run is past the step of the kill, steps computed again, and whether weights are the same."""
    found: dict[str, Any] = {"torchrun": [], "torchft": [], "ray": [], "holdfast": []}
    plain: dict[str, dict[str, Any]] = {}
    for number in range(1 if quick else 3):
        for name in found:
            if name in MISSING:
                continue
            if name not in plain:  # the same numbers every time
                plain[name] = _once(scratch / f"{name}-undisturbed", name, kill=False)
            result = _once(scratch / f"{name}-{number}", name, kill=True)
            result["weights_equal"] = _same(plain[name]["weights"], result.pop("weights"))
            result["undisturbed_s"] = plain[name]["seconds"]
            found[name].append(result)
            say(f"  {name}: {result}")
    return found


def ranks_compared_bounds(measured: dict[str, Any]) -> list[Bound]:
    ours = measured["holdfast"]
    return [
        exactly("runs that did not finish", sum(bool(each["ended_with"]) for each in ours), 0),
        exactly("weights equal to those of the undisturbed run", all(each["weights_equal"] for each in ours), True),
        exactly("processes of the other rank replaced", sum(each.get("others_replaced", 1) for each in ours), 0),
    ]


def _commands(name: str, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What to start, with its variables; what the run waits for comes last."""
    torchrun = ["-m", "torch.distributed.run", "--max-restarts", "3"]
    words = [str(JOB), name, str(folder), str(EPOCHS)]
    if name == "torchrun":
        return [([sys.executable, *torchrun, "--standalone", "--nproc-per-node", "2", *words], {})]
    if name == "holdfast":
        given = [f"folder={folder}", f"epochs={EPOCHS}", "run.threads=1", f"run.folder={folder}", "-q"]
        return [(command("launch", "--nproc", "2", str(JOB), *given), {})]
    if name == "ray":
        assert RAY is not None
        # Ray would send statistics home, and pass our path on to its workers. Its start fails after 30 s.
        return [([RAY, *words], {"PYTHONPATH": "", "RAY_USAGE_STATS_ENABLED": "0"})]
    assert TORCHFT is not None
    port, lighthouse = free_port(), str(Path(TORCHFT).with_name("torchft_lighthouse"))
    flags = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
    found: list[tuple[list[str], dict[str, str]]] = [([lighthouse, *flags, "--bind", f"127.0.0.1:{port}"], {})]
    for replica in (1, 0):
        env = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA": str(replica), "PYTHONPATH": ""}
        where = ["--nproc-per-node", "1", "--master-port", str(free_port())]
        found.append(([TORCHFT, *torchrun, *where, *words], env))
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _once(folder: Path, name: str, *, kill: bool) -> dict[str, Any]:
    folder.mkdir(parents=True)
    began, killed, at = time.time(), 0.0, 0
    runs: list[subprocess.Popen[bytes]] = []
    with open(folder / "output.log", "wb") as output:
        try:
            for words, more in _commands(name, folder):
                env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}
                runs.append(subprocess.Popen(words, stdout=output, stderr=output, env=env, start_new_session=True))
            while runs[-1].poll() is None:
                rows = _rows(folder, 1)
                if kill and not killed and rows and rows[-1][1] >= AT:
                    os.kill(rows[-1][0], signal.SIGKILL)
                    killed, at = time.time(), rows[-1][1]
                if time.time() - began > PATIENCE:
                    break  # that it does not end is a result
                time.sleep(0.01)
            code = runs[-1].poll()
            seconds = round(time.time() - began, 1)
        finally:
            for run in reversed(runs):
                end_group(run)
    result: dict[str, Any] = {"seconds": seconds, "ended_with": -1 if code is None else code}
    if result["ended_with"]:
        return {**result, "weights": None, "reached": max((step for _, step, _ in _rows(folder, 0)), default=0)}
    result["weights"] = torch.load(folder / "weights.pt")
    return {**result, **_after(folder, killed, at)} if kill else result


def _after(folder: Path, killed: float, at: int) -> dict[str, Any]:
    """What the logs of both ranks say. The other rank is rank 0."""
    first, second = _rows(folder, 0), _rows(folder, 1)
    steps = [step for _, step, _ in first]
    after = [row for row in first if row[2] > killed]
    back = next((row[2] for row in second if row[2] > killed and row[1] > at), None)
    missing = set(range(1, EPOCHS * 100 + 1)) - {step for _, step, _ in second}
    return {
        "next_step_s": round(min(row[2] for row in after if row[1] != at) - killed, 2),
        "past_the_kill_s": round(next(row[2] for row in after if row[1] > at + 1) - killed, 2),
        "second_rank_back_s": None if back is None else round(back - killed, 2),
        "steps_repeated": len(steps) - len(set(steps)),
        "steps_without_the_second_rank": len(missing),
        "others_replaced": int(after[-1][0] != first[0][0]),
    }


def _rows(folder: Path, rank: int) -> list[tuple[int, int, float]]:
    path = folder / f"steps-{rank}.log"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [line.split() for line in lines if line.endswith("\n")]
    return [(int(pid), int(step), float(when)) for pid, step, when in found]


def _same(one: dict[str, torch.Tensor] | None, other: dict[str, torch.Tensor] | None) -> bool | None:
    if one is None or other is None:
        return None
    return all(torch.equal(value, other[name]) for name, value in one.items())
