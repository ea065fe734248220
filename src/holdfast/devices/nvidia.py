"""All that is read from NVIDIA's driver: by `nvidia-smi`, or by its management library (NVML) through ctypes.

    query("utilization.gpu")              # the words of a question, for a child with a deadline
    rows(text, ("utilization.gpu",))      # what it answered, a dict for each card
    report_command(), report(text)        # the long report: recovery it asks for, memory errors, slowdowns
    Nvml().read()                         # load, memory, temperature and power of each card, now
    python -m holdfast.devices.nvidia     # what `nvidia-smi` would say of each card, where a container lacks it

A sick driver hangs whoever asks it. So `nvidia-smi` is a child with a deadline, and `Nvml` runs in processes that
nothing depends on: the child of a survey, the sensors' own child of a run, or a monitor. Both come with every driver;
no package is needed. A value that a card does not have is left out or None.
"""

from __future__ import annotations

import csv
import ctypes
import io
import json
import shutil
import sys
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from typing import Any

CARD = ("pci.bus_id", "pci.device_id", "name", "uuid", "memory.total", "driver_version", "compute_cap")
"""What tells one card from another. Drivers of 2021 and before do not know the last one."""

# nvidia-smi -----------------------------------------------------------------------------------------------------------


def query(*fields: str, pci: str | None = None) -> list[str]:
    """The words to start: a line of values for each card, or for the one at this place on the bus."""
    words = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    return [*words, "-i", pci] if pci else words


def rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """A dict for each line. "[N/A]" and "[Not Supported]" are its words for unknown; such values are left out."""
    read = csv.reader(io.StringIO(text), skipinitialspace=True)
    found = [dict(zip(fields, (each.strip() for each in values), strict=True)) for values in read
             if len(values) == len(fields)]  # fmt: skip
    return [{name: value for name, value in row.items() if value and not value.startswith("[")} for row in found]


def report_command() -> list[str] | None:
    """What to start for the long report, or None where no NVIDIA driver is installed."""
    found = shutil.which("nvidia-smi")
    return [found, "-q", "-x"] if found else None


def report(text: str) -> list[dict[str, Any]] | str:
    """What the long report says of each card, or why it says nothing.

    [{"device": "0000:65:00.0", "recovery_action": "Reset", "ecc": {...}, ...}]
    """
    try:
        root = xml.fromstring(text)
    except xml.ParseError:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[0][:200] if lines else "it said nothing"
    return [_card(gpu) for gpu in root.iter("gpu")]


def _card(gpu: xml.Element) -> dict[str, Any]:
    slowdowns = gpu.find("clocks_event_reasons")
    card = {
        "device": _address(gpu.get("id", "")),
        "name": gpu.findtext("product_name"),
        "recovery_action": gpu.findtext("gpu_recovery_action"),
        "ecc": _numbers(gpu, "ecc_errors/volatile"),
        "ecc_ever": _numbers(gpu, "ecc_errors/aggregate"),
        "remapped_rows": _numbers(gpu, "remapped_rows"),
        "retired_pages": {
            name: count
            for name in ("multiple_single_bit_retirement", "double_bit_retirement")
            if (count := _number(gpu.findtext(f"retired_pages/{name}/retired_count"))) is not None
        },
        "pcie_replays": _number(gpu.findtext("pci/replay_counter")),
        "temperature_c": _number(gpu.findtext("temperature/gpu_temp")),
        "slowed_by": [
            reason.tag.removeprefix("clocks_event_reason_")
            for reason in (slowdowns if slowdowns is not None else ())
            if (reason.text or "").strip() == "Active" and not reason.tag.endswith("_idle")
        ],
    }
    return {name: value for name, value in card.items() if value not in (None, {}, "N/A")}


def needs(card: dict[str, Any]) -> str | None:
    """The recovery the driver asks for, or None: "Reset", "Reboot", "Drain P2P" …"""
    action = str(card.get("recovery_action") or "None")
    return None if action.lower() in ("none", "n/a", "unknown error") else action


def _address(text: str) -> str:
    """00000000:65:00.0, as NVML writes it, is 0000:65:00.0 everywhere else."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else text


def _numbers(gpu: xml.Element, path: str) -> dict[str, int | str]:
    """The numbers below a heading, and what is answered by yes or no."""
    values: dict[str, int | str] = {}
    for child in gpu.findall(f"{path}/*"):
        text = (child.text or "").strip()
        number = _number(text)
        if number is not None or text in ("Yes", "No"):
            values[child.tag.removeprefix("remapped_row_")] = text if number is None else number
    return values


def _number(text: str | None) -> int | None:
    word = (text or "").split(" ")[0]
    return int(word) if word.isdigit() else None


# The management library ----------------------------------------------------------------------------------------------

_GPU_TEMPERATURE = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Place(ctypes.Structure):
    """nvmlPciInfo_t of version 3, which `nvmlDeviceGetPciInfo_v3` fills in."""

    _fields_ = (
        ("old_bus_id", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint), ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint), ("bus_id", ctypes.c_char * 32),
    )  # fmt: skip


class Nvml:
    """The open library. OSError where there is none or it does not work."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        if self._library.nvmlInit_v2() != 0:
            raise OSError("the management library of the NVIDIA driver does not start")

    def read(self) -> list[dict[str, Any]]:
        """One row a card, in the driver's order."""
        return [row for index in range(self._count()) if (row := self._card(index)) is not None]

    def described(self) -> list[dict[str, str]]:
        """What tells one card from another, in the words of `nvidia-smi`."""
        version = ctypes.create_string_buffer(96)
        known = self._library.nvmlSystemGetDriverVersion(version, ctypes.c_uint(96)) == 0
        found = [self._described(index) for index in range(self._count())]
        return [{**card, **({"driver_version": version.value.decode()} if known else {})} for card in found if card]

    def _described(self, index: int) -> dict[str, str] | None:
        library, handle = self._library, self._handle(index)
        if handle is None:
            return None
        place = self._ask(library.nvmlDeviceGetPciInfo_v3, handle, _Place())
        memory = self._ask(library.nvmlDeviceGetMemoryInfo, handle, _Memory())
        major, minor = ctypes.c_int(), ctypes.c_int()
        able = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
        card = {
            "pci.bus_id": place and place.bus_id.decode(),
            "pci.device_id": place and f"0x{place.device_id:08X}",
            "name": self._text(library.nvmlDeviceGetName, handle),
            "uuid": self._text(library.nvmlDeviceGetUUID, handle),
            "memory.total": memory and str(memory.total // (1024 * 1024)),
            "compute_cap": f"{major.value}.{minor.value}" if able else None,
        }
        return {name: value for name, value in card.items() if value}

    def _count(self) -> int:
        count = ctypes.c_uint()
        return count.value if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0

    def _handle(self, index: int) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        found = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0
        return handle if found else None

    def _card(self, index: int) -> dict[str, Any] | None:
        library, handle = self._library, self._handle(index)
        if handle is None:
            return None
        memory = self._ask(library.nvmlDeviceGetMemoryInfo, handle, _Memory())
        load = self._ask(library.nvmlDeviceGetUtilizationRates, handle, _Utilization())
        temperature = ctypes.c_uint()
        warm = library.nvmlDeviceGetTemperature(handle, ctypes.c_int(_GPU_TEMPERATURE), ctypes.byref(temperature)) == 0
        power = self._ask(library.nvmlDeviceGetPowerUsage, handle, ctypes.c_uint())
        limit = self._ask(library.nvmlDeviceGetEnforcedPowerLimit, handle, ctypes.c_uint())
        return {
            "index": index,
            "name": self._text(library.nvmlDeviceGetName, handle),
            "uuid": self._text(library.nvmlDeviceGetUUID, handle),
            "load_pct": None if load is None else float(load.gpu),
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "temperature_c": float(temperature.value) if warm else None,
            "power_w": None if power is None else power.value / 1000,
            "power_limit_w": None if limit is None else limit.value / 1000,
        }

    @staticmethod
    def _ask(question: Callable[..., int], handle: ctypes.c_void_p, answer: Any) -> Any:
        """The answer, filled in; None where this card has none."""
        return answer if question(handle, ctypes.byref(answer)) == 0 else None

    @staticmethod
    def _text(question: Callable[..., int], handle: ctypes.c_void_p) -> str | None:
        room = ctypes.create_string_buffer(96)
        return room.value.decode(errors="replace") if question(handle, room, ctypes.c_uint(96)) == 0 else None


if __name__ == "__main__":
    print(json.dumps(Nvml().described()))
