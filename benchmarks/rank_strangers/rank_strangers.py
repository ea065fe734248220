"""Training scripts of other people for several processes: below torchrun, and with `holdfast launch`.

    python benchmarks/rank_strangers/rank_strangers.py --sources DIR            all; DIR has OWNER+NAME/repo
    python benchmarks/rank_strangers/rank_strangers.py --sources DIR nanogpt --turns 3

A script is taken from the named commit of its repository; nothing of it is kept here but the lines around a change.
NAME.cpu.patch is what it takes to run it on two processors over gloo, NAME.holdfast.patch what docs/writing-a-script.md
asks for. Each is run with two processes: below torchrun, with `holdfast launch`, and with `holdfast launch` while rank
1 gets SIGKILL after a third and after two thirds of its steps. Then both ways by turns without a recorder of inputs,
for the time of a step. recorder/sitecustomize.py notes steps and inputs in every process; holdfast has no part in that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import other_people  # noqa: E402
from common import machine, versions, write  # noqa: E402
from other_people import Skip, nothing  # noqa: E402

from holdfast.run.folder import list_runs  # noqa: E402

RESULT = HERE.parent / "results" / "ranks-strangers-cpu.json"
RANKS = 2
LIMIT = 600.0


# Scripts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stranger:
    """One script of somebody else."""

    repository: str
    commit: str
    licence: str
    files: tuple[str, ...]
    """The script first."""
    words: tuple[str, ...]
    data: Callable[[Path], None]
    steps: int
    """Of each process, with these words."""
    adapted: str
    """What NAME.cpu.patch and the words change, for people."""
    wrapper: str = "DistributedDataParallel"
    env: Mapping[str, str] = field(default_factory=dict)
    held_out: bool = False
    """It was run only after holdfast had been changed for the others."""


_VISION = "references/classification"


def _digits(folder: Path) -> None:
    other_people.digits(folder, 640)


STRANGERS = {
    "tutorial": Stranger(
        "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", "BSD-3-Clause",
        ("distributed/ddp-tutorial-series/multigpu_torchrun.py", "distributed/ddp-tutorial-series/datautils.py"),
        ("20", "5"), nothing, 640, "backend gloo, device cpu",
    ),
    "nanogpt": Stranger(
        "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "MIT",
        ("train.py", "model.py", "configurator.py"),
        ("--dataset=tiny", "--backend=gloo", "--device=cpu", "--compile=False", "--dtype=float32", "--n_layer=2",
         "--n_head=2", "--n_embd=32", "--block_size=16", "--batch_size=4", "--gradient_accumulation_steps=4",
         "--max_iters=119", "--eval_interval=40", "--eval_iters=3", "--log_interval=10", "--dropout=0.1",
         "--warmup_iters=5", "--lr_decay_iters=120"), lambda folder: other_people.text(folder, 40000), 120,
        "no cuda device, data of random letters, a smaller network",
    ),
    "fsdp2": Stranger(
        "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", "BSD-3-Clause",
        tuple(f"distributed/FSDP2/{name}.py" for name in ("example", "checkpoint", "model", "utils")),
        (), nothing, 30,
        "no check for two GPUs, no device_id, layers initialised (memory is not zero on a CPU), 30 steps", "FSDP2",
    ),
    "mnist": Stranger(
        "narumiruna/pytorch-distributed-example", "e6d2beb002ffbd614f7cfd95f718195f4621ca19", "MIT", ("mnist/main.py",),
        ("--epochs", "12", "--batch-size", "32", "--root", "data", "--init-method", "env://"), _digits, 120,
        "rank and world size from the environment, random pictures",
    ),
    "vision": Stranger(
        "pytorch/vision", "e6f04004f0e0f759b44329d9ee6751a55abf0f83", "BSD-3-Clause",
        tuple(f"{_VISION}/{each}.py" for each in ("train", "utils", "presets", "sampler", "transforms")),
        ("--data-path", "pictures", "--device", "cpu", "--model", "squeezenet1_1", "-b", "4", "-j", "1", "--epochs",
         "2", "--lr", "0.001", "--train-crop-size", "64", "--val-crop-size", "64", "--val-resize-size", "72"),
        lambda folder: other_people.pictures(folder, [f"kind{label}" for label in range(8)], 17, 72), 34,
        "backend gloo, no cuda device, random pictures",
    ),
    "min_ddp": Stranger(
        "joh-fischer/distributed-pytorch", "de13687ed76f6f857da3fcab0ef7d6880cae9ea0", "MIT",
        ("min_DDP.py", "distributed.py"), ("--data-size", "640", "--epochs", "10"), nothing, 400,
        "started by torchrun instead of mp.spawn, no device_ids, a longer dataset", held_out=True,
    ),
    "fabric": Stranger(
        "Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414", "Apache-2.0",
        ("examples/fabric/image_classifier/train_fabric.py",), ("--batch-size", "32", "--epochs", "3"), _digits, 30,
        "the folder of the data, random pictures", held_out=True,
        env={"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_DEVICES": "2"},
    ),
    "lambda_fsdp": Stranger(
        "LambdaLabsML/distributed-training-guide", "aed748914472cca80d8cfe139ab43ec63103913a", "MIT",
        ("04-fully-sharded-data-parallel/train_llm.py",),
        ("-d", "none", "-m", "llama", "-s", "32", "-b", "2", "--num-epochs", "2"), nothing, 40,
        "backend gloo, device cpu, no memory statistics, a small llama of transformers 5, random words", "FSDP2",
        held_out=True,
    ),
}  # fmt: skip


def fetched(name: str, folder: Path, sources: Path, *, patched: bool) -> Path:
    """The script in a folder of its own, with its data; returns the path of the script."""
    kinds = ("cpu", "holdfast") if patched else ("cpu",)
    script = other_people.fetched(STRANGERS[name], folder, sources, [HERE / f"{name}.{kind}.patch" for kind in kinds])
    STRANGERS[name].data(folder)
    (folder / "record").mkdir()
    return script


# Runs -------------------------------------------------------------------------------------------------------------


@dataclass
class Lived:
    """One process of a rank, as the recorder saw it."""

    pid: int
    clock: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)


def lives(folder: Path) -> dict[int, list[Lived]]:
    """The processes of each rank, the first one first."""
    found: dict[int, list[Lived]] = {}
    for path in (folder / "record").glob("steps-*.txt"):
        _, rank, pid = path.stem.split("-")
        rows = [line.split() for line in path.read_text().splitlines() if line.count(" ") == 1]
        found.setdefault(int(rank), []).append(Lived(int(pid), [int(row[0]) for row in rows], [row[1] for row in rows]))
    for each in found.values():
        each.sort(key=lambda lived: lived.clock[0] if lived.clock else 0)
    return found


def is_ours(pid: int, ancestor: int) -> bool:
    """Whether a process was started by that one, or by one that was."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


@dataclass
class Ran:
    """What became of a script."""

    code: int
    said: str
    lived: dict[int, list[Lived]]
    kills: list[tuple[int, int]] = field(default_factory=list)
    """The clock, and how many steps that process had made."""


def ran(
    name: str, words: Sequence[str], folder: Path, *, kill_at: Sequence[int] = (), inputs: bool = True, at: int = 0
) -> Ran:
    """`kill_at`: steps of all processes of rank 1 together after which its process gets SIGKILL."""
    path = [str(HERE / "recorder"), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    mine = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "HOLDFAST_STATE": str(folder / "state")}
    mine |= {
        "NO_COLOR": "1",
        "RECORD": str(folder / "record"),
        "RECORD_INPUTS": "1" if inputs else "",
        "RECORD_AT": str(at),
    }
    kills: list[tuple[int, int]] = []
    gone: set[int] = set()
    with (folder / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **mine, **STRANGERS[name].env}, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        deadline, waiting = time.monotonic() + LIMIT, list(kill_at)
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{words} did not end in {LIMIT} s")
                if waiting:
                    last = lives(folder).get(1, [Lived(0)])[-1]
                    made = len(last.clock) + sum(steps for _, steps in kills)
                    if made >= waiting[0] and last.pid not in gone and is_ours(last.pid, process.pid):
                        os.kill(last.pid, signal.SIGKILL)
                        gone.add(last.pid)
                        waiting.pop(0)
                        kills.append((time.monotonic_ns(), len(last.clock)))
                time.sleep(0.005 if waiting else 0.05)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        said.seek(0)
        return Ran(process.returncode, said.read(), lives(folder), kills)


def torchrun(name: str, folder: Path, sources: Path, **how: Any) -> Ran:
    script = fetched(name, folder, sources, patched=False)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), script.name]
    return ran(name, [sys.executable, *words, *STRANGERS[name].words], folder, at=STRANGERS[name].steps, **how)


def launch(name: str, folder: Path, sources: Path, **how: Any) -> Ran:
    script = fetched(name, folder, sources, patched=True)
    words = ["-m", "holdfast", "launch", "--nproc", str(RANKS), script.name, "--", *STRANGERS[name].words]
    return ran(name, [sys.executable, *words], folder, **how)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(list_runs(folder / "runs")[-1].path / "final.safetensors")


def receipt(folder: Path) -> dict[str, Any]:
    runs = list_runs(folder / "runs")
    return (runs[-1].receipt() if runs else None) or {}


def differs(one: Path, other: Path) -> float | None:
    """The largest difference between the weights of two runs of `holdfast launch`; None if they have others."""
    left, right = weights(one), weights(other)
    if left.keys() != right.keys():
        return None
    if not all(bool(each.isfinite().all()) for each in left.values()):
        return None  # such weights show nothing
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left if left[name].numel())


def differs_from_plain(plain: Path, held: Path) -> float | None:
    """The same for a run below torchrun, whose parameters have no names."""
    import torch

    path = plain / "record" / "weights.pt"
    if not path.exists():
        return None
    found = torch.load(path)
    named = [each for each in weights(held).values()]
    largest = 0.0
    for each in found:
        near = [float((each.double() - other.double()).abs().max()) for other in named if other.shape == each.shape]
        largest = max(largest, min(near, default=float("inf")))
    return largest


def steps_are_those_of(quiet: Ran, other: Ran) -> str:
    """Whether each rank was given the inputs of the quiet run, step by step; after a kill it may go back some steps."""
    for rank, whole in quiet.lived.items():
        wanted, at = whole[0].inputs, 0
        for lived in other.lived.get(rank, []):
            back = 0
            for each in lived.inputs:
                if at >= len(wanted) or wanted[at] != each:
                    at = next((place for place in reversed(range(at)) if wanted[place] == each), -1)
                    back += 1
                if at < 0 or back > len(other.kills) + 1:
                    return f"DIFFERS: process {lived.pid} of rank {rank} had other inputs"
                at += 1
        if at != len(wanted):
            return f"DIFFERS: rank {rank} came to step {at} of {len(wanted)}"
    return "equal"


def step_ms(run: Ran) -> float:
    """The median of rank 0 without the first third."""
    clock = run.lived[0][0].clock
    gaps = [after - before for before, after in itertools.pairwise(clock)]
    return statistics.median(gaps[len(gaps) // 3 :]) / 1e6


def measure(name: str, scratch: Path, sources: Path, turns: int) -> dict[str, Any]:
    stranger = STRANGERS[name]
    row: dict[str, Any] = {
        "repository": stranger.repository, "commit": stranger.commit, "file": stranger.files[0],
        "licence": stranger.licence, "wrapper": stranger.wrapper, "held_out": stranger.held_out,
        "adapted": stranger.adapted, "words": list(stranger.words),
        "changed_for_cpu": changed(name, "cpu"), "changed_for_holdfast": changed(name, "holdfast"),
    }  # fmt: skip
    plain = torchrun(name, scratch / "plain", sources)
    row["torchrun"] = "finished" if plain.code == 0 else f"ends with {plain.code}: {last_words(plain)}"
    quiet = launch(name, scratch / "quiet", sources)
    row["launch"] = "finished" if quiet.code == 0 else f"ends with {quiet.code}: {last_words(quiet)}"
    if quiet.code:
        return row
    if plain.code == 0:
        row["inputs_of_torchrun"] = "equal" if steps_are_those_of(plain, quiet) == "equal" else "others"
        row["largest_difference_to_torchrun"] = differs_from_plain(scratch / "plain", scratch / "quiet")
    steps = len(quiet.lived[1][0].clock)
    killed = launch(name, scratch / "killed", sources, kill_at=(steps // 3, 2 * steps // 3))
    row["killed"] = "finished" if killed.code == 0 else f"ends with {killed.code}: {last_words(killed)}"
    row["steps"], row["kills"] = steps, len(killed.kills)
    row["process_of_rank_0"] = "kept" if len(killed.lived[0]) == 1 else f"{len(killed.lived[0])} processes"
    row["processes_of_rank_1"] = len(killed.lived[1])
    if killed.code == 0:
        row["weights"] = "equal" if differs(scratch / "quiet", scratch / "killed") == 0.0 else "DIFFERS"
        row["steps_of_the_quiet_run"] = steps_are_those_of(quiet, killed)
        row["steps_computed_again"] = sum(len(each.clock) for each in killed.lived[0]) - steps
        told = receipt(scratch / "killed")
        row["receipt"] = {key: told.get(key) for key in ("samples_skipped", "samples_repeated", "steps_lost")}
        back = [new.clock[0] - at for (at, _), new in zip(killed.kills, killed.lived[1][1:], strict=False) if new.clock]
        row["death_to_next_step_s"] = [round(each / 1e9, 2) for each in back]
    ratios, times = [], []
    for turn in range(turns):
        with_it = launch(name, scratch / f"turn{turn}b", sources, inputs=False)
        without = torchrun(name, scratch / f"turn{turn}a", sources, inputs=False)
        if with_it.code == 0 == without.code:
            times.append((step_ms(without), step_ms(with_it)))
            ratios.append(times[-1][1] / times[-1][0])
    if ratios:
        row["step_ms"] = {
            "torchrun": [round(each[0], 3) for each in times], "holdfast": [round(each[1], 3) for each in times]
        }  # fmt: skip
        row["step_ratio"] = {"median": round(statistics.median(ratios), 3), "all": [round(each, 3) for each in ratios]}
    return row


def last_words(run: Ran) -> str:
    return " / ".join([line for line in run.said.splitlines() if line.strip()][-6:])[-600:]


def changed(name: str, kind: str) -> str:
    lines = (HERE / f"{name}.{kind}.patch").read_text().splitlines()
    count = {sign: sum(line.startswith(sign) and line[:3] != sign * 3 for line in lines) for sign in "+-"}
    return f"+{count['+']} -{count['-']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help=f"of {', '.join(STRANGERS)} (default: all)")
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--turns", type=int, default=3, metavar="N", help="measurements of the time of a step, both ways"
    )
    parser.add_argument("--result", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="leave the folders of the runs here")
    args = parser.parse_args()
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="rank-strangers-"))
    known = json.loads(args.result.read_text())["scripts"] if args.result.exists() else {}
    command = "python benchmarks/rank_strangers/rank_strangers.py --sources DIR"
    for name in args.names or list(STRANGERS):
        try:
            row = measure(name, scratch / name, args.sources, args.turns)
        except Skip as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        print(name, json.dumps(row, indent=1), flush=True)
        known[name] = {**row, "date": time.strftime("%Y-%m-%d"), "load_before": round(os.getloadavg()[0], 1)}
        rows = {each: known[each] for each in STRANGERS if each in known}
        write(args.result, {"command": command, "scripts": rows, "versions": versions(), "machine": machine()})
    if args.scratch is None:
        shutil.rmtree(scratch, ignore_errors=True)
    return int("DIFFERS" in json.dumps(known))


if __name__ == "__main__":
    sys.exit(main())
