"""A bundle on this machine: are its bytes, its answers and its speed what they were where it was made?

verify(Path("bundle"))["ok"]          # digests, then the answers in a process of its own, then its latency

No torch here; the engine runs in a child, which may crash or hang.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import UserError
from holdfast.optimize import bundle, measure, parity
from holdfast.optimize.candidates import Machine
from holdfast.optimize.children import Child, Failed
from holdfast.optimize.report import milliseconds
from holdfast.workloads.data_files import open_npz

DEADLINE = 120.0


def verify(folder: Path, *, seconds: float = 1.0, deadline: float = DEADLINE) -> dict[str, Any]:
    """Check everything that can be checked without the model's source."""
    opened = bundle.open_bundle(folder)
    manifest = opened.manifest
    told = [f"✓ {len(manifest['files'])} files are what they were ({manifest['name']}, {manifest['made']})"]
    try:
        with open_npz(folder / bundle.CHECK) as kept:
            inputs = [kept[f"i{number}"] for number in range(len(manifest["inputs"]))]
            wanted = [kept[f"o{number}"] for number in range(len(manifest["outputs"]))]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{bundle.CHECK} of {folder} cannot be read", cause=str(error)[:200]) from None
    opened.check_inputs(inputs)
    result: dict[str, Any] = {"bundle": str(folder), "name": manifest["name"], "machine": Machine.look().to_json()}
    threads, module = int(manifest["threads"]), "holdfast.optimize.checking"
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-verify-") as cache,
        Child.start(folder, cache=Path(cache), threads=threads, module=module) as child,
    ):
        try:
            loaded = child.ask({"do": "load"}, deadline)
            times = measure.timed(child, 1, 200, seconds, deadline)
            answers = [np.array(each, dtype=np.float32) for each in child.ask({"do": "answers"}, deadline)["answers"]]
        except Failed as failed:
            return {**result, "ok": False, "lines": [*told, f"✗ it does not run here: {failed.why}"]}
    compared = manifest.get("score", {}).get("compared", ())
    found = parity.judge(
        wanted, answers, {}, {}, max_loss=max(0.005, float(manifest.get("max_loss") or 0)), compared=compared
    )
    p50 = measure.percentile(times, 0.5)
    there = (manifest.get("measured") or {}).get("p50")
    if found.ok:
        told.append(f"✓ {len(inputs[0])} kept inputs: the answers agree with the original's to {found.agreement:.5f}, "
                    f"the largest difference is {found.largest_error:.1e}")  # fmt: skip
    else:
        told.append(f"✗ {found.reason}")
    told.append(f"• {milliseconds(p50)} a call here (p95 {milliseconds(measure.percentile(times, 0.95))}); "
                f"{milliseconds(there)} where it was made")  # fmt: skip
    return {**result, "ok": found.ok, "reason": found.reason, "agreement": found.agreement, "p50": p50,
            "p50_there": there, "cold_s": loaded["cold_s"], "lines": told}  # fmt: skip
