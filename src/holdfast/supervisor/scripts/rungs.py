"""The ladder by environment: the same command on other devices, with remedies, in fp32, and on the CPU at last.

    rungs = rungs_for("auto", tell=notes.append)    # [as it is, cuda:1, …, cpu], each with the variables it needs
    environment(rungs[2], base)                     # what the script is started with
    words = arguments(rung, command)                # and where a framework takes its device as an argument

The first rung is the script as it is: nothing is set. A script sees one device on the others, and none on the last.
What the doctor said about a device holds here as for `holdfast train`: one it refused is left out and hidden, and the
remedies it found are in the environment of every rung of that device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.devices import inventory
from holdfast.faults.ladder import Rung
from holdfast.supervisor.scripts.frameworks import is_yolo

if TYPE_CHECKING:
    from holdfast.devices.verdict import Verdict

CPU_ENV = (
    ("CUDA_VISIBLE_DEVICES", ""),
    ("HIP_VISIBLE_DEVICES", "-1"),
    ("ROCR_VISIBLE_DEVICES", ""),
    ("ZE_AFFINITY_MASK", "99"),
    ("ACCELERATE_USE_CPU", "true"),
    ("ACCELERATE_MIXED_PRECISION", "no"),
)
"""No accelerator of any maker is seen. Accelerate and the HF Trainer have a word of their own for it."""
FP32_ENV = (("NVIDIA_TF32_OVERRIDE", "0"), ("ACCELERATE_MIXED_PRECISION", "no"))
"""What can be said about precision from outside."""


def rungs_for(
    device: str, tell: Callable[[str], None] = lambda text: None, env: Mapping[str, str] = os.environ
) -> list[Rung]:
    """The ways to run a script, best first; the CPU is always the last. `tell` is told what the doctor changes."""
    if device == "cpu":
        return [Rung("cpu", env=CPU_ENV)]
    names = inventory.candidates() if device == "auto" else list(dict.fromkeys([inventory.check(device), "cpu"]))
    verdicts = {name: _verdict(name) for name in names if name != "cpu"}
    refused = [name for name, verdict in verdicts.items() if verdict is not None and not verdict.trainable]
    usable = [name for name in verdicts if name not in refused or device != "auto"]
    for name in refused:
        verdict = verdicts[name]
        assert verdict is not None
        said = f"holdfast doctor: {verdict.words}" + (f", {verdict.why}" if verdict.why else "")
        hidden = "is hidden from the script" if name not in usable else "is used although it should not be"
        tell(f"{name} {hidden} ({said})")
    rungs: list[Rung] = []
    for number, name in enumerate(usable):
        sees = usable if device == "auto" and number == 0 else [name]  # at first all of them, as without us
        as_it_is = device == "auto" and len(sees) == len(verdicts)
        rungs += _rungs_of(name, verdicts[name], () if as_it_is else _only(sees, env), _guarded(name, tell))
    return [*rungs, Rung("cpu", env=CPU_ENV if verdicts else ())]


def _guarded(device: str, tell: Callable[[str], None]) -> dict[str, str]:
    """What guards such a card until it has passed a probe without it."""
    from holdfast.devices import guards  # only where there is a device

    held = guards.guards_of(device)
    for guard in held:
        tell(guard.says)
    return dict(pair for guard in held for pair in guard.env)


def _rungs_of(
    device: str, verdict: Verdict | None, own: tuple[tuple[str, str], ...], guard: Mapping[str, str]
) -> list[Rung]:
    """As the script computes, and without reduced precision; both with the remedies of the verdict and of guards."""
    remedies = tuple({**guard, **(verdict.policy.env if verdict is not None else {})}.items())
    plain = Rung(device, "fp32", env=(*own, *remedies, *FP32_ENV))
    only_fp32 = verdict is not None and verdict.policy.dtype == "float32"
    return [plain] if only_fp32 else [Rung(device, env=(*own, *remedies)), plain]


def _verdict(device: str) -> Verdict | None:
    from holdfast.devices.saved_verdicts import (
        Verdicts,  # only where there is a device: a script on the CPU starts sooner
    )

    return Verdicts().get(device).verdict


def _only(devices: Sequence[str], env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What lets a script see these devices alone. Where some are hidden already, numbers count those that are left."""
    numbers = [int(name.partition(":")[2]) for name in devices if name.startswith("cuda:")]
    if not numbers:
        return ()
    shown = []
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        there = [word.strip() for word in env.get(variable, "").split(",") if word.strip()]
        chosen = [there[number] if number < len(there) else str(number) for number in numbers]
        shown.append((variable, ",".join(chosen)))
    return tuple(shown)


def environment(rung: Rung, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a script on this rung."""
    return {**base, **dict(rung.env)}


def arguments(rung: Rung, command: Sequence[str]) -> list[str]:
    """The command, with the device where a framework takes it as an argument and would not look elsewhere: ultralytics
    writes CUDA_VISIBLE_DEVICES itself."""
    seen = dict(rung.env).get("CUDA_VISIBLE_DEVICES")
    if seen is None or not is_yolo(command):
        return list(command)
    words = [word for word in command if not word.startswith("device=")]
    return [*words, f"device={'cpu' if rung.on_cpu else seen}"]
