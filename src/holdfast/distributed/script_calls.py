"""What a script that was written for torchrun calls, where the process group of its run is there already.

    with group_is_here():
        train(session)               # its own init_process_group and destroy_process_group do nothing

The group belongs to the run: it may be built anew inside a step (group.py), and it ends with the run, not with the
script. Groups that the script makes beside it are its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist


@contextlib.contextmanager
def group_is_here() -> Iterator[None]:
    begin, end = dist.init_process_group, dist.destroy_process_group

    def init_process_group(*args: Any, **more: Any) -> None:
        if not dist.is_initialized():
            begin(*args, **more)

    def destroy_process_group(group: Any = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            end(group)

    dist.init_process_group, dist.destroy_process_group = init_process_group, destroy_process_group
    try:
        yield
    finally:
        dist.init_process_group, dist.destroy_process_group = begin, end
