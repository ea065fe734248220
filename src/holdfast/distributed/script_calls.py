"""What a script that was written for torchrun calls, where the process group of its run is there already.

    install()                        # once in a process, before the script and what it imports
    with group_is_here():
        train(session)               # its own init_process_group and destroy_process_group do nothing

The group belongs to the run: it may be built anew inside a step (group.py), and it ends with the run, not with the
script. Groups that the script makes beside it are its own.

Most scripts take these functions by name (`from torch.distributed import init_process_group`), and keep what they got
when they were imported. So the functions of torch.distributed are replaced once, before any import of the script, and
for good. Outside of `group_is_here` they do what they always did. Code of holdfast calls those of `distributed_c10d`,
which are never replaced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_MARK = "__holdfast__"
_here = 0
"""How many `group_is_here` are open in this process."""


def install() -> None:
    """Replace the two functions of torch.distributed. A second call does nothing."""
    if getattr(dist.init_process_group, _MARK, False):
        return
    begin, end = c10d.init_process_group, c10d.destroy_process_group

    @functools.wraps(begin)
    def init_process_group(*args: Any, **more: Any) -> None:
        if not _here or not dist.is_initialized():
            begin(*args, **more)

    @functools.wraps(end)
    def destroy_process_group(group: Any = None) -> None:
        if not _here or (group is not None and group is not dist.group.WORLD):
            end(group)

    for name, made in (("init_process_group", init_process_group), ("destroy_process_group", destroy_process_group)):
        setattr(made, _MARK, True)
        setattr(dist, name, made)


@contextlib.contextmanager
def group_is_here() -> Iterator[None]:
    """Inside, the group of the run is there, and stays."""
    global _here
    install()
    _here += 1
    try:
        yield
    finally:
        _here -= 1
