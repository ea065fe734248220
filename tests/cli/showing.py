"""What a face is given to show: a header, a history of events, a beat, and a screen."""

from __future__ import annotations

from typing import TextIO

from holdfast.cli.faces import Header
from holdfast.console.output import Screen
from holdfast.run.events import Event

HEADER = Header(
    "0.1.0", "calm-heron", "calm-heron", "eeg", "runs/eeg-20261115-0912-calm-heron", "cuda:0 fp32", 7, ["lr=3e-4"]
)

HISTORY = """
{"time": "2026-11-15T09:12:04.118Z", "event": "start", "run": "calm-heron"}
{"time": "2026-11-15T09:12:09.000Z", "event": "worker", "generation": 0, "pid": 71, "device": "cuda:0"}
{"time": "2026-11-15T09:15:12.000Z", "event": "log", "step": 8, "epoch": 0, "values": {"train_loss": 0.6931}}
{"time": "2026-11-15T09:15:12.001Z", "event": "log", "step": 8, "epoch": 0, "values": {"valid_bacc": 0.563}}
{"time": "2026-11-15T09:15:13.500Z", "event": "epoch", "epoch": 0, "step": 8, "best": true, "device": "cuda:0"}
{"time": "2026-11-15T09:22:09.700Z", "event": "fault", "code": "F005", "kind": "hang", "device": "cuda:0", "step": 12,
 "phase": "backward", "sentence": "cuda:0 stopped answering at step 12 in backward", "action": "replace",
 "reason": "new worker on cuda:0 fp32, try 1 of 3", "folder": "runs/x/faults/01"}
{"time": "2026-11-15T09:22:28.000Z", "event": "recovered", "step": 12, "seconds": 19.2, "lost_s": 20.0}
{"time": "2026-11-15T09:23:00.000Z", "event": "fault", "code": "F009", "kind": "unsupported", "device": "cuda:0",
 "step": 13, "sentence": "cuda:0 cannot run this with the installed torch at step 13", "action": "next_rung",
 "reason": "cuda:0 fp32 → cpu fp32", "folder": "runs/x/faults/02"}
{"time": "2026-11-15T09:23:00.100Z", "event": "moved", "step": 12, "before": "cuda:0 fp32", "after": "cpu fp32"}
{"time": "2026-11-15T09:24:00.000Z", "event": "note", "text": "memory: trying 2 pieces again"}
{"time": "2026-11-15T09:25:00.000Z", "event": "stopping", "signal": "SIGINT", "step": 3900}
{"time": "2026-11-15T09:25:01.000Z", "event": "end", "state": "STOPPED", "exit_code": 130, "step": 3900,
 "error": {"message": "stopped at step 3900", "saved": "step 3900 in runs/x"}}
"""

BEAT = {
    "time": "2026-11-15T09:33:00.000Z",
    "phase": "backward",
    "epoch": 6,
    "epochs": 60,
    "batch": 492,
    "batches": 1200,
    "step": 7692,
    "steps_total": 72000,
    "rate": 6.4,
    "time_left_s": 10080.0,
    "loss": 0.51,
    "progress": None,
}


def history() -> list[Event]:
    records = HISTORY.replace("\n {", "\n{").replace(",\n ", ", ").strip().splitlines()
    events = [Event.from_line(line) for line in records]
    assert all(events) and len(events) == 12
    return [event for event in events if event]


def screen(stream: TextIO, *, unicode: bool = True) -> Screen:
    return Screen(stream, color=False, unicode=unicode, tty=True, width=80)
