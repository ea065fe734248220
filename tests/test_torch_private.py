"""What leans on names that torch keeps for itself: one file has all of them, and this torch has them.

A private name may go or change with any version of torch. One that is used anew is entered here, with a thought of what
happens without it; one that a new torch has no more is found by this test, before a run finds it.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import holdfast

HOME = Path(holdfast.__file__).parent
TRIED = ("2.6", "2.12")
"""The oldest torch that is supported, and the newest with which these names were looked at."""
PLACE = "state/torch_private.py"
USED = (
    "torch._C._current_graph_task_id",
    "torch._C._get_mkldnn_enabled",
    "torch._C._get_nnpack_enabled",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._set_mkldnn_enabled",
    "torch._C._set_nnpack_enabled",
    "torch._debug_has_internal_overlap",
    "torch._foreach_copy_",
    "torch._inductor.aoti_compile_and_package",
    "torch._inductor.aoti_load_package",
    "torch.cuda._sleep",
    "torch.distributed._broadcast_coalesced",
    "torch.distributed.distributed_c10d._set_pg_timeout",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch.utils.data._DatasetKind",
    "torch.utils.data._utils.pin_memory",
    "torch.utils.data._utils.signal_handling",
    "torch.utils.data._utils.worker",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
)


def private_names(tree: ast.AST) -> Iterator[str]:
    """`torch.a._b` in the code, to the end of the dots, and what is imported of a module with such a name."""
    names: list[str] = []
    inner: set[int] = set()
    for node in ast.walk(tree):  # from the outside in: the longest chain of dots comes first
        if isinstance(node, ast.Attribute) and id(node) not in inner and (chain := _chain(node)):
            inner |= {id(each) for each in ast.walk(node)}
            names.append(chain)
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return (name for name in names if name.startswith("torch.") and is_private(name))


def _chain(node: ast.expr) -> str:
    """`a.b.c`, or nothing where something is called or looked up on the way."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (rest := _chain(node.value)):
        return f"{rest}.{node.attr}"
    return ""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_private_names_are_used_in_one_file() -> None:
    found: dict[str, set[str]] = {}
    for path in HOME.rglob("*.py"):
        for name in private_names(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(path.relative_to(HOME).as_posix())
    assert found == {name: {PLACE} for name in USED}


def test_that_rule_sees_what_it_looks_for() -> None:
    code = "import torch._x\nfrom torch._a import b\nfrom torch.c import _d\ntorch.e._f(1).g\ntorch.h.__doc__\nself._i"
    assert set(private_names(ast.parse(code))) == {"torch._x", "torch._a.b", "torch.c._d", "torch.e._f"}


@pytest.mark.parametrize("name", sorted(USED))
def test_this_torch_has_it(name: str) -> None:
    first, *rest = name.split(".")
    found = importlib.import_module(first)
    for at, part in enumerate(rest):
        if not hasattr(found, part):
            importlib.import_module(".".join([first, *rest[: at + 1]]))
        found = getattr(found, part)
    tried = [tuple(map(int, version.split("."))) for version in TRIED]
    now = tuple(map(int, torch.__version__.split(".")[:2]))
    assert tried[0] <= now, "older than what is supported"
    assert now <= tried[1], f"torch {torch.__version__} is new here: these names are there, now look at what they do"
