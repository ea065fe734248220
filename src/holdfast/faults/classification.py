"""What went wrong, in one word, from the evidence a dead or failing worker leaves behind.

    fault = classify_exception(error, device="cuda:0")             # worker: None means the script's own error
    fault = classify_exit(exitcode=-11, last_words=tail, oom_kills=0, device="cuda:0")           # supervisor
    fault.kind, fault.code, fault.health       # Kind.CRASH, "F002", Health.DEAD
    fault.at(step=3862, phase="backward").sentence()
    # "the worker on cuda:0 crashed (SIGSEGV) at step 3 862 in backward"

Types and error codes are asked first, texts last: `signatures.json` holds the messages that are known, most
telling first. A word found here is a suspicion, not a verdict: blame is proven by computing the step
again (blame.py). Texts about devices count in errors of the RuntimeError family alone, and never on the CPU,
so a script's own ValueError that quotes such a text stays the script's own.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from holdfast.base import dataclass_json
from holdfast.base.cgroup import Limit
from holdfast.base.human import count
from holdfast.faults.kinds import CODES, ByKind, Explanation, Kind, added, explanations, health_of
from holdfast.faults.signatures import Signature, match_text, signature, signatures
from holdfast.faults.terms import Health

__all__ = [
    "CODES",
    "STICKY_CODES",
    "ByKind",
    "Explanation",
    "Fault",
    "Kind",
    "Signature",
    "added",
    "classify_exception",
    "classify_exit",
    "explanations",
    "match_text",
    "signature",
    "signatures",
]

_SENTENCES = ByKind(
    {
        Kind.OUT_OF_MEMORY: "{device} ran out of memory",
        Kind.CRASH: "the worker on {device} crashed{how}",
        Kind.DEVICE_LOST: "{device} was lost",
        Kind.TRANSIENT: "{device} reported an error",
        Kind.HANG: "{device} stopped answering",
        Kind.HOST_MEMORY: "{who} ran out of memory",
        Kind.KILLED: "the worker on {device} was killed from outside{how}",
        Kind.EXIT: "the worker on {device} ended without an error message{how}",
        Kind.UNSUPPORTED: "{device} cannot run this with the installed torch",
        Kind.DRIVER: "{device} needs a reset or a repair",
        Kind.LOADER_DIED: "a loader process ended",
        Kind.LOADER_STUCK: "a loader process is stuck",
        Kind.NURSERY_DIED: "the nursery ended",
        Kind.KEEPER_DIED: "the keeper ended",
        Kind.SUPERVISOR_DIED: "the supervisor ended",
        Kind.USER_ERROR: "the script raised an error",
        Kind.NON_FINITE: "{what} is not finite",
        Kind.WRONG_NUMBERS: "{device} computes wrong numbers",
        Kind.BAD_DATA: "the data cannot be used",
        Kind.MACHINE_DOWN: "the machine went down",
        Kind.DISK_FULL: "a disk is full",
    },
    "sentence",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong: what, where, when, and how we know."""

    kind: Kind
    device: str | None = None
    step: int | None = None
    phase: str | None = None
    message: str = ""
    """The error's own words, shortened."""
    evidence: dict[str, object] = field(default_factory=dict)
    """JSON-able facts: exception, error_code, exitcode, signal, oom_kills, requested_bytes, pieces …"""
    signature: str | None = None
    """The id of the row in `signatures.json` that matched."""

    @property
    def code(self) -> str:
        """The code `holdfast explain` knows, as "F003"."""
        return CODES[self.kind]

    @property
    def health(self) -> Health:
        """What is left of the process: an exit leaves nothing, whatever the text says."""
        known = signature(self.signature) if self.signature else None
        health = known.health if known else health_of(self.kind)
        if health is Health.ALIVE and "exitcode" in self.evidence:
            return Health.DEAD
        return health

    @property
    def blame(self) -> str | None:
        """Who a replay found at fault, where one has been made: "device", "precision", "data" or "code"."""
        verdict = self.evidence.get("verdict")
        said = verdict.get("blame") if isinstance(verdict, dict) else None
        return said if isinstance(said, str) else None

    def at(self, *, step: int | None = None, phase: str | None = None, **evidence: object) -> Fault:
        """The same fault with what the observer knows besides."""
        return replace(
            self,
            step=self.step if step is None else step,
            phase=self.phase if phase is None else phase,
            evidence={**self.evidence, **evidence},
        )

    def sentence(self) -> str:
        """One line for people, without a full stop."""
        how = self.evidence.get("signal") or self.evidence.get("status")
        what = self.evidence.get("what") or "the loss"
        who = self.evidence.get("who") or "the machine"
        device = self.device or "the device"
        text = _SENTENCES[self.kind].format(device=device, how=f" ({how})" if how else "", what=what, who=who)
        if self.step is not None:
            text += f" at step {count(self.step)}"
        if self.phase is not None:
            text += f" in {self.phase}"
        return text

    def cause(self) -> str:
        """Why, as far as it is known: what the signature means, else the error's own first line."""
        known = signature(self.signature) if self.signature else None
        return known.means if known else self.message.partition("\n")[0]

    def to_json(self) -> dict[str, object]:
        """For the journal and for messages between processes."""
        return {"code": self.code, **dataclass_json.write(self)}

    @classmethod
    def from_json(cls, data: object) -> Fault:
        """Rebuild what `to_json` gave; fields of a newer version are left out. ValueError if it is no fault."""
        return dataclass_json.read_strictly(cls, data)


# --- from an exception ------------------------------------------------------------------------------------

_ON_CPU = frozenset({Kind.OUT_OF_MEMORY, Kind.HOST_MEMORY, Kind.LOADER_DIED, Kind.LOADER_STUCK})
_DECISIONS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_REQUESTED_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_STUCK = re.compile(r"\b(is stuck|is stopped|gave nothing)\b")
_MESSAGE_LIMIT = 2000

STICKY_CODES = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999})
"""cudaError_t values after which the process must be replaced (CUDA's driver_types.h says so for most)."""


def classify_exception(error: BaseException, *, device: str) -> Fault | None:
    """The fault behind an exception, or None if it is the script's own error.

    The whole chain counts: a script that wraps a device error in its own still lost its device.
    """
    if isinstance(error, _DECISIONS):
        return None
    for link in _chain(error):
        fault = _classify_link(link, device)
        if fault is not None:
            return None if fault.kind is Kind.USER_ERROR else fault
    return None


def _classify_link(error: BaseException, device: str) -> Fault | None:
    text = str(error)
    known = _known(error, text, device)
    kind = _kind_by_type(error, known)
    if kind is None and known is not None:
        kind = known.kind
    if kind is None or (device.partition(":")[0] == "cpu" and not _may_be_on_cpu(kind)):
        return None
    return Fault(
        kind=kind,
        device=device,
        message=text[:_MESSAGE_LIMIT],
        evidence=_exception_evidence(error, text),
        signature=known.id if known is not None and known.kind is kind else None,
    )


def _may_be_on_cpu(kind: Kind) -> bool:
    if kind.value not in added():
        return kind in _ON_CPU or kind is Kind.USER_ERROR
    return added()[kind.value].on_cpu


def _kind_by_type(error: BaseException, known: Signature | None) -> Kind | None:
    """What the type and its number say, where they say anything; they are surer than any text."""
    names = _type_names(error)
    if "torch.OutOfMemoryError" in names:
        return known.kind if known is not None and known.kind is Kind.USER_ERROR else Kind.OUT_OF_MEMORY
    if "torch.AcceleratorError" in names:
        sticky = _error_code(error) in STICKY_CODES
        if known is None or (sticky and known.health is Health.ALIVE):
            return Kind.DEVICE_LOST if sticky else Kind.TRANSIENT
        return known.kind
    if "holdfast.LoaderFailed" in names:
        return Kind.LOADER_STUCK if _STUCK.search(str(getattr(error, "cause", ""))) else Kind.LOADER_DIED
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return Kind.HOST_MEMORY
    if isinstance(error, ConnectionError | EOFError) and _raised_by_loader(error):
        return Kind.LOADER_DIED
    return None


def _known(error: BaseException, text: str, device: str) -> Signature | None:
    """The row this exception matches: by its error number, else by its text if its family may say it."""
    code = _error_code(error)
    families = {cls.__name__ for cls in type(error).__mro__}
    for known in signatures():
        if known.warning or known.exit_only or not known.on(device):
            continue
        if code is not None and code in known.codes:
            return known
        if not families.isdisjoint(known.raised_as) and known.found_in(text):
            return known
    return None


def _error_code(error: BaseException) -> int | None:
    """`AcceleratorError.error_code`; absent in torch before it had that type."""
    if "torch.AcceleratorError" not in _type_names(error):
        return None
    code = getattr(error, "error_code", None)
    return code if isinstance(code, int) else None


def _type_names(error: BaseException) -> set[str]:
    """`package.Class` for each class of the error. Names, because this module must not import torch."""
    return {f"{cls.__module__.partition('.')[0]}.{cls.__name__.lstrip('_')}" for cls in type(error).__mro__}


def _raised_by_loader(error: BaseException) -> bool:
    """Did it pass through torch's loader? A killed loader child shows as a bare ConnectionResetError."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith("torch.utils.data"):
            return True
        trace = trace.tb_next
    return False


def _exception_evidence(error: BaseException, text: str) -> dict[str, object]:
    evidence: dict[str, object] = {"exception": f"{type(error).__module__}.{type(error).__qualname__}"}
    code = _error_code(error)
    if code is not None:
        evidence["error_code"] = code
    samples = getattr(error, "samples", None)
    if isinstance(samples, list):  # of a LoaderFailed
        evidence["samples"] = samples
    asked = _REQUESTED_BYTES.search(text)
    if asked:
        evidence["requested_bytes"] = int(asked[1])
    return evidence


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it, nearest first, each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting.extend(getattr(link, "exceptions", ()))  # an ExceptionGroup, Python 3.11
        before = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        if before is not None:
            waiting.append(before)


# --- from the end of a process ----------------------------------------------------------------------------

_CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}

_WINDOWS = {
    0xC0000005: (Kind.CRASH, "access violation"),
    0xC0000006: (Kind.CRASH, "in-page error"),
    0xC000001D: (Kind.CRASH, "illegal instruction"),
    0xC0000094: (Kind.CRASH, "integer division by zero"),
    0xC00000FD: (Kind.CRASH, "stack overflow"),
    0xC0000374: (Kind.CRASH, "heap corruption"),
    0xC0000409: (Kind.CRASH, "stack buffer overrun or abort"),
    0xC0000017: (Kind.HOST_MEMORY, "no memory"),
    0xC000012D: (Kind.HOST_MEMORY, "commit limit reached"),
    0xC0000135: (Kind.UNSUPPORTED, "a DLL was not found"),
    0xC0000142: (Kind.UNSUPPORTED, "a DLL did not start"),
    0xC000013A: (Kind.KILLED, "Ctrl-C"),
    0x40010004: (Kind.KILLED, "session ended"),
}
"""NTSTATUS values that arrive as exit codes on Windows."""

_LAST_LINES = 60


def classify_exit(
    *, exitcode: int | None, last_words: str, oom_kills: int, device: str, limit: Limit | None = None
) -> Fault:
    """The fault behind a worker that ended without reporting an exception.

    `exitcode` is as in `subprocess`: negative for a signal; None if nobody knows it. `oom_kills` is by how much the
    kernel's count of out-of-memory kills rose meanwhile, `limit` the cgroup that had none left, if it was not the
    machine.
    """
    kind, how = (Kind.EXIT, {"status": "exit status unknown"}) if exitcode is None else _kind_of_exit(exitcode)
    evidence: dict[str, object] = {"exitcode": exitcode, **how}
    if oom_kills > 0:
        evidence["oom_kills"] = oom_kills
    tail = "\n".join(last_words.splitlines()[-_LAST_LINES:])
    known = None
    if oom_kills > 0 and (exitcode is None or how.get("signal") == "SIGKILL"):
        kind, known = Kind.HOST_MEMORY, signature("host-out-of-memory")
        if limit is not None:
            evidence |= {"cgroup": limit.path, "cgroup_limit_bytes": limit.bytes, "who": limit.words}
    elif kind in (Kind.CRASH, Kind.EXIT):
        known = _fatal_text(tail, device)
        if known is not None and known.kind is not None:
            kind = known.kind
    return Fault(
        kind=kind,
        device=device,
        message=_last_line(tail, known),
        evidence=evidence,
        signature=known.id if known else None,
    )


def _kind_of_exit(exitcode: int) -> tuple[Kind, dict[str, object]]:
    windows = _WINDOWS.get(exitcode & 0xFFFFFFFF)
    if windows is not None:
        return windows[0], {"status": f"0x{exitcode & 0xFFFFFFFF:08X}, {windows[1]}"}
    name = _signal_name(exitcode)
    if name is not None:
        return (Kind.CRASH if name in _CRASHES else Kind.KILLED), {"signal": name}
    return Kind.EXIT, {"status": f"exit status {exitcode}"}


def _signal_name(exitcode: int) -> str | None:
    """The signal behind -11, or behind 139 as a shell in between would report it."""
    number = -exitcode if exitcode < 0 else exitcode - 128
    if exitcode >= 0 and number not in _SIGNALS:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:  # Windows knows few of them; real-time signals have no name anywhere
        return _SIGNALS.get(number, f"signal {number}")


def _fatal_text(tail: str, device: str) -> Signature | None:
    """A known message that can have ended the process: one it would have survived is old news."""
    for known in signatures():
        fatal = known.health is not Health.ALIVE or known.aborts
        if fatal and not known.warning and known.on(device) and known.found_in(tail):
            return known
    return None


def _last_line(tail: str, known: Signature | None) -> str:
    """The line that says it, else the last one that says anything."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    telling = [line for line in lines if known is not None and known.found_in(line)]
    return (telling or lines or [""])[-1][:_MESSAGE_LIMIT]
