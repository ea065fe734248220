"""The part `times` of bench.py: what a fault costs that is mended inside a worker, and what moving to a device does.

The chaos kit writes down when each fault came, and the job (jobs/small.py with `times=`) when each batch was there and
when each step was committed; a time here is the difference of two such lines. All settings are the defaults, except
that torch computes with one thread. A step is done again in these times, so the time of an undisturbed one is given.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from common import Bound, exactly, say, spread, train
from common import events as journal

from holdfast.injection.chaos import VARIABLE, FaultPlan

PHASES = ("forward", "backward", "optimizer")
PRETEND = "run.device=pretend:0"
"""An accelerator that computes on the CPU: what is measured is the way to the next device, not the device."""
DONE = {"out_of_memory": "retry", "loader_died": "retry", "loader_stuck": "retry"}
"""What the ladder does about them; the other rows are named by it."""


def times(scratch: Path, quick: bool) -> dict[str, Any]:
    """Out of memory, the batch in pieces, the batch on the CPU, the next device, a dead and a stuck loader child."""
    memory, moves, stops = (6, 1, 1) if quick else (60, 12, 12)
    return {
        "out_of_memory": out_of_memory(scratch / "memory", memory),
        **by_device(scratch / "devices", moves),
        "loader_died": loader(scratch / "died", "loader_kill", 2 * stops),
        "loader_stuck": loader(scratch / "stuck", "loader_stop", stops),
    }


def times_bounds(measured: dict[str, Any]) -> list[Bound]:
    """Times are what they are, but they have to be those of the right act."""
    return [exactly(f"{name}, what was done", row["done"], DONE.get(name, name)) for name, row in measured.items()]


def out_of_memory(scratch: Path, count: int) -> dict[str, Any]:
    """In forward, backward and in the middle of `optimizer.step()`: from the error to the commit of that step."""
    say(f"  {count} times out of memory")
    kinds = [f"oom:{phase}" for phase in PHASES[:2]] + ["oom_in_step:optimizer"]
    plan = []
    for number in range(count):
        kind, phase = kinds[number % 3].split(":")
        plan.append(f"{kind}@{8 * number + 5}:{phase}")
    seen = Seen(scratch, plan, [f"epochs={count * 8 // 100 + 1}"])
    return {
        **seen.row([seen.to_commit(number) for number in range(count)]),
        "undisturbed_step_s": seen.undisturbed(),
    }


def by_device(scratch: Path, count: int) -> dict[str, Any]:
    """On an accelerator: pieces, this batch on the CPU, and after two sticky errors at one step the next device."""
    rows: dict[str, list[Seen]] = {"cpu_batch": [], "split": [], "next_rung": []}
    for number in range(count):
        say(f"  run {number + 1} of {count} on a pretended device")
        # The batch of 16 is tried twice whole, in 2, 4, 8 and 16 pieces; later twice whole; then the device dies twice.
        plan = [*["oom@20"] * 6, *["oom@40"] * 2, *["device_assert@60"] * 2]
        seen = Seen(scratch / str(number), plan, ["epochs=1", "norm=false", PRETEND])
        for name in rows:
            rows[name].append(seen)
    first, last = {"cpu_batch": 0, "split": 6, "next_rung": 8}, {"cpu_batch": 5, "split": 7, "next_rung": 9}
    return {
        name: {
            "done": _set([seen.actions[last[name]] for seen in found]),
            **spread([seen.to_commit(last[name]) for seen in found]),
            "from_the_first_error": spread([seen.to_commit(first[name]) for seen in found]),
            "undisturbed_step_s": round(statistics.median(seen.undisturbed() for seen in found), 5),
        }
        for name, found in rows.items()
    }


def loader(scratch: Path, kind: str, count: int) -> dict[str, Any]:
    """A loader child is killed, or stopped: from that moment to the batch that came late."""
    say(f"  {count} times {kind}")
    plan = [f"{kind}@{30 * number + 20}" for number in range(count)]
    seen = Seen(scratch, plan, [f"epochs={count * 30 // 100 + 1}", "workers=2"])
    late = [event.data["step"] - 1 for event in seen.faults]
    return {
        **seen.row([seen.loop[step] - at for step, at in zip(late, seen.fired, strict=True)]),
        "waited_for_the_batch": spread([seen.loop[step] - seen.data[step] for step in late]),
    }


class Seen:
    """A run with faults: when they came, what was done about them, and when batches were there and steps committed."""

    def __init__(self, scratch: Path, plan: list[str], words: list[str]) -> None:
        scratch.mkdir(parents=True)
        path, notes = scratch / "plan.json", scratch / "times.txt"
        faults = FaultPlan.parse(",".join(plan))
        faults.write(path)
        words = [*words, "run.threads=1", f"times={notes}"]
        summary = train(words, scratch / "runs", **{VARIABLE: str(path)})
        claims = [(path.with_suffix(".fired") / str(number)).read_text().split() for number in range(len(plan))]
        self.at = [int(step) for step, _ in claims]
        self.fired = [float(when) for _, when in claims]
        self.faults = journal(Path(summary["folder"]), "fault")
        self.actions = [event.data["action"] for event in self.faults]
        if len(self.faults) != len(plan):
            raise RuntimeError(f"{len(plan)} faults were planned, {len(self.faults)} are in the journal")
        self.data: dict[int, float] = {}
        """Steps done, and when the phase `data` first began with so many: right after the last one was committed."""
        self.loop: dict[int, float] = {}
        """Steps done, and when the batch of the next one was last there."""
        for line in notes.read_text().splitlines():
            phase, step, when = line.split()
            if phase == "data":
                self.data.setdefault(int(step), float(when))
            else:
                self.loop[int(step)] = float(when)

    def to_commit(self, number: int) -> float:
        """Seconds from a fault to the commit of the step it came in."""
        return self.data[self.at[number]] - self.fired[number]

    def undisturbed(self) -> float:
        """Seconds from commit to commit where nothing happened, the median."""
        hit = {*self.at, *(step + 1 for step in self.at)}
        steps = [step for step in self.data if step - 1 in self.data and step not in hit and step % 100 > 1]
        return round(statistics.median(self.data[step] - self.data[step - 1] for step in steps), 5)

    def row(self, seconds: list[float]) -> dict[str, Any]:
        return {"done": _set(self.actions), **spread(seconds)}


def _set(words: list[str]) -> str:
    return ", ".join(sorted(set(words)))
