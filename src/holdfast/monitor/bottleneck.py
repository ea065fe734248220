"""The bottleneck line: what a run waits for, in one sentence, with the one setting most worth changing.

    found = judge(beat, threads=8, cpus=16)      # from beat.json alone; None as long as too little was seen
    found.sentence      "bound by input: 62 % reading data, 31 % computing; cuda:0 is 30 % busy"
    found.advice        "most worth changing: Loader(num_workers=4), now 0"

The worker adds up its phases on the board, so the shares are measured. On an accelerator the host only hands out
work: how long the device itself computes is what its load says, so a device that is busy is the bound, and one that
idles is waiting for the data, or for the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.human import percent

ENOUGH = 2.0
"""Seconds of training before anything is said."""
BUSY, IDLE = 0.85, 0.6
"""Load from which on an accelerator is the bound itself, and under which it is clearly waiting."""
NOTICEABLE = 0.05
"""Shares under this are not named."""
_PARTS = {
    "input": ("data",),
    "compute": ("to-device", "forward", "backward", "optimizer"),
    "own": ("loop",),
    "snapshot": ("snapshot", "save"),
    "evaluation": ("evaluate",),
    "checks": ("replay", "sentinel"),
    "rest": ("rest",),
}
_WORDS = {
    "input": "reading data",
    "compute": "computing",
    "own": "your own code",
    "snapshot": "snapshots",
    "evaluation": "evaluation",
    "checks": "checks of the device",
    "rest": "resting under a limit",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What binds a run, and what to do about it."""

    bound: str
    """input, host, device, or limit."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the time: input, compute, own, snapshot, evaluation, checks, rest."""
    load: float | None = None
    """How busy the accelerator was, 0 to 1; None on the CPU and where it cannot be read."""
    sentence: str = ""
    advice: str = ""

    @property
    def line(self) -> str:
        return f"{self.sentence}; {self.advice}" if self.advice else self.sentence

    def to_json(self) -> dict[str, Any]:
        shares = {f"{name}_pct": round(100 * share, 1) for name, share in self.shares.items()}
        load = None if self.load is None else round(100 * self.load, 1)
        return {
            "bound": self.bound,
            **shares,
            "device_load_pct": load,
            "sentence": self.sentence,
            "advice": self.advice,
        }


def judge(
    beat: Mapping[str, Any], *, threads: int | None = None, cpus: int | None = None, whole: bool = False
) -> Bottleneck | None:
    """The verdict on the last minute, or with `whole` on the run so far. The beat may be somebody else's file."""
    seconds = _seconds(beat.get("phases_s" if whole else "recent_s"))
    total = sum(seconds.values())
    inside = sum(seconds.get(label, 0.0) for part in ("input", "compute") for label in _PARTS[part])
    if total < ENOUGH or inside == 0:  # of a script that `holdfast run` only watches, steps are seen and no phases
        return None
    shares = {part: sum(seconds.get(label, 0.0) for label in labels) / total for part, labels in _PARTS.items()}
    device = str(beat.get("device") or "cpu").split(" ")[0]
    load = device_load(beat, device)
    bound = _bound(shares, device, load)
    return Bottleneck(
        bound=bound,
        shares=shares,
        load=load,
        sentence=_sentence(bound, shares, device, load),
        advice=_advice(bound, shares, device, beat, threads, cpus),
    )


def device_load(beat: Mapping[str, Any], device: str) -> float | None:
    """How busy the accelerator is, as the run's own sensors said; None for the CPU: there computing is the load."""
    if device.startswith(("cpu", "pretend")):
        return None
    readings = beat.get("readings")
    rows = readings.get("devices") if isinstance(readings, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("device") == device:
            value = row.get("load_pct")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return None
            return max(0.0, min(1.0, value / 100))
    return None


def _seconds(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    known = {label for labels in _PARTS.values() for label in labels}
    return {
        label: float(seconds)
        for label, seconds in value.items()
        if label in known
        and isinstance(seconds, (int, float))
        and not isinstance(seconds, bool)
        and 0 <= seconds < 1e12
    }


def _bound(shares: dict[str, float], device: str, load: float | None) -> str:
    if shares["rest"] >= 0.3:
        return "limit"
    if load is not None and load >= BUSY:
        return "device"
    host = shares["own"] + shares["snapshot"] + shares["checks"] + shares["evaluation"]
    input_, compute = shares["input"], shares["compute"]
    if load is not None and load < IDLE:  # the device waits: for data, or for the host that hands out the work
        return "input" if input_ >= max(0.3, host) else "host"
    if input_ >= compute and input_ >= host:
        return "input"
    return "device" if compute >= host else "host"


def _sentence(bound: str, shares: dict[str, float], device: str, load: float | None) -> str:
    where = "the CPU" if device.startswith(("cpu", "pretend")) else device
    who = {"input": "input", "host": "the host", "limit": "a limit", "device": where}[bound]
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    named = [(name, share) for name, share in ranked if share >= NOTICEABLE][:3]
    words = [f"{percent(share)} {_WORDS[name]}" for name, share in named]
    busy = f"; {device} is {percent(load)} busy" if load is not None else ""
    return f"bound by {who}: {', '.join(words)}{busy}"


def _advice(
    bound: str,
    shares: dict[str, float],
    device: str,
    beat: Mapping[str, Any],
    threads: int | None,
    cpus: int | None,
) -> str:
    """The one thing most worth changing, by its name; nothing where nothing would help much."""
    if bound == "limit":
        return "the limits.* that was passed holds it back"
    if bound == "input":
        return _more_readers(beat, device, cpus)
    if bound == "host":
        return _less_host(shares, beat)
    if device.startswith(("cpu", "pretend")):
        if threads and cpus and threads < cpus:
            return f"most worth changing: run.threads={cpus}, now {threads}"
        return "an accelerator or a smaller model is what would help"
    return "most worth changing: a lower precision (autocast to bfloat16), where it is not used yet"


def _more_readers(beat: Mapping[str, Any], device: str, cpus: int | None) -> str:
    now = beat.get("loaders")
    now = now if isinstance(now, int) and not isinstance(now, bool) and now >= 0 else 0
    spare = max(1, (cpus or 4) - (0 if not device.startswith("cpu") else 1))
    wanted = min(spare, max(2, 2 * now)) if spare > 1 else 1
    if wanted > now:
        return f"most worth changing: Loader(num_workers={wanted}), now {now}"
    return f"every CPU reads already ({now} processes): make the samples cheaper to read, or prepare them once"


def _less_host(shares: dict[str, float], beat: Mapping[str, Any]) -> str:
    parts = ("own", "snapshot", "checks", "evaluation")
    worst = max(parts, key=lambda name: shares[name])
    if shares[worst] < NOTICEABLE:
        return "most worth changing: a larger batch, or torch.compile: the host is too slow to hand out the work"
    return {
        "own": "most worth changing: your code between two steps (a simulation fits into the dataset)",
        "snapshot": "most worth changing: snapshot.every=10",
        "checks": "most worth changing: sentinel.cost, the share that checks may take",
        "evaluation": "most worth changing: evaluate less often, or on fewer samples",
    }[worst]
