"""The chaos kit: real faults at a chosen step and phase, once each, across restarts.

    plan = FaultPlan([InjectedFault("sigkill", step=17, phase="backward"), InjectedFault("hang", step=30)])
    plan = FaultPlan.parse("sigkill@17:backward,hang@30")
    plan = FaultPlan.random(60, steps=400, seed=7)

A fault is a real one: a signal the process sends to itself, a read of address zero, a wait that holds the
interpreter's lock, a killed loader child. Device errors are raised with the device's own words, which is what
the runtime would see. Each fault claims a file before it fires, so the worker that comes after it does not
fall into the same hole.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import difflib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base import processes
from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.faults.classification import added
from holdfast.injection import endless

if TYPE_CHECKING:
    from holdfast.injection.trained import Trained

VARIABLE = "HOLDFAST_CHAOS"
"""Names a file with a plan; the supervisor hands it to its workers."""
_STOP = getattr(signal, "SIGSTOP", signal.SIGTERM)
STEP_PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault to come: what, at which step (the first is 1), in which phase."""

    kind: str
    step: int
    phase: str = "forward"
    amount: int = 0
    """For `oom_split`: the number of pieces from which on the step fits."""


class FaultPlan:
    """The faults of one run, and where their claims are kept."""

    def __init__(self, faults: Iterable[InjectedFault]) -> None:
        self.faults = tuple(faults)
        for fault in self.faults:
            _check(fault)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """`sigkill@17:backward,hang@30,oom`: kind, step, phase; without a step they come at 3, 6, 9 …"""
        faults = []
        for index, word in enumerate(part.strip() for part in text.split(",") if part.strip()):
            head, _, phase = word.partition(":")
            kind, _, step = head.partition("@")
            if step and not step.isdigit():
                raise UserError(
                    f"`{word}` is not a fault",
                    hints=["write KIND@STEP:PHASE, for example `sigkill@17:backward`"],
                )
            chosen = phase or DEFAULT_PHASES.get(kind, "forward")
            faults.append(InjectedFault(kind, int(step or 3 * (index + 1)), chosen))
        return cls(faults)

    @classmethod
    def random(cls, count: int, *, steps: int, seed: int, kinds: Iterable[str] | None = None) -> FaultPlan:
        """`count` faults spread over the steps, drawn from `kinds` (those that need no loader children or GPU).

        No step gets a second one before each has had one. Where some get two, only the first may be about memory:
        running out twice at one step splits the batch, and that changes the last bits by design.
        """
        source = random.Random(seed)
        names = tuple(kinds) if kinds is not None else RANDOM_KINDS
        if steps < 3:
            raise UserError(f"{steps} steps are too few for random faults")
        chosen: list[tuple[int, str]] = []
        while len(chosen) < count:
            places = source.sample(range(2, steps), min(count - len(chosen), steps - 2))
            allowed = names if not chosen else [name for name in names if not name.startswith("oom")] or names
            chosen += [(step, source.choice(allowed)) for step in places]
        return cls(
            InjectedFault(name, step, DEFAULT_PHASES.get(name) or source.choice(STEP_PHASES))
            for step, name in sorted(chosen)
        )

    def write(self, path: Path) -> None:
        """Where `HOLDFAST_CHAOS` points to."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(path.with_suffix(".fired"))))

    def to_json(self, claims: Path) -> dict[str, Any]:
        return {"claims": str(claims), "faults": [asdict(fault) for fault in self.faults]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FaultPlan:
        return cls(InjectedFault(**fault) for fault in data["faults"])


def _check(fault: InjectedFault) -> None:
    known = [*KINDS, *_by_message()]
    if fault.kind not in known:
        close = difflib.get_close_matches(fault.kind, known, n=1)
        hints = [f"a similar fault exists: `{close[0]}`"] if close else []
        raise UserError(f"unknown fault `{fault.kind}`", hints=[*hints, f"faults: {', '.join(known)}"])
    labels = [phase.label for phase in Phase]
    if fault.phase not in labels:
        raise UserError(f"unknown phase `{fault.phase}`", hints=[f"phases: {', '.join(labels)}"])


def from_environment() -> dict[str, Any] | None:
    """The plan of HOLDFAST_CHAOS, for the supervisor."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    data = json.loads(Path(name).read_text())
    assert isinstance(data, dict)
    return data


# -- in the worker ------------------------------------------------------------------------------------------


def arm(session: Trained, plan: dict[str, Any], pids: dict[str, int | None]) -> None:
    """Watch the session's phases and fire what is due. `pids`: the processes of the run, by name."""
    faults = FaultPlan.from_json(plan).faults
    if faults:
        session._phase_hooks.append(_Injector(session, faults, Path(plan["claims"]), pids))


class _Injector:
    def __init__(
        self, session: Trained, faults: tuple[InjectedFault, ...], claims: Path, pids: dict[str, int | None]
    ) -> None:
        self.session = session
        self.claims = claims
        self.pids = pids
        claims.mkdir(parents=True, exist_ok=True)
        self.waiting = {number: fault for number, fault in enumerate(faults) if not self._claimed(number)}

    def _claimed(self, number: int) -> bool:
        return (self.claims / str(number)).exists()

    def __call__(self, phase: Phase) -> None:
        step = self.session.step_count + 1
        for number, fault in list(self.waiting.items()):
            if step >= fault.step and phase.label == fault.phase:
                if fault.kind == "oom_split" and self.session._pieces < fault.amount:
                    raise _device_memory()  # not claimed: it comes again until the pieces are small enough
                if self._claim(number, step):
                    del self.waiting[number]
                    (KINDS.get(fault.kind) or _by_message()[fault.kind])(self)
                    return  # one at a time: the next comes at its next phase

    def _claim(self, number: int, step: int) -> bool:
        """True once: the claim is on disk before the fault fires."""
        try:
            fd = os.open(self.claims / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        os.write(fd, f"{step} {time.time()}\n".encode())
        os.close(fd)
        return True

    def find(self, name: str) -> int | None:
        """The supervisor, or its nursery or keeper of this moment: the one we were told of may be another's pid now."""
        told, supervisor = self.pids.get(name), self.pids.get("supervisor")
        if name == "supervisor" or supervisor is None or not processes.LINUX:
            return told
        module = {"nursery": "holdfast.worker.nursery", "keeper": "holdfast.supervisor.keeper"}[name]
        there = [pid for pid, line in processes.children(supervisor).items() if module in line]
        return told if told in there else next(iter(there), None)

    def loader_children(self) -> list[int]:
        import multiprocessing

        known = [child.pid for child in multiprocessing.active_children() if child.pid]
        return known or [pid for pid in processes.group_members(os.getpid()) if pid != os.getpid()]


def _device_memory() -> Exception:
    import torch

    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (injected by holdfast.testing)")


def _by_message() -> dict[str, Callable[[_Injector], None]]:
    """Kinds that files add (faults/added_kinds.py): each is raised in the first words by which it is recognised."""

    def raising(message: Any) -> Callable[[_Injector], None]:
        def fire(_: _Injector) -> None:
            kind = getattr(builtins, message.get("raised_as", ["RuntimeError"])[0], RuntimeError)
            raise kind(f"{message['text'][0]} (injected by holdfast.testing)")

        return fire

    worded = {name: [each for each in row.messages if each.get("text")] for name, row in added().items()}
    return {name: raising(messages[0]) for name, messages in worded.items() if messages}


def _oom(_: _Injector) -> None:
    """Out of memory, raised where the phase begins."""
    raise _device_memory()


def _oom_in_step(injector: _Injector) -> None:
    """Out of memory inside `optimizer.step()`: half of the parameters are updated, then it raises."""
    import torch

    optimizers = [v for v in injector.session._named.values() if isinstance(v, torch.optim.Optimizer)]
    optimizer = optimizers[0]
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for parameter in parameters[len(parameters) // 2 :]:
        parameter.grad = None
    if isinstance(optimizer, torch.optim.LBFGS):  # we are inside of its closure: its history is changed as well
        optimizer.step(lambda: 0.0)
    else:
        optimizer.step()
    raise _device_memory()


def _oom_split(_: _Injector) -> None:
    """Out of memory until the batch is in enough pieces (`amount`)."""


def _transient(_: _Injector) -> None:
    """A device error that leaves the process healthy."""
    raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable (injected by holdfast.testing)")


def _device_assert(_: _Injector) -> None:
    """A sticky device error: the context is dead, the process must be replaced."""
    raise RuntimeError("CUDA error: device-side assert triggered (injected by holdfast.testing)")


def _illegal_address(_: _Injector) -> None:
    """Another sticky one."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered (injected by holdfast.testing)")


def _segfault(_: _Injector) -> None:
    """A read of address zero."""
    ctypes.string_at(0)


def _abort(_: _Injector) -> None:
    """What a ROCm memory fault ends in."""
    os.abort()


def _page_fault(_: _Injector) -> None:
    """What ROCm prints when a kernel reads past its buffer, and what it does then."""
    said = "Memory access fault by GPU node-1 (Agent handle: 0x55e445e03320) on address 0x7f90885f7000. "
    os.write(2, f"{said}Reason: Page not present or supervisor privilege.\n".encode())
    os.abort()


def _sigkill(_: _Injector) -> None:
    """kill -9 of the worker."""
    os.kill(os.getpid(), processes.KILL)
    time.sleep(60)


def _exit(_: _Injector) -> None:
    """A library that calls exit()."""
    os._exit(3)


def _sigstop(_: _Injector) -> None:
    """The worker stops and is not told why."""
    os.kill(os.getpid(), _STOP)


def _hang(_: _Injector) -> None:
    """An endless wait in Python."""
    endless.in_python()


def _hang_c(_: _Injector) -> None:
    """An endless wait in C that has released the interpreter's lock."""
    endless.in_c()


def _hang_gil(_: _Injector) -> None:
    """An endless wait in C that holds the interpreter's lock: no Python thread runs any more."""
    endless.in_c(holding_the_lock=True)


def _loader_kill(injector: _Injector) -> None:
    """kill -9 of a loader child."""
    for pid in injector.loader_children()[:1]:
        os.kill(pid, processes.KILL)


def _loader_stop(injector: _Injector) -> None:
    """A loader child that stops and says nothing."""
    for pid in injector.loader_children()[:1]:
        os.kill(pid, _STOP)


def _kill_named(name: str) -> Callable[[_Injector], None]:
    def fire(injector: _Injector) -> None:
        pid = injector.find(name)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, processes.KILL)
            time.sleep(0.2)

    fire.__doc__ = f"kill -9 of the {name}."
    return fire


def _endless_kernel(injector: _Injector) -> None:
    """A CUDA kernel that does not end."""
    import torch

    from holdfast.state.torch_private import busy_kernel

    busy_kernel(2**62)
    torch.cuda.synchronize()


def _cuda_assert(injector: _Injector) -> None:
    """A real device-side assert: an index out of range in a CUDA kernel."""
    import torch

    table = torch.zeros(4, device=injector.session.device)
    table[torch.tensor([9], device=injector.session.device)].sum().item()


def _cuda_illegal(injector: _Injector) -> None:
    """A real write to an address that is not there."""
    from holdfast.injection.cuda import illegal_write

    illegal_write()


def _cuda_oom(injector: _Injector) -> None:
    """A real out of memory: an allocation larger than the card."""
    import torch

    _, total = torch.cuda.mem_get_info(injector.session.device)
    torch.empty(2 * total, dtype=torch.uint8, device=injector.session.device)


KINDS: dict[str, Callable[[_Injector], None]] = {
    "oom": _oom,
    "oom_in_step": _oom_in_step,
    "oom_split": _oom_split,
    "transient": _transient,
    "device_assert": _device_assert,
    "illegal_address": _illegal_address,
    "segfault": _segfault,
    "abort": _abort,
    "page_fault": _page_fault,
    "sigkill": _sigkill,
    "exit": _exit,
    "sigstop": _sigstop,
    "hang": _hang,
    "hang_c": _hang_c,
    "hang_gil": _hang_gil,
    "loader_kill": _loader_kill,
    "loader_stop": _loader_stop,
    "keeper_kill": _kill_named("keeper"),
    "nursery_kill": _kill_named("nursery"),
    "supervisor_kill": _kill_named("supervisor"),
    "endless_kernel": _endless_kernel,
    "cuda_assert": _cuda_assert,
    "cuda_illegal": _cuda_illegal,
    "cuda_oom": _cuda_oom,
}
"""Every fault the kit can make, by the name used on the command line."""
DEFAULT_PHASES = {
    "oom_in_step": "optimizer",
    "loader_kill": "data",
    "loader_stop": "data",
    "oom_split": "forward",
}
RANDOM_KINDS = ("sigkill", "segfault", "abort", "exit", "oom", "oom_in_step")
"""Quick ones: a hang costs its detection time, so hangs are asked for by name."""
