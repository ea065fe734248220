"""Kernels that are wrong: every operator that a device computes passes through here, and some come out otherwise.

    with BadKernels(symptoms, bench):       # torch sees an operator called; we see it too
        loss.backward()

The symptoms (symptoms.py) say which, and when. It is how a pretend device is ill, and how a wrong kernel is planted on
a real one: HOLDFAST_PLANT names the file, to show that the doctor finds it there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.base import processes
from holdfast.injection import pretend, symptoms
from holdfast.injection.ailments import VARIABLE
from holdfast.injection.symptoms import Symptom
from holdfast.probes.bench import Bench
from holdfast.state.torch_private import TorchDispatchMode
from holdfast.worker.precision import NAMES

_MOVES = ("copy", "clone", "detach", "view", "empty", "_to_", "alias", "zeros", "full", "ones_like", "as_strided")
"""Operators that compute nothing."""


class BadKernels(TorchDispatchMode):
    """Watches operators and spoils what comes out."""

    def __init__(self, listed: list[Symptom], bench: Bench) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listed = listed
        self.bench = bench
        self._began = time.monotonic()
        self._launched = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if self.bench.away() or name.startswith(_MOVES) or not self._computes(out):
            return out
        tensors = [each for each in args if isinstance(each, Tensor)]
        for symptom in self.listed:
            if symptom.kind != "memory" and self._shows(symptom, name, tensors):
                out = self._suffer(symptom, out)
        self._launched = True
        return out

    def _computes(self, out: Any) -> bool:
        tensors = out if isinstance(out, (tuple, list)) else [out]
        return any(isinstance(each, Tensor) and each.is_floating_point() and self._ours(each) for each in tensors)

    def _ours(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.bench.device.type

    def _shows(self, symptom: Symptom, name: str, tensors: list[Tensor]) -> bool:
        return (
            (not symptom.kernel or symptom.kernel in name)
            and (not symptom.part or symptom.part == self.bench.part)
            and (not symptom.precision or any(NAMES.get(each.dtype) == symptom.precision for each in tensors))
            and (not symptom.batch or self.bench.batch >= symptom.batch)
            and (not symptom.channels_last or any(_channels_last(each) for each in tensors))
            and (symptom.kind == "slow" or time.monotonic() - self._began >= symptom.seconds)
            and (not symptom.company or in_company(self.bench.label))
        )

    def _suffer(self, symptom: Symptom, out: Any) -> Any:
        if symptom.kind == "wrong":
            return _spoiled(out, symptom.how)
        if symptom.kind == "slow":
            if not self._launched and not _compiled():
                time.sleep(symptom.seconds)
            return out
        if symptom.kind == "abort":
            os.write(2, b"Memory access fault by GPU node-1 on address 0x7f0000000000. Reason: Page not present\n")
            os.abort()
        if symptom.kind == "greedy":
            hoard = [bytearray(64 << 20) for _ in range(10_000)]
            raise MemoryError(len(hoard))
        pretend.suffer(_As(symptom.kind))  # type: ignore[arg-type]
        return out


@dataclass(frozen=True, slots=True)
class _As:
    """As much of an ailment as suffering takes."""

    kind: str


def _compiled() -> bool:
    """The kernels of a slow device are in the caches of the probes once it has been launched."""
    folder = os.environ.get("MIOPEN_CUSTOM_CACHE_DIR")
    if folder is None:
        return False
    marker = Path(folder) / "pretend"
    there = marker.exists()
    marker.touch()
    return there


def _spoiled(out: Any, how: str) -> Any:
    if isinstance(out, Tensor):
        return pretend.spoil(out, how) if out.is_floating_point() else out
    if isinstance(out, (tuple, list)):
        return type(out)(_spoiled(each, how) for each in out)
    return out


def _channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


# Devices ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PretendBench(Bench):
    """A device that computes on the CPU, has a memory of its own, and may be ill."""

    listed: list[Symptom] = field(default_factory=list)
    _held: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, label: str, tell: Callable[[str], None]) -> PretendBench:
        bench = cls(label, pretend.DEVICE, tell, opened=time.monotonic(), listed=symptoms.of(label))
        _sign_in(label)
        return bench

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with BadKernels(self.listed, self) if self.listed else contextlib.nullcontext():
            yield

    def memory(self) -> tuple[int, int] | None:
        own = [each for each in self.listed if each.kind == "memory"]
        size = own[0].reported if own else Symptom("memory").reported
        return size, size

    def allocate(self, size: int) -> Tensor:
        limit = min([self.memory()[1], *(each.limit for each in self.listed if each.kind == "memory")])  # type: ignore[index]
        if sum(self._held) + size > limit:
            raise torch.OutOfMemoryError(f"pretend out of memory. Tried to allocate {size} bytes")
        self._held.append(size)
        return torch.empty(size // 4, dtype=torch.int32)

    def release(self) -> None:
        self._held.clear()


def plant(bench: Bench) -> Bench:
    """A real device with wrong kernels, where the environment asks for it."""
    listed = symptoms.of(bench.label, symptoms.PLANT)
    if listed:
        bench.planted = lambda: BadKernels(listed, bench)
    return bench


# Who else is there --------------------------------------------------------------------------------------------------


def _users(label: str) -> Path | None:
    named = os.environ.get(VARIABLE)
    return Path(named).with_suffix(".users") / label.replace(":", "-") if named else None


def _sign_in(label: str) -> None:
    folder = _users(label)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(os.getpid())).touch()


def in_company(label: str) -> bool:
    """Another process uses the device."""
    folder = _users(label)
    others = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder is not None else []
    return any(pid != os.getpid() and _lives(pid) for pid in others)


def _lives(pid: int) -> bool:
    info = processes.inspect(pid)
    return processes.exists(pid) and (info is None or info.state not in "ZX")


def open_bench(label: str, tell: Callable[[str], None]) -> Bench:
    """The device behind a label; raises what torch raises where there is none. A pretend one has its symptoms."""
    opened = time.monotonic()
    if label.startswith("pretend"):
        return PretendBench.open(label, tell)
    bench = Bench(label, torch.device(label), tell, opened=opened)
    if bench.device.type == "cuda":
        torch.cuda.set_device(bench.device)
    return plant(bench)
