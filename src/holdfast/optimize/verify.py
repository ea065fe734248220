"""A bundle on this machine: are its bytes, its answers and its speed what they were where it was made?

verify(Path("bundle"))["ok"]          # digests, then the answers in a process of its own, then its latency

Nothing of the bundle is run but its operators, by the engine: its predict.py is code, and only looked at.

No torch here; the engine runs in a child, which may crash or hang.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base import files
from holdfast.optimize import bundle, measure, parity, pipeline
from holdfast.optimize.children import Child, Failed
from holdfast.optimize.engines import packages
from holdfast.optimize.processor import Machine
from holdfast.optimize.report import milliseconds

DEADLINE = 120.0


def verify(folder: Path, *, seconds: float = 1.0, deadline: float = DEADLINE) -> dict[str, Any]:
    """Check everything that can be checked without the model's source."""
    opened = bundle.open_bundle(folder)
    manifest = opened.manifest
    told = [f"✓ {len(manifest['files'])} files are what its manifest says ({manifest['name']}, {manifest['made']})"]
    others = _not_ours(opened)
    if others:
        told.append(f"! {', '.join(others)}: code that this holdfast did not write, nor run; read it before you do")
    inputs, wanted = bundle.kept(opened)
    result: dict[str, Any] = {
        "bundle": str(folder),
        "name": manifest["name"],
        "machine": Machine.look(packages()).to_json(),
    }
    result["code_of_others"] = others
    threads = int(manifest["threads"])
    with (
        pipeline.scratch() as work,
        Child.start(work, cache=work / "cache", threads=threads, module="holdfast.optimize.output_check") as child,
    ):
        try:
            loaded = child.ask({"do": "load", "folder": str(folder.resolve())}, deadline)
            times = measure.timed(child, 1, 200, seconds, deadline)
            answers = [np.array(each, dtype=np.float32) for each in child.ask({"do": "answers"}, deadline)["answers"]]
        except Failed as failed:
            return {**result, "ok": False, "lines": [*told, f"✗ it does not run here: {failed.why}"]}
    compared = (manifest.get("score") or {}).get("compared", ())
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


def _not_ours(opened: bundle.Bundle) -> list[str]:
    """Files of Python in a bundle that are not, byte for byte, what this holdfast writes into one like it."""
    ours = bundle.code(opened.manifest)

    def same(name: str) -> bool:
        return name in ours and files.read_bounded(opened.folder / name, 1 << 20) == ours[name]

    return [
        name for name in sorted(opened.manifest["files"]) if name.endswith((".py", ".pyc", ".so")) and not same(name)
    ]
