"""Where the kernel's messages can be read: /dev/kmsg, the journal, dmesg. Whichever is allowed, without root.

    log = KernelLog()                       # /dev/kmsg from now on
    log.why                                 # None, or why it cannot be read: "not permitted (kernel.dmesg_restrict=1)"
    entries = log.read()                    # what came since; returns at once

    COMMANDS["journal"]                     # for those who may not open it: a command, for a child with a deadline
    read_journal(its_output)                # entries

Nothing here waits and nothing here raises: a log that cannot be read is a fact to be written down.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.faults.kernel_messages import Entry, parse

KMSG = Path("/dev/kmsg")
LINES = 2000
"""Asked of the journal and of dmesg: a noisy machine may have written more since the worker began."""
_RECORD = 16 << 10
_AT_ONCE = 500
"""Records in one look: some milliseconds. The rest waits for the next."""
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_DMESG = re.compile(r"\[\s*(\d+)\.(\d{6})\](?:\[[^\]]*\])? (.*)")


class KernelLog:
    """/dev/kmsg, read to its end at each look. `from_boot` begins with what is still in the buffer."""

    def __init__(self, path: Path = KMSG, *, from_boot: bool = False) -> None:
        self.why: str | None = None
        self.lost = 0
        """How often messages were overwritten before we came to them."""
        self._fd: int | None = None
        self._most = 1_000_000 if from_boot else _AT_ONCE
        self._looked_ns = 0 if from_boot else time.time_ns()
        try:
            if not stat.S_ISCHR(path.stat().st_mode):
                self.why = "not a device"
                return
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
            if not from_boot:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.why = _refusal(error)
            self.close()

    def read(self) -> list[Entry]:
        """Entries since the last look, and so not older than that: the kernel's clock may be minutes off."""
        entries = [entry for record in self._records() if (entry := _from_kmsg(record)) is not None]
        now = time.time_ns()
        earliest, self._looked_ns = self._looked_ns, now if self._looked_ns else 0
        return [dataclasses.replace(entry, time_ns=min(max(entry.time_ns, earliest), now)) for entry in entries]

    def _records(self) -> Iterator[bytes]:
        if self._fd is None:
            return
        for _ in range(self._most):
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next read begins with the oldest there is
                    self.lost += 1
                    continue
                self.why = _refusal(error)
                self.close()
                return
            if not record:
                return
            yield record

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _from_kmsg(record: bytes) -> Entry | None:
    """`3,1234,5678901,-;text` and lines ` KEY=value`: priority, number, microseconds since boot, flags."""
    head, _, rest = record.partition(b";")
    fields = head.split(b",")
    text, _, more = rest.partition(b"\n")
    try:
        priority, moment = int(fields[0]), int(fields[2])
    except (ValueError, IndexError):
        return None
    if priority >> 3:  # a facility other than the kernel's: somebody wrote it there
        return None
    return parse(
        _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text).decode(errors="replace"),
        source="kmsg",
        time_ns=_wall(moment * 1000),
        device=_of_device(more.decode(errors="replace")),
    )


def _of_device(more: str) -> str | None:
    found = re.search(r"DEVICE=\+pci:(\S+)", more)
    return found[1] if found else None


def _wall(since_boot_ns: int) -> int:
    """Kernel time stands still while the machine sleeps, like the monotonic clock."""
    return time.time_ns() - time.monotonic_ns() + since_boot_ns


def _refusal(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "not there"
    if isinstance(error, PermissionError):
        return f"not permitted{_restricted()}"
    return str(getattr(error, "strerror", None) or error)


def _restricted() -> str:
    """The setting that is most often the reason."""
    try:
        value = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip()
    except OSError:
        return ""
    return f" (kernel.dmesg_restrict={value})"


# -- by a command ----------------------------------------------------------------------------------------------

COMMANDS: dict[str, list[str]] = {
    # Without --since: no line at all then means that the journal is closed to us, or not kept.
    "journal": ["journalctl", "--dmesg", "--output=json", f"--lines={LINES}", "--no-pager"],
    "dmesg": ["dmesg"],
}
"""In the order in which they are tried where /dev/kmsg is closed."""


def read_journal(text: str) -> list[Entry] | str:
    """The journal's answer as entries, or why it is none."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        return "no kernel messages in it, or not permitted to see them"
    return [entry for line in lines if (entry := _from_journal(line)) is not None]


def _from_journal(line: str) -> Entry | None:
    try:
        record = json.loads(line)
        message = record["MESSAGE"]
        if isinstance(message, list):  # bytes that are no text
            message = bytes(message).decode(errors="replace")
        if int(record.get("SYSLOG_FACILITY", 0)):
            return None
        moment = int(record["__REALTIME_TIMESTAMP"]) * 1000
        device = _of_device(f"DEVICE={record.get('_KERNEL_DEVICE')}")
        return parse(str(message), source="journal", time_ns=moment, device=device)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_dmesg(text: str) -> list[Entry] | str:
    """The answer of dmesg as entries, or why it is none."""
    found = [_DMESG.match(line) for line in text.splitlines()[-LINES:]]
    lines = [match for match in found if match]
    if not lines:
        return f"not permitted{_restricted()}"
    entries = []
    for match in lines:
        moment = int(match[1]) * 1_000_000_000 + int(match[2]) * 1000
        entry = parse(match[3], source="dmesg", time_ns=_wall(moment))
        if entry is not None:
            entries.append(entry)
    return entries


READERS: dict[str, Callable[[str], list[Entry] | str]] = {"journal": read_journal, "dmesg": read_dmesg}
