"""A device in a few words, as people know it.

describe(inventory.device("cuda:0"), inventory.cpu)     # "RX 7900 XTX (gfx1100), 24 GB"
describe(inventory.device("cpu"), inventory.cpu)        # "Ryzen 9 7950X, 16 cores, 64 GB"
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.console.output import counted

if TYPE_CHECKING:
    from holdfast.devices.survey.records import Cpu, Device


def describe(device: Device | None, cpu: Cpu) -> str:
    """ "RX 7900 XTX (gfx1100), 24 GB"; for the CPU its cores."""
    if device is None:
        return "pretend device"
    if device.kind == "cpu":
        return _describe_cpu(device, cpu)
    name = (device.name or "unknown card").removeprefix("AMD ").removeprefix("NVIDIA ")
    name = name.removeprefix("Radeon ") if name.startswith("Radeon RX") else name
    arch = f" ({device.arch})" if device.arch and device.arch not in name else ""
    memory = _installed(device.memory_bytes)
    shared = " shared" if memory and device.integrated else ""
    return f"{name}{arch}" + (f", {memory}{shared}" if memory else "")


def _describe_cpu(device: Device, cpu: Cpu) -> str:
    """Its name without what every CPU has in it, and what of it may be used."""
    name = re.sub(r"\((?:R|TM|tm)\)|\bCPU\b|@ .*|\b\d+-Core Processor\b|\bProcessor$", "", device.name or "CPU")
    name = " ".join(name.split()).removeprefix("AMD ").removeprefix("Intel ")
    fewer = cpu.threads and cpu.threads_allowed and cpu.threads_allowed < cpu.threads
    cores = cpu.cores or cpu.threads_allowed
    use = f"{cpu.threads_allowed} of {cpu.threads} threads" if fewer else counted(cores, "core") if cores else None
    memory = min((each for each in (device.memory_bytes, cpu.memory_limit_bytes) if each is not None), default=None)
    return ", ".join(part for part in (name or "CPU", use, _installed(memory)) if part)


def _installed(number: int | None) -> str | None:
    """Memory as it is sold: a card of 24 GB has 24 times 2 to the power of 30."""
    if number is None:
        return None
    return f"{round(number / 2**30)} GB" if number >= 2**30 else f"{round(number / 2**20)} MB"
