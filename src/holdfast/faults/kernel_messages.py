"""Lines of the kernel log that say something about a fault, and what they mean.

    entry = parse("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")
    entry.code, entry.device, entry.means        # "Xid 79", "0000:65:00.0", "the GPU has fallen off the bus"
    parse("usb 1-1: new high-speed USB device")  # None

`kernel_messages.json` holds the lines that are known, most telling first. Old and new drivers word the same thing
differently, so the patterns are loose. What a line means is what its driver means by it: not yet whose fault it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from holdfast.faults.classification import CODES, Kind
from holdfast.faults.terms import Health, Level

_HERE = Path(__file__).parent
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\).*?: (\d+),?")
_RECOVERY = re.compile(r"action changed from .* to 0x\w+ \(([^)]+)\)|: 154, ([A-Z][^(,]*Required)")
_PCI = re.compile(r"\b([0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f])(\.[0-7])?(?!\w|:\w)", re.IGNORECASE)
_LIBRARY = re.compile(r" in ([\w.+-]*\.so[\w.]*)\[")
_PROCESSES = tuple(
    re.compile(pattern)
    for pattern in (
        r"pid=(?P<pid>\d+), name=(?P<name>[^,]+)",
        r"pid=(?P<pid>\d+)",
        r"[Pp]rocess (?:information: process )?(?P<name>\S+) pid (?P<pid>\d+)",
        r"Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]+)\)",
        r"\btask (?P<name>\S+):(?P<pid>\d+) blocked",
        r"(?:^|\s)(?P<name>\S+)\[(?P<pid>\d+)\]:? (?:segfault|unhandled|general|trap)",
        r" in (?P<name>\S+) \[(?P<pid>\d+)\]",
    )
)
NVIDIA = {
    "RESTART_APP": "restart the program",
    "RESET_GPU": "reset the GPU",
    "RESTART_BM": "reboot the machine",
    "RESTART_VM": "restart the virtual machine",
    "IGNORE": "nothing to do at once",
    "CONTACT_SUPPORT": "contact support",
    "CHECK_MECHANICALS": "check how the card sits and its power",
    "CHECK_UVM": "look at the message of the memory manager (UVM) beside it",
    "UPDATE_SWFW": "update driver and firmware",
    "WORKFLOW_XID_45": "follow the other Xid; alone, restart the program",
    "WORKFLOW_XID_48": "see whether Xid 63 or 64 follows, then reset the GPU",
    "WORKFLOW_NVLINK_ERR": "follow the workflow for NVLink errors",
    "WORKFLOW_NVLINK5_ERR": "follow the workflow for errors of the fifth NVLink",
    "XID_154": "do what the line asks for",
}
"""The words of NVIDIA's catalogue for what to do at once, in ours."""
_WORST = {Health.ALIVE: 0, Health.DEAD: 1, Health.MACHINE: 2}
_LEVELS = {Health.ALIVE: Level.NOTE, Health.DEAD: Level.WARNING, Health.MACHINE: Level.ERROR}


@dataclass(frozen=True, slots=True)
class Message:
    """One row of `kernel_messages.json`."""

    id: str
    health: Health
    """What is left: the process, at most a new process, or nothing without a reset or reboot."""
    kinds: tuple[Kind, ...]
    """The faults it is seen with, the likeliest first."""
    means: str
    action: str
    xid: int | None = None
    """The number NVIDIA's driver gives; 0 stands for those that are not listed."""
    regex: str | None = None
    nvidia: str | None = None
    """The immediate action of NVIDIA's catalogue of Xids, in its word; None where it gives none."""
    unused: bool = False
    """NVIDIA lists the number as unused: a driver should not report it."""
    words: tuple[str, ...] = ()
    """One of them is in every line that `regex` matches. Asked for first: most lines of a log have none."""

    def found_in(self, text: str) -> bool:
        return self.regex is not None and _compiled(self.regex).search(text) is not None

    @property
    def sign(self) -> str:
        """How to recognise it, for a table."""
        return f"/{self.regex}/" if self.regex else f"Xid {self.xid}" if self.xid else "Xid, any other"

    # What `holdfast explain XID79` prints; the names are those of `cli.explain.Topic`.

    @property
    def code(self) -> str:
        return f"XID{self.xid}" if self.xid else self.id

    @property
    def slug(self) -> str:
        return "kernel-log"

    @property
    def level(self) -> str:
        return _LEVELS[self.health]

    @property
    def title(self) -> str:
        return f"{self.means[0].upper()}{self.means[1:]}"

    @property
    def seen(self) -> str:
        what = f"`NVRM: Xid (PCI:…): {self.xid}`" if self.xid else f"A line that matches `{self.regex}`"
        return f"{what} in the kernel log (`journalctl -k`, or `sudo dmesg`)."

    @property
    def does(self) -> str:
        codes = ", ".join(CODES[kind] for kind in self.kinds)
        return (
            "Keeps the line with the evidence of the fault, in the run's `faults` folder, where the log may be read. "
            f"What follows depends on the fault ({codes}): `holdfast explain {CODES[self.kinds[0]]}`."
        )

    @property
    def you_can(self) -> str:
        advice = f" NVIDIA's catalogue says: {NVIDIA[self.nvidia]} ({self.nvidia})." if self.nvidia else ""
        return f"{self.action[0].upper()}{self.action[1:]}.{advice}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the kernel log, or one event, that was found and understood."""

    source: str
    """kmsg, journal, dmesg or uevent."""
    time_ns: int
    """By the wall clock."""
    text: str
    id: str
    means: str
    health: Health
    code: str | None = None
    """As the driver counts it: "Xid 79"."""
    device: str | None = None
    """The PCI address."""
    pid: int | None = None
    process: str | None = None
    kinds: tuple[Kind, ...] = ()
    """The faults it is seen with."""

    def sentence(self) -> str:
        """Without a full stop: "the GPU has fallen off the bus (Xid 79, 0000:65:00.0)"."""
        details = ", ".join(part for part in (self.code, self.device) if part)
        return f"{self.means} ({details})" if details else self.means

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "time": _iso(self.time_ns),
            "device": self.device,
            "code": self.code,
            "id": self.id,
            "means": self.means,
            "health": self.health.value,
            "pid": self.pid,
            "process": self.process,
            "text": self.text,
        }


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.DOTALL)


def _iso(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(maxsize=1)
def messages() -> tuple[Message, ...]:
    """All known lines, read on first use."""
    import json

    rows = json.loads((_HERE / "kernel_messages.json").read_text(encoding="utf-8"))
    return tuple(_message(row) for row in rows)


def _message(row: dict[str, Any]) -> Message:
    kinds = tuple(Kind(kind) for kind in row["kinds"])
    return Message(**{**row, "health": Health(row["health"]), "kinds": kinds, "words": tuple(row.get("words", ()))})


@lru_cache(maxsize=1)
def _xids() -> dict[int, Message]:
    return {row.xid: row for row in messages() if row.xid is not None}


def parse(text: str, *, source: str = "", time_ns: int = 0, device: str | None = None) -> Entry | None:
    """What a line says, or None if it says nothing about a fault. `device` is what the log itself knows."""
    number = _XID.search(text)
    row = _by_number(int(number[2])) if number else _by_text(text)
    if row is None:
        return None
    pid, process = _process(text)
    return Entry(
        source=source,
        time_ns=time_ns,
        text=text,
        id=row.id,
        means=_means(row, text),
        health=_health(row, text),
        code=f"Xid {number[2]}" if number else None,
        device=address(text) or device,
        pid=pid,
        process=process,
        kinds=row.kinds,
    )


def explained(asked: str) -> Message | None:
    """The row behind `xid79`, `Xid 79`, `79`, `amdgpu-ring-timeout`, or a whole line of the log."""
    word = asked.strip().lower()
    short = re.fullmatch(r"(?:xid[ -]?)?(\d{1,3})", word)
    if short:
        return _xids().get(int(short[1])) if int(short[1]) else None
    named = next((row for row in messages() if row.id == word), None)
    if named is not None:
        return named
    number = _XID.search(asked)
    return _by_number(int(number[2])) if number else _by_text(asked)


def seen_with(kind: Kind) -> list[Message]:
    """The lines that go with a kind of fault, those it comes first in ahead."""
    found = [row for row in messages() if kind in row.kinds and not row.unused]
    return sorted(found, key=lambda row: row.kinds.index(kind))


def worst(entries: Iterable[Entry]) -> Entry | None:
    """The entry that says most: what needs a reset before what needs a process, the earliest of those."""
    return min(entries, key=lambda entry: (-_WORST[entry.health], entry.time_ns), default=None)


def address(text: str) -> str | None:
    """The PCI address in a line, as sysfs writes it; NVIDIA's driver leaves the function out."""
    found = _PCI.findall(text)
    if not found:
        return None
    # "pcieport 0000:00:03.0: AER: ... received from 0000:65:00.0": the device is named last there, first elsewhere.
    place, function = found[-1 if "AER:" in text else 0]
    return f"{place.lower()}{function or '.0'}"


def _by_number(number: int) -> Message:
    return _xids().get(number) or _xids()[0]


def _by_text(text: str) -> Message | None:
    if not any(word in text for word in _words()):
        return None
    return next((row for row in messages() if row.found_in(text)), None)


@lru_cache(maxsize=1)
def _words() -> tuple[str, ...]:
    return tuple({word: None for row in messages() for word in row.words})


def _means(row: Message, text: str) -> str:
    if row.xid == 154:
        asked = _RECOVERY.search(text)
        return f"the driver asks for: {asked[1] or asked[2]}" if asked else row.means
    library = _LIBRARY.search(text) if row.id == "process-crashed" else None
    return f"{row.means}, in {library[1]}" if library else row.means


def _health(row: Message, text: str) -> Health:
    calmed = row.xid == 154 and re.search(r"\bto 0x0 ", text)
    return Health.ALIVE if calmed else row.health


def _process(text: str) -> tuple[int | None, str | None]:
    for pattern in _PROCESSES:
        match = pattern.search(text)
        if match:
            return int(match["pid"]) or None, match.groupdict().get("name")
    return None, None
