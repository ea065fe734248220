"""The processor and the packages that decide which ways to run a model are worth trying.

    machine = Machine.look(packages())           # packages() of engines/: what any engine needs
    machine.against_compiling()                  # why nothing can be compiled here; empty if it can

No torch.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXTRA = "pip install 'holdfast[optimize]'"

_IN_EXTRA = {"onnx", "onnxscript", "onnxruntime", "openvino"}
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
FP16 = {"asimdhp", "fphp", "avx512_fp16", "amx_fp16"}
INT8 = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "avx2"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides which candidates make sense."""

    flags: frozenset[str]
    cores: int
    gpu: bool = False
    compiler: bool = True
    packages: frozenset[str] = frozenset({"onnx", "onnxruntime", "openvino"})

    @classmethod
    def look(cls, packages: Iterable[str]) -> Machine:
        """This machine, and which of these packages it has."""
        return cls(
            _flags(),
            _cores(),
            Path("/proc/driver/nvidia/version").exists() or Path("/dev/kfd").exists(),
            any(shutil.which(each) for each in (os.environ.get("CXX", ""), "g++", "clang++", "cl") if each),
            frozenset(name for name in packages if importlib.util.find_spec(name)),
        )

    def without(self, package: str) -> str:
        """Why nothing that needs it is tried."""
        return f"{package} is not installed" + (f": {EXTRA}" if package in _IN_EXTRA else "")

    def against_compiling(self) -> str:
        """Why nothing can be compiled here; empty if it can."""
        return "" if self.compiler else "there is no C++ compiler on this machine"

    def to_json(self) -> dict[str, Any]:
        interesting = sorted(self.flags & (BF16 | FP16 | INT8 | {"avx512f", "amx_tile", "sve"}))
        return {"cpu": platform.machine(), "cores": self.cores, "gpu": self.gpu, "arithmetic": interesting}


def _flags() -> frozenset[str]:
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return frozenset({"fphp", "asimdhp", "asimddp"})
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset({"avx2"})  # any processor that runs a current torch
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(
        word for key, _, words in lines if key.strip().lower() in ("flags", "features") for word in words.split()
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
