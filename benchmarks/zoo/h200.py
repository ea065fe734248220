"""The sentinel on a real GPU: the zoo, planted errors, the time of a step. A part at a time, each within minutes.

    python -m benchmarks.zoo.h200 zoo --limit 400 --out DIR            # 14 processes: the GPU computes, CPUs compare
    python -m benchmarks.zoo.h200 times --limit 300 --out DIR          # runs of `holdfast train`, one after the other
    python -m benchmarks.zoo.h200 zoo --limit 30 --device cpu --networks mlp,gru --workers 1     # does this file work?

A line of JSON for each item as it comes; sentinel-PART.json in DIR has all of them. What fails is a row that says so.
`.packages` in the root of the project may hold packages that the machine lacks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(ROOT)]

from benchmarks.zoo import crowd, steps  # noqa: E402

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MODELS = ("mlp:10", "cnn:12", "gpt10:15", "gpt124:20", "gpt350:25", "gpt774:45")
Row = dict[str, Any]


def zoo(words: argparse.Namespace, scratch: Path) -> list[Row]:
    from benchmarks.zoo.networks import large_names, names

    chosen = words.networks.split(",") if words.networks else [*(large_names() if words.large else []), *names()]
    cases = scratch / "cases"
    cases.mkdir()
    items = [
        {"do": "looks", "network": name, "precision": precision, "channels_last": last, "device": words.device,
         "looks": words.looks, "keep": str(cases), "seed": words.seed}
        for last in (False, True) for precision in words.precisions.split(",") for name in chosen
        if not last or _has_images(name)
    ]  # fmt: skip
    rows = crowd.through(items, workers=words.workers, limit=words.limit)
    _pack(cases, words.out / "cases.tar.gz")
    return rows


def _has_images(name: str) -> bool:
    from benchmarks.zoo.networks import image_names

    return name in image_names()


def _pack(folder: Path, file: Path, most: int = 14 << 20) -> None:
    """Operators that disagreed, the smallest first, as many as fit into what comes back."""
    left = most
    with tarfile.open(file, "w:gz") as pack:
        for each in sorted(folder.iterdir(), key=lambda path: path.stat().st_size):
            left -= each.stat().st_size
            if left > 0:
                pack.add(each, each.name)


def times(words: argparse.Namespace, scratch: Path) -> list[Row]:
    """One run of each model, with its seconds of training: `gpt774:45`."""
    until = time.monotonic() + words.limit
    rows = []
    for each in words.models.split(","):
        model, _, seconds = each.partition(":")
        left = until - time.monotonic()
        try:
            row = steps.timed(model, device=words.device, seconds=float(seconds or 20), scratch=scratch, most=left)
        except Exception as error:
            row = {"model": model, "failed": f"{type(error).__name__}: {error}"}
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "steps_ms"}), flush=True)
    return rows


def planted(words: argparse.Namespace, scratch: Path) -> list[Row]:
    """Every kind in every network; then the curve of detection against size."""
    from benchmarks.zoo import planted as kinds

    networks = words.networks.split(",") if words.networks else kinds.NETWORKS
    items: list[Row] = [
        {"do": "planted", "network": network, "kind": kind, "seed": number + 7 * place, "looks": 50,
         "precision": "fp32" if kind in kinds.SMALL else ("fp32", "bf16", "fp16")[(number + place) % 3]}
        for number, kind in enumerate(kinds.KINDS) for place, network in enumerate(networks)
    ]  # fmt: skip
    items += [
        {"do": "curve", "network": network, "family": family, "precision": precision, "seed": seed}
        for precision in ("fp32", "bf16") for family in kinds.FAMILIES for seed, network in enumerate(networks[1::2])
    ]  # fmt: skip
    items = [{**item, "device": words.device} for item in items[:: words.every]]
    return crowd.through(items, workers=words.workers, limit=words.limit)


def silence(words: argparse.Namespace, scratch: Path) -> list[Row]:
    """Known answers in a fresh process, on a right device and a broken one; and the probe of the doctor's quick set."""
    from benchmarks.zoo import silence as silent

    rows = silent.asked(words.device)
    from holdfast.devices.battery import run_one

    began = time.monotonic()
    try:
        result = run_one(words.device, "known answers")
        rows.append(
            {"probe": "known answers", "seconds": round(time.monotonic() - began, 2), "result": str(result)[:600]}
        )
    except Exception as error:
        rows.append({"probe": "known answers", "failed": f"{type(error).__name__}: {error}"})
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def compiled(words: argparse.Namespace, scratch: Path) -> list[Row]:
    """torch.compile below the recorder."""
    rows = []
    for model in words.models.split(","):
        row = steps.timed(
            model, device=words.device, seconds=20.0, scratch=scratch, most=words.limit, words=("compiled=true",)
        )
        rows.append({**row, "compiled": True})
        print(json.dumps(rows[-1]), flush=True)
    return rows


PARTS = {"zoo": zoo, "times": times, "planted": planted, "silence": silence, "compiled": compiled}


def _summary(rows: list[Row]) -> Row:
    told = [row for row in rows if "failed" not in row]
    return {
        "items": len(rows), "failed": len(rows) - len(told),
        "networks": len({row["network"] for row in told if "network" in row}),
        "looks": sum(row.get("looks", 0) for row in told),
        "compared": sum(row.get("compared", 0) for row in told if isinstance(row.get("compared"), int)),
        "suspicions": sum(len(row.get("suspicions", ())) for row in told),
        "confirmed": sum(row["confirmed"] for row in told if isinstance(row.get("confirmed"), int)),
        **_of_planted([row for row in told if "kind" in row and "found" in row and not row.get("none")]),
    }  # fmt: skip


def _of_planted(rows: list[Row]) -> Row:
    found = [row for row in rows if row["found"]]
    cut = sum(bool(row.get("late")) for row in rows)
    return {"planted": len(rows), "found": len(found), "named": sum(row["named"] for row in found),
            "cut by time": cut} if rows else {}  # fmt: skip


def _machine(device: str) -> Row:
    import torch

    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) >> 20
    there = {"gpu": torch.cuda.get_device_name()} if device.startswith("cuda") else {}
    return {**there, "cores": os.cpu_count(), "memory_gib": memory, "torch": torch.__version__,
            "python": platform.python_version(), "kernel": platform.release()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--limit", type=float, default=420.0, help="seconds")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--networks", default="")
    parser.add_argument("--large", action="store_true", help="networks of usual size, too")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--every", type=int, default=1, help="of the planted errors, one in so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = PARTS[words.part](words, Path(folder))
    told = {
        "date": datetime.date.today().isoformat(), "command": f"python -m benchmarks.zoo.h200 {' '.join(sys.argv[1:])}",
        "machine": _machine(words.device), "seconds": round(time.monotonic() - began, 1), "summary": _summary(rows),
        "rows": rows,
    }  # fmt: skip
    (words.out / f"sentinel-{words.part}.json").write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told["summary"]), flush=True)


if __name__ == "__main__":
    main()
