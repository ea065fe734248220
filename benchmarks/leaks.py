"""The part `leaks` of bench.py: a hundred runs that end in every way, and what is left of them afterwards.

A run is made in one of three ways. As a process of its own. In this very process, by the same code as the command, so
that a descriptor or a mapping which a supervisor forgets to close stays open here and is counted. Or detached: then
its workers are killed from outside, and the descriptors of its supervisor before and after that are compared.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import JOBS, MARK, Bound, at_most, command, events, exactly, say, step

from holdfast.base import processes
from holdfast.cli.main import main as holdfast
from holdfast.injection.chaos import VARIABLE, FaultPlan

SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT}
ENDINGS = {
    "finished": 0,
    "sigkill@3": 0,
    "segfault@3": 0,
    "hang@12": 0,
    "nursery_kill@3": 0,
    "keeper_kill@3": 0,
    "supervisor_kill@3": -9,
    "term": 75,
    "int": 130,
    "fail": 2,
    "detached": 0,
}
"""How a run ends, and the exit code that belongs to it."""
QUICK = ("supervisor_kill@3", "term", "int", "detached")
ALONE = ("supervisor_kill@3", "detached")
"""Those that cannot happen in this process."""
PATIENCE = 60.0
KILLS = 3


@dataclass
class Tally:
    """What the runs themselves showed."""

    endings: Counter[str] = field(default_factory=Counter)
    signals_sent: int = 0
    signals_received: int = 0
    detached: list[dict[str, int]] = field(default_factory=list)
    """Descriptors of each detached supervisor, before its workers were killed and after."""


def leaks(scratch: Path, quick: bool) -> dict[str, Any]:
    """100 runs that end in eleven ways; then: processes, shared memory, descriptors, files."""
    endings, runs = (QUICK, len(QUICK)) if quick else (tuple(ENDINGS), 100)
    tally = Tally()
    with _own_temporary_folder(scratch):
        _one_run(scratch / "first", "finished", Tally(), here=True, workers=2)  # what is made once is made now
        before = belongings(scratch)
        for number in range(runs):
            ending, turn = endings[number % len(endings)], number // len(endings) + (number if quick else 0)
            here = turn % 2 == 1 and ending not in ALONE
            _one_run(scratch / str(number), ending, tally, here=here, workers=2 if turn % 4 >= 2 else 0)
            if (number + 1) % 10 == 0:
                say(f"  run {number + 1} of {runs}")
        left = _left(scratch, before)
    return {
        "runs": runs,
        "endings": dict(sorted(tally.endings.items())),
        "signals": {"sent": tally.signals_sent, "received": tally.signals_received},
        "descriptors": {
            "here_before": len(before["descriptors"]),
            "here_after": len(belongings(scratch)["descriptors"]),
        },
        "detached_supervisors": tally.detached,
        "left": left,
    }


def leaks_bounds(measured: dict[str, Any]) -> list[Bound]:
    wrong = {name: n for name, n in measured["endings"].items() if "not" in name}
    descriptors, signals = measured["descriptors"], measured["signals"]
    return [
        exactly("runs that ended otherwise than they should", wrong, {}),
        exactly("signals that reached a run in the middle of training", signals["received"], signals["sent"]),
        *(exactly(f"{kind} left", found, []) for kind, found in measured["left"].items()),
        at_most("descriptors of this process afterwards", descriptors["here_after"], descriptors["here_before"]),
        *(
            at_most(f"descriptors of a detached supervisor after {KILLS} kills", each["after"], each["before"])
            for each in measured["detached_supervisors"]
        ),
    ]


# One run ----------------------------------------------------------------------------------------------------


def _one_run(folder: Path, ending: str, tally: Tally, *, here: bool, workers: int) -> None:
    folder.mkdir()
    epochs = 10_000 if ending in (*SIGNALS, "detached") else 1  # whoever waits for a signal must not finish before it
    words = [f"epochs={epochs}", "run.threads=1", "watchdog.floor=1s", f"workers={workers}"]
    words += ["batch=0"] if ending == "fail" else []
    words = ["train", str(JOBS / "small.py"), *words, f"run.folder={folder / 'runs'}"]
    if ending == "detached":
        code = _detached(words, folder, tally)
    else:
        variables = {}
        if "@" in ending:
            FaultPlan.parse(ending).write(folder / "plan.json")
            variables[VARIABLE] = str(folder / "plan.json")
        with _signalled(ending, folder, tally) as later:
            code = (_in_this_process if here else _as_a_process)([*words, "-q"], variables, later)
    wanted = ENDINGS[ending]
    how = f"{ending} -> {code}" + ("" if code == wanted else f" and not {wanted}")
    tally.endings[how] += 1


def _as_a_process(words: list[str], variables: dict[str, str], later: Callable[[int], None]) -> int:
    with subprocess.Popen(
        command(*words), env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        later(run.pid)
        return run.wait()


def _in_this_process(words: list[str], variables: dict[str, str], later: Callable[[int], None]) -> int:
    os.environ.update(variables)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            later(os.getpid())
            return holdfast(words)
    finally:
        for name in variables:
            del os.environ[name]


@contextlib.contextmanager
def _signalled(ending: str, folder: Path, tally: Tally) -> Iterator[Callable[[int], None]]:
    """A signal for the process it is told of, once a step is committed; then: was it received while training?"""
    number, over = SIGNALS.get(ending), threading.Event()
    threads: list[threading.Thread] = []

    def send(pid: int) -> None:
        if _until(lambda: over.is_set() or step(folder / "runs") > 0) and not over.is_set():
            assert number is not None
            os.kill(pid, number)

    def later(pid: int) -> None:
        if number is not None:
            threads.append(threading.Thread(target=send, args=(pid,)))
            threads[-1].start()

    try:
        yield later
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if number is not None:
        (run,) = (folder / "runs").iterdir()
        heard = [event for event in events(run, "stopping") if event.data["signal"] == number.name]
        tally.signals_sent += 1
        tally.signals_received += any(event.data["step"] > 0 for event in heard)


def _detached(words: list[str], folder: Path, tally: Tally) -> int:
    started = subprocess.run(command(*words, "--detach", "--json"), stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(started.stdout)
    run, supervisor = Path(said["folder"]), int(said["pid"])
    try:
        assert _until(lambda: step(folder / "runs") > 0), "the detached run made no step"
        assert _until(lambda: bool(_beat(run).get("readings"))), "the sensors said nothing"
        before, killed = 0, 0
        for number in range(1 + KILLS):
            if number == 1:  # what is opened once is open now: the sensors' pipe, and TensorBoard's file for the fault
                assert _until(lambda: any((run / "tb").glob("*"))), "the fault was not told"
                before = _descriptors_of(supervisor)
            assert _until(lambda old=killed: _worker(run) not in (0, old)), "no new worker"
            killed = _worker(run)
            os.kill(killed, signal.SIGKILL)
            assert _until(lambda wanted=number + 1: len(events(run, "recovered")) >= wanted), "it did not recover"
        tally.detached.append({"before": before, "after": _descriptors_of(supervisor)})
    finally:
        stopped = subprocess.run(command("stop", str(run), "-q"), stdout=subprocess.DEVNULL, check=False)
    state = json.loads((run / "run.json").read_text())["state"]
    return stopped.returncode if state == "STOPPED" else -1


def _worker(run: Path) -> int:
    """The worker that the beat names, if it is one of ours."""
    pid = int(_beat(run).get("pid") or 0)
    return pid if _is_ours(pid) else 0


def _beat(run: Path) -> dict[str, Any]:
    try:
        beat: dict[str, Any] = json.loads((run / "beat.json").read_text())
    except (OSError, ValueError):
        return {}
    return beat


def _descriptors_of(pid: int) -> int:
    """The fewest of several looks: a file that is open for a moment does not count."""
    counts = []
    for _ in range(20):
        counts.append(len(os.listdir(f"/proc/{pid}/fd")))
        time.sleep(0.1)
    return min(counts)


# What is there ----------------------------------------------------------------------------------------------


def belongings(scratch: Path) -> dict[str, list[str]]:
    """All that a run may have made and left: here, beside us, in shared memory and in folders."""
    gc.collect()
    here = os.getpid()
    pids = {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_ours(int(entry.name))}
    pids |= set(processes.children(here))
    maps = Path("/proc/self/maps").read_text().splitlines()
    shared = Path("/dev/shm")
    return {
        "processes": sorted(f"{pid} {_words(pid)}" for pid in pids - {here}),
        "shared_memory": sorted(entry.name for entry in shared.iterdir()) if shared.is_dir() else [],
        "slots": sorted(str(path) for path in scratch.glob("*/runs/*/slots/*")),
        "ledger_marks": sorted(entry.name for entry in scratch.glob("state/live/*")),
        "temporary": sorted(os.listdir(tempfile.gettempdir())),
        "mappings": [line for line in maps if "memfd:holdfast" in line],
        "descriptors": sorted(_descriptors()),
    }


def _left(scratch: Path, before: dict[str, list[str]]) -> dict[str, list[str]]:
    """What was not there before. A keeper may still be saving, and others use /dev/shm: they get some time."""

    def new() -> dict[str, list[str]]:
        return {
            kind: [each for each in found if each not in before[kind]] for kind, found in belongings(scratch).items()
        }

    _until(lambda: not any(new().values()), 30.0)
    return new()


def _descriptors() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that the listing itself used
            found.append(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
    return found


def _is_ours(pid: int) -> bool:
    try:
        return MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")[:80]
    return ""


def _until(so: Callable[[], bool], patience: float = PATIENCE) -> bool:
    deadline = time.monotonic() + patience
    while not so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def _own_temporary_folder(scratch: Path) -> Iterator[None]:
    """Nobody else's files come and go in it."""
    folder, before = scratch / "tmp", (tempfile.tempdir, os.environ.get("TMPDIR"))
    folder.mkdir(parents=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        os.environ.pop("TMPDIR")
        if before[1] is not None:
            os.environ["TMPDIR"] = before[1]
