"""What the devices of this machine do right now: load, memory, temperature, power; and the room on the disk.

    sensors = Sensors()
    sensors.read()         # {"time": …, "devices": [{"device": "cuda:0", "load_pct": 94.0, …}, {"device": "cpu", …}]}
    python -m holdfast.monitor.devices --every 2 --disk runs/x        one such JSON object a line, until nobody reads

NVIDIA through its management library (devices/nvidia.py), AMD and Intel through the kernel's files, Apple through
`ioreg`, the CPU through psutil where it is installed (`pip install 'holdfast[monitor]'`) and /proc where not.
Unknown is None, never 0: no sensor is not cold. Asking a sick driver can hang, so a run asks from a child
that nothing depends on.
HOLDFAST_SENSORS names a JSON file whose values replace what is read: for tests of what happens at 90 °C.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.devices.nvidia import Nvml
from holdfast.run import machine
from holdfast.run.events import utc_now

VARIABLE = "HOLDFAST_SENSORS"
ROOT = Path("/")
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "acpitz")
"""Drivers of CPU temperatures, the trustworthy first."""
_NOTHING: dict[str, Any] = dict.fromkeys(
    ("name", "load_pct", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w", "power_limit_w")
)


class Sensors:
    """What can be read on this machine. Keeps the last counters: loads and powers are differences."""

    def __init__(self, root: Path = ROOT, disk: Path | None = None) -> None:
        self.root = root
        self.disk = disk
        self._nvml: Nvml | None = None
        if root == ROOT:
            with contextlib.suppress(OSError, AttributeError):
                self._nvml = Nvml()
        self._cpu = _Cpu(root)
        self._energy: dict[Path, tuple[float, float]] = {}

    def read(self) -> dict[str, Any]:
        """One reading; accelerators first."""
        rows = [*self._nvidia(), *self._drm(), *self._apple(), self._cpu.read(self._power)]
        readings = {"time": utc_now(), "devices": rows, "disk_free_bytes": _free(self.disk)}
        return _pretended(readings)

    def _nvidia(self) -> Iterator[dict[str, Any]]:
        """Numbered as torch does, of those CUDA_VISIBLE_DEVICES leaves (it sorts mixed cards by speed, not by bus)."""
        rows = self._nvml.read() if self._nvml is not None else []
        for number, row in enumerate(_visible(rows)):
            row.pop("index"), row.pop("uuid")
            yield {**_NOTHING, **row, "device": f"cuda:{number}", "vendor": "NVIDIA"}

    def _drm(self) -> Iterator[dict[str, Any]]:
        """AMD's and Intel's cards, from the files of the kernel."""
        counts = {"cuda": 0, "xpu": 0}
        for card in sorted((self.root / "sys/class/drm").glob("card[0-9]*")):
            vendor = {"0x1002": "AMD", "0x8086": "Intel"}.get(_text(card / "device/vendor"))
            if "-" in card.name or vendor is None:
                continue
            kind = "cuda" if vendor == "AMD" else "xpu"
            if kind == "cuda" and self._nvml is not None:
                continue  # torch calls only one of them cuda
            row = _card(card / "device")
            row["power_w"] = row["power_w"] or self._hwmon_energy(card / "device")
            if vendor == "Intel" and row["temperature_c"] is None and row["memory_total_bytes"] is None:
                continue  # graphics in the CPU: nothing to read
            yield {**_NOTHING, **row, "device": f"{kind}:{counts[kind]}", "vendor": vendor}
            counts[kind] += 1

    def _apple(self) -> Iterator[dict[str, Any]]:
        if sys.platform != "darwin" or self.root != ROOT or not shutil.which("ioreg"):
            return
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator"]
            text = subprocess.run(words, capture_output=True, text=True, timeout=5).stdout
            load = re.search(r'"Device Utilization %"=(\d+)', text)
            used = re.search(r'"In use system memory"=(\d+)', text)
            yield {
                **_NOTHING,
                "device": "mps",
                "vendor": "Apple",
                "load_pct": float(load[1]) if load else None,
                "memory_used_bytes": int(used[1]) if used else None,
            }

    def _hwmon_energy(self, device: Path) -> float | None:
        files = sorted(device.glob("hwmon/hwmon*/energy1_input"))
        return self._power(files[0]) if files else None

    def _power(self, counter: Path) -> float | None:
        """Watts, from a counter of microjoules; unknown at the first look and when it has wrapped around."""
        energy, now = _number(counter), time.monotonic()
        if energy is None:
            return None
        then, before = self._energy.get(counter, (now, energy))
        self._energy[counter] = (now, energy)
        return round((energy - before) / 1e6 / (now - then), 1) if now - then > 0.05 and energy >= before else None


class _Cpu:
    """The CPU and the memory of the machine, or what its control group leaves of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = machine.cpu_model(root)
        self.limit = machine.limits(root)["memory_bytes"]
        self._groups = [folder for folder in machine.cgroups(root) if (folder / "memory.current").exists()]
        self._times: tuple[float, float] | None = None
        try:
            import psutil
        except ImportError:
            psutil = None
        self._psutil: Any = psutil if root == ROOT else None

    def read(self, power: Any) -> dict[str, Any]:
        total, used = self._memory()
        counters = sorted((self.root / "sys/class/powercap").glob("intel-rapl:[0-9]/energy_uj"))
        watts = [watt for counter in counters if (watt := power(counter)) is not None]
        return {
            **_NOTHING,
            "device": "cpu",
            "name": self.name,
            "load_pct": self._load(),
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "temperature_c": self._temperature(),
            "power_w": round(sum(watts), 1) if watts else None,
        }

    def _load(self) -> float | None:
        """Of all CPUs together, since the last look."""
        if self._psutil is not None and not (self.root / "proc/stat").exists():
            return float(self._psutil.cpu_percent(None))
        match = re.match(r"cpu +(.+)", _text(self.root / "proc/stat"))
        if not match:
            return None
        ticks = [float(word) for word in match[1].split()[:8]]
        total, idle = sum(ticks), sum(ticks[3:5])
        before, self._times = self._times, (total, idle)
        if before is None or total <= before[0]:
            return None
        return round(100 * (1 - (idle - before[1]) / (total - before[0])), 1)

    def _memory(self) -> tuple[int | None, int | None]:
        """Total and used, in bytes. In a container the strictest limit is what counts."""
        known = machine.memory(self.root)
        total, free = known["total_bytes"], known["available_bytes"]
        if free is None and self._psutil is not None:
            free = int(self._psutil.virtual_memory().available)
        used = None if total is None or free is None else max(0, total - free)
        if self.limit and (total is None or self.limit < total):
            own = [size for folder in self._groups if (size := _working_set(folder)) is not None]
            return self.limit, max(own, default=used)
        return total, used

    def _temperature(self) -> float | None:
        """The hottest of the best driver there is."""
        by_driver: dict[str, list[float]] = {}
        for folder in (self.root / "sys/class/hwmon").glob("hwmon*"):
            values = [value / 1000 for file in folder.glob("temp*_input") if (value := _number(file)) is not None]
            by_driver.setdefault(_text(folder / "name"), []).extend(value for value in values if 0 < value < 150)
        for driver in _CPU_SENSORS:
            if by_driver.get(driver):
                return round(max(by_driver[driver]), 1)
        return self._elsewhere()

    def _elsewhere(self) -> float | None:
        """Where the kernel has no such files, psutil may know."""
        if self._psutil is None or not hasattr(self._psutil, "sensors_temperatures") or self.root != ROOT:
            return None
        found = self._psutil.sensors_temperatures()
        for driver in _CPU_SENSORS:
            if found.get(driver):
                return round(max(float(entry.current) for entry in found[driver]), 1)
        return None


def _card(device: Path) -> dict[str, Any]:
    def first(pattern: str) -> float | None:
        return next((value for file in sorted(device.glob(pattern)) if (value := _number(file)) is not None), None)

    used, total = _number(device / "mem_info_vram_used"), _number(device / "mem_info_vram_total")
    temperature = first("hwmon/hwmon*/temp1_input")
    power = first("hwmon/hwmon*/power1_average") or first("hwmon/hwmon*/power1_input")
    limit = first("hwmon/hwmon*/power1_cap")
    return {
        "name": _text(device / "product_name") or None,
        "load_pct": _number(device / "gpu_busy_percent"),
        "memory_used_bytes": None if used is None else int(used),
        "memory_total_bytes": None if total is None else int(total),
        "temperature_c": None if temperature is None else temperature / 1000,
        "power_w": None if power is None else power / 1e6,
        "power_limit_w": None if limit is None else limit / 1e6,
    }


def _visible(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return rows
    wanted = [entry.strip() for entry in listed.split(",") if entry.strip()]
    chosen = []
    for entry in wanted:
        match = [row for row in rows if str(row["index"]) == entry or str(row.get("uuid") or "").startswith(entry)]
        chosen += match[:1]
    return chosen


def _working_set(folder: Path) -> int | None:
    """What a control group holds, without files that can be dropped at once."""
    current = _number(folder / "memory.current")
    inactive = re.search(r"^inactive_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    return None if current is None else max(0, int(current) - (int(inactive[1]) if inactive else 0))


def _free(disk: Path | None) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return shutil.disk_usage(disk).free if disk is not None else None
    return None


def _pretended(readings: dict[str, Any]) -> dict[str, Any]:
    """With the values of the file HOLDFAST_SENSORS on top; a row for a device that is not here is added."""
    path = os.environ.get(VARIABLE)
    if not path:
        return readings
    try:
        wanted = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return readings
    if not isinstance(wanted, dict):
        return readings
    rows = {row["device"]: row for row in readings["devices"]}
    for row in wanted.pop("devices", []):
        rows[row["device"]] = {**_NOTHING, **rows.get(row["device"], {}), **row}
    ordered = [rows[name] for name in rows if name != "cpu"] + [rows["cpu"]]
    return {**readings, **wanted, "devices": ordered}


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def main(argv: list[str] | None = None) -> int:
    """Readings on stdout, one a line, until the reader is gone."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m holdfast.monitor.devices", description=__doc__)
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--disk", type=Path, metavar="FOLDER", help="whose free space is read as well")
    parser.add_argument("--parent", type=int, metavar="PID", help="end with this process")
    parser.add_argument("-1", "--once", action="store_true", help="one reading, after the loads are known")
    args = parser.parse_args(argv)
    if args.parent is not None:
        _end_with_parent()
        behave()
    sensors = Sensors(disk=args.disk)
    sensors.read()
    time.sleep(0.2)  # a load is a difference
    try:
        while args.parent is None or os.getppid() == args.parent:
            print(json.dumps(sensors.read()), flush=True)
            if args.once:
                return 0
            time.sleep(max(0.1, args.every))
    except (BrokenPipeError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is left to be written at exit
    return 0


def behave() -> None:
    """A training that wants the CPU has it: who only looks takes what is left."""
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            os.nice(19)


def _end_with_parent() -> None:
    """Ask the kernel to end us with the process that started us; elsewhere the loop looks, and the pipe breaks."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
