"""The probes by name: what each makes a device do, and which of them are in the quick set. No torch here.

    select("cuda:0", full=False)        # the quick set
    find("conv2d fp16").checks          # ("forward", "backward", "training"): each is a result of its own
    probes()                            # those below, those of more/ and those of files from outside

A probe is one process. Its checks follow each other in it, and each is on record before it begins: when the process
dies, hangs, or takes the machine with it, it is known in which.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.base import additions
from holdfast.base.errors import UserError
from holdfast.devices.traits import FAMILIES

MORE = "holdfast.probes.more"
"""The folder whose files are probes. Found by its name: what runs in a probe's process is a floor above this one."""
_SHARES = (
    "behaviour.first_step", "memory.transfer", "compare.train", "compare.double", "more.silent_zeros.answer",
)  # fmt: skip
ACCELERATORS = ("cuda", "xpu", "mps", "pretend")
TRAIN = ("forward", "backward", "training")
DEADLINE = 60.0
"""Seconds a check may take without a word; a compiler at work gets more. The first convolution of a process may have
to be compiled, and on some cards that is most of a minute."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One process that uses a device."""

    name: str
    function: str
    """`module.function` of holdfast.probes. In a file of its own (probes/more, or from outside) the function's name
    alone: `probes` puts the place in front of it."""
    family: str
    """One of `traits.FAMILIES`, or `other`."""
    checks: tuple[str, ...] = TRAIN
    layer: str = ""
    precision: str = ""
    batch: int | None = None
    channels_last: bool = False
    sdpa: str = ""
    situation: str = ""
    quick: bool = False
    kinds: tuple[str, ...] = ()
    """The kinds of device it makes sense for; none: all."""
    company: bool = False
    """Run while a second process uses the device."""
    deadline_s: float = DEADLINE
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its checks, as results have them."""
        return tuple(self.named(check) for check in self.checks)

    def named(self, check: str) -> str:
        return f"{self.name} {check}" if check else self.name

    def traits(self, check: str) -> dict[str, Any]:
        """What a check is about, in every evidence."""
        phase = check if check in TRAIN else "backward" if check == "double backward" else ""
        said = {
            "family": self.family,
            "phase": phase,
            "precision": self.precision,
            "batch": self.batch,
            "sdpa": self.sdpa,
            "situation": "double backward" if check == "double backward" else self.situation,
        }
        traits = {name: value for name, value in said.items() if value not in ("", None)}
        return {**traits, "channels_last": True} if self.channels_last else traits

    @property
    def shares(self) -> bool:
        """It may follow another in one process: it leaves nothing behind but a device that is open."""
        return self.function in _SHARES and not self.situation and not self.company

    def to_json(self) -> dict[str, Any]:
        """What the child has to know."""
        own = ("name", "function", "checks", "layer", "precision", "batch", "channels_last", "sdpa", "options")
        return {name: getattr(self, name) for name in own}


def kind_of(device: str) -> str:
    return device.partition(":")[0]


def select(device: str, *, full: bool = False, only: Iterable[str] = ()) -> list[Probe]:
    """The probes of a set that make sense for a device, in the order in which they are run."""
    wanted = [find(name) for name in only]
    chosen = wanted or [probe for probe in probes() if full or probe.quick]
    return [probe for probe in chosen if not probe.kinds or kind_of(device) in probe.kinds]


_OWN: dict[str, Probe] = {}


def script_probe(script: Path, arguments: Mapping[str, str] | None = None, called: str = "") -> Probe:
    """One real step of the user's own script, or of a workload that is `called` so. From now on `find` knows it."""
    name = f"script {called or script.name}"
    options = {"script": str(script), "arguments": dict(arguments or {}), "name": called or script.name}
    _OWN[name] = Probe(name, "script_step.script", "model", ("",), deadline_s=600.0, options=options)
    return _OWN[name]


def find(name: str) -> Probe:
    """By its name, or by the name of one of its checks."""
    for probe in (*probes(), *_OWN.values()):
        if name == probe.name or name in probe.names:
            return probe
    close = difflib.get_close_matches(name, [probe.name for probe in probes()], n=1)
    raise UserError(f"no probe is called `{name}`", hints=[f"did you mean `{close[0]}`?"] if close else [])


@functools.lru_cache(maxsize=1)
def probes() -> tuple[Probe, ...]:
    """Every probe there is, in the order in which they are run."""
    found = {probe.name: probe for probe in PROBES}
    more = importlib.import_module(MORE)
    for module in pkgutil.iter_modules(more.__path__):
        mine = importlib.import_module(f"{MORE}.{module.name}")
        for probe in mine.PROBES:
            _add(found, replace(probe, function=f"more.{module.name}.{probe.function}"), str(mine.__file__))
    for file in additions.files("probes", "*.py"):
        for probe in _declared(file):
            _add(found, replace(probe, function=f"{file}:{probe.function}"), str(file))
    return tuple(found.values())


def _add(found: dict[str, Probe], probe: Probe, file: str) -> None:
    """A probe that takes another one's name, or whose family nobody knows, would be lost without a word."""
    if probe.name in found:
        raise UserError(f"{file}: a probe is called `{probe.name}` already")
    if probe.family not in (*FAMILIES, "other"):
        close = difflib.get_close_matches(probe.family, FAMILIES, n=1)
        raise UserError(
            f"{file}: the probe `{probe.name}` has the family `{probe.family}`, which does not exist",
            hints=[f"did you mean `{close[0]}`?"] if close else [f"families are {', '.join(FAMILIES)}, other"],
        )
    found[probe.name] = probe


def _declared(file: Path) -> list[Probe]:
    """The probes of a file from outside, which is run for that: it must not import torch before a probe begins."""
    try:
        declared = list(load_file(file).PROBES)
    except Exception as error:  # whatever it raises: it is not ours
        raise UserError(f"{file} cannot be used as a probe", cause=f"{type(error).__name__}: {error}") from error
    if not all(isinstance(probe, Probe) for probe in declared):
        raise UserError(f"{file}: PROBES must be a list of Probe", hints=["see CONTRIBUTING.md, how to add a probe"])
    return declared


def load_file(file: Path) -> Any:
    """A module from a file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(f"holdfast_added_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The list -----------------------------------------------------------------------------------------------------------

_FAMILIES = {
    "linear": "matmul",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "depthwise": "conv",
    "grouped": "conv",
    "transposed": "conv",
    "attention": "attention",
    "lstm": "recurrent",
    "gru": "recurrent",
    "batchnorm": "norm",
    "layernorm": "norm",
    "groupnorm": "norm",
    "embedding": "embedding",
    "pooling": "pooling",
    "interpolate": "pooling",
    "scatter": "index",
    "entropy": "loss",
    "fft": "fft",
    "network": "training",
}


def _layer(layer: str, precision: str = "fp32", words: str = "", **more: Any) -> Probe:
    """Forward, backward and training of a small network around one kind of layer."""
    more = {"batch": 8, "quick": False, **more}
    name = " ".join(filter(None, (layer, precision, words)))
    return Probe(name, "compare.train", _FAMILIES[layer], layer=layer, precision=precision, **more)


def _one(name: str, function: str, family: str, **more: Any) -> Probe:
    """A probe that is a single check."""
    return Probe(name, function, family, **{"checks": ("",), **more})


def _twice(layer: str, **more: Any) -> Probe:
    """The gradient of a gradient."""
    checks, family = ("double backward",), _FAMILIES[layer]
    return Probe(
        f"{layer} fp32 again", "compare.double", family, checks, layer=layer, precision="fp32", batch=4, **more
    )


_CUDA = ("cuda",)
_HALF = ("linear", "attention", "lstm", "batchnorm", "layernorm")
_SOFT: dict[str, Any] = {"deadline_s": 240.0}
"""A compiler is at work."""
_NETWORK: dict[str, Any] = {"layer": "network", "precision": "fp32", "batch": 8, "options": {"seconds": 0.7}}
_LONG: dict[str, Any] = {"batch": 32, "deadline_s": 180.0, "options": {"seconds": 20.0}}

PROBES: tuple[Probe, ...] = (
    # Can it be used at all, and how long does that take?
    _one("first step", "behaviour.first_step", "launch", quick=True, deadline_s=180.0),
    _one("memory pattern", "memory.pattern", "memory"),
    Probe(
        "transfer",
        "memory.transfer",
        "transfer",
        ("there and back", "pinned", "async", "strided", "on the device"),
        quick=True,
    ),
    # What most models are made of, first in plain fp32.
    _layer("linear"),
    _layer("conv2d", quick=True),
    _layer("attention", quick=True),
    _layer("lstm"),
    _layer("batchnorm", words="channels_last", channels_last=True, quick=True),
    _layer("embedding"),
    *(_layer(each) for each in ("conv1d", "conv3d", "depthwise", "grouped", "transposed")),
    *(_layer(each) for each in ("gru", "batchnorm", "layernorm", "groupnorm")),
    *(_layer(each) for each in ("pooling", "interpolate", "scatter", "entropy", "fft")),
    *(_layer("attention", words=each, sdpa=each) for each in ("math", "flash", "efficient", "cudnn")),
    # Less exact: within what the precision allows, no more.
    _layer("conv2d", "fp16", quick=True, kinds=ACCELERATORS),
    _layer("network", "bf16", quick=True),
    *(_layer(each, "fp16", kinds=ACCELERATORS) for each in (*_HALF, "depthwise", "entropy")),
    *(_layer(each, "bf16") for each in (*_HALF, "conv2d", "grouped")),
    *(_layer("attention", "bf16", each, sdpa=each) for each in ("flash", "efficient", "cudnn")),
    *(_layer(each, "tf32", kinds=_CUDA) for each in ("linear", "conv2d", "attention", "lstm")),
    # Wrong only at some batch sizes, in one layout, or after a change of shape.
    *(_layer("network", "fp32", f"batch {size}", batch=size) for size in (1, 7, 32)),
    *(_layer("network", "fp16", f"batch {size}", batch=size, kinds=ACCELERATORS) for size in (1, 7, 8, 32)),
    _layer("conv2d", words="channels_last", channels_last=True),
    _layer("conv2d", "fp16", "channels_last", channels_last=True, kinds=ACCELERATORS),
    _layer("depthwise", words="channels_last", channels_last=True),
    _layer("network", words="channels_last", channels_last=True),
    _layer("conv2d", words="strided", options={"strided": True}),
    _layer("network", words="changing shapes", batch=None, situation="shapes", options={"sizes": [8, 7, 32, 1, 8]}),
    _layer("network", quick=True),
    _twice("conv2d", quick=True),
    _twice("linear"),
    Probe(
        "compiled network",
        "compare.compiled",
        "compile",
        TRAIN,
        layer="network",
        precision="fp32",
        batch=8,
        situation="compile",
        **_SOFT,
    ),
    # Conduct.
    *(
        _one(f"same {layer} twice", "behaviour.same", _FAMILIES[layer], layer=layer, batch=8, situation="deterministic")
        for layer in ("linear", "conv2d", "attention", "scatter")
    ),
    Probe("random numbers", "behaviour.chance", "random", ("uniform", "normal", "dropout", "same seed")),
    _one("memory limit", "memory.fill", "memory", quick=True, deadline_s=120.0),
    _one("recovery after out of memory", "memory.recover", "memory", situation="recovery"),
    _one(
        "network in company", "behaviour.steps", "training", situation="company", company=True, quick=True, **_NETWORK
    ),
    _one("sustained load", "behaviour.load", "training", situation="sustained", **{**_NETWORK, **_LONG}),
)
