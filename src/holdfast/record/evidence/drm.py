"""What graphics drivers tell everybody: wedged devices, by the kernel's own events. No root needed.

    listener = WedgedListener.open()         # None where there are no such events (macOS, Windows, some containers)
    select([listener], ...); listener.poll() # entries; returns at once
    coredumps()                              # [{"device": "0000:03:00.0", "path": "/sys/class/…/data"}]

From Linux 6.15 on a driver that loses its device says so by `WEDGED=` and how it can be brought back. A container
with a network of its own may not hear these events; the kernel log then says the same.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from holdfast.faults.classification import Kind
from holdfast.faults.kernel_messages import Entry
from holdfast.faults.terms import Health

_KOBJECT_UEVENT = 15  # NETLINK_KOBJECT_UEVENT, which Python does not name
_KERNEL_GROUP = 1
_MOST = 64 << 10
_ADDRESS = re.compile(r"/([0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])(?=/)")

METHODS = {
    "none": "the driver reset the GPU by itself and it can be used again",
    "rebind": "the GPU is lost until its driver is bound anew",
    "bus-reset": "the GPU is lost until its bus is reset",
    "cold-reset": "the GPU is lost until its power was off",
    "vendor-specific": "the GPU is lost until its maker's own recovery was done",
}
"""What `WEDGED=` asks for. A driver may name several, the mildest first."""


class WedgedListener:
    """Hears the kernel's events about devices and keeps those that speak of a fault."""

    def __init__(self, events: socket.socket) -> None:
        self._events = events

    @classmethod
    def open(cls) -> WedgedListener | None:
        """A listener, or None where the system has no such events or gives us none."""
        family = getattr(socket, "AF_NETLINK", None)
        if family is None:
            return None
        try:
            events = socket.socket(family, socket.SOCK_RAW, _KOBJECT_UEVENT)
            events.bind((0, _KERNEL_GROUP))
            events.setblocking(False)
        except OSError:
            return None
        return cls(events)

    def fileno(self) -> int:
        return self._events.fileno()

    def poll(self) -> list[Entry]:
        """What was heard since the last call; at most a few hundred events at once."""
        entries = []
        for _ in range(256):
            try:
                data, (sender, _group) = self._events.recvfrom(_MOST)
            except BlockingIOError:
                break
            except OSError:  # the buffer ran over while nobody listened: some events are lost, the next are not
                continue
            if sender:  # not from the kernel
                continue
            entry = understand(data)
            if entry is not None:
                entries.append(entry)
        return entries

    def close(self) -> None:
        self._events.close()


def understand(data: bytes) -> Entry | None:
    """`change@/devices/…/drm/card0`, then `KEY=value`, each ended by a zero byte."""
    head, *rest = data.decode(errors="replace").split("\0")
    values = dict(part.split("=", 1) for part in rest if "=" in part)
    if values.get("SUBSYSTEM") == "drm" and "WEDGED" in values:
        return _wedged(head, values)
    if values.get("SUBSYSTEM") == "drm" and values.get("ERROR") == "1":  # i915, for many years
        return _entry(head, values, id="i915-hang", means="the GPU hung", health=Health.DEAD, code="ERROR=1")
    if values.get("SUBSYSTEM") == "devcoredump" and values.get("ACTION") == "add":
        means = "a driver saved its device's state for its developers"
        return _entry(head, values, id="gpu-coredump", means=means, health=Health.ALIVE)
    return None


def _wedged(head: str, values: dict[str, str]) -> Entry:
    asked = values["WEDGED"]
    mildest = asked.partition(",")[0]
    means = METHODS.get(mildest, "the driver says that the GPU is wedged")
    health = Health.DEAD if mildest == "none" else Health.MACHINE
    return _entry(head, values, id="drm-wedged", means=means, health=health, code=f"WEDGED={asked}")


def _entry(head: str, values: dict[str, str], **more: Any) -> Entry:
    addresses = _ADDRESS.findall(values.get("DEVPATH", ""))
    pid = values.get("PID", "")
    return Entry(
        source="uevent",
        time_ns=time.time_ns(),
        text=" ".join([head, *(f"{key}={value}" for key, value in values.items() if key not in ("ACTION", "DEVPATH"))]),
        device=addresses[-1] if addresses else None,
        pid=int(pid) if pid.isdigit() else None,
        process=values.get("TASK"),
        kinds=(Kind.DEVICE_LOST, Kind.HANG, Kind.DRIVER),
        **more,
    )


def coredumps(root: Path = Path("/")) -> list[dict[str, Any]]:
    """States of devices that drivers have saved. They are for root to read, and are deleted after some minutes."""
    found = []
    try:
        folders = sorted((root / "sys/class/devcoredump").glob("devcd*"))
    except OSError:
        return []
    for folder in folders:
        failing = folder / "failing_device"
        data = folder / "data"
        found.append(
            {
                "device": failing.resolve().name if failing.exists() else None,
                "path": f"/{data.relative_to(root).as_posix()}",
                "readable": os.access(data, os.R_OK),
            }
        )
    return found
