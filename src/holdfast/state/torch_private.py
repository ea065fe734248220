"""Every name that torch keeps for itself and that holdfast leans on, under a name of ours, with the reason.

    copy_all(slots, tensors)            # one call instead of one for each tensor

A name that begins with an underscore may change with any version of torch. tests/test_torch_private.py looks whether
this torch still has them, names the versions they were tried with, and fails if another file of ours uses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

__all__ = ["AnyBatchNorm", "TorchDispatchMode", "is_traceable_wrapper_subclass"]


# Tensors ------------------------------------------------------------------------------------------------------------


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor], non_blocking: bool = False) -> None:
    """Each source into its target. A loop over `copy_` costs the host microseconds for every tensor of every step."""
    torch._foreach_copy_(targets, sources, non_blocking=non_blocking)  # type: ignore[arg-type]


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """Operators are computed as torch computes them, whatever mode is active, such as one that pretends to be a device.

    torch imports hundreds of modules to leave its modes, which takes a second or two: so only where there are any.
    """
    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def elements_share_memory(tensor: Tensor) -> bool:
    """An expanded tensor, for example: writing to one element changes others. Only torch's own test is quick."""
    return torch._debug_has_internal_overlap(tensor) == 1


def in_backward() -> bool:
    """Does this thread run a backward pass now? No hook tells it for operators that create no graph."""
    return torch._C._current_graph_task_id() != -1


# Kernels ------------------------------------------------------------------------------------------------------------


def cpu_libraries() -> tuple[bool, bool]:
    """Whether torch uses oneDNN and NNPACK. There is no public switch for NNPACK, and none that is not scoped."""
    return torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()


def use_cpu_libraries(onednn: bool, nnpack: bool) -> None:
    torch._C._set_mkldnn_enabled(onednn)
    torch._C._set_nnpack_enabled(nnpack)


def busy_kernel(cycles: int) -> None:
    """A kernel that keeps the card busy: for faults on purpose."""
    torch.cuda._sleep(cycles)


def compile_ahead(program: Any, path: str) -> None:
    """AOTInductor; torch documents it under this name."""
    torch._inductor.aoti_compile_and_package(program, package_path=path)


def load_compiled(path: str) -> Any:
    return torch._inductor.aoti_load_package(path)


# Ranks --------------------------------------------------------------------------------------------------------------


def set_timeout(group: Any, patience: timedelta) -> None:
    """Of a process group that exists: connecting and training need different ones."""
    torch.distributed.distributed_c10d._set_pg_timeout(patience, group)


def broadcast_all(group: Any, tensors: list[Tensor], at_once: int) -> None:
    """Those of rank 0 to all others, `at_once` bytes in one message, as DistributedDataParallel does it."""
    torch.distributed._broadcast_coalesced(group, tensors, at_once, 0)


# Loader processes ---------------------------------------------------------------------------------------------------


def pin(value: Any) -> Any:
    """In page-locked memory, whatever the batch is made of: torch's own rules for batches of unknown types."""
    from torch.utils.data._utils import pin_memory

    return pin_memory.pin_memory(value)


def forget_children(iterator: Any) -> None:
    """Take a loader's processes out of torch's SIGCHLD handler, which would raise in the middle of a step."""
    from torch.utils.data._utils import signal_handling

    signal_handling._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False


def set_worker_info(info: Any) -> Any:
    """What `get_worker_info` says in this process from now on; returns what it said before."""
    from torch.utils.data._utils import worker

    before, worker._worker_info = worker._worker_info, info
    return before


def new_worker_info(**about: Any) -> Any:
    from torch.utils.data._utils import worker

    return worker.WorkerInfo(**about)


def is_loader_iterator(value: object) -> bool:
    """What `iter` of a DataLoader returns."""
    return isinstance(value, torch.utils.data.dataloader._BaseDataLoaderIter)


def fetcher_factory() -> Any:
    """The class whose `create_fetcher` every loader process calls as an epoch begins."""
    return torch.utils.data._DatasetKind
