"""Which modules are the script's own, and which are a library's."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig

_OURS = ("holdfast", "_holdfast_hook", "_holdfast_exact", "_holdfast_weights", "sitecustomize")


def library(module: str | None) -> str:
    return str(module or "").partition(".")[0]


def is_own(name: str) -> bool:
    """Whether a module is the script's: `__main__`, or a file that lies neither in the standard library nor with the
    packages that were installed."""
    return name == "__main__" or _is_own(name)


@functools.cache  # asked of all that is imported, at each commit
def _is_own(name: str) -> bool:
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if not path or library(name) in _OURS:
        return False
    path = os.path.abspath(path)
    if any(path.startswith(folder) for folder in _folders()) or "site-packages" in path:
        return False
    root = os.path.dirname(path)
    for _ in range(name.count(".") + os.path.basename(path).startswith("__init__.")):
        root = os.path.dirname(root)
    return not _installed(root)


@functools.lru_cache(256)
def _installed(folder: str) -> bool:
    """Whether packages were installed into this folder, as by `pip install --target`."""
    with contextlib.suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


@functools.cache
def _folders() -> tuple[str, ...]:
    """Where installed code lies. A script may lie below `sys.prefix`, so that is not asked."""
    named = sysconfig.get_paths()
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(os.path.join(os.path.abspath(named[kind]), "") for kind in kinds if named.get(kind))
