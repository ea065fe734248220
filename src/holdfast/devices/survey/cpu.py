"""The CPU: cores, what this process may use of them, and the instructions that make training fast."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from holdfast.devices.survey import apple, windows
from holdfast.devices.survey.host import Host
from holdfast.devices.survey.kernel_files import number, read
from holdfast.devices.survey.records import Cpu
from holdfast.run import machine

# In our words, and the kernel's word for each; several kernel words may mean one of ours.
_X86 = {
    "avx": ("avx",),
    "avx2": ("avx2",),
    "fma": ("fma",),
    "f16c": ("f16c",),
    "avx512": ("avx512f",),
    "avx512_vnni": ("avx512_vnni",),
    "avx_vnni": ("avx_vnni",),
    "avx512_fp16": ("avx512_fp16",),
    "amx": ("amx_tile",),
    "bf16": ("avx512_bf16", "amx_bf16"),
}
_ARM = {
    "neon": ("asimd", "neon"),
    "fp16": ("asimdhp",),
    "dotprod": ("asimddp",),
    "i8mm": ("i8mm",),
    "bf16": ("bf16",),
    "sve": ("sve",),
    "sve2": ("sve2",),
    "sme": ("sme",),
}
_MAC = {
    "neon": ("hw.optional.neon", "hw.optional.AdvSIMD"),
    "fp16": ("hw.optional.arm.FEAT_FP16",),
    "dotprod": ("hw.optional.arm.FEAT_DotProd",),
    "i8mm": ("hw.optional.arm.FEAT_I8MM",),
    "bf16": ("hw.optional.arm.FEAT_BF16",),
    "sme": ("hw.optional.arm.FEAT_SME",),
}


def look(host: Host, root: Path, mac: apple.Told, win: windows.Told) -> Cpu:
    if host.os == "macos":
        return _on_mac(mac)
    if host.os == "windows":
        return _on_windows(win)
    return _on_linux(root)


def _on_linux(root: Path) -> Cpu:
    info = read(root / "proc/cpuinfo")
    threads = len(re.findall(r"^processor\s*:", info, re.MULTILINE)) or None
    limits, memory = machine.limits(root), number(_meminfo(root))
    allowed = _listed(_field(read(root / "proc/self/status"), "Cpus_allowed_list"))
    quota = limits["cpus"]
    if quota is not None and allowed is not None:
        allowed = min(allowed, max(1, int(quota)))
    return Cpu(
        name=machine.cpu_model(root),
        cores=_cores(info, root),
        threads=threads,
        threads_allowed=allowed,
        quota_cpus=quota,
        features=_features(info),
        memory_bytes=memory * 1024 if memory else None,
        memory_limit_bytes=limits["memory_bytes"],
    )


def _cores(info: str, root: Path) -> int | None:
    """x86 lists them with each processor; on Arm the topology has them."""
    found = set()
    for part in re.split(r"\n\s*\n", info):
        package, core = _field(part, "physical id"), _field(part, "core id")
        if core is not None:
            found.add((package, core))
    if not found:
        for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
            core = read(folder / "core_id").strip()
            if core and core != "-1":
                found.add((read(folder / "physical_package_id").strip(), core))
    return len(found) or None


def _features(info: str) -> list[str] | None:
    flags, features = _field(info, "flags"), _field(info, "Features")
    words, known = (flags, _X86) if flags is not None else (features, _ARM)
    if words is None:
        return None
    has = set(words.split())
    return [name for name, kernel in known.items() if has.intersection(kernel)]


def _meminfo(root: Path) -> str | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB$", read(root / "proc/meminfo"), re.MULTILINE)
    return found[1] if found else None


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def _listed(text: str | None) -> int | None:
    """How many "0-3,8" are."""
    total = 0
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text or ""):
        total += int(last or first) - int(first) + 1
    return total or None


def _on_mac(told: apple.Told) -> Cpu:
    threads = number(told.values.get("hw.logicalcpu"))
    known = any(name.startswith("hw.optional.") for name in told.values)
    return Cpu(
        name=told.chip,
        cores=number(told.values.get("hw.physicalcpu")),
        threads=threads,
        threads_allowed=threads,  # there is no affinity and no control group
        quota_cpus=None,
        features=[name for name, keys in _MAC.items() if any(told.values.get(key) == "1" for key in keys)]
        if known
        else None,
        memory_bytes=told.memory_bytes,
        memory_limit_bytes=None,
    )


def _on_windows(told: windows.Told) -> Cpu:
    threads = number(str(told.cpu.get("NumberOfLogicalProcessors")))
    name = told.cpu.get("Name")
    return Cpu(
        name=name.strip() if isinstance(name, str) else None,
        cores=number(str(told.cpu.get("NumberOfCores"))),
        threads=threads,
        threads_allowed=_may_use() or threads,
        quota_cpus=None,
        features=_windows_features(),
        memory_bytes=told.memory_bytes,
        memory_limit_bytes=None,
    )


def _may_use() -> int | None:
    return (getattr(os, "process_cpu_count", os.cpu_count)()) if sys.platform == "win32" else None


def _windows_features() -> list[str] | None:
    """Asked of Windows itself; which says nothing about amx and bf16."""
    if sys.platform != "win32":
        return None
    import ctypes

    numbers = {"neon": 19, "avx": 39, "avx2": 40, "avx512": 41}  # PF_ARM_NEON…, PF_AVX…_INSTRUCTIONS_AVAILABLE
    present = ctypes.windll.kernel32.IsProcessorFeaturePresent
    return [name for name, number_ in numbers.items() if present(number_)]
