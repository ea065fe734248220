"""Reading the kernel log: the real one where this machine lets us, and why not where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.faults.kernel_messages import Entry
from holdfast.record.evidence.kernel_log import KMSG, KernelLog, _from_kmsg, read_dmesg, read_journal

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the log of Linux is read on Linux")


def as_nobody(work: Callable[[], object]) -> str:
    """What `work` gives in a process without rights."""
    if os.getuid() != 0:
        return str(work())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading, "rb") as file:
        return file.read().decode()


# -- the real one ----------------------------------------------------------------------------------------------


def test_a_crash_is_read_from_the_real_log() -> None:
    log = KernelLog()
    if log.why:
        pytest.skip(f"/dev/kmsg: {log.why}")
    before = time.time_ns()
    crash = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], check=False)
    assert crash.returncode < 0
    found: list[Entry] = []
    deadline = time.monotonic() + 5
    while not found and time.monotonic() < deadline:
        found = [entry for entry in log.read() if entry.id == "process-crashed"]
        time.sleep(0.02)
    log.close()
    if not found:
        pytest.skip("this kernel does not report crashes (debug.exception-trace, or too many of them)")
    assert found[-1].process is not None and "python" in found[-1].process
    assert before <= found[-1].time_ns <= time.time_ns()


def test_nothing_old_is_read_unless_asked_for() -> None:
    old, new = KernelLog(from_boot=True), KernelLog()
    if old.why:
        pytest.skip(f"/dev/kmsg: {old.why}")
    assert len(list(old._records())) > 0
    assert len(list(new._records())) <= 5  # what came in between
    old.close()
    new.close()


def test_without_rights_it_says_why() -> None:
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip()
    why = as_nobody(lambda: KernelLog().why)
    if not KMSG.exists():
        assert why == "not there"
    elif restricted == "1":
        assert why == "not permitted (kernel.dmesg_restrict=1)"
    else:
        assert why in ("None", f"not permitted (kernel.dmesg_restrict={restricted})")


def test_what_is_no_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("3,1,1,-;NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n")
    assert KernelLog(tmp_path / "file").why == "not a device"
    missing = KernelLog(tmp_path / "none")
    assert missing.why == "not there"
    assert missing.read() == []


# -- the form of its records -----------------------------------------------------------------------------------


def test_a_record_with_its_device() -> None:
    record = b"3,1290,5071443221,-;amdgpu: Failed to evict queue 3\n SUBSYSTEM=pci\n DEVICE=+pci:0000:0a:00.0\n"
    entry = _from_kmsg(record)
    assert entry is not None
    assert (entry.source, entry.id, entry.device) == ("kmsg", "amdgpu-queue", "0000:0a:00.0")
    since_boot = time.monotonic_ns() - (time.time_ns() - entry.time_ns)
    assert since_boot == pytest.approx(5071443221_000, abs=1e9)


def test_lines_within_one_record() -> None:
    record = (
        rb"3,7,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: installed in this system has\x0aNVRM: fallen off the bus"
    )
    entry = _from_kmsg(record)
    assert entry is not None
    assert entry.id == "nvidia-off-the-bus"
    assert entry.text.count("\n") == 2


@pytest.mark.parametrize(
    "record",
    [
        b"12,8,1,-;NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.",  # facility 1: written by a person
        b"",
        b"3,8",
        b"x,y,z;NVRM: Xid (PCI:0000:65:00): 79,",
        b"\xff\xfe,1,1,-;\xff",
    ],
)
def test_what_the_kernel_did_not_say_is_passed_over(record: bytes) -> None:
    assert _from_kmsg(record) is None


# -- by a command ----------------------------------------------------------------------------------------------


def test_the_journal() -> None:
    rows = [
        {"MESSAGE": "usb 1-1: new high-speed USB device", "__REALTIME_TIMESTAMP": "1", "SYSLOG_FACILITY": "0"},
        {
            "MESSAGE": "ring gfx timeout, signaled seq=1, emitted seq=2",
            "__REALTIME_TIMESTAMP": "1793000000123456",
            "_KERNEL_DEVICE": "+pci:0000:03:00.0",
            "SYSLOG_FACILITY": "0",
        },
        {"MESSAGE": list(b"VRAM is lost due to GPU reset! \xff"), "__REALTIME_TIMESTAMP": "1793000000200000"},
        {"MESSAGE": "GPU reset begin!", "__REALTIME_TIMESTAMP": "1793000000200000", "SYSLOG_FACILITY": "3"},
        {"MESSAGE": None, "__REALTIME_TIMESTAMP": "1"},
        {"MESSAGE": "GPU reset begin!"},
    ]
    text = "\n".join(["-- a remark --", *map(json.dumps, rows), '{"MESSAGE": torn'])
    entries = read_journal(text)
    assert not isinstance(entries, str)
    assert [(entry.id, entry.device, entry.time_ns) for entry in entries] == [
        ("amdgpu-ring-timeout", "0000:03:00.0", 1793000000_123456000),
        ("amdgpu-vram-lost", None, 1793000000_200000000),
    ]


@pytest.mark.parametrize("text", ["", "-- No entries --\n"])
def test_a_journal_without_a_kernel_is_closed_to_us(text: str) -> None:
    assert read_journal(text) == "no kernel messages in it, or not permitted to see them"


def test_dmesg() -> None:
    text = (
        "[    0.000000] Linux version 6.18.44\n"
        "[  312.522692] amdgpu 0000:28:00.0: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641\n"
        "[  316.082669][  T483] amdgpu 0000:28:00.0: VRAM is lost due to GPU reset!\n"
    )
    entries = read_dmesg(text)
    assert not isinstance(entries, str)
    assert [entry.id for entry in entries] == ["amdgpu-ring-timeout", "amdgpu-vram-lost"]
    assert entries[1].time_ns - entries[0].time_ns == pytest.approx(3_559_977_000, abs=1e8)


def test_dmesg_that_says_nothing() -> None:
    why = read_dmesg("")
    assert isinstance(why, str)
    assert why.startswith("not permitted")
