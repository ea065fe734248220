"""Verdicts that are kept: for 30 days, and as long as nothing changes that they depend on.

    kept = Verdicts()                                # in the user's state folder
    kept.put(verdict)
    kept.get("cuda:0").verdict                       # None if there is none, or it no longer holds
    kept.get("cuda:0").stale                         # "it failed in a run since (F010)": probe it again

A verdict holds for a device, its driver, this torch, this kernel and the variables that change how a device computes.
A fault in a run makes it stale: its remedies are still better than none, its trust is gone. The file is read as if
a stranger had written it; what is not a verdict is passed over. No torch here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.base.files import read_json, write_json
from holdfast.base.folders import make_private
from holdfast.devices.identity import DeviceId
from holdfast.devices.ledger import Ledger, software
from holdfast.devices.ledger_summary import BLAMED, INNOCENT, Line
from holdfast.devices.verdict import TRAINABLE, Verdict

FILE = "verdicts.json"
DAYS = 30
_MOST = 200
"""Verdicts in the file: this machine's, under every software it had."""
_BEARS = re.compile(
    r"CUDA_\w+|NVIDIA_TF32_OVERRIDE|HIP_\w+|ROCR_\w+|HSA_\w+|AMD_\w+|GPU_\w+|MIOPEN_\w+|ROCBLAS_\w+|HIPBLASLT_\w+"
    r"|ZE_\w+|ONEAPI_DEVICE_SELECTOR|PYTORCH_\w+|TORCH_\w+|DISABLE_ADDMM_CUDA_LT|ONEDNN_\w+|ATEN_CPU_CAPABILITY"
    r"|HOLDFAST_REMEDIES|HOLDFAST_PRETEND"
)
"""Variables that change what a device computes, or which one it is."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known about a device from earlier."""

    verdict: Verdict | None = None
    stale: str = ""
    """Why it should be probed again; empty if it holds."""
    age_s: float | None = None

    @property
    def holds(self) -> bool:
        return self.verdict is not None and not self.stale


def conditions(device: DeviceId, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a verdict depends on. Read from files: `train` asks this at every start."""
    env = os.environ if env is None else env
    bears = {name: value for name, value in sorted(env.items()) if _BEARS.fullmatch(name)}
    return {**software(device), "environment": bears, "holdfast": __version__}


class Verdicts:
    """The user's file of verdicts."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        ledger: Ledger | None = None,
        env: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.time,
        conditions: Callable[[DeviceId, Mapping[str, str] | None], dict[str, Any]] = conditions,
    ) -> None:
        self.ledger = Ledger(folder) if ledger is None else ledger
        self.path = self.ledger.folder / FILE
        self.problem: str | None = None
        """Why the last one could not be written."""
        self._env = env
        self._now = now
        self._conditions = conditions

    def get(self, label: str) -> Kept:
        """The verdict on a device as it is now."""
        device = self.ledger.identify(label)
        wanted = self._conditions(device, self._env)
        for record in reversed(self._records()):
            verdict = Verdict.from_json(record.get("verdict"))
            same = record.get("machine") == self.ledger.machine and record.get("device") == device.key
            if verdict is None or not same or record.get("conditions") != wanted:
                continue
            measured = _seconds(verdict.measured_at)
            age = None if measured is None else self._now() - measured
            if age is None or not 0 <= age <= DAYS * 86400:
                return Kept()
            since = self._lines_since(device, measured or 0.0)
            if any(line.kind == "forget" for line in since):  # what was held against it is not to count any more
                return Kept()
            return Kept(replace(verdict, device=label), _fault_in(since, device, verdict), age)
        return Kept()

    def put(self, verdict: Verdict) -> Verdict:
        """Keep it; one that was measured under the same conditions is replaced. Returns it with what it holds for.

        One that was measured before, and to which something was added since, is as old as it was.
        """
        device = self.ledger.identify(verdict.device)
        holds_for = self._conditions(device, self._env)
        said = {name: holds_for.get(name) for name in ("driver", "torch", "kernel", "environment")}
        now = datetime.fromtimestamp(self._now(), timezone.utc)
        stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        verdict = replace(verdict, measured_at=verdict.measured_at or stamp, valid_while=said)
        new = {
            "machine": self.ledger.machine,
            "device": device.key,
            "conditions": holds_for,
            "verdict": verdict.to_json(),
        }
        others = [
            record
            for record in self._records()
            if any(record.get(name) != new[name] for name in ("machine", "device", "conditions"))
        ]
        try:
            make_private(self.path.parent)
            write_json(self.path, {"schema": 1, "verdicts": [*others, new][-_MOST:]})
            self.problem = None
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror or error}"
        return verdict

    def _records(self) -> list[dict[str, Any]]:
        listed = (read_json(self.path) or {}).get("verdicts")
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []

    def _lines_since(self, device: DeviceId, since: float) -> list[Line]:
        """What the ledger says about this device from then on."""
        mine = [
            line for line in self.ledger.lines() if (line.machine, line.device) == (self.ledger.machine, device.key)
        ]
        return [line for line in mine if (_seconds(line.time) or 0.0) >= since]


def _fault_in(lines: Sequence[Line], device: DeviceId, verdict: Verdict) -> str:
    """A refusal needs no further proof; what may train loses its trust by one fault that is its own."""
    if verdict.state not in TRAINABLE or device.on_cpu:
        return ""
    bad: list[str] = []
    for line in lines:
        if _acquits(line) and bad:
            bad.pop()
        elif _accuses(line):
            bad.append(str(line.facts().get("code") or line.text("why") or line.facts().get("why") or "a fault"))
    return f"it failed in a run since ({bad[-1]})" if bad else ""


def _accuses(line: Line) -> bool:
    """A fault that is the device's, or a boot that ended with it in use."""
    if line.kind == "settled":
        return line.text("decision") in BLAMED
    return line.kind == "note" and line.text("what") == "fault" and line.facts().get("blame") not in INNOCENT


def _acquits(line: Line) -> bool:
    """The fault before it was somebody else's."""
    return line.kind == "note" and line.text("what") == "blame" and line.facts().get("verdict") in INNOCENT


def _seconds(stamp: str | None) -> float | None:
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() if stamp else None
    except ValueError:
        return None
