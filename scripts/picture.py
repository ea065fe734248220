#!/usr/bin/env python3
"""Draws docs/one-run.svg: one training that is hit ten times, and the curve of the same training in peace behind it.

    python scripts/picture.py                 # about two minutes on two cores; both runs are real

The job is the one of examples/windows.py, with a number for every step; this file is its script, too. Nothing is drawn
unless all faults came and the weights are those of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

from pages import ROOT

sys.path.insert(0, str(ROOT / "examples"))

FAULTS = {
    "sigkill@24": "kill -9",
    "oom@48": "out of memory",
    "segfault@72": "segfault",
    "hang_gil@96": "hang",
    "oom_in_step@120": "out of memory in step()",
    "abort@144": "abort()",
    "sigstop@168": "SIGSTOP",
    "exit@192": "os._exit(3)",
    "nursery_kill@216": "nursery killed",
    "supervisor_kill@240": "supervisor killed",
}
PLACE = "docs/one-run.svg"
WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 128, 74
SMOOTH = 0.6


def train(session: Any) -> None:
    """The job: examples/windows.py, with the loss of every step."""
    import torch
    import windows
    from torch import nn

    import holdfast

    model = windows.Windows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    data = holdfast.Loader(windows.Recordings(640), batch_size=16, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(7):
        for batch in session.batches(data):
            session.log(loss=session.step(lambda b: nn.functional.mse_loss(model(b[0]), b[1]), batch, clip=1.0))


def main() -> int:
    from holdfast.injection.chaos import FaultPlan
    from holdfast.testing import experiment

    with tempfile.TemporaryDirectory(prefix="holdfast-picture-") as place:
        words = ["watchdog.floor=2s", "run.threads=1"]
        plan = FaultPlan.parse(",".join(FAULTS))
        result = experiment.run(
            Path(__file__).resolve(), words, lambda _: plan, runs=Path(place), references=1, say=print
        )
        receipt = result.receipt
        wrong = [key for key in ("steps_lost", "samples_skipped", "samples_repeated") if receipt[key]]
        if receipt["faults_injected"] != len(FAULTS) or not receipt["weights_equal"] or wrong:
            print(f"error: that was no run to show: {json.dumps(receipt, indent=1)}")
            return 1
        curves = [_curve(Path(each["folder"])) for each in (result.references[0], result.summary)]
    (ROOT / PLACE).write_text(picture(*curves, receipt), encoding="utf-8", newline="\n")
    print(PLACE)
    return 0


def _curve(folder: Path) -> list[tuple[int, float]]:
    """Step and loss, smoothed; each step once, as the run folder has it."""
    found, held = [], None
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        held = row["loss"] if held is None else SMOOTH * held + (1 - SMOOTH) * row["loss"]
        found.append((int(row["step"]), float(held)))
    return found


def picture(peace: list[tuple[int, float]], hit: list[tuple[int, float]], receipt: dict[str, Any]) -> str:
    """The whole SVG."""
    steps, losses = peace[-1][0], [loss for _, loss in (*peace, *hit)]
    top, low = math.ceil(math.log10(max(losses))), math.floor(math.log10(min(losses)))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(step: float, loss: float) -> str:
        share = (math.log10(loss) - low) / (top - low)
        return f"{LEFT + wide * step / steps:.1f},{TOP + high * (1 - share):.1f}"

    def line(curve: list[tuple[int, float]], name: str) -> str:
        return f'<polyline class="{name}" points="{" ".join(at(*point) for point in curve)}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="'
        f'The loss of one run with {len(FAULTS)} faults lies on that of the same run without any">',
        _STYLE,
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        f'<text class="title" x="{LEFT}" y="32">One run, {len(FAULTS)} faults, one curve</text>',
    ]
    for power in range(low, top + 1):
        x, y = at(0, 10.0**power).split(",")
        parts.append(f'<line class="grid" x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(
            f'<text class="axis" x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    for step in range(0, steps + 1, 40):
        x = at(step, 1).split(",")[0]
        parts.append(f'<text class="axis" x="{x}" y="{TOP + high + 18}" text-anchor="middle">{step}</text>')
    for fault, name in FAULTS.items():
        x = float(at(int(fault.partition("@")[2]), 1).split(",")[0])
        parts.append(f'<line class="fault" x1="{x}" y1="{TOP}" x2="{x}" y2="{TOP + high}"/>')
        parts.append(f'<circle class="dot" cx="{x}" cy="{TOP}" r="3.5"/>')
        parts.append(f'<text class="label" transform="translate({x + 3} {TOP - 8}) rotate(-32)">{escape(name)}</text>')
    parts += [line(peace, "peace"), line(hit, "hit")]
    parts += [f'<text class="axis" x="{WIDTH - RIGHT}" y="{TOP + high + 36}" text-anchor="end">step</text>']
    parts += _legend(TOP + high + 36)
    seconds = receipt["recovery_s"]["p50"]
    told = (
        f"{steps} steps, {receipt['steps_lost']} lost; every sample once; weights equal bit for bit; "
        f"from a death to the next step {seconds:.2f} s (median)"
    )
    made = f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, CPU; python scripts/picture.py"
    parts.append(f'<text class="axis" x="{LEFT}" y="{HEIGHT - 14}">{escape(told)}</text>')
    parts.append(f'<text class="small" x="{WIDTH - RIGHT}" y="32" text-anchor="end">{escape(made)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _legend(y: float) -> list[str]:
    return [
        f'<line class="peace" x1="{LEFT}" y1="{y - 4}" x2="{LEFT + 28}" y2="{y - 4}"/>',
        f'<text class="axis" x="{LEFT + 36}" y="{y}">undisturbed</text>',
        f'<line class="hit" x1="{LEFT + 130}" y1="{y - 4}" x2="{LEFT + 158}" y2="{y - 4}"/>',
        f'<text class="axis" x="{LEFT + 166}" y="{y}">hit by a fault at each mark (loss, smoothed)</text>',
    ]


_STYLE = """<style>
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
.title { font-size: 18px; font-weight: 600; }
.label { font-size: 12px; fill: #a40e26; }
.axis { font-size: 12px; fill: #57606a; }
.small { font-size: 11px; fill: #57606a; }
.card { fill: #ffffff; stroke: #d0d7de; }
.grid { stroke: #eaeef2; }
.fault { stroke: #cf222e; stroke-dasharray: 2 4; stroke-opacity: .7; }
.dot { fill: #cf222e; }
.peace { fill: none; stroke: #9ecbff; stroke-width: 7; stroke-linejoin: round; stroke-linecap: round; }
.hit { fill: none; stroke: #0a3069; stroke-width: 1.6; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .axis, .small { fill: #9198a1; } .label { fill: #ff7b72; }
  .card { fill: #0d1117; stroke: #3d444d; } .grid { stroke: #21262d; }
  .peace { stroke: #1f4b7a; } .hit { stroke: #a5d6ff; }
}
</style>"""

if __name__ == "__main__":
    sys.exit(main())
