"""How an earlier boot ended: the readers on texts and files as systems write them, and on this very machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.devices import last_boot
from holdfast.devices.shutdown_cause import Ended, Named

BOOT = "2313b3a3-e392-435c-aeb5-35f16a969f12"


# The journal ------------------------------------------------------------------------------------------------


def entry(message: str, when: float = 1000.0, **more: str) -> str:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": str(int(when * 1e6)), **more})


def journal(*lines: str) -> Callable[[list[str]], str | None]:
    """Answers as journalctl does."""
    return lambda words: "\n".join(lines)


SYSTEMD = {"_PID": "1", "SYSLOG_IDENTIFIER": "systemd"}
KERNEL = {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}


@pytest.mark.parametrize(
    ("last", "how"),
    [
        (entry("Journal stopped", SYSLOG_IDENTIFIER="systemd-journald"), "clean"),
        (entry("Sending SIGTERM to remaining processes...", SYSLOG_IDENTIFIER="systemd-shutdown"), "clean"),
        (entry("Reached target reboot.target - System Reboot.", **SYSTEMD), "clean"),
        (entry("Reached target System Power Off.", **SYSTEMD), "clean"),
        (entry("Shutting down.", **SYSTEMD), "clean"),
        (entry("Started Session 4 of User ann.", **SYSTEMD), "unclean"),
        (entry("Reached target Graphical Interface.", **SYSTEMD), "unclean"),
        (entry("amdgpu: ring gfx timeout", **KERNEL), "unclean"),
        # A user without rights sees the end of the own session, which is no end of the machine.
        (entry("Reached target Shutdown.", _PID="2211", SYSLOG_IDENTIFIER="systemd"), "unknown"),
        (entry("hello", SYSLOG_IDENTIFIER="my-program"), "unknown"),
        ("", "unknown"),
        ("not json", "unknown"),
        ('{"MESSAGE": [104, 105], "_PID": "1"}', "unknown"),
    ],
)
def test_how_a_journal_ends(last: str, how: str) -> None:
    before = entry("hello", SYSLOG_IDENTIFIER="my-program")
    assert last_boot.journal_end(BOOT, journal(before, last)).how == how


def test_the_journal_is_asked_for_that_boot_and_no_other() -> None:
    asked: list[list[str]] = []
    last_boot.journal_end(BOOT, lambda words: asked.append(words))
    assert f"--boot={BOOT.replace('-', '')}" in asked[0]
    for strange in (None, "", "-1", "; reboot", "x" * 32):
        assert last_boot.journal_end(strange, lambda words: pytest.fail("nothing to ask for")).how == "unknown"


def test_only_the_last_minutes_of_the_kernel_count() -> None:
    lines = [
        entry("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 1000.0),
        entry("usb 1-1: new device", 9000.0),
        entry("amdgpu 0000:03:00.0: amdgpu: ring comp_1.1.1 timeout, signaled seq=1, emitted seq=2", 9500.0),
        entry("the last line", 9900.0),
    ]
    said = last_boot.suspects(last_boot.journal_kernel(BOOT, journal(*lines)))
    assert [(each.whose, each.pci) for each in said] == [("gpu", "0000:03:00.0")]


# The kernel's words -----------------------------------------------------------------------------------------

GPU = "gpu"
MESSAGES = {
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": (
        GPU,
        "0000:1b:00.0",
    ),
    "NVRM: Xid (PCI:0000:65:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response": (
        GPU,
        "0000:65:00.0",
    ),
    "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.": (GPU, "0000:01:00.0"),
    "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=9, emitted seq=11": (GPU, "0000:03:00.0"),
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=3": (GPU, None),
    "amdgpu 0000:0c:00.0: amdgpu: GPU reset begin!. Source:  1": (GPU, "0000:0c:00.0"),
    "amdgpu 0000:0c:00.0: amdgpu: GPU reset(2) failed": (GPU, "0000:0c:00.0"),
    "amdgpu: MES failed to respond to msg=REMOVE_QUEUE": (GPU, None),
    "amdgpu: qcm fence wait loop timeout expired": (GPU, None),
    "i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:85dffffb": (GPU, "0000:00:02.0"),
    "xe 0000:03:00.0: [drm] *ERROR* Xe has declared device 0000:03:00.0 as wedged.": (GPU, "0000:03:00.0"),
    "RIP: 0010:os_lookup_user_io_memory+0x1/0x2 [nvidia]": (GPU, None),
    "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 0": ("machine", None),
    "thermal thermal_zone0: acpitz: critical temperature reached, shutting down": ("machine", None),
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0": ("machine", None),
    # A program's own fault, or news of a recovery: not what takes a machine down.
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=2, name=python, Ch 00000008, MMU Fault": None,
    "NVRM: Xid (PCI:0000:1b:00): 13, pid=2, name=python, Graphics Exception": None,
    "NVRM: Xid (PCI:0000:1b:00): 43, pid=2, name=python, Ch 00000008": None,
    "amdgpu 0000:03:00.0: amdgpu: GPU reset succeeded, trying to resume": None,
    "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, but soft recovered": None,
    "xe 0000:03:00.0: [drm] Xe device coredump has been created": None,
    "Out of memory: Killed process 4711 (python) total-vm:1kB": None,
    "usb 1-1: new high-speed USB device number 2": None,
    "python[123]: segfault at 0 ip 00007f in libamdhip64.so": None,
}


@pytest.mark.parametrize("line", MESSAGES)
def test_whom_a_message_names(line: str) -> None:
    found = [(each.whose, each.pci) for each in last_boot.suspects([line])]
    assert found == ([MESSAGES[line]] if MESSAGES[line] else [])


def test_a_panic_is_the_machines_unless_it_names_a_driver() -> None:
    panic, place = "Kernel panic - not syncing: Fatal exception", "RIP: 0010:amdgpu_job+0x1/0x2 [amdgpu]"
    assert last_boot.suspects(["hello", panic]) == [Named("machine", panic)]
    assert last_boot.suspects([panic, place]) == [Named("gpu", place)]


def test_what_is_kept_of_a_message_is_safe_to_show() -> None:
    (named,) = last_boot.suspects(["ring x timeout \x1b[31m" + "y" * 999])
    assert len(named.text) == 200 and named.text.isprintable()


def test_words_saved_over_a_reboot(tmp_path: Path) -> None:
    """As systemd-pstore moves them: one folder for each record. Those from before are another boot's."""
    for name, text in (("1700000000/dmesg.txt", "ring gfx timeout"), ("dmesg-efi-17", "mce: [Hardware Error]: x")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"first line\n{text}\n")
    (tmp_path / "unrelated.bin").write_text("ring gfx timeout")
    os.utime(tmp_path / "dmesg-efi-17", (1000, 1000))
    assert last_boot.saved_words(2000.0, [tmp_path, tmp_path / "missing"]) == ["first line", "ring gfx timeout"]
    assert len(last_boot.saved_words(0.0, [tmp_path])) == 4


# wtmp ---------------------------------------------------------------------------------------------------------

UTMPDUMP = shutil.which("utmpdump")
AT = "2026-11-15T09:{minute:02d}:04,000000+00:00"
NINE = 1794733204.0
"""2026-11-15T09:00:04Z."""


def wtmp(*records: tuple[int, str]) -> bytes:
    """Records as the system's own tool writes them: (minute, what)."""
    assert UTMPDUMP is not None
    types = {"shutdown": 1, "runlevel": 1, "reboot": 2, "ann": 7}
    text = "".join(
        f"[{types[who]}] [00000] [~~  ] [{who:<8}] [~           ] [6.8.0               ] [0.0.0.0        ] "
        f"[{AT.format(minute=minute)}]\n"
        for minute, who in records
    )
    return subprocess.run([UTMPDUMP, "-r"], input=text.encode(), capture_output=True, check=True).stdout


@pytest.mark.skipif(UTMPDUMP is None, reason="utmpdump is not installed")
@pytest.mark.parametrize(
    ("records", "how"),
    [
        ([(0, "reboot"), (1, "ann"), (20, "shutdown"), (21, "reboot")], "clean"),
        ([(0, "reboot"), (1, "ann"), (21, "reboot")], "unclean"),
        ([(0, "reboot"), (2, "shutdown"), (3, "reboot"), (21, "reboot")], "unclean"),
        ([(0, "reboot"), (20, "runlevel"), (21, "reboot"), (22, "shutdown")], "unclean"),
        ([(0, "reboot"), (1, "ann")], "unknown"),
        ([], "unknown"),
    ],
)
def test_how_wtmp_says_a_boot_ended(records: list[tuple[int, str]], how: str) -> None:
    """The device was opened at ten past nine."""
    assert last_boot.wtmp_end(wtmp(*records), NINE + 600).how == how


def test_a_torn_wtmp_is_read_as_far_as_it_goes() -> None:
    assert last_boot.wtmp_end(b"\x02\x00" + b"x" * 333, 0.0) == Ended()
    if UTMPDUMP is not None:
        whole = wtmp((20, "shutdown"), (21, "reboot"))
        assert last_boot.wtmp_end(whole[:-100], NINE).how == "clean"


# Windows --------------------------------------------------------------------------------------------------------

EVENT = (
    "<Event xmlns='http://schemas.microsoft.com/win/2004/08/events/event'><System><Provider Name='EventLog'/>"
    "<EventID Qualifiers='32768'>{number}</EventID><TimeCreated SystemTime='2026-11-15T09:{minute:02d}:00.1234567Z'/>"
    "</System></Event>\n"
)


@pytest.mark.parametrize(
    ("events", "how"),
    [
        ([(6006, 20)], "clean"),
        ([(41, 21), (6008, 21)], "unclean"),
        ([(6008, 50), (6006, 20)], "clean"),
        ([(6006, 2)], "unknown"),
        ([], "unknown"),
    ],
)
def test_how_the_event_log_says_it(events: list[tuple[int, int]], how: str) -> None:
    text = "".join(EVENT.format(number=number, minute=minute) for number, minute in events)
    assert last_boot.windows_end(text, NINE + 600).how == how
    assert last_boot.windows_end(None, 0.0) == Ended()


# This machine ----------------------------------------------------------------------------------------------------


def test_the_readers_answer_on_this_machine_whatever_it_keeps() -> None:
    """A container without a journal, a laptop with one: an answer, and no exception."""
    ended = last_boot.READERS.ended(processes.boot_id(), time.time())
    assert ended.how in ("clean", "unclean", "unknown") and ended.evidence
    assert all(each.whose in ("gpu", "machine") for each in last_boot.READERS.kernel(processes.boot_id(), time.time()))
    unheard_of = last_boot.READERS.ended("0" * 32, time.time() + 1e6)
    assert unheard_of == Ended("unknown", "neither the journal nor wtmp says how that boot ended")


def test_a_program_that_is_missing_fails_or_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_boot, "PATIENCE", 0.3)
    assert last_boot.ask(["/nonexistent/journalctl"]) is None
    assert last_boot.ask(["sh", "-c", "echo half an answer; exit 1"]) is None
    assert last_boot.ask(["sleep", "60"]) is None
    assert last_boot.ask(["sh", "-c", "echo $LC_ALL"]) == "C\n"
