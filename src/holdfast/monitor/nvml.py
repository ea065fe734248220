"""What NVIDIA's management library says about each card right now, asked through ctypes: no package is needed.

    for row in Nvml().read(): row["name"], row["load_pct"], row["temperature_c"]

The library comes with every driver. A sick driver hangs whoever asks it, so this runs in a process that nothing
depends on: the sensors' own child of a run, or a monitor. A value that a card does not have is None.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_GPU_TEMPERATURE = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The open library. OSError where there is none or it does not work."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        if self._library.nvmlInit_v2() != 0:
            raise OSError("the management library of the NVIDIA driver does not start")

    def read(self) -> list[dict[str, Any]]:
        """One row a card, in the driver's order."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [row for index in range(count.value) if (row := self._card(index)) is not None]

    def _card(self, index: int) -> dict[str, Any] | None:
        library, handle = self._library, ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
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
