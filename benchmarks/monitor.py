"""What it costs to look at a run: reading a million points, showing twenty such runs in a browser, following one.

from monitor import monitor, monitor_bounds
monitor(scratch, quick=False)["second_look"]["seconds"]
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pty
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Bound, at_most, command, say, spread

from holdfast.monitor.index import Index

POINTS, RUNS = 1_000_000, 20
LOOK = """
import json, resource, sys, time
def peak_mb():  # of this program alone: what getrusage tells includes whoever started it
    try:
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
began = time.perf_counter()
from holdfast.monitor import reader
imported = time.perf_counter()
run = reader.open(sys.argv[1])
told = [run.state, run.progress.step, run.faults_total, run.metrics.last(), run.best, len(run.lanes)]
done = time.perf_counter()
points = len(run.metrics["train_loss"].points(800)[0])
drawn = time.perf_counter()
for _ in range(100):
    run.refresh()
idle = time.perf_counter()
print(json.dumps({
    "seconds": done - imported,
    "import_s": imported - began,
    "points_s": drawn - done,
    "points": points,
    "refresh_ms": (idle - drawn) * 10,
    "peak_mb": peak_mb(),
    "step": told[1],
}))
"""


def monitor(scratch: Path, quick: bool) -> dict[str, Any]:
    """A million events and metrics read twice; 20 runs of a million points in a browser; a run that is watched."""
    points, runs = (20_000, 4) if quick else (POINTS, RUNS)
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    root = scratch / "runs"
    big = root / "big-20261115-0900-huge-heron"
    _write_run(big, points)
    say(f"  wrote {points} metrics and events")
    unread = _terminal(root, 1)
    looks = [_look(big) for _ in range(4)]
    measured: dict[str, Any] = {
        "points": points,
        "terminal_unread_s": unread,
        "terminal_s": _terminal(root, 3 if quick else 9),
        "first_look": looks[0],
        "second_look": {**looks[1], "seconds": min(look["seconds"] for look in looks[1:])},
        "status_s": _status(root),
    }
    say(f"  {json.dumps(measured)}")
    measured["browser"] = _browser(scratch, root, big, points, runs)
    measured["watched"] = _watched(scratch, quick)
    return measured


def monitor_bounds(measured: dict[str, Any]) -> list[Bound]:
    """The figures the project promises."""
    first, second, browser = measured["first_look"], measured["second_look"], measured["browser"]
    slower, terminal = measured["watched"]["slower_pct"], measured["terminal_s"]["p50"]
    bounds = [
        at_most("seconds to read the state of a run of a million points, the second time", second["seconds"], 0.3),
        at_most("peak memory of the first look, MB", first["peak_mb"], 150.0),
        at_most("peak memory of the second look, MB", second["peak_mb"], 150.0),
        at_most("seconds until `holdfast status` has answered", measured["status_s"]["p50"], 0.3, quick=False),
        at_most("seconds to the first picture of `holdfast watch`", terminal, 1.0, quick=False),
        at_most("the same before anything of the run was read", measured["terminal_unread_s"]["p50"], 1.0, quick=False),
        at_most("slow-down of a run that a page follows, percent", slower, 0.5, quick=False),
    ]
    if "skipped" not in browser:
        pages = ("list", "run", "run_unread", "compare_cold", "compare")
        paint = max(browser[page]["first_paint_s"] for page in pages)
        bounds += [
            at_most("seconds to the first paint, 20 runs of a million points", paint, 1.0, quick=False),
            at_most("seconds until an update is visible", browser["update_s"]["p50"], 1.0, quick=False),
            at_most("memory of the server with all of them open, MB", browser["server_mb"], 150.0, quick=False),
        ]
    return bounds


# Reading ----------------------------------------------------------------------------------------------------


def _write_run(folder: Path, points: int) -> None:
    """A run as a supervisor would have left it, with a loss and three other numbers a step."""
    (folder / "checkpoints").mkdir(parents=True)
    info: dict[str, Any] = {"schema": 1, "format": 1, "run": "big", "workload": "big", "state": "STOPPED"}
    info |= {"device": "cpu", "settings": {}, "created": "2026-11-15T09:00:00.000Z", "accounts": {"steps": points}}
    (folder / "run.json").write_text(json.dumps(info))
    with open(folder / "journal.jsonl", "w") as events, open(folder / "metrics.jsonl", "w") as metrics:
        events.write('{"time": "2026-11-15T09:00:00.000Z", "event": "start", "device": "cpu", "step": 0}\n')
        events.write('{"time": "2026-11-15T09:00:01.000Z", "event": "worker", "pid": 1, "device": "cpu"}\n')
        for step in range(1, points + 1):
            when = f"2026-11-15T{9 + step // 360_000 % 14:02d}:{step // 6000 % 60:02d}:{step % 6000 / 100:06.3f}Z"
            loss = 1 / (1 + step / 1e5) + (step * 7919 % 1000) / 2e4
            row = f'"train_loss": {loss}, "lr": {1e-3 * math.exp(-step / 1e6)}, "norm": {step % 97}, "score": {-loss}'
            where = f'"step": {step}, "epoch": {step // 10000}'
            metrics.write(f'{{"time": "{when}", {where}, {row}}}\n')
            events.write(f'{{"time": "{when}", "event": "log", {where}, "values": {{{row}}}}}\n')
            if step % 1000 == 0:
                events.write(f'{{"time": "{when}", "event": "checkpoint", {where}, "seconds": 0.1}}\n')


def _look(folder: Path) -> dict[str, Any]:
    """In a process of its own, as somebody who looks has."""
    done = subprocess.run([sys.executable, "-c", LOOK, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {key: round(value, 4) for key, value in found.items()}


def _status(root: Path) -> dict[str, Any]:
    """By the clock, and in seconds of a processor: what it would take on a machine that does nothing else."""
    took, used = [], []
    for _ in range(9):
        began, before = time.perf_counter(), os.times()
        subprocess.run(command("status", "huge-heron", "--folder", str(root)), capture_output=True, check=True)
        took.append(time.perf_counter() - began)
        after = os.times()
        used.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return {**spread(took), "best": round(min(took), 4), "cpu_s": round(statistics.median(used), 4)}


def _terminal(root: Path, times: int) -> dict[str, Any]:
    """From the command to a picture of the run in a terminal of 120x40."""
    took = []
    for _ in range(times):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        words, env = command("watch", "--folder", str(root)), {**os.environ, "TERM": "xterm-256color"}
        began, said = time.perf_counter(), b""
        watch = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
        os.close(theirs)
        try:
            while b"huge-heron" not in said:
                said += os.read(ours, 65536)
            took.append(time.perf_counter() - began)
        finally:
            watch.kill()
            watch.wait()
            os.close(ours)
    return spread(took)


# In a browser -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _served(root: Path) -> Iterator[tuple[str, str, int]]:
    """The page's server: where it is, its token, its process."""
    words = command("watch", "--web", "--no-browser", "--port", "0", "--folder", str(root))
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"(http://[\d.:]+)/\S*token=(\S+)", "".join(server.stdout.readline() for _ in range(2)))
        assert found, "no address"
        yield found[1], found[2], server.pid
    finally:
        server.send_signal(signal.SIGCONT)
        server.send_signal(signal.SIGINT)
        server.wait(20)


def _browser(scratch: Path, root: Path, big: Path, points: int, runs: int) -> dict[str, Any]:
    """Twenty runs on one page: the first paint, until it is complete, and until an update is seen."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {"skipped": "no playwright"}
    if chromium is None:
        return {"skipped": "no Chromium"}
    for number in range(runs):  # they hold the same, so the index of the first is theirs: reading was measured above
        other = root / f"many-20261115-1000-run-{number:02d}"
        shutil.copytree(big, other, copy_function=os.link)
        (other / "run.json").unlink()
        shutil.copy(big / "run.json", other / "run.json")
        shutil.copy(Index.of(big).path, Index.of(other).path)
    first = root / "many-20261115-1000-run-00"
    unread = root / "many-20261115-1100-unread"
    shutil.copytree(big, unread, copy_function=os.link)
    say(f"  {runs} runs of {points} points are indexed")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with _served(root) as (base, token, pid), sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(scratch / "profile"), executable_path=chromium, headless=True, args=flags
        )
        tab = context.pages[0]
        tab.set_default_timeout(120_000)
        tab.goto(f"{base}/?token={token}")
        tab.wait_for_selector("body[data-ready=yes]")
        names = ",".join(f"many-20261115-1000-run-{number:02d}" for number in range(runs))
        measured = {
            "chromium": context.browser.version if context.browser else None,
            "runs": runs,
            "list": _paint(tab, f"{base}/"),
            "run": _paint(tab, f"{base}/r/run-00"),
            "compare_cold": _paint(tab, f"{base}/compare?runs={names}"),
            "compare": _paint(tab, f"{base}/compare?runs={names}"),
            "server_mb": round(_resident_mb(pid), 1),
        }
        measured["update_s"] = spread([_update(tab, base, first, points + n + 1) for n in range(10)])
        measured["run_unread"] = _paint(tab, f"{base}/r/unread")  # last: it is read on while others wait
        context.close()
    return measured


def _paint(tab: Any, address: str) -> dict[str, float]:
    began = time.perf_counter()
    tab.goto(address)
    tab.wait_for_selector("body[data-ready=yes]")
    ready = time.perf_counter() - began
    paint = tab.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
    return {"first_paint_s": round(paint / 1000, 3) if paint else math.inf, "complete_s": round(ready, 3)}


def _update(tab: Any, base: str, folder: Path, step: int) -> float:
    """From a line in the file to the number on the screen."""
    if "/r/run-00" not in tab.url:
        tab.goto(f"{base}/r/run-00")
        tab.wait_for_selector("body[data-ready=yes]")
        time.sleep(2)
    value = f"{step % 1000 + 0.5}"
    row = {"train_loss": float(value), "lr": 0.0, "norm": 0.0, "score": 0.0}
    record = {"time": "2026-11-15T23:59:59.000Z", "step": step, "epoch": 10**6, **row}
    time.sleep(0.2 + 0.07 * (step % 10))  # at any moment between two looks
    began = time.perf_counter()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")
    tab.wait_for_selector(f"[data-chart=train_loss] .value:text-is('{value}')")
    return time.perf_counter() - began


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return math.nan


# A run that is watched ----------------------------------------------------------------------------------------


def _watched(scratch: Path, quick: bool) -> dict[str, Any]:
    """Steps of one run while a page follows it, and while the monitor is stopped, in turns: on, off, off, on, …"""
    runs = scratch / "watched"
    runs.mkdir()
    seconds, turns = (1.0, 3) if quick else (3.0, 40)
    job = scratch / "paced.py"
    job.write_text(_PACED)
    train = subprocess.Popen(
        command("train", str(job), f"stamps={scratch / 'stamps'}", f"run.folder={runs}", "-q"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _until(lambda: (scratch / "stamps").exists() and (scratch / "stamps").stat().st_size > 800)
        name = next(runs.iterdir()).name
        with _served(runs) as (base, token, pid):
            stop = threading.Event()
            page = threading.Thread(target=_follow, args=(base, token, name, stop), daemon=True)
            page.start()
            time.sleep(seconds)
            windows: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            used, on = 0.0, True
            for turn in range(2 * turns):
                on = turn % 4 in (0, 3)  # a slow drift is the same for both
                os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
                time.sleep(0.3)
                cpu, began = _cpu_s(pid), time.time()
                time.sleep(seconds)
                windows[on].append((began, time.time()))
                used += (_cpu_s(pid) - cpu) if on else 0.0
            os.kill(pid, signal.SIGCONT)
            stop.set()
    finally:
        train.terminate()
        train.wait(60)
    stamps = [float(line) for line in (scratch / "stamps").read_text().split()]
    rates = {on: [_rate(stamps, *window) for window in windows[on]] for on in windows}
    pairs = [with_it / without for with_it, without in zip(rates[True], rates[False], strict=True)]
    low, _, high = statistics.quantiles(pairs, n=4)
    error = 1.25 * statistics.stdev(pairs) / len(pairs) ** 0.5  # of a median
    cpu = 100 * used / (turns * seconds)
    return {
        "turns": turns,
        "steps_per_s": round(statistics.median(rates[False]), 2),
        "slower_pct": round(100 * (1 - statistics.median(pairs)), 2),
        "slower_pct_standard_error": round(100 * error, 2),
        "slower_pct_middle_half": [round(100 * (1 - high), 2), round(100 * (1 - low), 2)],
        "core_pct": round(cpu, 2),
        "machine_pct": round(cpu / (os.cpu_count() or 1), 2),
    }


_PACED = '''"""Steps of a few milliseconds on one thread, each with its time."""
import time, torch, holdfast
from torch import nn

def train(session, stamps="stamps"):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session.protect(model=model, optimizer=optimizer)
    x = torch.randn(256, 256)
    file = open(stamps, "a", buffering=1)
    for epoch in session.epochs(100000):
        for _ in range(20):
            loss = session.step(lambda batch: model(batch).square().mean(), x)
            file.write(f"{time.time()}\\n")
        session.log(train_loss=loss)
'''


def _follow(base: str, token: str, name: str, stop: threading.Event) -> None:
    """What a page does: it listens, and asks for new points when something changed."""
    headers = {"Authorization": f"Bearer {token}"}
    with contextlib.suppress(OSError):
        asked = urllib.request.Request(f"{base}/api/live?run={name}", headers=headers)
        stream = urllib.request.urlopen(asked, timeout=60)
        last = 0.0
        while not stop.is_set():
            line = stream.readline()
            if line.startswith(b"data:") and time.monotonic() - last > 0.6:
                last = time.monotonic()
                head = json.loads(line[5:])
                query = f"key=m:train_loss&key=rate&points=800&from={head.get('step') or 0}"
                asked = urllib.request.Request(f"{base}/api/run/{name}/series?{query}", headers=headers)
                urllib.request.urlopen(asked, timeout=60).read()


def _rate(stamps: list[float], began: float, ended: float) -> float:
    return sum(began <= stamp < ended for stamp in stamps) / (ended - began)


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _until(what: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come")
        time.sleep(0.1)
