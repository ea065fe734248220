"""Devices that may be here, seen without importing torch and without touching a driver.

    candidates()              # ["cuda:0", "cuda:1", "cpu"]: the order in which a run tries them
    check("cuda:0")           # "cuda:0"; UserError for a name that is none, or that this torch cannot serve

Asking a driver can hang or crash, and the process that asks must not be the one that supervises. So this reads
what the kernel shows in files and what the installed torch says about itself in its `version.py`. A candidate is
not a promise: whether it works is found out by a worker, and the ladder goes on from there.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.run import machine

ROOT = Path("/")
KINDS = ("cpu", "cuda", "mps", "xpu", "pretend")
"""`cuda` is also what torch calls ROCm; `pretend` computes on the CPU and fails on request (holdfast.testing)."""
_MEANT = {
    **dict.fromkeys(("gpu", "nvidia", "amd", "rocm", "hip"), "cuda:0"),
    **dict.fromkeys(("metal", "apple"), "mps"),
    **dict.fromkeys(("intel", "arc"), "xpu:0"),
}
"""What people call them."""
_NAME = re.compile(r"([a-z]+)(?::(\d+))?")


def candidates(
    *,
    root: Path = ROOT,
    build: Mapping[str, str | None] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """The devices worth trying, the CPU last."""
    build = machine.torch_build() if build is None else build
    env = os.environ if env is None else env
    found: list[str] = []
    if build.get("hip"):
        found += _numbered(_amd_cards(root), env, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    elif build.get("cuda"):
        found += _numbered(_nvidia_cards(root), env)
    elif build.get("xpu"):
        found += [f"xpu:{number}" for number in range(_intel_cards(root))]
    if root == ROOT and sys.platform == "darwin" and platform.machine() == "arm64":
        found.append("mps")
    return [*found, "cpu"]


def check(name: str, *, build: Mapping[str, str | None] | None = None) -> str:
    """The full name of a device that was asked for: `cuda` is `cuda:0`."""
    match = _NAME.fullmatch(name)
    kind, index = (match[1], match[2]) if match else ("", None)
    if kind not in KINDS:
        raise _unknown(name, kind)
    if kind in ("cpu", "mps"):
        return kind
    _check_build(name, kind, machine.torch_build() if build is None else build)
    return f"{kind}:{index or 0}"


def check_here(
    name: str,
    *,
    root: Path = ROOT,
    build: Mapping[str, str | None] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """A new run that asks for a device by name needs it: UserError where this machine surely has none of that name.

    A run that goes on is not held to it: its card may be lost until the next reboot, and the CPU takes over.
    """
    if name == "auto":
        return
    full = check(name, build=build)
    here = candidates(root=root, build=build, env=env)
    if full in here or full.startswith("pretend") or _hidden_from_us(full, root):
        return
    raise UserError(
        f"there is no device `{full}` here",
        cause="the kernel shows no such card, or the environment hides it (CUDA_VISIBLE_DEVICES and its like)",
        hints=[f"on this machine: {', '.join(here)}", "`holdfast doctor` shows what is here and why"],
    )


def _hidden_from_us(name: str, root: Path) -> bool:
    """Cards that have no files where others have theirs: NVIDIA's boards with a GPU in the chip."""
    return name == "cuda:0" and any((root / "dev").glob("nvhost*"))


def _check_build(name: str, kind: str, build: Mapping[str, str | None]) -> None:
    """A build without support for a kind of device cannot get it by trying."""
    serves = {"cuda": build.get("cuda") or build.get("hip"), "xpu": build.get("xpu")}
    if kind not in serves or serves[kind] or not build.get("version"):
        return
    raise UserError(
        f"this torch cannot use `{name}`",
        cause=f"torch {build.get('version')} was built without it",
        hints=["install a build for your card: https://pytorch.org/get-started", "or use `--device cpu`"],
    )


def _unknown(name: str, kind: str) -> UserError:
    import difflib

    here = candidates()
    close = [_MEANT[kind]] if kind in _MEANT else difflib.get_close_matches(kind or name, KINDS[:-1], n=1)
    return UserError(
        f"unknown device `{name}`",
        cause="devices are named as in torch: cpu, cuda:0, mps, xpu:0, or auto",
        hints=[*([f"did you mean `{close[0]}`?"] if close else []), f"on this machine: {', '.join(here)}"],
    )


def _nvidia_cards(root: Path) -> int:
    """/dev shows what a container was given; /proc shows every card of the machine."""
    if sys.platform == "win32" and root == ROOT:
        return int((Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32/nvcuda.dll").exists())
    nodes = [path for path in (root / "dev").glob("nvidia[0-9]*") if path.name[len("nvidia") :].isdigit()]
    in_wsl = (root / "dev/dxg").exists() and any((root / "usr/lib/wsl/lib").glob("libcuda.so*"))
    return len(nodes) or len(machine.children(root / "proc/driver/nvidia/gpus")) or int(in_wsl)


def _amd_cards(root: Path) -> int:
    """Nodes of the kernel's topology that are GPUs, which is of no use to a container that was not given /dev/kfd.

    Windows and WSL show no topology: there the first card is worth a try.
    """
    if not (root / "dev/kfd").exists():
        return int((root / "dev/dxg").exists() or (sys.platform == "win32" and root == ROOT))
    nodes = machine.children(root / "sys/class/kfd/kfd/topology/nodes")
    versions = [re.search(r"^gfx_target_version (\d+)$", machine.read(node / "properties"), re.M) for node in nodes]
    return sum(1 for version in versions if version and int(version[1]))


def _intel_cards(root: Path) -> int:
    """Cards that a driver has taken and that this process was given."""
    if not any((root / "dev/dri").glob("renderD*")):
        return int((root / "dev/dxg").exists())
    taken = [str(card["driver"]).split()[0] for card in machine.gpus(root) if card["vendor"] == "Intel"]
    return sum(1 for driver in taken if driver in ("i915", "xe"))


def _numbered(cards: int, env: Mapping[str, str], *names: str) -> list[str]:
    """cuda:0, cuda:1, …: as many as there are and as the environment leaves visible."""
    for name in (*names, "CUDA_VISIBLE_DEVICES"):
        if name in env:
            listed = env[name].split(",") if env[name].strip() else []
            shown = [entry for entry in listed if not entry.strip().startswith("-")]
            cards = min(cards, len(shown))
    return [f"cuda:{number}" for number in range(cards)]
