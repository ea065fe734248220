"""The figures of the runtime on a CPU; `make bench` runs them and keeps the results.

    python benchmarks/bench.py                          # everything, about an hour on two cores
    python benchmarks/bench.py --parts overhead,hangs   # some of it

Each part writes benchmarks/results/PART-cpu.json with date, machine, versions and command. Speed is measured as a ratio
inside one run, because the machine may be busy with other things.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from holdfast.runtime import process  # noqa: E402
from holdfast.testing import experiment  # noqa: E402
from holdfast.testing.chaos import FaultPlan  # noqa: E402

JOBS = ROOT / "benchmarks" / "jobs"
RESULTS = ROOT / "benchmarks" / "results"


def faults(scratch: Path) -> dict[str, Any]:
    """1,000 random faults in one run: the weights of an undisturbed one, bit for bit."""
    result = experiment.run(
        JOBS / "small.py",
        ["epochs=30", "run.threads=1", "retry.same_step=8"],
        lambda steps: FaultPlan.random(1000, steps=steps, seed=11),
        runs=scratch,
        say=print,
    )
    return {"receipt": result.receipt}


def recovery(scratch: Path) -> dict[str, Any]:
    """Death to next committed step, 81 kills of a transformer; and torchrun with a checkpoint at each epoch."""
    result = experiment.run(
        ROOT / "examples" / "windows.py",
        ["epochs=3", "windows=960", "run.threads=2"],
        lambda steps: FaultPlan.random(81, steps=steps, seed=2, kinds=["sigkill"]),
        runs=scratch,
        references=1,
        say=print,
    )
    return {"holdfast": result.receipt, "torchrun": _torchrun(scratch / "elastic")}


def _torchrun(folder: Path, kills: int = 3) -> dict[str, Any]:
    """Kill the worker of the same small job in the middle of an epoch; when is it where it was?"""
    folder.mkdir(parents=True)
    log = folder / "steps.log"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", str(kills)]
    with subprocess.Popen([*command, str(JOBS / "elastic.py"), str(folder), "4"], start_new_session=True) as run:
        found = []
        try:
            for number in range(kills):
                target = 100 * number + 60
                pid, step, _ = _wait_for(log, lambda row, target=target: row[1] >= target)
                os.kill(pid, signal.SIGKILL)
                killed = time.time()
                _, _, first = _wait_for(log, lambda row, pid=pid, killed=killed: row[0] != pid and row[2] > killed)
                _, _, caught = _wait_for(log, lambda row, step=step, killed=killed: row[1] > step and row[2] > killed)
                found.append({"next_step_s": round(first - killed, 2), "caught_up_s": round(caught - killed, 2)})
        finally:
            os.killpg(run.pid, signal.SIGTERM)
    return {"kills": found, "epoch_steps": 100}


def _wait_for(
    log: Path, wanted: Callable[[tuple[int, int, float]], bool], patience: float = 120.0
) -> tuple[int, int, float]:
    deadline = time.time() + patience
    while time.time() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        for line in reversed(lines):
            words = line.split()
            if len(words) == 3 and wanted(row := (int(words[0]), int(words[1]), float(words[2]))):
                earlier = [tuple(map(float, other.split())) for other in lines if len(other.split()) == 3]
                match = next(r for r in earlier if wanted((int(r[0]), int(r[1]), r[2])))
                return (int(match[0]), int(match[1]), match[2]) if row else row
        time.sleep(0.02)
    raise TimeoutError(f"nothing of the kind in {log}")


def hangs(scratch: Path) -> dict[str, Any]:
    """From the moment a worker stops to the moment it is called hung, with the default settings."""
    plan = FaultPlan.parse("hang@120,hang_c@240,hang_gil@360,sigstop@480")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "plan.json"
        plan.write(path)
        summary = _train(["epochs=6", "run.threads=1"], scratch, env={"HOLDFAST_CHAOS": str(path)})
        fired = [
            float(p.read_text().split()[1])
            for p in sorted(path.with_suffix(".fired").iterdir(), key=lambda p: int(p.name))
        ]
    seen = [event for event in _events(Path(summary["folder"])) if event["event"] == "fault"]
    folders = sorted((Path(summary["folder"]) / "faults").iterdir())
    return {
        "receipt": summary["receipt"],
        "hangs": [
            {
                "kind": fault.kind,
                "silence_s": json.loads((folder / "fault.json").read_text())["fault"]["evidence"]["silence_s"],
                "limit_s": json.loads((folder / "fault.json").read_text())["fault"]["evidence"]["limit_s"],
                "to_journal_s": round(_seconds(event["time"]) - at, 2),
                "kept": sorted(p.name for p in folder.iterdir()),
            }
            for fault, event, folder, at in zip(plan.faults, seen, folders, fired, strict=True)
        ],
    }


def overhead(scratch: Path) -> dict[str, Any]:
    """The cost of protecting every step of a 550K-parameter transformer at batch 8, beside other ways to train."""
    result = scratch / "overhead.json"
    scratch.mkdir(parents=True, exist_ok=True)
    _train(["size=550k", "rounds=8", "steps=2", f"result={result}"], scratch, job=JOBS / "overhead.py")
    report: dict[str, Any] = json.loads(result.read_text())
    return report


def soak(scratch: Path, minutes: float = 30.0) -> dict[str, Any]:
    """An uneven run that is healthy: no alarm."""
    summary = _train([f"minutes={minutes}"], scratch, job=JOBS / "soak.py")
    return {"minutes": minutes, "receipt": summary["receipt"]}


def growth(scratch: Path) -> dict[str, Any]:
    """The supervisor over 100,000 steps: memory and descriptors at the beginning and at the end."""
    words = ["epochs=250", "batch=4", "width=8", "run.threads=1", f"run.folder={scratch}"]
    marks: list[dict[str, float]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "train", str(JOBS / "small.py"), *words, "--json"],
        stdout=subprocess.PIPE, text=True, env=_env(),
    ) as run:  # fmt: skip
        while run.poll() is None:
            info = process.inspect(run.pid)
            step = _step(scratch)
            if info is not None and step:
                descriptors = len(os.listdir(f"/proc/{run.pid}/fd"))
                marks.append({"step": step, "rss_mb": round(info.rss_bytes / 2**20, 2), "descriptors": descriptors})
            time.sleep(2.0)
        summary = json.loads(run.stdout.read()) if run.stdout else {}
    early = [mark for mark in marks if mark["step"] >= 5000][:1] or marks[:1]
    return {
        "receipt": summary["receipt"],
        "early": early[0],
        "end": marks[-1],
        "peak_mb": max(m["rss_mb"] for m in marks),
    }


def leaks(scratch: Path, runs: int = 100) -> dict[str, Any]:
    """Runs that end in every way; then: processes, shared memory, descriptors, files."""
    endings = [
        "",
        "sigkill@3",
        "segfault@3",
        "hang@12",
        "nursery_kill@3",
        "keeper_kill@3",
        "supervisor_kill@3",
        "term",
        "int",
        "fail",
    ]
    before = _left_behind(scratch)
    counts: dict[str, int] = {}
    for number in range(runs):
        ending = endings[number % len(endings)]
        code = _one_run(scratch, ending)
        counts[f"{ending or 'finished'} -> {code}"] = counts.get(f"{ending or 'finished'} -> {code}", 0) + 1
    deadline = time.time() + 30
    while _left_behind(scratch)["processes"] and time.time() < deadline:
        time.sleep(0.5)
    return {"runs": runs, "endings": counts, "before": before, "after": _left_behind(scratch)}


def _one_run(scratch: Path, ending: str) -> int:
    env = _env()
    words = ["epochs=1", "run.threads=1", "watchdog.floor=1s", f"run.folder={scratch}"]
    with tempfile.TemporaryDirectory() as place:
        if "@" in ending:
            FaultPlan.parse(ending).write(Path(place) / "plan.json")
            env["HOLDFAST_CHAOS"] = str(Path(place) / "plan.json")
        if ending == "fail":
            words.append("batch=0")
        run = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "train", str(JOBS / "small.py"), *words, "-q"],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if ending in ("term", "int"):
            before = _step(scratch)
            while run.poll() is None and _step(scratch) in (before, 0):
                time.sleep(0.02)
            run.send_signal(signal.SIGTERM if ending == "term" else signal.SIGINT)
        return run.wait()


def _left_behind(scratch: Path) -> dict[str, Any]:
    """What is there that a run made: processes that name the scratch folder, shared memory, slot files."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(scratch) in words or ("holdfast.runtime" in words and _started_by_us(entry)):
            processes.append(words.replace("\0", " ")[:80])
    memory = [name for name in os.listdir("/dev/shm") if "holdfast" in name] if Path("/dev/shm").is_dir() else []
    slots = [str(path) for path in scratch.glob("*/slots/*")]
    temporary = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("holdfast-board")]
    return {"processes": processes, "shared_memory": memory, "slots": slots, "temporary": temporary}


def _started_by_us(entry: Path) -> bool:
    try:
        return f"HOLDFAST_BENCH={os.getpid()}".encode() in (entry / "environ").read_bytes()
    except OSError:
        return False


def _step(runs: Path) -> int:
    """The step of the newest run."""
    found = sorted(runs.glob("*/beat.json"), key=lambda path: path.stat().st_mtime) if runs.is_dir() else []
    try:
        return int(json.loads(found[-1].read_text())["step"]) if found else 0
    except (OSError, ValueError, KeyError):
        return 0


def _train(
    words: list[str], runs: Path, *, job: Path = JOBS / "small.py", env: dict[str, str] | None = None
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "train", str(job), *words, f"run.folder={runs}", "--json"],
        stdout=subprocess.PIPE, text=True, check=False, env={**_env(), **(env or {})},
    )  # fmt: skip
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary.get("state") == "FINISHED", summary
    return summary


def _env() -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path, "HOLDFAST_BENCH": str(os.getpid())}


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def _seconds(when: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp()


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "overhead": overhead,
    "faults": faults,
    "recovery": recovery,
    "hangs": hangs,
    "growth": growth,
    "leaks": leaks,
    "soak": soak,
}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "numpy", "accelerate", "pytorch-lightning"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **found}


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for part in args.parts.split(","):
        began = time.time()
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
            try:
                measured = PARTS[part](Path(scratch))
            except Exception as error:  # one part that fails must not lose what the others measured
                measured, failed = {"error": f"{type(error).__name__}: {error}"}, failed + 1
        record = {
            "part": part,
            "date": time.strftime("%Y-%m-%d"),
            "command": f"python benchmarks/bench.py --parts {part}",
            "machine": _machine(),
            "versions": _versions(),
            "seconds": round(time.time() - began, 1),
            "measured": measured,
        }
        (RESULTS / f"{part}-cpu.json").write_text(json.dumps(record, indent=2) + "\n")
        print(json.dumps({part: measured}, indent=1)[:3000], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
