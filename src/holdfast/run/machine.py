"""What machine this is, from files and package metadata: no torch, no driver call, nothing that can hang.

    facts = look()                     # everything, as plain JSON-able values; unknown is None
    facts["torch"]["cuda"]             # "13.0", from the text of torch/version.py
    gpus()                             # [{"name": "NVIDIA H200", "driver": "nvidia 570.86", ...}]

What a device can really do is not asked here: that takes a probe in a process of its own. This is what a
person pastes into a report, and it has to work on a machine where everything else is broken.
Every reader takes the root of the file system, so that tests can bring a tree of another machine.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.base.human import shorten
from holdfast.run.settings import kinds, variable

ROOT = Path("/")

PACKAGES = ("numpy", "safetensors", "rich", "triton", "torchvision", "torchaudio", "py-spy")
"""The packages whose versions explain most reports; torch has a line of its own."""

ENVIRONMENT = re.compile(
    r"CUDA_\w+|NVIDIA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|HIP_\w+|ROCR_\w+|ROCM_PATH|HSA_\w+|AMD_\w+|GPU_\w+"
    r"|MIOPEN_\w+|ROCBLAS_\w+|HIPBLASLT_\w+|ZE_\w+|ONEAPI_DEVICE_SELECTOR|PYTORCH_\w+|TORCH_\w+|TORCHINDUCTOR_\w+"
    r"|OMP_\w+|MKL_\w+|KMP_\w+|OPENBLAS_NUM_THREADS|MALLOC_\w+|NCCL_\w+|GLOO_\w+|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|PYTHONPATH|PYTHONFAULTHANDLER|PYTHONHASHSEED|PYTHONUNBUFFERED|VIRTUAL_ENV|CONDA_DEFAULT_ENV|TMPDIR"
    r"|LANG|LC_ALL|TERM|NO_COLOR|FORCE_COLOR|COLUMNS|CI|HOLDFAST_PORTABLE|HOLDFAST_REMEDIES"
)
"""The variables that may be shown, beside those of the settings: they change how training behaves."""

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|WEBHOOK|_KEY\b|_KEY_|APIKEY|API_KEY")
_SECRET_VALUE = re.compile(
    r"://[^/\s@]+@|\b(hf_|sk-|ghp_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ)[\w-]{8,}|\b[Bb]earer\s+\S|PRIVATE KEY"
)

_VENDORS = {
    "0x10de": "NVIDIA",
    "0x1002": "AMD",
    "0x8086": "Intel",
    "0x1ed5": "Moore Threads",
    "0x1e36": "Enflame",
    "0x19e5": "Huawei",
    "0x1da3": "Habana",
}
_DISPLAY, _ACCELERATOR = "0x03", "0x12"
"""PCI classes: display controllers (graphics cards) and processing accelerators (which drive no screen)."""

# Arm machines name their CPU by numbers only; these are the ones people train on.
_ARM_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd05": "Cortex-A55",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd42": "Cortex-A78AE",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
    "0xd84": "Neoverse-V3",
}


def look(root: Path = ROOT, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything `holdfast env` shows, with home paths shortened and secrets left out."""
    return {
        "holdfast": package_version("holdfast"),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": shorten(sys.executable),
        },
        "system": system(root),
        "cpu": {"model": cpu_model(root), "count": os.cpu_count(), "usable": usable_cpus()},
        "memory": memory(root),
        "limits": limits(root),
        "torch": torch_build(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "gpus": gpus(root),
        "device_files": device_files(root),
        "environment": environment(os.environ if env is None else env),
    }


# The system -----------------------------------------------------------------------------------------------


def system(root: Path = ROOT) -> dict[str, Any]:
    """Operating system, kernel, architecture, and what stands between us and the hardware."""
    release = dict(re.findall(r'^(\w+)="?(.*?)"?$', read(root / "etc/os-release"), re.MULTILINE))
    return {
        "name": release.get("PRETTY_NAME") or f"{platform.system()} {platform.version()}".strip(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "container": container(root),
        "wsl": wsl(root),
    }


def container(root: Path = ROOT) -> str | None:
    """The kind of container, or None where nothing speaks for one."""
    if (root / "run/.containerenv").exists():
        return "podman"
    named = re.search(r"^container=(\w+)", read(root / "proc/1/environ").replace("\0", "\n"), re.MULTILINE)
    groups = read(root / "proc/1/cgroup") + read(root / "proc/self/cgroup")
    for word, name in (("kubepods", "kubernetes"), ("docker", "docker"), ("lxc", "lxc")):
        if word in groups:
            return name
    if (root / ".dockerenv").exists():
        return "docker"
    return named[1] if named else None


def wsl(root: Path = ROOT) -> int | None:
    """1 or 2 under Windows Subsystem for Linux, else None."""
    version = read(root / "proc/version").lower()
    if "microsoft" not in version:
        return None
    return 2 if "wsl2" in version or "microsoft-standard" in version else 1


def cpu_model(root: Path = ROOT) -> str | None:
    """The name on the CPU, or the nearest to it that the system tells."""
    info = read(root / "proc/cpuinfo")
    named = re.search(r"^(?:model name|cpu model|Processor)\s*:\s*(.+)$", info, re.MULTILINE)
    if named:
        return named[1].strip()
    board = read(root / "sys/firmware/devicetree/base/model").strip("\0\n ")
    part = re.search(r"^CPU part\s*:\s*(0x\w+)$", info, re.MULTILINE)
    known = _ARM_PARTS.get(part[1]) if part else None
    if known or board:
        return ", ".join(name for name in (known, board) if name)
    if sys.platform == "darwin":
        return _mac("machdep.cpu.brand_string")
    return platform.processor() or (f"Arm part {part[1]}" if part else None)


def usable_cpus() -> int | None:
    """The CPUs this process may use, which `taskset`, Slurm and containers make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def memory(root: Path = ROOT) -> dict[str, int | None]:
    """Memory in bytes; snapshots may go to `/dev/shm`, and many containers give it 64 MB."""
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB$", read(root / "proc/meminfo"), re.MULTILINE))
    total, available, swap = (
        int(info[name]) * 1024 if name in info else None for name in ("MemTotal", "MemAvailable", "SwapTotal")
    )
    shm_total, shm_free = _space(root / "dev/shm")
    return {
        "total_bytes": total or _physical_memory(),
        "available_bytes": available,
        "swap_bytes": swap,
        "shm_bytes": shm_total,
        "shm_free_bytes": shm_free,
    }


def limits(root: Path = ROOT) -> dict[str, Any]:
    """What the control groups of this process allow, the strictest of each kind; None is no limit seen."""
    folders = list(cgroups(root))
    files = [folder / name for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    sizes = [_whole(read(file)) for file in files]
    cpus = [_cpu_quota(folder) for folder in folders]
    pids = [_whole(read(folder / "pids.max")) for folder in folders]
    return {
        # Version 1 has no word for "no limit": it says the largest multiple of a page.
        "memory_bytes": min((limit for limit in sizes if limit is not None and limit < 2**60), default=None),
        "cpus": min((limit for limit in cpus if limit is not None), default=None),
        "processes": min((limit for limit in pids if limit is not None), default=None),
    }


def cgroups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of all above them, versions 2 and 1."""
    base = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        tops = [base / name for name in controllers.split(",")] if controllers else [base, base / "unified"]
        for top in tops:
            here = top / path.lstrip("/")
            yield from (folder for folder in (here, *here.parents) if folder == top or top in folder.parents)


def _cpu_quota(folder: Path) -> float | None:
    first_version = read(folder / "cpu.cfs_quota_us") + read(folder / "cpu.cfs_period_us")
    # "max 100000" in version 2 and "-1" in version 1 mean no limit, and do not match.
    match = re.fullmatch(r"(\d+)\s+(\d+)\s*", read(folder / "cpu.max") or first_version)
    return round(int(match[1]) / int(match[2]), 2) if match and int(match[2]) else None


# Software -------------------------------------------------------------------------------------------------


def package_version(name: str) -> str | None:
    """The installed version, from metadata alone."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> dict[str, str | None]:
    """Version and toolkit of the installed torch, read as text: a broken torch cannot break this."""
    from importlib.util import find_spec

    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    folder = Path(spec.origin).parent if spec and spec.origin else None
    text = read(folder / "version.py") if folder else ""
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*'([^']*)'", text, re.MULTILINE))
    return {
        "version": values.get("__version__") or package_version("torch"),
        **{name: values.get(name) for name in ("cuda", "hip", "rocm", "xpu")},
        "git": values.get("git_version"),
    }


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of the allow-list that are set, in order, with what looks like a secret left out."""
    settings = {variable(key) for key in kinds()}
    return {
        name: "(left out)" if secret("", value) else shorten(value)
        for name, value in sorted(env.items())
        if (ENVIRONMENT.fullmatch(name) or name in settings) and not secret(name, "")
    }


def secret(name: str, value: str) -> bool:
    """Does a variable sound like a secret, or its value look like one?"""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


# Devices --------------------------------------------------------------------------------------------------


def gpus(root: Path = ROOT) -> list[dict[str, Any]]:
    """Graphics cards and accelerators that the kernel shows, whether or not torch could use them."""
    found = {card["pci"]: card for card in _pci_cards(root)}
    for folder in children(root / "proc/driver/nvidia/gpus"):  # in a container this may be all there is
        known = found.setdefault(folder.name, {**_no_card(), "pci": folder.name, "vendor": "NVIDIA"})
        model = re.search(r"^Model:\s*(.+)$", read(folder / "information"), re.MULTILINE)
        known["name"] = model[1].strip() if model else known["name"]
        known["driver"] = known["driver"] or _driver("nvidia", root)
    if not found and sys.platform == "darwin" and platform.machine() == "arm64" and root == ROOT:
        return [{**_no_card(), "vendor": "Apple", "name": f"{_mac('machdep.cpu.brand_string')} (Metal)"}]
    return [found[address] for address in sorted(found)]


def device_files(root: Path = ROOT) -> dict[str, bool]:
    """The files through which devices are used, and whether we may open them: often the whole problem."""
    patterns = ("kfd", "dri/renderD*", "nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "dxg", "accel/accel*")
    paths = [path for pattern in patterns for path in sorted((root / "dev").glob(pattern))]
    return {f"/{path.relative_to(root).as_posix()}": os.access(path, os.R_OK | os.W_OK) for path in paths}


def _no_card() -> dict[str, Any]:
    return dict.fromkeys(("name", "vendor", "pci", "id", "driver", "memory_bytes", "gfx"))


def _pci_cards(root: Path) -> Iterator[dict[str, Any]]:
    gfx_names = _kfd_names(root)
    for folder in children(root / "sys/bus/pci/devices"):
        if not read(folder / "class").startswith((_DISPLAY, _ACCELERATOR)):
            continue
        vendor, device = read(folder / "vendor").strip(), read(folder / "device").strip()
        driver = folder / "driver"  # a link to it, missing where none has taken the card
        yield {
            "name": read(folder / "product_name").strip() or _pci_name(vendor, device, root),
            "vendor": _VENDORS.get(vendor, vendor),
            "pci": folder.name,
            "id": f"{vendor[2:]}:{device[2:]}",
            "driver": _driver(driver.resolve().name, root) if driver.exists() else None,
            "memory_bytes": _whole(read(folder / "mem_info_vram_total")),
            "gfx": gfx_names.get(_location(folder.name)),
        }


def _driver(name: str, root: Path) -> str:
    """The driver with its version; one that is part of the kernel has none of its own."""
    version = read(root / "sys/module" / name / "version").strip()
    return f"{name} {version}" if version else name


def _kfd_names(root: Path) -> dict[int | None, str]:
    """AMD's instruction set by PCI location, from the kernel: HSA_OVERRIDE_GFX_VERSION does not reach it."""
    names: dict[int | None, str] = {}
    for node in children(root / "sys/class/kfd/kfd/topology/nodes"):
        values = dict(re.findall(r"^(\w+) (\d+)$", read(node / "properties"), re.MULTILINE))
        version = int(values.get("gfx_target_version", 0))
        if version:
            major, minor, step = version // 10000, version // 100 % 100, version % 100
            location = int(values.get("domain", 0)) << 16 | int(values.get("location_id", 0))
            names[location] = f"gfx{major}{minor:x}{step:x}"
    return names


def _location(address: str) -> int | None:
    """0000:03:00.0 as the number that the kfd topology uses."""
    match = re.fullmatch(r"(\w+):(\w\w):(\w\w)\.(\w)", address)
    if not match:
        return None
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return domain << 16 | bus << 8 | device << 3 | function


def _pci_name(vendor: str, device: str, root: Path) -> str | None:
    """The card's name in the system's list of PCI ids, where there is one."""
    for place in ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"):
        section = re.search(rf"^{vendor[2:]}  .*\n((?:[\t#].*\n)*)", read(root / place), re.MULTILINE)
        if section:
            named = re.search(rf"^\t{device[2:]}  (.+)$", section[1], re.MULTILINE)
            return named[1] if named else None
    return None


# Reading --------------------------------------------------------------------------------------------------


def read(path: Path) -> str:
    """The text of a file, or nothing: on one machine or another, any of these is missing or closed to us."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _space(path: Path) -> tuple[int | None, int | None]:
    """(total, free) bytes of the file system at `path`."""
    if sys.platform == "win32":
        return None, None
    try:
        space = os.statvfs(path)
    except OSError:  # no such folder
        return None, None
    return space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail


def _physical_memory() -> int | None:
    if sys.platform == "win32":
        return None
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _mac(name: str) -> str | None:
    import subprocess

    try:
        answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def descriptors(wanted: int) -> int:
    """How many files and connections this process may have open: as many as are wanted, where that can be asked for."""
    if sys.platform == "win32":
        return min(wanted, 512)
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < room:
            resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
            soft = room
        return wanted if soft == resource.RLIM_INFINITY else int(soft)
    except (ImportError, OSError, ValueError):
        return min(wanted, 512)
