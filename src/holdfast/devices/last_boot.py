"""How an earlier boot ended, from what the system kept about it: nothing here needs root, and unknown is an answer.

    how_it_ended(boot, since)         # Ended("clean", "wtmp: shutdown at 2026-11-15 09:12")
    what_the_kernel_said(boot, since) # [Named("gpu", "NVRM: Xid (PCI:0000:01:00): 79, ...", "0000:01:00")]

Linux: the journal of that boot, wtmp, and what pstore saved of the kernel's last words. Windows: the System event
log. macOS: panic reports. Each reader says nothing where its source is missing, closed to this user, or empty: in
a container that is the rule. A kernel log without a word acquits nobody, because the last minutes of a machine
that froze are seldom written.
"""

from __future__ import annotations

import json
import os
import platform
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from holdfast.devices.shutdown_cause import Ended, Named

PATIENCE = 10.0
"""Seconds for one question to another program."""
LAST = 600.0
"""Seconds before the end of a boot in which a message may be the cause of it."""
PSTORE = (Path("/sys/fs/pstore"), Path("/var/lib/systemd/pstore"))
WTMP = Path("/var/log/wtmp")
PANICS = Path("/Library/Logs/DiagnosticReports")
_LINES = 2000

Asked = Callable[[list[str]], str | None]
"""A command in, what it printed out; None if it did not work."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Where evidence comes from; a test brings its own."""

    ended: Callable[[str | None, float], Ended]
    kernel: Callable[[str | None, float], list[Named]]


def how_it_ended(boot: str | None, since: float) -> Ended:
    """The first source that knows. `since` is when, in that boot, something was last known to be in use."""
    if sys.platform == "win32":
        return windows_end(ask(_WINDOWS), since)
    return next(
        (end for end in (journal_end(boot), wtmp_end(_bytes(WTMP), since)) if end.how != "unknown"),
        Ended("unknown", "neither the journal nor wtmp says how that boot ended"),
    )


def what_the_kernel_said(boot: str | None, since: float) -> list[Named]:
    """The messages of the end of that boot that name a card or the machine."""
    return [*suspects(journal_kernel(boot)), *suspects(saved_words(since))]


# The journal ----------------------------------------------------------------------------------------------

_SHUTTING = re.compile(r"Reached target .*(Reboot|Power.?Off|Shut ?down|Halt|Kexec)|^Shutting down\.")


def ask(words: list[str]) -> str | None:
    try:
        told = subprocess.run(
            words,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.decode(errors="replace")


def _journal(boot: str | None, ask: Asked, *more: str) -> list[dict[str, object]]:
    identity = (boot or "").replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{32}", identity):
        return []
    words = ["journalctl", f"--boot={identity}", "--quiet", "--no-pager", "--output=json", f"--lines={_LINES}"]
    return [record for record in map(_record, (ask([*words, *more]) or "").splitlines()) if record]


def _record(line: str) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("MESSAGE"), str) else {}


def journal_end(boot: str | None, ask: Asked = ask) -> Ended:
    """A boot that was shut down ends with the words of systemd; a user without rights sees none of either kind."""
    system = [
        record
        for record in _journal(boot, ask)
        if record.get("_PID") == "1"
        or record.get("_TRANSPORT") == "kernel"
        or record.get("SYSLOG_IDENTIFIER") in ("systemd-shutdown", "systemd-journald")
    ]
    for record in reversed(system):
        message, said_by = str(record["MESSAGE"]), record.get("SYSLOG_IDENTIFIER")
        stopped = said_by == "systemd-journald" and message.startswith("Journal stopped")
        if said_by == "systemd-shutdown" or stopped or (record.get("_PID") == "1" and _SHUTTING.search(message)):
            return Ended("clean", f"journal: {_short(message)}")
    if system:
        return Ended("unclean", f"the journal of that boot stops at: {_short(str(system[-1]['MESSAGE']))}")
    return Ended()


def journal_kernel(boot: str | None, ask: Asked = ask) -> list[str]:
    """What the kernel wrote in the last minutes of a boot, as far as it was kept."""
    timed = [(_micros(record) / 1e6, str(record["MESSAGE"])) for record in _journal(boot, ask, "--dmesg")]
    end = max((when for when, _ in timed), default=0.0)
    return [text for when, text in timed if when >= end - LAST]


def _micros(record: dict[str, object]) -> int:
    value = record.get("__REALTIME_TIMESTAMP")
    return int(value) if isinstance(value, str) and value.isdigit() else 0


# wtmp -----------------------------------------------------------------------------------------------------

_RUN_LEVEL, _BOOT = 1, 2
_SHORT_TIME = "=h2xi32s4s32s256shhiii16s20s"
_LONG_TIME = "=h2xi32s4s32s256shhqqq16s20s4x"
"""glibc keeps 32-bit times where 32-bit programs exist beside 64-bit ones (x86_64), and 64-bit ones elsewhere."""


def wtmp_end(data: bytes, since: float, layout: str | None = None) -> Ended:
    """Was there a shutdown between `since` and the next boot? Without a next boot this file is not kept."""
    for kind, user, when in _logins(data, layout):
        if when < since:
            continue
        if kind == _RUN_LEVEL and user == "shutdown":
            return Ended("clean", f"wtmp: shutdown at {_clock(when)}")
        if kind == _BOOT:
            return Ended("unclean", f"wtmp: booted at {_clock(when)} without a shutdown before")
    return Ended()


def _logins(data: bytes, layout: str | None) -> Iterator[tuple[int, str, int]]:
    short = platform.machine() in ("x86_64", "i686", "ppc64le", "armv7l") or sys.maxsize < 2**32
    layout = layout or (_SHORT_TIME if short else _LONG_TIME)
    size = struct.calcsize(layout)
    for start in range(0, len(data) - size + 1, size):
        fields = struct.unpack_from(layout, data, start)
        yield fields[0], fields[4].split(b"\0")[0].decode(errors="replace"), fields[9]


# Windows --------------------------------------------------------------------------------------------------

_WINDOWS = [
    "wevtutil",
    "qe",
    "System",
    "/c:50",
    "/rd:true",
    "/f:xml",
    "/q:*[System[(EventID=41 or EventID=6006 or EventID=6008)]]",
]


def windows_end(text: str | None, since: float) -> Ended:
    """6006: the event log was closed, as a shutdown does. 41 and 6008: it was not, and the next boot says so."""
    found = re.findall(r"<EventID[^>]*>(\d+)</EventID>.*?SystemTime=['\"]([^'\"]+)['\"]", text or "", re.DOTALL)
    for when, number in sorted((_seconds(stamp), int(number)) for number, stamp in found):
        if when >= since:
            how = "clean" if number == 6006 else "unclean"
            return Ended(how, f"event log: event {number} at {_clock(when)}")
    return Ended()


def _seconds(stamp: str) -> float:
    stamp = re.sub(r"(\.\d{6})\d*", r"\1", stamp).replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0


# The kernel's last words ----------------------------------------------------------------------------------

_OF_THE_MACHINE = frozenset({"memory-uncorrected", "critical-heat", "machine-check"})
_HANGING = frozenset(
    {
        "amdgpu-ring-timeout",
        "amdgpu-ring-reset-failed",
        "amdgpu-vram-lost",
        "amdgpu-reset-begin",
        "amdgpu-mes",
        "amdgpu-queue",
        "amdgpu-fences",
        "xe-engine-reset",
        "i915-hang",
    }
)
"""Messages after which a card may take the machine along, beside those that say themselves that it is gone."""
_DRIVER = re.compile(r"RIP: .*\[(?:nvidia\w*|amdgpu|i915|xe|nouveau)\]|\bAGX|IOGPU|AMDRadeon|NVDA")
_PANIC = re.compile(r"Kernel panic|BUG: |Oops:|panic\(cpu|soft lockup|hard LOCKUP")


def suspects(lines: Iterable[str]) -> list[Named]:
    """Who is named, in the order of time. A panic that names nobody is the machine's, if nobody else is named.

    What a program did wrong on a card, and a reset that went well, are no reason for a machine to go down.
    """
    from holdfast.faults.kernel_messages import parse
    from holdfast.faults.terms import Health

    found: list[Named] = []
    panic: Named | None = None
    for line in lines:
        entry = parse(line)
        if entry is not None and entry.id in _OF_THE_MACHINE:
            found.append(Named("machine", _short(line)))
        elif _PANIC.search(line):
            panic = panic or Named("machine", _short(line))
        elif _DRIVER.search(line) or (entry and (entry.health is Health.MACHINE or entry.id in _HANGING)):
            found.append(Named("gpu", _short(line), entry.device if entry else None))
    return found or ([panic] if panic else [])


def saved_words(since: float, places: Iterable[Path] | None = None) -> list[str]:
    """What pstore, or a panic report, kept of a kernel that ended after `since`."""
    if places is None:
        places = (PANICS,) if sys.platform == "darwin" else PSTORE
    lines: list[str] = []
    for place in places:
        for path in sorted(_files(place), key=lambda path: path.name):
            if path.name.startswith(("dmesg", "console")) or path.suffix == ".panic":
                lines += _saved_after(path, since)
    return lines


def _saved_after(path: Path, since: float) -> list[str]:
    try:
        if path.stat().st_mtime < since:
            return []
    except OSError:
        return []
    return _bytes(path, 1 << 20).decode(errors="replace").splitlines()


def _files(folder: Path) -> list[Path]:
    """Files below a folder; systemd moves each record into a folder of its own."""
    try:
        return [path for path in folder.rglob("*") if path.is_file()]
    except OSError:
        return []


def _bytes(path: Path, most: int = 64 << 20) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def _short(text: str) -> str:
    """One line that is safe to show: a kernel message may hold anything a device wrote."""
    clean = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return clean if len(clean) <= 200 else clean[:199] + "…"


READERS = Readers(how_it_ended, what_the_kernel_said)
