"""Makes a whole Python process a device that is ill: every kernel torch computes in it may come out wrong.

    PYTHONPATH=benchmarks/jobs/ill:src HOLDFAST_PRETEND=pretend.json accelerate test

Python imports this by its name when it starts, in children too. Once torch is imported, its operators pass through
the chaos kit (holdfast.probes.wrong_kernels) with the symptoms of the file, as on the pretend device of our own probes.
What is left healthy is what a tester computes on the CPU to compare with: `mock_training` of `accelerate test`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

LABEL = "pretend:0"
HEALTHY = ("mock_training",)


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands before the finder of torch, once."""

    def __init__(self) -> None:
        self.real: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self.real is not None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            self.real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        fall_ill()


def fall_ill() -> None:
    """From now on, in this process."""
    import torch

    from holdfast.injection import symptoms
    from holdfast.probes import wrong_kernels
    from holdfast.probes.bench import Bench

    class Everywhere(Bench):
        """The process as a bench: what is computed is told by autograd and by the tensors, not by a probe."""

        def __init__(self) -> None:
            super().__init__(LABEL, torch.device("cpu"))

    class AllKernels(wrong_kernels.BadKernels):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            running = torch._C._current_graph_task_id() != -1
            self.bench.part = "backward" if running else "forward"
            sizes = [each.shape[0] for each in args if isinstance(each, torch.Tensor) and each.dim()]
            self.bench.batch = max(sizes, default=0)
            if not self._launched:  # from now on this process uses the device; one that only imports torch does not
                wrong_kernels._sign_in(LABEL)
            return super().__torch_dispatch__(func, types, args, kwargs)

    here = Everywhere()
    here.away = _compared_with
    AllKernels(symptoms.of(LABEL), here).__enter__()


def _compared_with() -> bool:
    """Inside of what a tester takes for the truth."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in HEALTHY:
            return True
        frame = frame.f_back
    return False


if os.environ.get("HOLDFAST_PRETEND"):
    sys.meta_path.insert(0, AfterTorch())
