"""Evidence that takes its time: asked for after the next worker is on its way, added to the fault when it comes.

    gathering = Gathering()
    gathering.worker_begins(environment)        # from here on what the kernel says may be about this worker
    gathering.begin(folder, fault, run)         # by `collect`, at a fault: returns at once
    for text in gathering.poll(): ...           # at every tick; sentences worth telling a person
    gathering.close()                           # at the end of the run: waits a second at most

/dev/kmsg and the wedged events are read here, where they never block. What may hang (journalctl, dmesg, nvidia-smi) is
a child with a deadline, one of each at a time, and starts when the recovery is over: a log is also more complete then,
because a GPU's reset is told seconds after the death it caused.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.devices import nvidia
from holdfast.devices.identity import identify
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.kernel_messages import Entry, worst
from holdfast.faults.terms import Health
from holdfast.record.evidence import counters, environment, kernel_log
from holdfast.record.evidence.drm import WedgedListener
from holdfast.record.evidence.folder import add, write_counters, write_json, write_readme, write_text
from holdfast.record.evidence.kernel_log import KernelLog
from holdfast.record.evidence.reader import Reader
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder, read_json

SOON, LATE = 1.0, 15.0
"""Seconds after a fault: when the slow readers are asked, and asked for the last time."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the kernel log when nothing is wrong."""
_KEPT, _ALIKE = 400, 50
"""Entries remembered, and of one kind and device: what repeats a thousand times a second must not hide the rest."""
_SAME = 100_000_000
"""Nanoseconds within which the same text, read again, is the same line: the times of dmesg are computed."""
_NOTHING_TO_ASK = frozenset({Kind.OUT_OF_MEMORY, Kind.USER_ERROR, Kind.BAD_DATA})
"""Faults about which neither kernel nor driver knows anything."""
_ON_DEVICE = frozenset(
    {
        Kind.DEVICE_LOST,
        Kind.HANG,
        Kind.TRANSIENT,
        Kind.DRIVER,
        Kind.CRASH,
        Kind.EXIT,
        Kind.NON_FINITE,
        Kind.WRONG_NUMBERS,
    }
)
"""Faults that a device may have caused, whatever they look like."""
_JUST_BEFORE = 3_000_000_000
"""Nanoseconds before a fault in which a crash in the log is taken to be the worker's. Numbers do not tell: the log
has those of threads, and in a container those of the machine."""


_OF_A_CARD = ("xid-", "nvidia-", "amdgpu-", "xe-", "i915-", "drm-", "gpu-")
"""Lines of graphics drivers: each names the card that it is about."""


@dataclass(slots=True)
class Case:
    """One fault whose evidence is still coming."""

    folder: Path
    fault: Fault
    run: RunFolder
    since_ns: int
    before: dict[str, Any] | None
    """The counters when its worker began."""
    environment: dict[str, str]
    """What its worker had beside our own."""
    pci: str | None = None
    """Where the fault's device is on the bus, if that is known: what is said of another card is not about it."""
    begun: float = field(default_factory=time.monotonic)
    begun_ns: int = field(default_factory=time.time_ns)
    looks: list[float] = field(default_factory=lambda: [SOON, LATE])
    now: dict[str, Any] | None = None
    """The counters just after its end."""
    written: int = -1
    """How many entries its files hold."""
    told: set[str] = field(default_factory=set)

    @property
    def age(self) -> float:
        return time.monotonic() - self.begun

    def holds(self, entry: Entry) -> bool:
        """From the worker's beginning until some seconds after its end."""
        return self.since_ns <= entry.time_ns <= self.begun_ns + int(LATE * 1e9)

    def concerns(self, entry: Entry) -> bool:
        """Is it likely to be about this fault? A browser that crashed meanwhile is not."""
        if entry.health is Health.ALIVE:
            return False
        if entry.id == "process-crashed" and entry.time_ns < self.begun_ns - _JUST_BEFORE:
            return False
        if self.pci and entry.device and entry.device != self.pci and entry.id.startswith(_OF_A_CARD):
            return False
        return self.fault.kind in entry.kinds or (entry.device is not None and self.fault.kind in _ON_DEVICE)


def _place(device: str | None) -> str | None:
    """The card's address on the bus, from the kernel's files."""
    return identify(device).pci if device and device.partition(":")[0] in ("cuda", "xpu") else None


class Gathering:
    """Everything that is still being found out about the faults of one run."""

    def __init__(self, kmsg: Path = kernel_log.KMSG, *, from_boot: bool = False) -> None:
        self._before: dict[str, Any] | None = None
        """The counters when the worker began; None until there was time to read them."""
        self.log = KernelLog(kmsg, from_boot=from_boot)
        self.events = WedgedListener.open()
        self.unreadable: dict[str, str] = {"kmsg": self.log.why} if self.log.why else {}
        self._readable_by: str | None = None if self.log.why else "kmsg"
        self._since_ns = time.time_ns()
        self._environment: dict[str, str] = {}
        self._entries: deque[Entry] = deque(maxlen=_KEPT)
        self._alike: Counter[tuple[str, str | None]] = Counter()
        self._cases: list[Case] = []
        self._asked: dict[str, tuple[Reader, list[Case]]] = {}
        self._looked = 0.0
        self._facts: tuple[dict[str, str], dict[str, Any]] | None = None

    def worker_begins(self, environment: Mapping[str, str] | None = None) -> None:
        """A worker starts, with these variables beside our own."""
        self._since_ns = time.time_ns()
        self._environment = dict(environment or {})
        self._before = None
        self._alike.clear()

    def begin(self, folder: Path, fault: Fault, run: RunFolder, since_ns: int | None = None) -> None:
        """Take up a case. Nothing is asked yet: the next worker comes first."""
        since = self._since_ns if since_ns is None else since_ns
        self._cases.append(Case(folder, fault, run, since, self._before, self._environment, _place(fault.device)))

    @property
    def pids(self) -> set[int]:
        """Children that are asked something now."""
        return {reader.pid for reader, _ in self._asked.values() if reader.pid is not None}

    @property
    def open_cases(self) -> int:
        return len(self._cases)

    def poll(self) -> list[str]:
        """Take what has come; returns what a person should hear of it. Never waits."""
        self._listen()
        self._count()
        self._take_answers()
        told: list[str] = []
        for case in self._cases:
            if case.looks and case.age >= case.looks[0]:
                self._ask(case)
            if case.age >= SOON:
                told += self._write(case)
        self._cases = [case for case in self._cases if case.looks or self._is_asked(case) or case.age < LATE]
        return told

    def close(self, patience: float = 1.0) -> list[str]:
        """Ask at once what is still to be asked, wait for it no longer than this, and leave no process behind."""
        self._listen()
        self._count()
        for case in self._cases:
            if case.looks:
                self._ask(case)
                case.looks = []
        deadline = time.monotonic() + patience
        while self._asked and time.monotonic() < deadline:
            self._take_answers()
            time.sleep(0.005)
        for reader, _ in self._asked.values():
            reader.kill("the run ended before it answered")
        self._take_answers(last=True)
        self._listen()
        told = [text for case in self._cases for text in self._write(case)]
        self._cases = []
        self.log.close()
        if self.events is not None:
            self.events.close()
            self.events = None
        return told

    # -- listening -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """What comes by itself: events at every tick, the log at every second, or at once if there is a case."""
        if self.events is not None:
            self._remember(self.events.poll())
        now = time.monotonic()
        if self._cases or now - self._looked >= LOOK_EVERY:
            self._looked = now
            self._remember(self.log.read())

    def _remember(self, entries: Iterable[Entry]) -> None:
        since_ns = min((case.since_ns for case in self._cases), default=0)
        for entry in entries:
            if entry.time_ns < since_ns:
                continue
            alike = (entry.id, entry.device)
            self._alike[alike] += 1
            if self._alike[alike] <= _ALIKE:
                self._entries.append(entry)

    def _count(self) -> None:
        """Once between two workers: what one ends with, the other begins with."""
        ended = [case for case in self._cases if case.now is None]
        if not ended and self._before is not None:
            return
        now = counters.read()
        self._before = now if self._before is None else self._before
        for case in ended:
            case.now = now

    # -- asking --------------------------------------------------------------------------------------------

    def _ask(self, case: Case) -> None:
        first, case.looks = len(case.looks) == 2, case.looks[1:]
        if first:
            write_counters(case.folder, case.before, case.now or {})
            write_json(case.folder / "environment.json", self._where(case))
            write_readme(case.folder)
        if case.fault.kind in _NOTHING_TO_ASK:
            case.looks = []
            return
        if self._readable_by != "kmsg":
            self._start(self._next_source(), case)
        command = nvidia.report_command() if first and (case.fault.device or "").startswith("cuda") else None
        if command is not None:
            self._start("nvidia", case, command)

    def _where(self, case: Case) -> dict[str, Any]:
        """Looked at once, and again if the next worker has other variables: it takes some milliseconds."""
        if self._facts is None or self._facts[0] != case.environment:
            facts = environment.look({**os.environ, **case.environment}, case.run.info)
            self._facts = (case.environment, facts)
        return self._facts[1]

    def _next_source(self) -> str | None:
        """The command that gave the log before, or the next to try; none on other systems, and none twice in vain."""
        if self._readable_by is not None or not sys.platform.startswith("linux"):
            return self._readable_by
        return next((name for name in kernel_log.COMMANDS if name not in self.unreadable), None)

    def _start(self, name: str | None, case: Case, command: list[str] | None = None) -> None:
        """One child of each kind: whoever comes while it works shares its answer."""
        if name is None:
            return
        if name in self._asked:
            self._asked[name][1].append(case)
        else:
            self._asked[name] = (Reader(command or kernel_log.COMMANDS[name]), [case])

    def _is_asked(self, case: Case, *sources: str) -> bool:
        """Is an answer for it still to come, from one of these or from anywhere?"""
        return any(case in cases for name, (_, cases) in self._asked.items() if name in sources or not sources)

    # -- hearing -------------------------------------------------------------------------------------------

    def _take_answers(self, *, last: bool = False) -> None:
        for name in list(self._asked):
            reader, cases = self._asked[name]
            answer = reader.answer()
            if answer is None:
                continue
            del self._asked[name]
            if name == "nvidia":
                self._nvidia_said(answer.why or nvidia.report(answer.text), cases)
            else:
                self._log_said(name, answer.why or kernel_log.READERS[name](answer.text), cases, last=last)

    def _log_said(self, name: str, said: list[Entry] | str, cases: list[Case], *, last: bool) -> None:
        if isinstance(said, str):
            self.unreadable[name] = said
            self._readable_by = None
            if not last:
                for case in cases:
                    self._start(self._next_source(), case)
            return
        self._readable_by = name
        known: dict[str, list[int]] = {}
        for entry in self._entries:
            known.setdefault(entry.text, []).append(entry.time_ns)
        self._remember(
            [entry for entry in said if all(abs(entry.time_ns - t) > _SAME for t in known.get(entry.text, ()))]
        )

    def _nvidia_said(self, said: list[dict[str, Any]] | str, cases: list[Case]) -> None:
        cards = said if isinstance(said, str) else [{**card, "needs": nvidia.needs(card)} for card in said]
        for case in cases:
            add(case.folder, "counters.json", nvidia=cards)

    # -- writing -------------------------------------------------------------------------------------------

    def _write(self, case: Case) -> list[str]:
        """Bring the files of a case up to date; returns what is new in it and worth telling."""
        entries = [entry for entry in self._entries if case.holds(entry)]
        if len(entries) == case.written or not (entries or self._has_looked(case)):
            return []
        case.written = len(entries)
        serious = [entry for entry in entries if case.concerns(entry)]
        most = worst(serious)
        record = {
            "read_from": self._readable_by,
            "unreadable": self.unreadable if self._readable_by is None else {},
            "overwritten": self.log.lost,
            "worst": most.sentence() if most is not None else None,
            "entries": [{**entry.to_json(), "sentence": entry.sentence()} for entry in entries],
        }
        write_json(case.folder / "kernel.json", record)
        write_text(case.folder / "kernel.txt", self._as_text(entries))
        write_readme(case.folder)
        new = [text for text in dict.fromkeys(entry.sentence() for entry in serious) if text not in case.told]
        case.told.update(new)
        return [f"the kernel says: {text}" for text in new]

    def _has_looked(self, case: Case) -> bool:
        """Can "nothing" be said, or "nowhere to look"?"""
        if case.fault.kind in _NOTHING_TO_ASK or self._readable_by == "kmsg":
            return case.fault.kind not in _NOTHING_TO_ASK
        answered = len(case.looks) < 2 and not self._is_asked(case, *kernel_log.COMMANDS)
        return answered and (self._readable_by is not None or self._next_source() is None)

    def _as_text(self, entries: list[Entry]) -> str:
        if self._readable_by is None:
            heading = [f"{source} could not be read: {why}" for source, why in self.unreadable.items()]
        else:
            heading = [f"from {self._readable_by}"]
        if not entries:
            return "\n".join([*heading, "nothing about devices, memory or disks in that time"])
        lines = [f"{entry.to_json()['time']}  {entry.text}\n    {entry.sentence()}" for entry in entries]
        return "\n".join([*heading, "", *lines])


def gather(folder: Path, fault: Fault, run: RunFolder, *, since_ns: int | None = None, patience: float = 1.0) -> None:
    """All at once, for a fault that is found when nobody is there to poll: a supervisor that had died."""
    since = _last_sign(run) if since_ns is None else since_ns
    if since is not None:
        gathering = Gathering(from_boot=True)
        gathering.begin(folder, fault, run, since)
        gathering.close(patience)


def _last_sign(run: RunFolder) -> int | None:
    """A minute before the run was last seen alive; None if that was in another boot, of which this log is silent."""
    beat = read_json(run.path / "beat.json") or {}
    seen = Event("beat", str(beat.get("time", ""))).seconds()
    if seen is None or run.info.get("boot_id") != processes.boot_id():
        return None
    return int((seen - 60.0) * 1e9)
