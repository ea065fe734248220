"""Run folders written by hand.

make_run(tmp_path)                     # as a supervisor leaves it: on cuda:0, hung once, moved to the CPU once
path = plain(tmp_path / "run")         # a run.json and nothing else
logged(path, at(1, loss=1.0), ...)     # more lines of metrics.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.run.folder import RunFolder, write_json

BEGAN = 1_794_733_924.0  # 2026-11-15T09:12:04Z
NOW = BEGAN + 3720.0


def stamp(second: float) -> str:
    from datetime import datetime, timezone

    when = datetime.fromtimestamp(BEGAN + second, timezone.utc)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


EVENTS: list[tuple[float, str, dict[str, Any]]] = [
    (0, "start", {"device": "cuda:0", "step": 0}),
    (8, "worker", {"device": "cuda:0", "generation": 0, "pid": 71, "torch": "2.8.0"}),
    (600, "fault", {"code": "F005", "kind": "hang", "device": "cuda:0", "step": 400, "phase": "backward",
                    "sentence": "cuda:0 stopped answering at step 400 in backward", "action": "replace",
                    "reason": "new worker on cuda:0, try 1 of 3", "folder": "runs/x/faults/01"}),
    (617, "worker", {"device": "cuda:0", "generation": 1, "pid": 72}),
    (617, "verdict", {"code": "F005", "blame": "device", "folder": "runs/x/faults/01",
                      "sentence": "the device is to blame: the CPU computed the step"}),
    (617, "recovered", {"step": 400, "seconds": 17.0, "lost_s": 18.0}),
    (1900, "checkpoint", {"step": 1000, "path": "runs/x/checkpoints/001000"}),
    (2332, "fault", {"code": "F004", "kind": "device_lost", "device": "cuda:0", "step": 1471, "phase": "forward",
                     "sentence": "cuda:0 was lost at step 1 471 in forward", "action": "next_rung",
                     "reason": "cuda:0 → cpu", "folder": "runs/x/faults/02"}),
    (2332, "moved", {"step": 1470, "before": "cuda:0", "after": "cpu", "device": "cpu"}),
    (2340, "worker", {"device": "cpu", "generation": 2, "pid": 73}),
    (2341, "recovered", {"step": 1471, "seconds": 9.0, "lost_s": 9.5}),
    (3682, "checkpoint", {"step": 1900, "path": "runs/x/checkpoints/001900"}),
]  # fmt: skip

READINGS = {
    "devices": [
        {
            "device": "cuda:0",
            "name": "AMD Radeon RX 7900 XTX",
            "load_pct": 0.0,
            "memory_used_bytes": 1.2e9,
            "memory_total_bytes": 24.0e9,
            "temperature_c": 48.0,
            "power_w": 22.0,
        },
        {
            "device": "cpu",
            "name": "AMD Ryzen 9 7950X 16-Core Processor",
            "load_pct": 94.0,
            "memory_used_bytes": 11.2e9,
            "memory_total_bytes": 64.0e9,
            "temperature_c": 78.0,
            "power_w": 142.0,
        },
    ],
    "disk_free_bytes": 412e9,
}


def make_run(root: Path, state: str = "RUNNING", *, name: str = "calm-heron", **info: Any) -> RunFolder:
    path = root / f"eeg-20261115-0912-{name}"
    for part in ("checkpoints/001900", "faults/01", "faults/02"):
        (path / part).mkdir(parents=True)
    write_json(path / "faults/01/fault.json", {"fault": {"evidence": {"silence_s": 91.0, "limit_s": 90.0}}})
    (path / "faults/01/stderr.txt").write_text("")
    known = {"schema": 1, "format": 1, "run": name, "workload": "eeg", "created": stamp(0), "device": "cpu"}
    write_json(path / "run.json", {**known, "threads": 16, "state": state, "boot_id": "elsewhere", **info})
    lines = [json.dumps({"time": stamp(second), "event": kind, **data}) for second, kind, data in EVENTS]
    (path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    metrics = []
    for epoch in range(19):
        values = {"train_loss": 0.69 * 0.965**epoch, "valid_bacc": 0.56 + 0.3 * (1 - 0.87**epoch)}
        metrics.append({"time": stamp(190 * (epoch + 1)), "step": 100 * (epoch + 1), "epoch": epoch, **values})
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    beat = {
        "time": stamp(3719.2), "device": "cpu", "phase": "backward", "step": 1943, "steps_total": 6000, "epoch": 19,
        "epochs": 60, "rate": 0.53, "time_left_s": 7680.0, "recoveries": 2, "readings": READINGS, "loaders": 0,
        "recent_s": {"data": 6.0, "forward": 20.0, "backward": 32.0, "optimizer": 2.0},
    }  # fmt: skip
    write_json(path / "beat.json", beat)
    (path / "output.log").write_text("loading 128 subjects\nepoch 1 done\nwarning: channel Cz is flat\nepoch 2 done\n")
    return RunFolder(path)


def plain(path: Path, **info: object) -> Path:
    path.mkdir(parents=True)
    write_json(path / "run.json", {"schema": 1, "format": 1, "run": path.name, "state": "STOPPED", **info})
    return path


def logged(path: Path, *records: dict[str, object]) -> None:
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({"time": stamp(0), **record}) + "\n")


def at(step: int, epoch: int = 0, **values: object) -> dict[str, object]:
    return {"step": step, "epoch": epoch, **values}
