"""The order in which CUDA counts the cards here, as JSON: run in a process of its own, with the user's environment.

    python -m holdfast.devices.survey.cuda_order      # [{"pci": "0000:41:00.0", "name": "NVIDIA GeForce RTX 3090"}, …]

It starts the driver and asks for names; it makes no context, allocates nothing and needs no torch.
"""

from __future__ import annotations

import ctypes
import json
import sys


def cards() -> list[dict[str, str]]:
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    _check(driver.cuInit(0))
    count = ctypes.c_int()
    _check(driver.cuDeviceGetCount(ctypes.byref(count)))
    found = []
    for index in range(count.value):
        device, place, name = ctypes.c_int(), ctypes.create_string_buffer(32), ctypes.create_string_buffer(256)
        _check(driver.cuDeviceGet(ctypes.byref(device), index))
        _check(driver.cuDeviceGetPCIBusId(place, len(place), device))
        _check(driver.cuDeviceGetName(name, len(name), device))
        found.append({"pci": place.value.decode(), "name": name.value.decode()})
    return found


def _check(code: int) -> None:
    if code:
        sys.exit(f"CUDA error {code}")


if __name__ == "__main__":
    print(json.dumps(cards()))
