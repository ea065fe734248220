"""The parts `external` and `external-cost` of bench.py: scripts of others, framework by fault, and what watching costs.

Each cell of the table is a script as its framework's own introduction teaches it, met by a fault from outside its text:
alone, under `holdfast run`, and with the integration. docs/any-script.md is made from what is kept here.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from common import ROOT, Bound, at_most, say

from holdfast.base.state_folder import VARIABLE as STATE
from holdfast.run.folder import list_runs

TESTS = ROOT / "tests"
ALONE, WITH = TESTS / "external" / "scripts", TESTS / "integrations" / "scripts"
INJECTOR = TESTS / "external" / "faults"
EPOCHS, BATCHES, AT = 2, 20, 27
"""Two epochs of twenty batches; the fault comes in the second."""
AT_ULTRALYTICS = 6
"""Of nine steps: it has eight epochs of two batches, and collects gradients over more of them as it warms up."""
SCRIPTS: dict[str, tuple[str, list[str], str | None]] = {
    "plain loop": ("loop_script.py", [str(EPOCHS), str(BATCHES)], None),
    "plain --resume": ("plain_script.py", ["--steps", str(EPOCHS * BATCHES)], None),
    "Lightning": ("lightning_script.py", [str(EPOCHS), str(BATCHES)], "lightning"),
    "HF Trainer": ("trainer_script.py", [str(EPOCHS), str(BATCHES)], "transformers"),
    "Accelerate": ("accelerate_script.py", ["--steps", str(EPOCHS * BATCHES)], "accelerate"),
    "ultralytics": ("yolo_script.py", ["8"], "ultralytics"),
}
FAULTS = ("kill", "segfault", "hang", "hang_gil", "oom", "full_disk", "damaged")
SOON = ["watchdog.loop=4s", "watchdog.evaluate=8s", "watchdog.term_grace=0.5s"]
"""Hangs are noticed sooner than by default, so that the table takes minutes and not a day; both are in the docs."""
PATIENCE = 600.0
HANGS = 10.0
"""Seconds after its fault that a script alone is given before it is said not to finish."""
FULL = 5.0
"""Seconds a disk stays full."""
AT_A_TIME = 2
"""Cells that are measured at a time; each computes in one thread."""


def external(scratch: Path, quick: bool) -> dict[str, Any]:
    """Six kinds of scripts and seven faults: alone, under `holdfast run`, with the integration."""
    names, faults = _chosen("HOLDFAST_BENCH_SCRIPTS", SCRIPTS), _chosen("HOLDFAST_BENCH_FAULTS", FAULTS)
    wanted, skipped = [], []
    for name in names[:1] if quick else names:
        script, _, module = SCRIPTS[name]
        if (module is not None and importlib.util.find_spec(module) is None) or not (ALONE / script).exists():
            skipped.append(f"{name}: {module} is not installed")
            continue
        hows = ("alone", "run", "integration") if (WITH / script).exists() else ("alone", "run")
        wanted += [(name, fault, how) for fault in (faults[:1] if quick else faults) for how in hows]
    began, done = time.monotonic(), 0
    cells: list[dict[str, Any]] = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        waiting = {pool.submit(_cell, scratch / f"cell-{at}", *each): each for at, each in enumerate(wanted)}
        for future in as_completed(waiting):
            name, fault, how = waiting[future]
            cell, done = future.result(), done + 1
            if cell is None:
                skipped.append(f"{name}, {fault}: a disk of its own cannot be mounted here")
                continue
            cells.append(cell)
            left = (time.monotonic() - began) / done * (len(wanted) - done)
            say(f"  {done}/{len(wanted)}  {name:<15}{fault:<10}{how:<12}{_said(cell)}  about {left / 60:.0f} min left")
    order = {each: at for at, each in enumerate(wanted)}
    cells.sort(key=lambda cell: order[cell["script"], cell["fault"], cell["how"]])
    return {
        "epochs": EPOCHS,
        "batches": BATCHES,
        "at_step": AT,
        "settings": SOON,
        "at_a_time": AT_A_TIME,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "cells": cells,
        "skipped": skipped,
    }


def _said(cell: dict[str, Any]) -> str:
    if not cell["finishes"]:
        return f"does not finish (exit {cell['exit_code']}, {cell['seconds']:.0f} s)"
    return f"finishes, {cell['steps_repeated']} steps repeated, {cell['seconds_lost']} s lost, {cell['seconds']:.0f} s"


def _chosen(variable: str, all_of_them: Iterable[str]) -> list[str]:
    """All, or those that a variable names."""
    wanted = os.environ.get(variable, "")
    return [name for name in all_of_them if not wanted or name in wanted.split(",")]


def _cell(folder: Path, name: str, fault: str, how: str) -> dict[str, Any] | None:
    """One script, one fault, one way to run it; None where the fault needs a disk that cannot be had."""
    folder.mkdir(parents=True)
    script, words, _ = SCRIPTS[name]
    path = (WITH if how == "integration" else ALONE) / script
    command = [sys.executable, str(path), *words]
    if how != "alone":
        soon = SOON if fault.startswith("hang") else []  # others keep the default, for busy machines
        runs = [f"run.folder={folder / 'runs'}"]
        command = [sys.executable, "-m", "holdfast", "run", *runs, *soon, "--", *command]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(INJECTOR), str(ROOT / "src")]),
        "FAULT": f"{fault}@{AT if name != 'ultralytics' else AT_ULTRALYTICS}",
        "FAULT_DONE": str(folder / "fault.done"),
        "OMP_NUM_THREADS": "1",
        STATE: str(folder / "state"),
    }
    work = folder / "work"
    work.mkdir()
    if fault == "full_disk" and not _mounted(work):
        return None
    try:
        code, out, seconds = _to_its_end(command, work, env, folder / "fault.done", alone=how == "alone")
    finally:
        if fault == "full_disk":
            subprocess.run(["umount", "-l", str(work)], check=False, timeout=20)
    receipt = _receipt(folder)
    finished = code == 0 and b"steps" in out
    return {
        "script": name,
        "fault": fault,
        "how": how,
        "came": (folder / "fault.done").exists(),
        "finishes": finished,
        "exit_code": code,
        "steps_repeated": receipt.get("steps_repeated") if finished else None,
        "seconds_lost": receipt.get("seconds_lost") if finished else None,
        "seconds": round(seconds, 1),
    }


def _mounted(work: Path) -> bool:
    """A small disk of its own, which the fault fills."""
    if shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", "size=256m,mode=0700", "tmpfs", str(work)]
    return subprocess.run(command, capture_output=True, timeout=20).returncode == 0


def _to_its_end(
    command: list[str], work: Path, env: dict[str, str], fault: Path, *, alone: bool
) -> tuple[int, bytes, float]:
    """Its exit code, its output and how long it took. What hangs alone is not waited for; a full disk gets room."""
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(
            command, cwd=work, env=env, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
        ) as child,
    ):
        since: float | None = None
        while child.poll() is None:
            time.sleep(0.05)
            now = time.monotonic()
            if since is None and fault.exists():
                since = now
            if since is not None and now - since > FULL:
                (work / "filler").unlink(missing_ok=True)
            too_long = now - began > PATIENCE or (alone and since is not None and now - since > HANGS)
            if too_long:
                os.killpg(child.pid, 9)
                child.wait()
        out.seek(0)
        return child.returncode, out.read(), time.monotonic() - began


def _receipt(folder: Path) -> dict[str, Any]:
    runs = list_runs(folder / "runs")
    return (runs[-1].receipt() or {}) if runs else {}


def external_bounds(measured: dict[str, Any]) -> list[Bound]:
    """Everything finishes under `holdfast run`; with the integration a fault repeats one step, or the epoch's."""
    watched = [cell for cell in measured["cells"] if cell["how"] != "alone"]
    exact = [cell for cell in watched if cell["how"] == "integration" and cell["script"] != "ultralytics"]
    unfinished = [f"{cell['script']} {cell['fault']} {cell['how']}" for cell in watched if not cell["finishes"]]
    absent = [f"{cell['script']} {cell['fault']} {cell['how']}" for cell in measured["cells"] if not cell["came"]]
    repeated = [cell["steps_repeated"] for cell in exact if cell["steps_repeated"] is not None]
    return [
        Bound("faults that did not come", absent, [], not absent),
        Bound("scripts that do not finish under `holdfast run`", unfinished, [], not unfinished),
        at_most("steps repeated with an integration", max(repeated, default=0), 2),
        at_most("minutes the table takes", round(measured.get("minutes", 0.0), 1), 15.0, quick=False),
    ]


# -- what it costs -----------------------------------------------------------------------------------------------

STEPPING = """
import os, sys, time
import torch
torch.set_num_threads(1)
param = torch.nn.Parameter(torch.zeros(4)); param.grad = torch.zeros(4)
optimizer = torch.optim.SGD([param], lr=0.0)
hook = sys.modules.get("_holdfast_hook")
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
ours = dict(hooks)
blocks = int(sys.argv[1])
times = {True: [], False: []}
optimizer.step()
for block in range(2 * blocks):
    on = block % 2 == 0
    hooks.clear()
    if on: hooks.update(ours)
    begin = time.process_time()
    for _ in range(500): optimizer.step()
    times[on].append((time.process_time() - begin) / 500)
hooks.clear(); hooks.update(ours)
import statistics
print("HOOK", statistics.median(times[True]) - statistics.median(times[False]), len(ours), flush=True)
begin = time.monotonic()
while time.monotonic() - begin < float(sys.argv[2]):
    optimizer.step(); time.sleep(0.005)
print("DONE", flush=True)
"""


def cost(scratch: Path, quick: bool) -> dict[str, Any]:
    """What the hook takes of a step, what the supervisor takes of a core, and how much later a command starts."""
    (scratch / "stepping.py").write_text(STEPPING)
    blocks, seconds = ("5", "2") if quick else ("60", "30")
    command = [sys.executable, "-m", "holdfast", "run", "--", sys.executable, "stepping.py", blocks, seconds]
    child = subprocess.Popen(command, cwd=scratch, stdout=subprocess.PIPE)
    assert child.stdout is not None
    line = next(line for line in child.stdout if line.startswith(b"HOOK"))
    used, wall = _cpu(child.pid), time.monotonic()
    for line_ in child.stdout:
        if line_.startswith(b"DONE"):
            break
    supervisor = (_cpu(child.pid) - used) / (time.monotonic() - wall)
    child.wait()
    _, hook_s, hooks = line.split()
    assert hooks == b"1", "the hook of holdfast was not there"

    _start_up(scratch)
    starts = [_start_up(scratch) for _ in range(2 if quick else 11)]
    step_s = 0.005
    hook = float(hook_s)
    return {
        "hook_us_per_step": round(1e6 * hook, 3),
        "supervisor_share_of_a_core": round(supervisor, 5),
        "overhead_at_5_ms": round(hook / step_s + supervisor / (os.cpu_count() or 1), 5),
        "start_up_s": {
            "wall": _spread([wall for wall, _, _ in starts]),
            "cpu_before_it_starts": _spread([before for _, _, before in starts]),
            "cpu_of_the_whole": _spread([cpu for _, cpu, _ in starts]),
        },
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"n": len(values), "p50": round(statistics.median(values), 4), "min": round(min(values), 4)}


def _cpu(pid: int) -> float:
    text = Path(f"/proc/{pid}/stat").read_text()
    words = text[text.rindex(")") + 2 :].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _start_up(scratch: Path) -> tuple[float, float, float]:
    """How much later a command begins and the CPU time of the whole, against the same command alone just before; and
    the CPU time of whoever started it when it begins, which a busy machine does not change."""
    stamp = ["sh", "-c", "cat /proc/$PPID/stat; date +%s.%N"]
    bare = _timed(stamp, scratch)
    watched = _timed([sys.executable, "-m", "holdfast", "run", "--", *stamp], scratch)
    return watched[0] - bare[0], watched[1] - bare[1], watched[2]


def _timed(command: list[str], scratch: Path) -> tuple[float, float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    # Compiled once, as an installed package is: the benchmarks may run where nothing is written beside the source.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(scratch / "pyc")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=scratch, check=True, capture_output=True, env=env, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    parent, stamp = done.stdout.splitlines()
    words = parent[parent.rindex(")") + 2 :].split()
    spent = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return float(stamp) - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, spent


def cost_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        at_most("overhead at steps of 5 ms", measured["overhead_at_5_ms"], 0.01),
        at_most("seconds a command starts later", measured["start_up_s"]["wall"]["min"], 0.3, quick=False),
    ]
