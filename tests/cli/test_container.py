"""The image's entry point as process 1 of a pid namespace: signals, zombies, exit codes. No Docker is needed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.run.folder import list_runs
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
ENTRY = [sys.executable, "-P", "-m", "holdfast.cli.container"] if sys.version_info >= (3, 11) else []


def _namespaces() -> str | None:
    """Why there can be no pid namespace here; None if there can."""
    if sys.platform != "linux" or shutil.which("unshare") is None or not ENTRY:
        return "needs Linux, unshare and Python 3.11"
    for words in (UNSHARE, [*UNSHARE, "--user", "--map-root-user"]):
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            UNSHARE[:] = words
            return None
    return "pid namespaces are not allowed here"


_WHY = _namespaces()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=str(_WHY))

SCRIPT = """
import torch, holdfast

def train(session):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(100_000):
        for batch in session.batches(data):
            session.step(lambda b: model(b[0]).square().mean(), batch)
"""
ORPHANS = """
import os, subprocess, sys, time
# The middle process ends at once: its child belongs to process 1 from then on, and ends soon after.
for _ in range(5):
    subprocess.run([sys.executable, "-S", "-c", "import os, time; os.fork() or (time.sleep(0.2), os._exit(0))"])
def zombies():
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
    return found

deadline = time.monotonic() + 30
time.sleep(0.5)
while zombies() and time.monotonic() < deadline:
    time.sleep(0.1)
print("pid 1:", open("/proc/1/cmdline").read().split("\\0")[3], "zombies:", zombies(), flush=True)
sys.exit(37)
"""


def test_zombies_are_reaped_and_the_exit_code_is_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "orphans.py").write_text(ORPHANS)
    words = [*UNSHARE, *ENTRY, "run", "--", sys.executable, "orphans.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert "pid 1: holdfast.cli.container zombies: 0" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 37


def test_usage_errors_keep_their_code(tmp_path: Path) -> None:
    words = [*UNSHARE, *ENTRY, "train", "missing.py"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False, timeout=100).returncode == 2


@pytest.mark.all
def test_sigterm_saves_the_run_and_ends_with_75(tmp_path: Path) -> None:
    """What `docker stop` and Kubernetes do: SIGTERM to process 1 alone."""
    (tmp_path / "job.py").write_text(SCRIPT)
    with open(tmp_path / "log", "wb") as log:
        outer = subprocess.Popen([*UNSHARE, *ENTRY, "train", "job.py"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        assert wait_until(lambda: _steps(tmp_path) > 5), (tmp_path / "log").read_text()
        (first,) = psutil.Process(outer.pid).children()
        os.kill(first.pid, signal.SIGTERM)
        assert outer.wait(100) == 75, (tmp_path / "log").read_text()
    finally:
        outer.kill()
        outer.wait()
    (run,) = list_runs(tmp_path / "runs")
    assert run.state() == "STOPPED"
    assert list((run.path / "checkpoints").iterdir()), "the state is saved"


def _steps(folder: Path) -> int:
    for run in list_runs(folder / "runs"):
        beat = run.path / "beat.json"
        if beat.exists():
            return int(json.loads(beat.read_text()).get("step") or 0)
    return 0


def test_a_holdfast_that_is_killed_is_128_and_the_signal(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import time\ntime.sleep(600)\n")
    words = [*UNSHARE, *ENTRY, "run", "--", sys.executable, "job.py"]
    outer = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        inner = psutil.Process(outer.pid)
        assert wait_until(lambda: inner.children() and inner.children()[0].children())
        inner.children()[0].children()[0].kill()
        assert outer.wait(100) == 128 + signal.SIGKILL
    finally:
        outer.kill()
        outer.wait()


def test_the_image_starts_this_entry_point() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["python", "-m", "holdfast.cli.container"]' in text
    assert "STOPSIGNAL SIGTERM" in text and "\nUSER 1000\n" in text
