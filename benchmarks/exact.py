"""Unchanged scripts of others under `holdfast run --exact`, killed at random steps: their weights and their log.

    python benchmarks/exact.py --sources FOLDER [--cases mnist,vae] [--kills 10] [--seed 0] [--device cuda]
    python benchmarks/exact.py --sources FOLDER --take OTHER       # its files alone, for a machine without git

FOLDER has git repositories as OWNER+NAME/repo (bare ones will do): pytorch/examples, karpathy/minGPT, karpathy/nanoGPT,
Lightning-AI/pytorch-lightning, huggingface/pytorch-image-models, vwxyzjn/cleanrl. The files are taken from the commits
that `SOURCES` names and are not changed; FOLDER may also be what --take has made. Their data are made here, tiny, in
the formats that they read.

Each case is run three times: alone, under --exact without a fault, and under --exact with SIGKILL at random steps. A
case is exact when the checksum of all weights at the end and every line of stdout are those of the script alone;
numbers that are times are masked, and each case says which. On a GPU the script runs alone twice, because not every
kernel there gives the same bits again. Results: benchmarks/results/exact-cpu.json, exact-h200.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "exact-cpu.json"
SOURCES = {
    "pytorch+examples": "77f55b912142e11fcfdf5b530231fb9c52f181e8",
    "karpathy+minGPT": "37baab71b9abea1b76ab957409a1cc2fbfba8a26",
    "karpathy+nanoGPT": "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    "Lightning-AI+pytorch-lightning": "7f0c3436cd3f6ad3753125672024fc415cbcb414",
    "huggingface+pytorch-image-models": "aa4b5850c1543fa488abf260f18390eda46cf85d",
    "vwxyzjn+cleanrl": "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb",
}
PATIENCE = 3600.0


@dataclass
class Case:
    """One script and how it is called."""

    source: str
    paths: list[str]
    """What is taken from the repository."""
    folder: str
    """Where the command is run."""
    command: list[str]
    steps: int
    data: Callable[[Path], None]
    masks: list[str] = field(default_factory=list)
    """Numbers in its lines that are times."""
    held_out: bool = False
    """Looked at only after the code was written."""


# -- data ----------------------------------------------------------------------------------------------------------


def mnist(where: str, train: int, test: int) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        raw = root / where / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(0)
        for name, count in (("train", train), ("t10k", test)):
            labels = draw.integers(0, 10, count)
            images = draw.normal(0, 40, (count, 28, 28))
            for at, label in enumerate(labels):
                images[at, 2 * label : 2 * label + 6, 4:24] += 200
            _idx(raw / f"{name}-images-idx3-ubyte", np.clip(images, 0, 255))
            _idx(raw / f"{name}-labels-idx1-ubyte", labels)

    return make


def _idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def images(where: str, train: int, val: int, size: int) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        from PIL import Image

        draw = np.random.default_rng(0)
        for part, count in (("train", train), ("val", val)):
            for at in range(count):
                folder = root / where / part / f"class{at % 2}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(folder / f"{at}.png")

    return make


def words(root: Path) -> None:
    """Tokens as nanoGPT reads them, and the size of their vocabulary as its prepare.py writes it."""
    import pickle

    folder = root / "data" / "tiny"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", 4000), ("val", 1000)):
        (np.cumsum(draw.integers(0, 5, count)) % 50).astype(np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 50, "itos": {}, "stoi": {}}))


def nothing(root: Path) -> None:
    (root / "results").mkdir(exist_ok=True)


def vae(root: Path) -> None:
    mnist("data", 640, 128)(root)
    (root / "vae" / "results").mkdir()


PYTHON = sys.executable
CASES = {
    "mnist": Case(
        "pytorch+examples", ["mnist/main.py"], "mnist",
        ["main.py", "--no-accel", "--epochs", "3", "--batch-size", "8", "--log-interval", "3", "--save-model"],
        120, mnist("data", 320, 100),
    ),
    "nanogpt": Case(
        "karpathy+nanoGPT", ["train.py", "model.py", "configurator.py"], ".",
        ["train.py", "--dataset=tiny", "--device=cpu", "--compile=False", "--dtype=float32", "--n_layer=2",
         "--n_head=2", "--n_embd=32", "--block_size=16", "--batch_size=4", "--gradient_accumulation_steps=2",
         "--max_iters=120",
         "--eval_interval=20", "--eval_iters=3", "--dropout=0.1", "--warmup_iters=10", "--lr_decay_iters=120"],
        120, words, [r"time [0-9.]+ms, mfu [-0-9.]+%"],
    ),
    "vae": Case(
        "pytorch+examples", ["vae/main.py"], "vae",
        ["main.py", "--no-accel", "--epochs", "2", "--batch-size", "16", "--log-interval", "5"],
        80, vae, held_out=True,
    ),
    "mingpt": Case(
        "karpathy+minGPT", ["mingpt", "projects/adder/adder.py"], ".",
        ["projects/adder/adder.py", "--trainer.max_iters=80", "--trainer.batch_size=8", "--trainer.num_workers=1"],
        80, nothing, [r"iter_dt [0-9.]+ms"], held_out=True,
    ),
    "imagenet": Case(
        "pytorch+examples", ["imagenet/main.py"], "imagenet",
        ["main.py", "--no-accel", "--seed", "1", "-a", "shufflenet_v2_x0_5", "--epochs", "2", "-b", "4", "-j", "1",
         "-p", "1", "../images"],
        20, images("images", 40, 8, 64), [r"(Time|Data) +[0-9.]+ \( *[0-9.]+\)"], held_out=True,
    ),
    "fabric": Case(
        "Lightning-AI+pytorch-lightning", ["examples/fabric/image_classifier/train_fabric.py"],
        "examples/fabric/image_classifier",
        ["train_fabric.py", "--epochs", "2", "--batch-size", "8", "--log-interval", "3"],
        80, mnist("Datasets", 320, 100),
    ),
    "timm": Case(
        "huggingface+pytorch-image-models", ["timm", "train.py"], ".",
        ["train.py", "--data-dir", "images", "--model", "test_resnet", "--img-size", "64", "-b", "4", "--epochs", "2",
         "--warmup-epochs", "0", "--cooldown-epochs", "0", "-j", "1", "--num-classes", "2", "--device", "cpu",
         "--log-interval", "1", "--seed", "1", "--output", "output", "--experiment", "tiny"],
        20, images("images", 40, 8, 64), [r"Time: .*?(?=LR)", r"Data: .*", r"Time: [0-9.]+ \([0-9.]+\)"],
    ),
    "ppo": Case(
        "vwxyzjn+cleanrl", ["cleanrl/ppo.py"], "cleanrl",
        ["ppo.py", "--no-cuda", "--total-timesteps", "3072", "--num-steps", "64", "--num-envs", "2"],
        384, nothing, [r"SPS: [0-9]+"],
    ),
}  # fmt: skip


# -- runs ----------------------------------------------------------------------------------------------------------


def on_cuda(command: list[str]) -> list[str]:
    """The same command on a GPU: these scripts take one by themselves unless they are told not to."""
    words = [word for word in command if word not in ("--no-accel", "--no-cuda")]
    return ["cuda" if word == "cpu" else word.replace("--device=cpu", "--device=cuda") for word in words]


def take(sources: Path, target: Path) -> None:
    """The files of all cases, as they lie in their repositories."""
    for case in CASES.values():
        _files(case, sources, target / case.source / "files")


def prepare(case: Case, sources: Path, root: Path) -> Path:
    root.mkdir(parents=True)
    taken = sources / case.source / "files"
    if taken.is_dir():
        for name in case.paths:
            copy = shutil.copytree if (taken / name).is_dir() else shutil.copy
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            copy(taken / name, root / name)
    else:
        _files(case, sources, root)
    case.data(root)
    return root / case.folder


def _files(case: Case, sources: Path, root: Path) -> None:
    git = ["git", "-C", str(sources / case.source / "repo")]
    listed = [*git, "ls-tree", "-r", "--name-only", SOURCES[case.source], *case.paths]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines():
        content = subprocess.run([*git, "show", f"{SOURCES[case.source]}:{name}"], check=True, capture_output=True)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.stdout)


def environment(case: Case, root: Path, record: Path) -> dict[str, str]:
    path = [str(HERE / "jobs" / "exact_recorder"), str(root), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(each for each in path if each),
        "RECORD_TO": str(record),
        "RECORD_OF": Path(case.command[0]).name,
        "OMP_NUM_THREADS": "1",
        "HOLDFAST_STATE": str(root / "state"),
    }


def alone(case: Case, sources: Path, scratch: Path, name: str = "alone") -> dict[str, Any]:
    root = scratch / name
    folder = prepare(case, sources, root)
    record = root / "weights"
    began = time.monotonic()
    done = subprocess.run(
        [PYTHON, *case.command], cwd=folder, env=environment(case, root, record), capture_output=True, timeout=PATIENCE
    )
    return _seen(case, record, done.returncode, done.stdout, done.stderr, began)


def exact(case: Case, sources: Path, scratch: Path, kills: list[int], seed: int) -> dict[str, Any]:
    root = scratch / ("killed" if kills else "quiet")
    folder = prepare(case, sources, root)
    record, runs = root / "weights", root / "runs"
    command = [PYTHON, "-m", "holdfast", "run", "--exact", f"run.folder={runs}", "retry.without_progress=100", "--"]
    began = time.monotonic()
    with open(root / "stdout.txt", "wb") as out, open(root / "stderr.txt", "wb") as err:
        process = subprocess.Popen(
            [*command, PYTHON, *case.command], cwd=folder, env=environment(case, root, record), stdout=out, stderr=err
        )
        killed = _kill_at(process, runs, kills, random.Random(seed))
    out_bytes, err_bytes = (root / "stdout.txt").read_bytes(), (root / "stderr.txt").read_bytes()
    seen = _seen(case, record, process.returncode, out_bytes, err_bytes, began)
    receipt = next(runs.glob("*/receipt.json"), None)
    kept = json.loads(receipt.read_text()) if receipt is not None else {}
    keys = ("exact", "steps", "steps_repeated", "lost_s", "exact_cost", "exact_reason")
    said = [line for line in err_bytes.decode(errors="replace").splitlines() if line.startswith("holdfast")]
    return {**seen, "killed_at": killed, "said": said, "receipt": {key: kept.get(key) for key in keys}}


def _kill_at(process: subprocess.Popen[bytes], runs: Path, steps: list[int], draw: random.Random) -> list[int]:
    """SIGKILL to the process that trains when it comes to each of these steps, a little later at random."""
    waiting, killed, gone = sorted(steps), [], set()
    while process.poll() is None:
        time.sleep(0.005)
        board = next(runs.glob("*/script/board"), None) if waiting else None
        if board is None:
            continue
        try:
            page = struct.unpack("8q", board.read_bytes()[:64])
        except (OSError, struct.error):
            continue
        pid, step = page[2], page[7]
        if pid and pid not in gone and step >= waiting[0]:
            time.sleep(draw.random() * 0.1)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            gone.add(pid)
            killed.append(step)
            waiting.pop(0)
    return killed


def _seen(case: Case, record: Path, code: int, out: bytes, err: bytes, began: float) -> dict[str, Any]:
    lines = [_masked(case, line) for line in out.decode(errors="replace").splitlines()]
    weights = record.read_text() if record.exists() else None
    seconds = round(time.monotonic() - began, 1)
    tail = err.decode(errors="replace")[-1500:] if code else ""
    return {"exit_code": code, "weights": weights, "lines": lines, "seconds": seconds, "stderr": tail}


def _masked(case: Case, line: str) -> str:
    for mask in case.masks:
        line = re.sub(mask, "~", line)
    return line


def measure(name: str, sources: Path, scratch: Path, kills: int, seed: int, device: str) -> dict[str, Any]:
    case = CASES[name]
    if device != "cpu":
        case = replace(case, command=on_cuda(case.command))
    draw = random.Random(f"{name} {seed}")
    points = sorted(draw.sample(range(1, case.steps), min(kills, case.steps - 1)))
    folder = scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    runs = {"alone": alone(case, sources, folder), "quiet": exact(case, sources, folder, [], seed)}
    if device != "cpu":
        runs["twice"] = alone(case, sources, folder, "twice")
    runs["killed"] = exact(case, sources, folder, points, seed)
    wanted = runs["alone"]
    verdict = {
        f"{kind}_{what}": runs[kind][what] == wanted[what] and wanted["weights"] is not None
        for kind in runs
        if kind != "alone"
        for what in ("weights", "lines")
    }
    other = [pair for pair in zip(wanted["lines"], runs["killed"]["lines"], strict=False) if pair[0] != pair[1]]
    row = {"source": case.source, "commit": SOURCES[case.source], "command": case.command, "held_out": case.held_out}
    short = {kind: {key: each for key, each in run.items() if key != "lines"} for kind, run in runs.items()}
    lines = {kind: len(run["lines"]) for kind, run in runs.items()}
    return {**row, **verdict, "lines": lines, "other_lines": other[:3], "masked": case.masks, **short}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--take", type=Path, metavar="FOLDER", help="copy the files of all cases there, and run nothing"
    )
    args = parser.parse_args()
    if args.take is not None:
        take(args.sources, args.take)
        return 0
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="exact-"))
    for name in args.cases.split(","):
        row = measure(name, args.sources, scratch, args.kills, args.seed, args.device)
        known = json.loads(args.results.read_text()) if args.results.exists() else {"schema": 1, "cases": {}}
        known["cases"][name] = row
        args.results.write_text(json.dumps(known, indent=1) + "\n")
        equal = {
            key: each for key, each in row.items() if key.endswith(("_weights", "_lines")) and key != "other_lines"
        }
        print(name, equal, "killed at", row["killed"]["killed_at"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
