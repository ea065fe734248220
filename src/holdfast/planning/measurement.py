"""What a trial found out, as data that can be kept and read again. No torch here.

found = heard(words, device="cpu", …)        # from the words of a trial, also of one that was cut short
found.step_s, found.spread, found.between_s  # seconds of a step, its relative spread, what an epoch takes beside it
Measurement.from_json(found.to_json())       # None for what is none: the file may come from anywhere
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

MEASURED, PARTLY, FAILED = "measured", "partly", "failed"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One way to run a job, tried. Times in seconds; None is what was not seen."""

    job: str
    device: str
    precision: str = ""
    """"fp32" where that was forced; empty leaves it to the script."""
    threads: int = 0
    preset: str = ""
    """The reduced form of the job that was tried; empty for the job as it was asked for."""
    status: str = FAILED
    """measured: all parts were seen; partly: steps were, and not all that comes after them; failed."""
    why: str = ""
    """What went wrong, in words that can stand alone."""
    slow: bool = False
    """Nothing went wrong, but the time was over before its first step was."""
    unended_s: float = 0.0
    """What its first step had taken when it was ended."""
    raised: bool = False
    """The script raised an error of its own, or asked for what cannot be."""
    start_s: float | None = None
    """Until the script's `train` is called: the import of torch and of the script."""
    setup_s: float | None = None
    step_s: float | None = None
    """One step with its data and its snapshot; one epoch, where an epoch is one transaction."""
    spread: float = 0.0
    """The standard deviation of a step's time, as a part of it."""
    steps_seen: int = 0
    epochs: int | None = None
    """Epochs the run will have; None for a loop without them."""
    batches: int | None = None
    """Steps of an epoch; None where an epoch is a step."""
    between_s: float | None = None
    """What an epoch takes beside its steps: evaluation, logging."""
    closing_s: float | None = None
    """After the last epoch."""
    save_s: float | None = None
    state_bytes: int | None = None
    memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    device_total_bytes: int | None = None
    compute: float | None = None
    """The part of a step that is spent on the device; None where that cannot be told."""
    pieces: int = 1
    """In how many pieces a batch had to be computed to fit."""
    prepared_s: float = 0.0
    """Of the set-up: work that said how far it was, and that a second run finds done."""
    tuned: str = ""
    """The settings that the script's tuner took here, in words."""
    tuner_s: float = 0.0
    """Seconds that the tuner takes in the run, because the trial had too little time for it; in `setup_s`."""
    tuner: bool = False
    """The script has its settings tuned; what it takes is remembered by the machine."""
    power_w: float | None = None
    took_s: float = 0.0
    """What the trial itself took."""

    @property
    def usable(self) -> bool:
        return self.status in (MEASURED, PARTLY) and self.step_s is not None

    @property
    def steps(self) -> int | None:
        """All steps of the run."""
        if self.epochs is None:
            return None
        return self.epochs * (1 if self.batches is None else self.batches)


def grown(found: Measurement, times: int) -> Measurement:
    """The same for a set that is so many times as large: as many more steps in an epoch, and as much more of what goes
    over the whole set (evaluation, the end, work that prepares it). A step and the rest of the set-up stay the same."""
    if found.batches is None and found.epochs is not None:  # an epoch is one step
        steps: dict[str, Any] = {"step_s": None if found.step_s is None else times * found.step_s}
    else:
        steps = {"batches": None if found.batches is None else times * found.batches}
    return replace(
        found,
        **steps,
        between_s=None if found.between_s is None else times * found.between_s,
        closing_s=None if found.closing_s is None else times * found.closing_s,
        setup_s=None if found.setup_s is None else found.setup_s + (times - 1) * found.prepared_s,
        prepared_s=0.0,
    )


def heard(words: Iterable[Mapping[str, Any]], began_s: float, **about: Any) -> Measurement:
    """The measurement that these words are; `began_s` is what it took until the first of them.

    Whoever listened may know better why it ended: `why` and `raised` in `about` are kept.
    """
    said = list(words)
    steps = [(float(n), float(s)) for word in said for n, s in [word.get("steps") or (0, 0)] if n]
    warm = [(float(n), float(s)) for word in said for n, s in [word.get("warm") or (0, 0)] if n]
    epochs = [float(word["epoch"]) for word in said if "epoch" in word] or _all(said, "warm_epoch")
    by_epoch = not steps and not warm and bool(epochs)
    times = epochs if by_epoch else [s / n for n, s in steps or warm]
    between, setup = _all(said, "between"), _last(said, "setup")
    tuning = _last(said, "tuning")
    tuned = tuning if isinstance(tuning, dict) else {}
    facts: dict[str, Any] = _last(said, "facts") or {}
    imported = _last(said, "imported")
    ended = any(word.get("end") for word in said)
    closing = _last(said, "closing")
    batches = _last(said, "batches")
    error = {} if "why" in about else _error(said)
    status = FAILED
    if times and not error.get("why") and not about.get("why"):
        status = MEASURED if closing is not None and ended else PARTLY
    return Measurement(
        status=status,
        start_s=None if imported is None else began_s + float(imported),
        setup_s=None if setup is None else max(0.0, float(setup) - _tuning_saved(tuned)),
        step_s=_typical(times) if times else None,
        spread=_spread(times),
        steps_seen=len(epochs) if by_epoch else int(sum(n for n, _ in steps or warm)),
        epochs=_last(said, "epochs"),
        batches=None if by_epoch else batches or None,
        between_s=statistics.median(between[-3:]) if between else (0.0 if by_epoch else None),
        closing_s=closing,
        save_s=_last(said, "save"),
        state_bytes=_last(said, "state_bytes"),
        memory_bytes=facts.get("memory_bytes"),
        device_memory_bytes=facts.get("device_memory_bytes"),
        device_total_bytes=facts.get("device_total_bytes"),
        compute=facts.get("compute"),
        pieces=int(facts.get("pieces") or 1),
        tuned=_words_of(tuned),
        tuner=bool(tuned),
        tuner_s=_tuner_takes(tuned),
        **{**error, **about},
    )


def _last(said: list[Mapping[str, Any]], key: str) -> Any:
    return next((word[key] for word in reversed(said) if key in word), None)


def _all(said: list[Mapping[str, Any]], key: str) -> list[float]:
    return [float(word[key]) for word in said if key in word]


def _error(said: list[Mapping[str, Any]]) -> dict[str, Any]:
    for word in said:
        if "raised" in word:
            where = f" ({word['where']})" if word.get("where") else ""
            return {"why": f"it raised {word['raised']}{where}", "raised": True}
        if "lost" in word:
            return {"why": str(word["lost"])}
        if "refused" in word:
            about = word["refused"]
            cause = f": {about['cause']}" if about.get("cause") else ""
            return {"why": f"{about.get('message')}{cause}", "raised": True}
    if not any(word.get("steps") or word.get("warm") or "epoch" in word or "warm_epoch" in word for word in said):
        return {"why": "it ended before its first step"} if any(word.get("end") for word in said) else {}
    return {}


def _typical(times: list[float]) -> float:
    """The mean, because the sum is what counts; one stray value of a short sample is not the future."""
    middle = statistics.median(times)
    return statistics.fmean(min(each, 3.0 * middle) for each in times)


def _spread(times: list[float]) -> float:
    """Of one or two values nobody knows it: half is taken."""
    known = statistics.stdev(times) / statistics.fmean(times) if len(times) > 1 and max(times) > 0 else 0.0
    return known if len(times) > 2 else max(known, 0.5)


def _tuning_saved(tuned: Mapping[str, Any]) -> float:
    """Seconds of tuning that the run saves, because the machine remembers; below zero where the trial cut it short and
    the run takes its own time for it."""
    took, basis = tuned.get("took_s"), str(tuned.get("basis"))
    if not isinstance(took, (int, float)):
        return 0.0
    if _tuner_takes(tuned):
        return float(took) - _tuner_takes(tuned)
    return float(took) if basis in ("measured", "measured in part") else 0.0


def _tuner_takes(tuned: Mapping[str, Any]) -> float:
    part = re.search(r"a run takes (\d+) s", str(tuned.get("basis")))
    return float(part[1]) if part else 0.0


_PLAIN = {
    "precision": "fp32", "layout": "contiguous", "kernels": "default", "threads": 0, "pieces": 1, "workers": 0,
    "compile": False,
}  # fmt: skip


def _words_of(tuned: Mapping[str, Any]) -> str:
    """What the tuner took that is not plain; the words of planning.choice, which needs torch."""
    choice = tuned.get("choice")
    if not isinstance(choice, dict):
        return ""
    told = {key: value for key, value in choice.items() if key in _PLAIN and value != _PLAIN[key]}
    words = [str(told[key]) for key in ("precision", "layout") if key in told]
    words += ["gradients of convolutions by matrix products"] if "kernels" in told else []
    words += [f"{told['threads']} thread{'s' * (told['threads'] != 1)}"] if "threads" in told else []
    words += [f"in {told['pieces']} pieces"] if "pieces" in told else []
    words += [f"{told['workers']} loader process{'es' * (told['workers'] != 1)}"] if "workers" in told else []
    words += ["compiled"] if "compile" in told else []
    return ", ".join(words)
