"""The system around the devices: which one, in a container or in WSL, with which drivers and runtimes."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.devices.survey.kernel_files import read
from holdfast.run import machine

_NAMES = {"win32": "windows", "darwin": "macos"}


@dataclass(frozen=True, slots=True)
class Host:
    """What Python knows about the system it runs on; a test brings that of another machine."""

    platform: str
    """As sys.platform: linux, darwin, win32."""
    machine: str
    release: str | None = None
    version: str | None = None

    @classmethod
    def here(cls) -> Host:
        return cls(sys.platform, platform.machine(), platform.release(), platform.version())

    @property
    def os(self) -> str:
        return _NAMES.get(self.platform, "linux" if self.platform.startswith("linux") else self.platform)


def describe(host: Host, root: Path, name: str | None) -> dict[str, Any]:
    """Most fields of System; `name` is what macOS or Windows call themselves."""
    if host.os == "linux":
        release = dict(re.findall(r'^(\w+)="?(.*?)"?$', read(root / "etc/os-release"), re.MULTILINE))
        kind = machine.container(root)
        return {
            "os": "linux",
            "name": release.get("PRETTY_NAME"),
            "kernel": read(root / "proc/sys/kernel/osrelease").strip() or host.release,
            "machine": host.machine,
            "container": kind is not None,
            "container_kind": kind,
            "wsl": machine.wsl(root) is not None,
        }
    name = name or (f"{host.os} {host.version}" if host.version else None)
    none = {"container": None, "container_kind": None, "wsl": False}
    return {"os": host.os, "name": name, "kernel": host.release, "machine": host.machine, **none}


def kernel_versions(root: Path) -> dict[str, str]:
    """Drivers and runtimes that have a version in a file."""
    found = {
        "nvidia": read(root / "sys/module/nvidia/version"),
        "amdgpu": read(root / "sys/module/amdgpu/version"),
        "rocm": read(root / "opt/rocm/.info/version"),
        "i915": read(root / "sys/module/i915/version"),
        "xe": read(root / "sys/module/xe/version"),
    }
    cuda = re.search(r'"version"\s*:\s*"([\d.]+)"', read(root / "usr/local/cuda/version.json"))
    found["cuda_toolkit"] = cuda[1] if cuda else ""
    return {name: text.strip() for name, text in found.items() if text.strip()}
