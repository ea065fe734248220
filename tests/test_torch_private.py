"""What leans on names that torch keeps for itself: all of them, who uses them, and that this torch has them.

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
USED = {
    "torch._C._current_graph_task_id": {"injection/pretend.py", "worker/operators/look.py"},
    "torch._C._get_mkldnn_enabled": {"planning/kernels.py"},
    "torch._C._get_nnpack_enabled": {"planning/kernels.py"},
    "torch._C._set_mkldnn_enabled": {"planning/kernels.py"},
    "torch._C._set_nnpack_enabled": {"planning/kernels.py"},
    "torch._debug_has_internal_overlap": {"state/parts.py"},
    "torch._dynamo.reset": {"planning/choice.py"},
    "torch._foreach_copy_": {
        "state/cuda_copies.py", "state/savepoint.py", "state/snapshot.py", "workloads/detection/training.py",
    },
    "torch._foreach_lerp_": {"workloads/detection/training.py"},
    "torch._inductor.aoti_compile_and_package": {"optimize/engines/aot.py"},
    "torch._inductor.aoti_load_package": {"optimize/engines/aot.py"},
    "torch._ops.OpOverload": {"optimize/graph.py"},
    "torch.cuda._sleep": {"injection/chaos.py"},
    "torch.distributed._broadcast_coalesced": {"distributed/group.py"},
    "torch.distributed.distributed_c10d._set_pg_timeout": {"distributed/group.py"},
    "torch.nn.modules.batchnorm._BatchNorm": {"worker/step.py"},
    "torch.utils._python_dispatch.TorchDispatchMode": {
        "injection/pretend.py", "probes/wrong_kernels.py", "worker/operators/look.py", "worker/operators/recorder.py",
    },
    "torch.utils._python_dispatch._disable_current_modes": {
        "worker/operators/confirmation.py", "worker/operators/zeros.py",
    },
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass": {"state/flatten.py"},
    "torch.utils.data._DatasetKind": {"integrations/exact/process_generators.py"},
    "torch.utils.data._utils.pin_memory": {"data/loader_processes.py"},
    "torch.utils.data._utils.signal_handling": {"data/loader_processes.py"},
    "torch.utils.data._utils.worker": {"data/loader_child.py"},
    "torch.utils.data.dataloader._BaseDataLoaderIter": {"integrations/exact/loaders.py"},
}  # fmt: skip


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


def test_private_names_are_used_where_this_file_says() -> None:
    found: dict[str, set[str]] = {}
    for path in HOME.rglob("*.py"):
        for name in private_names(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(path.relative_to(HOME).as_posix())
    assert found == USED


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
