"""Wedged devices: the kernel's events as they come, from anybody's process."""

from __future__ import annotations

import select
import sys
from pathlib import Path

import pytest

from holdfast.faults.terms import Health
from holdfast.record.evidence.drm import METHODS, WedgedListener, coredumps, understand

from .test_kernel_log import as_nobody

CARD = "/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:03:00.0/drm/card1"


def event(path: str = CARD, **values: str) -> bytes:
    pairs = {"ACTION": "change", "DEVPATH": path, "SUBSYSTEM": "drm", **values, "DEVNAME": "dri/card1", "SEQNUM": "692"}
    return b"\0".join([f"{pairs['ACTION']}@{path}".encode(), *(f"{k}={v}".encode() for k, v in pairs.items()), b""])


@pytest.mark.parametrize(
    ("asked", "means", "health"),
    [
        ("none", METHODS["none"], Health.DEAD),
        ("rebind", METHODS["rebind"], Health.MACHINE),
        ("rebind,bus-reset", METHODS["rebind"], Health.MACHINE),
        ("cold-reset", METHODS["cold-reset"], Health.MACHINE),
        ("of-next-year", "the driver says that the GPU is wedged", Health.MACHINE),
    ],
)
def test_a_wedged_device(asked: str, means: str, health: Health) -> None:
    entry = understand(event(WEDGED=asked, PID="812", TASK="python"))
    assert entry is not None
    assert (entry.source, entry.code, entry.means, entry.health) == ("uevent", f"WEDGED={asked}", means, health)
    assert (entry.device, entry.pid, entry.process) == ("0000:03:00.0", 812, "python")


def test_a_hang_of_an_older_driver_and_a_saved_state() -> None:
    hang = understand(event(ERROR="1"))
    assert hang is not None and hang.id == "i915-hang"
    saved = understand(event("/devices/virtual/devcoredump/devcd1", ACTION="add", SUBSYSTEM="devcoredump"))
    assert saved is not None and saved.id == "gpu-coredump"


@pytest.mark.parametrize(
    "data",
    [
        event(HOTPLUG="1"),
        event(SUBSYSTEM="block", WEDGED="rebind"),
        event(ERROR="0"),
        b"",
        b"libudev\0\xfe\xed\xca\xfe",
        b"\xff" * 100,
    ],
)
def test_other_events_are_passed_over(data: bytes) -> None:
    assert understand(data) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="these events are Linux's")
def test_anybody_may_listen() -> None:
    assert as_nobody(lambda: WedgedListener.open() is not None) == "True"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="these events are Linux's")
def test_a_real_event_arrives_and_is_no_fault() -> None:
    """The kernel sends an event about /dev/null when it is asked to: it comes here, and says nothing of a device."""
    listener = WedgedListener.open()
    assert listener is not None
    try:
        Path("/sys/class/mem/null/uevent").write_text("change")
    except OSError as error:
        listener.close()
        pytest.skip(f"the kernel cannot be asked for an event: {error}")
    assert select.select([listener], [], [], 5.0)[0]
    assert listener.poll() == []
    assert not select.select([listener], [], [], 0)[0]  # it was read
    listener.close()


def test_saved_states_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/devcoredump/devcd1"
    folder.mkdir(parents=True)
    (folder / "data").write_text("")
    (tmp_path / "0000:03:00.0").mkdir()
    (folder / "failing_device").symlink_to(tmp_path / "0000:03:00.0")
    assert coredumps(tmp_path) == [
        {"device": "0000:03:00.0", "path": "/sys/class/devcoredump/devcd1/data", "readable": True}
    ]
    assert coredumps(tmp_path / "nowhere") == []
