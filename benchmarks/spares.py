"""The part `spares` of bench.py: what a spare rank saves, beside a nursery that forks ranks.

Two ranks train jobs/ranked.py, and one of them, drawn anew each time, gets SIGKILL when both have made progress. The
new process comes from the nursery (torch is imported there), from a fresh interpreter (a module of the script runs a
thread, so that forking is not safe), or it is a spare that was ready. The ways take turns. Seconds are those from the
last beat of the killed process to the next commit of all ranks.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from common import JOBS, Bound, command, exactly, say, spread
from ranks import boards_of

from holdfast.distributed import roster
from holdfast.run.folder import list_runs

JOB = JOBS / "ranked.py"
WAYS = {"nursery": (0, False), "nursery, one spare": (1, False), "fresh": (0, True), "fresh, one spare": (1, True)}
"""Spares, and whether forking is not safe."""
_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e9,), daemon=True).start()\n"


def spares(scratch: Path, quick: bool) -> dict[str, Any]:
    """Kills in each way, in several turns."""
    found: dict[str, dict[str, list[Any]]] = {way: {"recovery_s": [], "steps_lost": []} for way in WAYS}
    for turn in range(1 if quick else 3):
        for way, (count, fresh) in WAYS.items():
            each = _once(
                scratch / f"{turn}-{way.replace(', ', '-').replace(' ', '-')}", count, fresh, 2 if quick else 5
            )
            found[way]["recovery_s"] += each["recovery_s"]
            found[way]["steps_lost"].append(each["steps_lost"])
            say(f"  {way}: {each['recovery_s']}")
    return {
        way: {
            "seconds_from_the_last_beat_to_the_next_commit": spread(each["recovery_s"]),
            "recovery_s": each["recovery_s"],
            "steps_lost": sum(each["steps_lost"]),
        }
        for way, each in found.items()
    }


def spares_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [exactly(f"{way}: steps lost", each["steps_lost"], 0) for way, each in measured.items()]


def _once(folder: Path, count: int, fresh: bool, kills: int) -> dict[str, Any]:
    folder.mkdir(parents=True)
    job = folder / "ranked.py"
    job.write_text(JOB.read_text().replace("import holdfast\n", f"import {'held_thread, ' * fresh}holdfast\n", 1))
    modules = folder / "modules"  # not beside the script: the nursery imports what is installed, and this is to be
    modules.mkdir()
    (modules / "held_thread.py").write_text(_THREAD)
    words = ["epochs=1000", "pause=0.02", f"run.folder={folder}", "run.threads=1", "snapshot.every=1", "--json", "-q"]
    path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        command("launch", "--nproc", "2", "--spares", str(count), str(job), *words),
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    ) as launch:  # fmt: skip
        try:
            _kill(launch.pid, 2, count, kills)
        finally:
            launch.send_signal(signal.SIGTERM)
        printed = json.loads(launch.communicate(timeout=300)[0])
    if printed.get("state") != "STOPPED":
        raise RuntimeError(f"the launch ended as {printed.get('state')}: {printed.get('error')}")
    (run,) = list_runs(folder)
    recovered = [float(event.data["seconds"]) for event in run.events() if event.kind == "recovered"]
    if len(recovered) != kills:
        raise RuntimeError(f"{kills} kills, but {len(recovered)} recoveries")
    return {"recovery_s": recovered, "steps_lost": (run.receipt() or {})["steps_lost"]}


def _kill(launcher: int, ranks: int, count: int, kills: int) -> None:
    """One kill after the other; each time all ranks have committed three steps since and the spares are ready."""
    draw, boards, reached, sent = random.Random(ranks), None, 0, 0
    deadline = time.monotonic() + 600.0
    while sent <= kills:
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks did not get on")
        time.sleep(0.02)
        boards = boards or boards_of(launcher)
        now = None if boards is None else roster.read(boards.job)
        if boards is None or now is None:
            continue
        seen = boards.look()
        members = [each for each in seen if each.pid in now.pids.values()]
        ready = sum(roster.is_ready(boards.job, each.pid) for each in seen)
        if len(members) < ranks or ready < ranks + count or min(each.beat.step for each in members) < reached + 3:
            continue
        sent += 1
        if sent <= kills:
            reached = max(each.beat.step for each in members)
            os.kill(draw.choice(members).pid, signal.SIGKILL)
