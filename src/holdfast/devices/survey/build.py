"""The installed torch: its version, toolkits, and the architectures it carries code for, without importing it.

    read_build().archs      # ["sm_80", "sm_90", "sm_100"]: what torch.cuda.get_arch_list() would say

torch answers that question from a string its binding library was compiled with. Finding the string takes a tenth of
a second and works where importing torch would crash. On ROCm torch itself never compares it with the card.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.devices.survey.records import TorchBuild
from holdfast.run import machine

_LIBRARIES = ("libtorch_python.so", "torch_python.dll", "libtorch_python.dylib")
_ONE = rb"(?:sm_\d+[a-z]?|compute_\d+[a-z]?|gfx[0-9a-f]{3,5}(?:-generic)?(?:[:+\-\w]*))"
# The text before the first name is fixed, which is what makes the search fast.
_FLAGS = re.compile(rb"\x00(?=sm_|gfx|compute_\d)(" + _ONE + rb"(?:[ ;]" + _ONE + rb")*)\x00")
_DEVICE_PACKAGE = re.compile(r"[-_](gfx[0-9a-f]{3,5})(?:$|[-_])")


def read_build(build: Mapping[str, Any] | None = None) -> TorchBuild:
    """`build` as machine.torch_build() gives it, perhaps with `archs` and `device_packages`; the installed one else."""
    if build is not None:
        archs, packages = build.get("archs"), build.get("device_packages")
        return _shaped(build, archs, packages)
    said = machine.torch_build()
    folder = torch_folder()
    return _shaped(said, built_for(folder) if folder else None, device_packages() if said["hip"] else None)


def _shaped(build: Mapping[str, Any], archs: Iterable[str] | None, packages: Iterable[str] | None) -> TorchBuild:
    return TorchBuild(
        **{name: build.get(name) for name in ("version", "cuda", "hip", "rocm", "xpu")},
        archs=None if archs is None else list(archs),
        device_packages=None if packages is None else list(packages),
    )


def torch_folder() -> Path | None:
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def built_for(folder: Path) -> list[str] | None:
    """The architectures in the order torch gives them; None for a build that has none, or that hides them."""
    for name in _LIBRARIES:
        flags = _flags(folder / "lib" / name)
        if flags:
            return [flag.partition(":")[0] for flag in re.split("[ ;]", flags)]
    return None


def _flags(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            # Not closed by `with`: interrupted in here it would say that pointers exist, and hide the Ctrl-C.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            found = [match[1] for match in _FLAGS.finditer(data)]
            data.close()
    except (OSError, ValueError):  # not there; empty
        return None
    return max(found, key=len).decode() if found else None


def device_packages() -> list[str]:
    """Packages made for one architecture, as AMD's index has them: `…-device-gfx1010`."""
    names = (found.metadata["Name"] or "" for found in metadata.distributions())
    return sorted({name for name in names if _DEVICE_PACKAGE.search(name.lower())})
