"""The ladder by environment: the same command on other devices, with remedies, in fp32, and on the CPU at last.

    rungs = rungs_for("auto")                       # [as it is, cuda:1, …, cpu], each with the variables it needs
    environment(rungs[2], base)                     # what the script is started with
    words = arguments(rung, command, framework)     # and where a framework takes its device as an argument

The first rung is the script as it is: nothing is set. A script sees one device on the others, and none on the last.
What the doctor knows about a device joins here: `remedies(device)` gives more rungs between a device and the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.devices import inventory
from holdfast.runtime.ladder import Rung

Remedies = Callable[[str], Iterable[Mapping[str, str]]]

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


def no_remedies(device: str) -> Iterable[Mapping[str, str]]:
    """What is tried where nobody knows a remedy: nothing."""
    return ()


def rungs_for(device: str, remedies: Remedies = no_remedies) -> list[Rung]:
    """The ways to run a script, best first; the CPU is always the last."""
    names = inventory.candidates() if device == "auto" else list(dict.fromkeys([inventory.check(device), "cpu"]))
    rungs: list[Rung] = []
    for number, name in enumerate(names):
        if name.partition(":")[0] == "cpu":
            rungs.append(Rung("cpu", env=CPU_ENV if rungs else ()))
            continue
        own = () if device == "auto" and number == 0 else _only(name)
        rungs.append(Rung(name, env=own))
        rungs += [Rung(name, env=(*own, *each.items())) for each in remedies(name)]
        rungs.append(Rung(name, "fp32", env=(*own, *FP32_ENV)))
    if device == "cpu":
        return [Rung("cpu", env=CPU_ENV)]
    return rungs


def _only(device: str) -> tuple[tuple[str, str], ...]:
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return ()
    return (("CUDA_VISIBLE_DEVICES", index), ("HIP_VISIBLE_DEVICES", index))


def environment(rung: Rung, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a script on this rung."""
    return {**base, **dict(rung.env)}


def arguments(rung: Rung, command: Sequence[str], framework: str | None) -> list[str]:
    """The command, with the device where a framework takes it as an argument and would not look elsewhere."""
    if framework != "ultralytics" or not rung.on_cpu or not rung.env:
        return list(command)
    words = [word for word in command if not word.startswith("device=")]
    return [*words, "device=cpu"] if words and words[0].rpartition("/")[2].startswith("yolo") else list(command)


def shown(rung: Rung) -> str:
    """As on the screen: "cuda:0 fp32 HSA_ENABLE_INTERRUPT=0", without the variables that only hide devices."""
    plain = {name for name, _ in (*CPU_ENV, *FP32_ENV)}
    remedies = [f"{name}={value}" for name, value in rung.env if name not in plain]
    return " ".join(word for word in [rung.device, rung.precision, *remedies] if word)
