"""What a probe is about, so that results can be compared: the same check in fp32, alone, or at a smaller batch.

    traits(result)                  # Traits(family="conv", phase="backward", precision="fp16", batch=8)
    easier(result, results, "precision")        # the results that differ from it by doing without that

A probe says what it is about in its evidence. One that does not is known by the words of its name. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

PASSED, FAILED, CRASHED, HUNG, SKIPPED = STATUSES = ("passed", "failed", "crashed", "hung", "skipped")
FP32 = "fp32"
LOW = ("tf32", "fp16", "bf16")
FAMILIES = (
    "memory",
    "transfer",
    "matmul",
    "conv",
    "attention",
    "recurrent",
    "norm",
    "embedding",
    "pooling",
    "index",
    "loss",
    "fft",
    "random",
    "training",
    "model",
    "compile",
    "launch",
    "other",
)
"""What a probe computes; `model` is the user's own."""
SITUATIONS = ("", "sustained", "company", "shapes", "deterministic", "recovery", "compile", "double backward")
"""Under which circumstances."""

_FAMILY_WORDS = {
    "memory": ("memory", "allocate", "alloc", "limit"),
    "transfer": ("transfer", "transfers", "copy", "pinned", "async", "h2d", "d2h"),
    "attention": ("attention", "sdpa", "flash", "efficient"),
    "matmul": ("matmul", "product", "gemm", "linear", "addmm", "bmm"),
    "conv": ("conv", "conv1d", "conv2d", "conv3d", "depthwise", "grouped", "transposed"),
    "recurrent": ("lstm", "gru", "rnn", "recurrent"),
    "norm": ("batchnorm", "layernorm", "groupnorm", "norm"),
    "embedding": ("embedding",),
    "pooling": ("pooling", "pool", "maxpool", "avgpool", "interpolate"),
    "index": ("scatter", "gather", "index", "bounds"),
    "loss": ("softmax", "entropy", "loss"),
    "fft": ("fft",),
    "random": ("dropout", "rng", "random"),
    "model": ("script", "model", "workload"),
    "launch": ("launch", "start", "first"),
    "compile": ("compile", "compiled"),
    "training": ("training", "train", "steps"),
}
_SITUATION_WORDS = {
    "sustained": ("sustained", "load", "soak"),
    "company": ("company", "two", "second", "processes", "together"),
    "shapes": ("shapes", "changing"),
    "deterministic": ("deterministic", "determinism", "twice", "repeat"),
    "recovery": ("oom", "recovery", "recovers"),
    "compile": ("compile", "compiled"),
    "double backward": ("double", "doublebackward"),
}


class Result(Protocol):
    """What a probe ended with."""

    @property
    def probe(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def status(self) -> str:
        """One of STATUSES."""

    @property
    def error(self) -> float | None: ...
    @property
    def bound(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def evidence(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What a probe is about."""

    family: str = "other"
    phase: str = ""
    """forward, backward or training; empty where it does not apply."""
    precision: str = ""
    """fp32, tf32, fp16, bf16; empty where it does not apply."""
    channels_last: bool = False
    batch: int | None = None
    sdpa: str = ""
    """flash, efficient, cudnn or math, where one was asked for."""
    situation: str = ""

    @property
    def low(self) -> bool:
        """Computed in less than fp32."""
        return self.precision in LOW


def traits(result: Result) -> Traits:
    """From what its evidence says, or from its name where that says nothing."""
    said = result.evidence
    name = "" if "family" in said else result.probe.lower().replace("channels_last", "channelslast")
    words = re.findall(r"[a-z]+\d*[a-z]*|\d+", name)
    family = _said(said, "family", FAMILIES) or _by_words(words, _FAMILY_WORDS) or "other"
    batch = said.get("batch")
    if not isinstance(batch, int):
        named = re.search(r"batch[ _=-]?(\d+)", name)
        batch = int(named[1]) if named else None
    return Traits(
        family=family,
        phase=_said(said, "phase", ("forward", "backward", "training")) or _phase(words),
        precision=_said(said, "precision", (FP32, *LOW)) or next((word for word in words if word in (FP32, *LOW)), ""),
        channels_last=said.get("channels_last") is True or "channelslast" in words,
        batch=batch,
        sdpa=_said(said, "sdpa", ("flash", "efficient", "cudnn", "math")) or _sdpa(words, family),
        situation=_said(said, "situation", SITUATIONS) or _by_words(words, _SITUATION_WORDS) or "",
    )


def _said(evidence: Mapping[str, Any], name: str, known: Iterable[str]) -> str:
    value = evidence.get(name)
    return value if isinstance(value, str) and value in known else ""


def _by_words(words: Iterable[str], table: Mapping[str, Iterable[str]]) -> str | None:
    listed = list(words)
    return next((name for name, known in table.items() if any(word in listed for word in known)), None)


def _phase(words: list[str]) -> str:
    return next((word for word in ("backward", "forward", "training") if word in words), "")


def _sdpa(words: list[str], family: str) -> str:
    if family != "attention":
        return ""
    return next((word for word in ("flash", "efficient", "cudnn", "math") if word in words), "")


def froze(result: Result) -> bool:
    """The last time it took the machine down, and so it was not done again."""
    return result.evidence.get("took_machine_down") is True


# Siblings -----------------------------------------------------------------------------------------------------------


def easier(result: Result, results: Iterable[Result], avoid: str) -> list[Result]:
    """The results of the same check that do without `avoid` and are alike otherwise."""
    own = traits(result)
    others = [other for other in results if other is not result and _without(own, traits(other), avoid)]
    if avoid != "batch":
        return others
    return [other for other in others if _stem(other.probe) == _stem(result.probe)]


def _stem(name: str) -> list[str]:
    """A name without its batch size."""
    return re.sub(r"batch[ _=-]?\d+", "", name).split()


def _without(own: Traits, other: Traits, avoid: str) -> bool:
    if avoid == "company" or avoid == "compile":
        alone = own.situation == avoid and other.situation == "" and own.precision in ("", FP32, other.precision)
        return alone and not other.low and other.phase == "training"
    if own.family != other.family or own.phase != other.phase:
        return False
    if avoid == "precision":
        return own.low and other.precision in ("", FP32) and own.situation == other.situation
    if own.precision != other.precision:
        return False
    if avoid == "shapes":
        return own.situation == "shapes" and other.situation == ""
    if own.situation != other.situation:
        return False
    if avoid == "channels_last":
        return own.channels_last and not other.channels_last
    if avoid == "batch":
        return own.batch is not None and other.batch is not None and other.batch < own.batch
    if avoid == "sdpa":
        return own.sdpa not in ("", "math") and other.sdpa not in ("", own.sdpa)
    return False
