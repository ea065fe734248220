"""Temperature, power, clocks and error counters of a device, from files and one tool. No torch, no driver call of ours.

    read("cuda:0")                  # {"temperature_c": 71.0, "power_w": 143.0, "clock_mhz": 1750.0, "errors": 0}
    hotter(one, other)              # the larger of each
    errors(reading)                 # what the device itself counted as gone wrong

What cannot be read is left out. NVIDIA cards are asked by `nvidia-smi`, which may hang with its driver: it has a
deadline.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from holdfast.devices import nvidia
from holdfast.devices.identity import identify
from holdfast.run import machine

ROOT = Path("/")
Reading = dict[str, float]
_QUERY = {
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "clock_mhz": "clocks.sm",
    "errors": "ecc.errors.uncorrected.volatile.total",
}
_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def ask(words: list[str], deadline_s: float = 5.0) -> str | None:
    """What a tool says; None if it is not here, fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(words, capture_output=True, text=True, timeout=deadline_s, check=True)
        return said.stdout
    return None


@lru_cache(maxsize=8)
def _address(device: str) -> str | None:
    return identify(device).pci


def read(device: str, *, root: Path = ROOT, run: Callable[[list[str]], str | None] = ask) -> Reading:
    """What can be known now."""
    if device.partition(":")[0] in ("cpu", "pretend"):
        return _cpu(root)
    pci = _address(device)
    if pci is None:
        return {}
    card = root / "sys/bus/pci/devices" / pci
    if machine.read(card / "vendor").strip() == "0x10de":
        return {**_nvidia(pci, run), **_link(card)}
    return {**_hwmon(card), **_link(card)}


def hotter(one: Reading, other: Reading) -> Reading:
    return {
        name: max(one.get(name, other.get(name, 0.0)), other.get(name, one.get(name, 0.0))) for name in {**one, **other}
    }


def errors(reading: Reading) -> int:
    """Memory errors and fatal errors of the link; those that were corrected on the way are none."""
    return int(reading.get("errors", 0) + reading.get("link_errors", 0))


def _nvidia(pci: str, run: Callable[[list[str]], str | None]) -> Reading:
    said = run(nvidia.query(*_QUERY.values(), pci=pci))
    (row, *_) = nvidia.rows(said or "", tuple(_QUERY.values())) or [{}]
    found: Reading = {}
    for name, field in _QUERY.items():
        with contextlib.suppress(ValueError, KeyError):
            found[name] = float(row[field])
    return found


def _hwmon(card: Path) -> Reading:
    """amdgpu, i915 and xe show theirs here; the hottest of the card's places counts."""
    found: Reading = {}
    for chip in sorted((card / "hwmon").glob("hwmon*")):
        temperatures = [value for path in chip.glob("temp*_input") if (value := _value(path)) is not None]
        if temperatures:
            found["temperature_c"] = max(temperatures) / 1e3
        for name, files, unit in (
            ("power_w", ("power1_average", "power1_input"), 1e6),
            ("clock_mhz", ("freq1_input",), 1e6),
        ):
            value = next((value for file in files if (value := _value(chip / file)) is not None), None)
            if value is not None:
                found[name] = value / unit
    count = re.search(r"^ue:?\s*(\d+)", machine.read(card / "ras/umc_err_count"), re.MULTILINE)
    if count:
        found["errors"] = float(count[1])
    return found


def _link(card: Path) -> Reading:
    """What the bus counted."""
    found: Reading = {}
    for name, file in (("link_errors", "aer_dev_fatal"), ("link_corrected", "aer_dev_correctable")):
        total = re.search(r"^TOTAL_ERR_\w+\s+(\d+)", machine.read(card / file), re.MULTILINE)
        if total:
            found[name] = float(total[1])
    return found


def _cpu(root: Path) -> Reading:
    found: Reading = {}
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if machine.read(chip / "name").strip() in _CPU_CHIPS:
            values = [value for path in chip.glob("temp*_input") if (value := _value(path)) is not None]
            if values:
                found["temperature_c"] = max(values) / 1e3
    clock = _value(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if clock is not None:
        found["clock_mhz"] = clock / 1e3
    return found


def _value(path: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text())
    return None
