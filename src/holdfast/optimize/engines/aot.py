"""AOTInductor: compiled to machine code beforehand; needs a C++ compiler. Such a file is measured and never bundled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.optimize.engines.running import Engine, of_module, torch_predict

if TYPE_CHECKING:
    from holdfast.optimize.processor import Machine

FILE = "model.pt2"
PRECISIONS = ("fp32",)
BUNDLED = False
PREDICT = torch_predict('torch._inductor.aoti_load_package(str(HERE / "{file}"))')


def why_not(precision: str, machine: Machine) -> str:
    return machine.against_compiling()


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    from holdfast.optimize.build import program
    from holdfast.state.torch_private import compile_ahead

    compile_ahead(program(work, about), str(target))


def load(path: Path, about: dict[str, Any]) -> Engine:
    from holdfast.state.torch_private import load_compiled

    return of_module(load_compiled(str(path)), about)
