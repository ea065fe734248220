"""The models of braindecode on a machine that has none of the packages it reads recordings with.

model_class("EEGNet")                  # from the files of braindecode that `.packages` or the path holds

mne, pandas and the like become empty modules: the networks name them and use nothing of them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_NEEDED = ("mne", "mne_bids", "skorch", "wfdb", "h5py", "numba", "zarr", "pandas", "numcodecs", "sklearn", "pooch",
              "docstring_inheritance", "linear_attention_transformer", "torchaudio", "pydantic",
              "torchinfo")  # fmt: skip


used: list[str] = []
"""Models that came from their files alone: from then on all of this process do."""


class _Nothing(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})

    def __call__(cls, *words: Any, **more: Any) -> Any:
        return _Nothing("nothing", (), {})


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "_soft_import":
            return lambda *_words, **_more: False
        return type if name.endswith("Meta") else _Nothing(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last: what is installed is used."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        wanted = name.partition(".")[0] in NOT_NEEDED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: Any) -> types.ModuleType:
        made = _Empty(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _folder() -> Path:
    for each in [*sys.path, str(Path(__file__).resolve().parents[2] / ".packages")]:
        if (Path(each) / "braindecode" / "models" / "base.py").is_file():
            sys.path.append(each)
            return Path(each) / "braindecode"
    raise ModuleNotFoundError("braindecode is not here")


def model_class(name: str) -> Any:
    """One model, from its own file: the package's first file imports everything."""
    folder = _folder()
    used.append(name)
    for package in [each for each in sys.modules if each.partition(".")[0] == "braindecode"] if len(used) == 1 else []:
        del sys.modules[package]  # what an import left that broke off
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())
    for package, path in (("braindecode", folder), ("braindecode.models", folder / "models")):
        if package not in sys.modules:
            bare = types.ModuleType(package)
            bare.__path__ = [str(path)]
            sys.modules[package] = bare
    for file in sorted((folder / "models").glob("*.py")):
        if re.search(rf"^class {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE):
            return getattr(importlib.import_module(f"braindecode.models.{file.stem}"), name)
    raise ModuleNotFoundError(f"braindecode has no {name}")
