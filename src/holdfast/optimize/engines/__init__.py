"""Engines: what makes a file of a model and runs it. One file of Python each; that is all an engine is.

    kinds()["onnxruntime"].precisions                     # ("fp32", "fp16", …)
    build(work, about, folder)                            # in a child process; may take minutes
    engine = load(folder, {"engine": "onnxruntime", "file": "model.onnx", "threads": 2, "precision": "fp32", …})
    engine.run([windows])                                 # a list of arrays, one for each output

The file `NAME.py` in this folder, or below `engines/` of a folder that HOLDFAST_ADD names, has

    FILE = "model.onnx"                                   # what `build` writes and `load` reads
    PRECISIONS = ("fp32", "int8-dynamic")                 # one candidate for each
    PREDICT = Predict(…)                                  # its part of a bundle's predict.py (running.py)
    def build(work, about, target): …                     # from `model_of(work, about)` or `onnx_of(work, about)`
    def load(path, about): return Engine(…)

and may have

    PACKAGES = ("onnxruntime", "onnx")                    # without which it is not tried
    ONNX = "needed"                                       # or "used": begins with the exported file
    FIXED = True                                          # is also tried for batches of one only
    DEVICE = "cuda"                                       # it is for a GPU, and tried only where there is one
    TRAVELS = ("graph.py",)                               # files of holdfast/optimize that its predict.py needs
    BUNDLED = False                                       # its file is code: it is measured and never chosen
    def why_not(precision, machine): return ""            # another reason not to try it here
    ALONE = True                                          # blanks(about) heeds about["alone"]: see `pipeline._alone`
    def blanks(about): return {}                          # more to fill in in PREDICT
    def profile(path, about, one): return {}              # Times by layer; without it none are shown

What it needs is imported inside of its functions: the list of engines is asked for where nothing is installed, and by
every command where HOLDFAST_ADD is set.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.base import additions
from holdfast.base.errors import UserError
from holdfast.optimize.engines.running import Arrays, Engine, Predict, Times, of_module

if TYPE_CHECKING:
    from holdfast.optimize.processor import Machine

__all__ = ["Arrays", "Engine", "Kind", "Predict", "Times", "build", "kinds", "load", "of_module", "packages"]

OURS = ("export", "torchscript", "aot", "onnxruntime", "openvino", "cudagraph")
"""Those in this folder, in the order in which they are tried."""

About = dict[str, Any]


def _nothing_against(precision: str, machine: Machine) -> str:
    return ""


def _no_blanks(about: About) -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine as its file describes it: each field is a name in the file, constants in capitals."""

    name: str
    file: str
    precisions: tuple[str, ...]
    predict: Predict
    build: Callable[[Path, About, Path], None]
    load: Callable[[Path, About], Engine]
    packages: tuple[str, ...] = ()
    onnx: str = ""
    fixed: bool = False
    device: str = "cpu"
    travels: tuple[str, ...] = ()
    bundled: bool = True
    alone: bool = False
    why_not: Callable[[str, Machine], str] = _nothing_against
    blanks: Callable[[About], dict[str, str]] = _no_blanks
    profile: Callable[[Path, About, Sequence[Any]], Times] | None = None


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
_TAKEN = ("manifest.json", "predict.py", "post.py", "graph.py", "check.npz", "report.html")
_FUNCTIONS = ("build", "load", "why_not", "blanks", "profile")


@functools.lru_cache(maxsize=1)
def kinds() -> dict[str, Kind]:
    """Every engine there is, by name. UserError for a file from outside that is none."""
    found = {name: _kind(name, importlib.import_module(f"{__name__}.{name}")) for name in OURS}
    for file in additions.files("engines", "*.py"):
        if file.stem in found or file.stem in ("eager", "compile"):
            raise UserError(f"{file}: an engine is called `{file.stem}` already")
        try:
            found[file.stem] = _kind(file.stem, _from_outside(file))
        except Exception as error:  # whatever it raises: it is not ours
            raise UserError(f"{file} cannot be used as an engine", cause=f"{type(error).__name__}: {error}") from error
    return found


def packages() -> frozenset[str]:
    """What any engine imports, by name."""
    return frozenset({"onnx", "onnxscript", *(name for kind in kinds().values() for name in kind.packages)})


def build(work: Path, about: About, folder: Path) -> None:
    """Make the file of a candidate."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds()[about["engine"]].build(work, about, folder / about["file"])


def load(folder: Path, about: About) -> Engine:
    """The engine of a built candidate or a bundle."""
    return kinds()[about["engine"]].load(folder / about["file"], about)


def _kind(name: str, module: ModuleType) -> Kind:
    given: dict[str, Any] = {"name": name}
    for each in (each.name for each in fields(Kind) if each.name != "name"):
        named = each if each in _FUNCTIONS else each.upper()
        if hasattr(module, named):
            given[each] = getattr(module, named)
    missing = [each for each in ("file", "precisions", "predict", "build", "load") if each not in given]
    if missing:
        raise ValueError(f"it has no `{missing[0] if missing[0] in _FUNCTIONS else missing[0].upper()}`")
    kind = Kind(**given)
    wrong = _wrong(kind)
    if wrong:
        raise ValueError(wrong)
    return kind


def _wrong(kind: Kind) -> str:
    """What would be noticed only after minutes of measuring."""
    if not isinstance(kind.file, str) or not _NAME.fullmatch(kind.file) or kind.file in _TAKEN:
        return f"FILE is {kind.file!r}: it is the name of a file that no bundle has already"
    for name, value in (("PRECISIONS", kind.precisions), ("PACKAGES", kind.packages), ("TRAVELS", kind.travels)):
        if not isinstance(value, tuple | list) or not all(isinstance(each, str) and each for each in value):
            return f"{name} is {value!r}: it is a tuple of names, `({value!r},)` for a single one"
    if kind.onnx not in ("", "needed", "used"):
        return f'ONNX is {kind.onnx!r}: it is "needed" or "used"'
    if kind.device not in ("cpu", "cuda"):
        return f'DEVICE is {kind.device!r}: it is "cpu" or "cuda"'
    if not isinstance(kind.predict, Predict):
        return "PREDICT is no `Predict`"
    if not all(callable(getattr(kind, name)) for name in _FUNCTIONS if getattr(kind, name) is not None):
        return f"{', '.join(_FUNCTIONS)} are functions"
    about = {"engine": kind.name, "precision": "fp32", "threads": 1, "file": kind.file, "inputs": [], "outputs": []}
    try:
        kind.predict.fill(about, "", kind.blanks(about))
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        return f"PREDICT cannot be filled in ({type(error).__name__}: {error}): a brace of its own is written twice"
    return ""


def _from_outside(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"holdfast_engine_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks for its module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
