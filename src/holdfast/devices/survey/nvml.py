"""The NVIDIA cards that NVML shows, as JSON: run in a process of its own, since asking the driver may hang.

python -m holdfast.devices.survey.nvml      # [{"pci.bus_id": "00000000:01:00.0", "name": "NVIDIA H200", …}]
"""

from __future__ import annotations

import importlib
import json
from typing import Any


def cards() -> list[dict[str, Any]]:
    """The same words as nvidia-smi uses, so that one reader serves both."""
    pynvml = importlib.import_module("pynvml")  # of nvidia-ml-py, which not everyone has

    pynvml.nvmlInit()
    version = _text(pynvml.nvmlSystemGetDriverVersion())
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        place = pynvml.nvmlDeviceGetPciInfo(handle)
        found.append(
            {
                "pci.bus_id": _text(place.busId),
                "pci.device_id": f"0x{place.pciDeviceId:08X}",
                "name": _text(pynvml.nvmlDeviceGetName(handle)),
                "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
                "memory.total": str(pynvml.nvmlDeviceGetMemoryInfo(handle).total // (1024 * 1024)),
                "driver_version": version,
                "compute_cap": f"{major}.{minor}",
            }
        )
    return found


def _text(said: str | bytes) -> str:
    return said.decode() if isinstance(said, bytes) else said


if __name__ == "__main__":
    print(json.dumps(cards()))
