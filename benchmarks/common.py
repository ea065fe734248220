"""What bench.py and hardware.py share: starting a run, reading what became of it, bounds, and result files.

from common import JOBS, at_most, train               # first: it lets a benchmark import holdfast from src/
summary = train(["epochs=6"], scratch)                # `holdfast train` in a process of its own, to its end
events(Path(summary["folder"]))                       # its journal
at_most("seconds to the next commit", 0.12, 0.5)      # a bound of the project, and whether it holds
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from holdfast.base.state_folder import VARIABLE as STATE  # noqa: E402
from holdfast.run.events import Event  # noqa: E402
from holdfast.run.folder import read_events  # noqa: E402

JOBS = ROOT / "benchmarks" / "jobs"
RESULTS = ROOT / "benchmarks" / "results"
MARK = f"HOLDFAST_BENCH={os.getpid()}"
"""In the environment of everything these benchmarks start, so that what is left of it can be found."""


def say(text: str) -> None:
    """Progress: these measurements take long, and somebody may be looking."""
    print(text, flush=True)


# Runs -------------------------------------------------------------------------------------------------------


def adopt(scratch: Path) -> None:
    """For all that this process starts: it finds holdfast, bears our mark, and keeps a ledger of its own.

    What is done to devices here must not be held against them later, nor what is known of them change the figures.
    """
    name, _, value = MARK.partition("=")
    source = str(ROOT / "src")
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", source)]
    os.environ.update({"PYTHONPATH": os.pathsep.join([source, *path]), name: value, STATE: str(scratch / "state")})


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


def train(
    words: Sequence[str],
    runs: Path,
    *,
    job: Path = JOBS / "small.py",
    patience: float = 3600.0,
    **variables: str,
) -> dict[str, Any]:
    """One run to its end, with a line now and then; what it printed as JSON. It must finish.

    Its ledger is empty: what happened to a device in the run before would change how it is used.
    """
    runs.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-state-", ignore_cleanup_errors=True) as state,
        subprocess.Popen(
            command("train", str(job), *words, f"run.folder={runs}", "--json", "-q"),
            stdout=subprocess.PIPE, text=True, env={**os.environ, STATE: state, **variables},
        ) as run,
    ):  # fmt: skip
        printed = _to_its_end(run, runs, patience)
    try:
        summary: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise RuntimeError(f"{job.name} ended with {run.returncode} and printed no JSON") from None
    if summary.get("state") != "FINISHED":
        raise RuntimeError(f"{job.name} ended as {summary.get('state')}: {summary.get('error')}")
    return summary


def _to_its_end(run: subprocess.Popen[str], runs: Path, patience: float) -> str:
    began = time.monotonic()
    while True:
        try:
            return run.communicate(timeout=60.0)[0]
        except subprocess.TimeoutExpired:
            waited = time.monotonic() - began
            say(f"  … {waited / 60:.0f} min, step {step(runs)}")
            if waited > patience:
                run.kill()
                raise TimeoutError(f"the run was not over after {waited:.0f} s") from None


def end_group(run: subprocess.Popen[bytes]) -> None:
    """End a process that was started in a session of its own, with everything it has started, wherever."""
    import psutil

    try:
        started = psutil.Process(run.pid).children(recursive=True)  # torchrun gives its workers sessions of their own
    except psutil.NoSuchProcess:
        started = []
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(timeout=20)
            break
    with contextlib.suppress(ProcessLookupError):  # its children may have outlived it
        os.killpg(run.pid, signal.SIGKILL)
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil knows a number that another process has by now
            each.kill()


def step(runs: Path) -> int:
    """The last step that the newest run there has mirrored to its beat; 0 if there is none yet."""
    try:
        newest = max(runs.glob("*/beat.json"), key=lambda path: path.stat().st_mtime)
        return int(json.loads(newest.read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def events(folder: Path, kind: str | None = None) -> list[Event]:
    return [event for event in read_events(folder / "journal.jsonl") if kind in (None, event.kind)]


# Figures ----------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"n": len(values), "p50": round(statistics.median(values), 4), "max": round(max(values), 4)}


@dataclass(frozen=True, slots=True)
class Bound:
    """What the project promises about a figure, and whether it is so."""

    what: str
    measured: Any
    limit: Any
    holds: bool
    quick: bool = True
    """False where a smoke test is too short to say."""


def at_most(what: str, measured: float, limit: float, *, quick: bool = True) -> Bound:
    return Bound(what, measured, limit, measured <= limit, quick)


def exactly(what: str, measured: Any, wanted: Any, *, quick: bool = True) -> Bound:
    return Bound(what, measured, wanted, measured == wanted, quick)


def unharmed(receipt: dict[str, Any]) -> list[Bound]:
    """A run with faults ended as one without: same bits, nothing lost, skipped or seen twice."""
    keys = ("steps_lost", "samples_skipped", "samples_repeated")
    return [
        exactly("all planned faults came", receipt["faults_injected"], receipt["faults_planned"]),
        exactly("weights equal to those of undisturbed runs", receipt["weights_equal"], True),
        *(exactly(key.replace("_", " "), receipt[key], 0) for key in keys),
    ]


def cost(report: dict[str, Any], *, quick: bool = False) -> Bound:
    """Two percent is what protecting every step may cost."""
    percent = report["overhead_percent"]["holdfast"]["median"]
    return at_most(f"percent that protecting every step costs, {report['size']}", percent, 2.0, quick=quick)


def told(bounds: Sequence[Bound], *, quick: bool) -> list[Bound]:
    """Say each bound in a line; returns those that are broken and count."""
    for bound in bounds:
        sign = "✓" if bound.holds else "✗" if bound.quick or not quick else "·"
        say(f"  {sign} {bound.what}: {bound.measured} (bound: {bound.limit})")
    return [bound for bound in bounds if not bound.holds and (bound.quick or not quick)]


# Result files -----------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "accelerate", "pytorch-lightning"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine, and how busy it was: figures of a busy one are not its best."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def gpu() -> str | None:
    """Name and driver, without waking the device up in this process."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return "; ".join(done.stdout.splitlines()) or None


def write(path: Path, record: dict[str, Any], bounds: Sequence[Bound] = ()) -> None:
    """Whole or not at all: a benchmark may be cut at any moment."""
    kept = {**record, "bounds": [{k: v for k, v in asdict(b).items() if k != "quick"} for b in bounds]}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(json.dumps(kept, indent=2, default=str) + "\n")
    beside.replace(path)
