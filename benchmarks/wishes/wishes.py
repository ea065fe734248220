"""Wishes that users of other tools have had for years: each tool's script from the thread, and the same with our lines.

    python benchmarks/wishes/wishes.py                     all of them; keeps benchmarks/results/wishes-cpu.json
    python benchmarks/wishes/wishes.py sigterm --times 20  one of them
    python benchmarks/wishes/wishes.py cuda_error --result benchmarks/results/wishes-h200.json     on a CUDA device

Every script is a real process with a real fault. `peer.py` of a folder runs as the thread has it, and is started again
after a kill as its user would; `held.py` runs under holdfast. A wish is fulfilled when the weights are those of the
same script without a fault, unless its row says otherwise. scripts/make_peer_docs.py makes the table of the docs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import machine, versions, write  # noqa: E402

RESULT = HERE.parent / "results" / "wishes-cpu.json"
LIMIT = 600.0
"""Seconds for one process, on a busy machine."""
HANGS = 150.0
"""A process that should notice that its peer is gone, and has not after so many seconds, hangs."""
GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL: what Kubernetes and Slurm grant by default."""
HOLDFAST = [sys.executable, "-m", "holdfast"]
STOPPED = 75
"""The exit code of a run that was asked to stop."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
KILL_AT = 13
"""Steps before a process is lost: the middle of the second of three epochs."""

Outcome = dict[str, Any]


class Skip(Exception):
    """Why a wish cannot be tried on this machine."""


def start(folder: Path, words: list[str], fault: str = "", **more: str) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    mine = {"WISH_FOLDER": str(folder), "WISH_FAULT": fault, "HOLDFAST_STATE": str(folder / "state"), **more}
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        words, cwd=folder, env={**os.environ, **mine, "PYTHONPATH": path}, stdin=subprocess.DEVNULL,
        stdout=(folder / "out.txt").open("a"), stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], limit: float = LIMIT) -> int | None:
    """Its exit code; None if it hangs, and then its group is ended."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def run(folder: Path, words: list[str], fault: str = "") -> int | None:
    return finish(start(folder, words, fault))


def digest(folder: Path) -> str | None:
    path = folder / "digest"
    return path.read_text() if path.exists() else None


def last_line(folder: Path) -> str:
    lines = [line.strip() for line in (folder / "out.txt").read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def faults(folder: Path) -> list[dict[str, Any]]:
    """What holdfast kept of the faults of the run in this folder."""
    return [json.loads(path.read_text())["fault"] for path in sorted(folder.glob("runs/*/faults/*/fault.json"))]


def peer(name: str) -> list[str]:
    return [sys.executable, str(HERE / name / "peer.py")]


def held(name: str, *, script: bool) -> list[str]:
    path = str(HERE / name / "held.py")
    return [*HOLDFAST, "run", "--", sys.executable, path] if script else [*HOLDFAST, "train", path, "--device", "cpu"]


# The wishes -------------------------------------------------------------------------------------------------------


def resumed(name: str, scratch: Path) -> tuple[Outcome, Outcome]:
    """A kill in the middle of the second epoch: are the weights those of the training without it?"""
    quiet, killed = scratch / "peer-quiet", scratch / "peer-killed"
    run(quiet, peer(name))
    first = run(killed, peer(name), "kill")
    second = run(killed, peer(name), "kill")
    assert first == -signal.SIGKILL, last_line(killed)
    same = digest(killed) is not None and digest(killed) == digest(quiet)
    said = "the weights of the undisturbed training" if same else "other weights than the undisturbed training"
    theirs = {"fulfilled": same, "says": f"started again by hand, ends with {second}: {said}"}
    for word in ("quiet", "killed"):
        run(scratch / f"held-{word}", held(name, script=True), "kill" if word == "killed" else "")
    came = (scratch / "held-killed" / "kill.came").exists()
    same = came and digest(scratch / "held-quiet") is not None
    same = same and digest(scratch / "held-killed") == digest(scratch / "held-quiet") == digest(quiet)
    said = "the weights of the undisturbed training" if same else last_line(scratch / "held-killed")
    return theirs, {"fulfilled": same, "says": f"goes on by itself: {said}"}


def loader(name: str, fault: str, scratch: Path) -> tuple[Outcome, Outcome]:
    """A loader process that hangs or is killed."""
    began = time.monotonic()
    code = run(scratch / "peer", peer(name), fault)
    took = time.monotonic() - began
    says = (
        f"hangs ({LIMIT:.0f} s)"
        if code is None
        else f"ends with {code} after {took:.0f} s: {last_line(scratch / 'peer')}"
    )
    theirs = {"fulfilled": code == 0, "says": says}
    for word in ("quiet", "fault"):
        run(scratch / f"held-{word}", held(name, script=False), fault if word == "fault" else "")
    same = digest(scratch / "held-fault") is not None and digest(scratch / "held-fault") == digest(
        scratch / "held-quiet"
    )
    rows = [row for row in faults(scratch / "held-fault") if row.get("kind") in ("loader_stuck", "loader_died")]
    same = same and bool(rows)
    says = "the process is replaced" if same else last_line(scratch / "held-fault")
    if same and fault == "hang":
        known = rows[0].get("evidence") or {}
        stack, waited = str(known.get("stack") or ""), known.get("waited_s")
        at_line = "time.sleep" in stack or "__getitem__" in stack
        same = at_line and isinstance(waited, float) and waited <= 10.0
        says += f" after {waited} s, its stack {'names the line' if at_line else 'is not known'}"
    return theirs, {"fulfilled": same, "says": f"{says}; the weights of the undisturbed training" if same else says}


def memory(scratch: Path) -> tuple[Outcome, Outcome]:
    """A batch of 8 where 4 fit: the same effective batch, so the same weights up to the rounding of a sum."""
    name = "lightning_memory"
    code = run(scratch / "peer", peer(name))
    theirs = {"fulfilled": code == 0, "says": f"ends with {code}: {last_line(scratch / 'peer')}"}
    for word in ("quiet", "memory"):
        run(scratch / f"held-{word}", held(name, script=False), "memory" if word == "memory" else "")
    import torch

    try:
        both = [torch.load(scratch / f"held-{word}" / "weights.pt", weights_only=True) for word in ("quiet", "memory")]
    except FileNotFoundError:
        return theirs, {"fulfilled": False, "says": last_line(scratch / "held-memory")}
    apart = max(float((both[0][key] - both[1][key]).abs().max()) for key in both[0])
    says = f"finished: weights at most {apart:.1e} from those of whole batches"
    return theirs, {"fulfilled": apart < 1e-6, "says": says}


def streamed(scratch: Path) -> tuple[Outcome, Outcome]:
    """A kill after 40 of 50 steps on a stream: how many samples does the process read that goes on?"""
    from importlib.util import find_spec

    if find_spec("datasets") is None:
        raise Skip("the stream is one of Hugging Face: `pip install datasets`")
    theirs, ours = resumed("trainer_stream", scratch)
    for outcome, word in ((theirs, "peer"), (ours, "held")):
        counts = [path.stat() for path in (scratch / f"{word}-killed").glob("read-*")]
        first, last = (each.st_size for each in sorted(counts, key=lambda each: each.st_mtime_ns))
        outcome["samples_read"] = {"before": first, "after": last}
        outcome["says"] += f"; {first} samples read before the kill, {last} after it"
        outcome["fulfilled"] = outcome["fulfilled"] and last < first / 2
    return theirs, ours


def lost(scratch: Path) -> tuple[Outcome, Outcome]:
    """One of two processes is lost: by a signal that ends it, or halted, as on a machine without a network."""
    quiet = scratch / "peer-quiet"
    one = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "10", peer("lost_peer")[1]]
    run(quiet, one)
    theirs = {
        "SIGTERM to the agent of one": _two_agents(scratch / "peer-terminated", signal.SIGTERM),
        "SIGKILL to the agent of one and to its process": _two_agents(scratch / "peer-killed", signal.SIGKILL),
        "SIGSTOP to the process of one": _one_agent(scratch / "peer-halted", one, signal.SIGSTOP),
    }
    launch = [*HOLDFAST, "launch", "--nproc", "2", "--device", "cpu", str(HERE / "lost_peer" / "held.py")]
    run(scratch / "held-quiet", launch)
    ours = {
        "SIGKILL to the process of one": _one_agent(scratch / "held-killed", launch, signal.SIGKILL),
        "SIGSTOP to the process of one": _one_agent(scratch / "held-halted", launch, signal.SIGSTOP),
    }
    return _survived(theirs, quiet), _survived(ours, scratch / "held-quiet")


def _survived(ways: dict[str, tuple[int | None, Path]], quiet: Path) -> Outcome:
    """What the other process does, for each way of losing its peer."""
    same = {way: code == 0 and digest(at) == digest(quiet) is not None for way, (code, at) in ways.items()}
    says = []
    for way, (code, _) in ways.items():
        ended = "other weights than the undisturbed training" if code == 0 else f"the other ends with {code}"
        ended = f"the other hangs ({HANGS:.0f} s)" if code is None else ended
        says.append(f"{way}: {'the weights of the undisturbed training' if same[way] else ended}")
    return {"fulfilled": all(same.values()), "says": "; ".join(says)}


def _one_agent(folder: Path, words: list[str], number: int) -> tuple[int | None, Path]:
    """The second of two processes of one command gets the signal; then the exit code of the command."""
    process = start(folder, words)
    both = _trained(folder, process)
    os.kill(both[1], number)
    return _ended(process, both), folder


def _two_agents(folder: Path, number: int) -> tuple[int | None, Path]:
    """As the thread has it: `torchrun --nnodes 1:2` twice, here on one machine. The second agent gets the signal."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    ways = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-id", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint"]
    order = [*TORCHRUN, *ways, place, "--max-restarts", "10"]
    first, second = (start(folder, [*order, f"--rdzv-conf=is_host={host}", peer("lost_peer")[1]]) for host in (1, 0))
    both = _trained(folder, first)
    if number == signal.SIGKILL:
        for pid in both:
            if psutil.Process(pid).ppid() == second.pid:
                os.kill(pid, number)
    second.send_signal(number)
    code = _ended(first, both)
    finish(second, 0.0)
    return code, folder


def _trained(folder: Path, process: subprocess.Popen[str]) -> list[int]:
    """The processes of both ranks, in the middle of the second epoch."""
    until, steps = time.monotonic() + 2 * LIMIT, folder / "steps-1"
    while not (steps.exists() and steps.stat().st_size >= KILL_AT):
        assert process.poll() is None and time.monotonic() < until, last_line(folder)
        time.sleep(0.02)
    return [int((folder / f"pid-{rank}").read_text()) for rank in (0, 1)]


def _ended(process: subprocess.Popen[str], both: list[int]) -> int | None:
    """The exit code; None if it still hangs long after the other process was lost."""
    code = finish(process, HANGS)
    for pid in both:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return code


def cuda_error(scratch: Path) -> tuple[Outcome, Outcome]:
    """A device-side assertion, and then two tensors of the same session: as a script, and in a notebook's kernel."""
    import torch

    if not torch.cuda.is_available():
        raise Skip("a real device-side assertion needs a CUDA device")
    name, outcomes = "cuda_error", []
    for word in ("peer", "held"):
        code = run(scratch / word, [sys.executable, str(HERE / name / f"{word}.py")])
        after, following = scratch / word / "after", scratch / word / "next"
        alive = code == 0 and after.exists() and after.read_text() == "10.0"
        alive = alive and (word == "peer" or (following.exists() and following.read_text() == "FINISHED 20"))
        error = (scratch / word / "error").read_text() if (scratch / word / "error").exists() else "no error"
        says = f"{textwrap.shorten(error, 92, placeholder=' …')}; then the session " + (
            "goes on" if alive else f"is unusable: {last_line(scratch / word)}"
        )
        notebook = in_kernel(scratch / f"{word}-kernel", HERE / name / f"{word}.py")
        if notebook is not None:
            alive = alive and notebook == "10.0"
            says += f"; in a notebook {'too' if notebook == '10.0' else 'it is unusable'}"
        outcomes.append({"fulfilled": alive, "says": says, "notebook": notebook is not None})
    return outcomes[0], outcomes[1]


def in_kernel(folder: Path, script: Path) -> str | None:
    """The script as a cell of a real Jupyter kernel: what it left in `after`. None where there is no Jupyter."""
    try:
        from jupyter_client.manager import start_new_kernel
    except ImportError:
        return None
    folder.mkdir(parents=True)
    mine = {"WISH_FOLDER": str(folder), "HOLDFAST_STATE": str(folder / "state")}
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    manager, client = start_new_kernel(env={**os.environ, **mine, "PYTHONPATH": path}, cwd=str(folder))
    try:
        client.execute_interactive(script.read_text(), timeout=4 * LIMIT, output_hook=lambda message: None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return (folder / "after").read_text() if (folder / "after").exists() else ""


def sigterm(scratch: Path, times: int) -> tuple[Outcome, Outcome]:
    """SIGTERM in warm-up, evaluation and compiling, SIGKILL to all of it 30 seconds later. The peer once for each."""
    places = ("warm-up", "evaluation", "compile")
    theirs = [_terminated(scratch / f"peer-{place}", peer("sigterm"), place) for place in places]
    order = [*held("sigterm", script=False), "snapshot.every=1"]  # by default what a second has trained may be repeated
    ours = [_terminated(scratch / f"held-{at}", order, places[at % 3]) for at in range(times)]
    return _counted(theirs), _counted(ours)


def _terminated(folder: Path, words: list[str], place: str) -> bool:
    """True if what was trained so far is saved: all steps of it, and nothing of it half."""
    process = start(folder, words, WISH_PLACE=place)
    until = time.monotonic() + LIMIT
    while not (folder / "there").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    done = {"warm-up": 0, "compile": 10, "evaluation": 20}[place]
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    # Looked at before the kill: what outlives a supervisor may save it afterwards, and a cluster kills that as well.
    numbers = [int(path.parent.name) for path in folder.glob("runs/*/checkpoints/[0-9]*/digest.json")]
    if words[1] != "-m":
        saved = (folder / "saved.pt").exists()
    elif done:
        saved = max(numbers, default=0) >= done - 1  # the last batch of an epoch is committed with its epoch
    else:
        saved = process.poll() == STOPPED  # nothing is trained yet: the run is over in time, and says so
    finish(process, 0.0)
    return saved


def _counted(saved: list[bool]) -> Outcome:
    return {"fulfilled": all(saved), "says": f"saved {sum(saved)} of {len(saved)} times"}


WISHES: dict[str, tuple[str, str, Callable[[Path, int], tuple[Outcome, Outcome]]]] = {
    "hung_loader": (
        "pytorch/pytorch#96629", "a loader process that hangs is replaced within 10 s, and its stack is reported",
        lambda scratch, times: loader("hung_loader", "hang", scratch),
    ),
    "killed_loader": (
        "pytorch/pytorch#21554", "training goes on after a loader process was killed, with `pin_memory`",
        lambda scratch, times: loader("killed_loader", "kill", scratch),
    ),
    "cuda_error": (
        "pytorch/pytorch#44624", "one CUDA error does not make the whole session unusable, a notebook's neither",
        lambda scratch, times: cuda_error(scratch),
    ),
    "lost_peer": (
        "pytorch/pytorch#147064", "training goes on when one of two processes is lost",
        lambda scratch, times: lost(scratch),
    ),
    "lightning_mid_epoch": (
        "Lightning-AI/pytorch-lightning#19764", "resume in the middle of an epoch, at the next batch",
        lambda scratch, times: resumed("lightning_mid_epoch", scratch),
    ),
    "lightning_stateful": (
        "Lightning-AI/pytorch-lightning#20550", "the loader's own state is restored, with `estimated_stepping_batches`",
        lambda scratch, times: resumed("lightning_stateful", scratch),
    ),
    "lightning_memory": (
        "Lightning-AI/pytorch-lightning#17393", "a batch that does not fit is accumulated: the same effective batch",
        lambda scratch, times: memory(scratch),
    ),
    "accelerate_order": (
        "huggingface/accelerate#4071", "resume after the first epoch keeps the order of the data",
        lambda scratch, times: resumed("accelerate_order", scratch),
    ),
    "trainer_stream": (
        "huggingface/transformers#11284", "resume on a stream without reading again what was trained on",
        lambda scratch, times: streamed(scratch),
    ),
    "sigterm": (
        "goodfire-ai/spd#677", "SIGTERM in warm-up, evaluation or compiling is saved within 30 s",
        lambda scratch, times: sigterm(scratch, times),
    ),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="WISH", help=f"of {', '.join(WISHES)} (default: all)")
    parser.add_argument("--times", type=int, default=20, help="signals to send in `sigterm`")
    parser.add_argument("--result", type=Path, default=RESULT, metavar="FILE", help="where the outcomes are kept")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the runs")
    args = parser.parse_args()
    names = args.names or list(WISHES)
    scratch = Path(tempfile.mkdtemp(prefix="wishes-"))
    known = json.loads(args.result.read_text()).get("wishes", {}) if args.result.exists() else {}
    skipped: list[str] = []
    for name in names:
        thread, wish, fulfil = WISHES[name]
        try:
            theirs, ours = fulfil(scratch / name, args.times)
        except Skip as reason:
            print(f"{name}\n  skipped   {reason}", flush=True)
            skipped.append(name)
            continue
        known[name] = {"thread": thread, "wish": wish, "peer": theirs, "holdfast": ours}
        print(f"{name}\n  peer      {theirs['says']}\n  holdfast  {ours['says']}", flush=True)
        found = {each: known[each] for each in WISHES if each in known}
        write(args.result, {"wishes": found, "versions": versions(), "machine": machine()})
    if not args.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        print(scratch)
    return 0 if all(known[name]["holdfast"]["fulfilled"] for name in names if name not in skipped) else 1


if __name__ == "__main__":
    sys.exit(main())
