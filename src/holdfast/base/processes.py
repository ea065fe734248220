"""What the operating system knows about our processes: death, state, groups, memory kills.

Everything Linux-only has a fallback that says less but never fails: a missing pidfd becomes polling,
a missing /proc becomes `None`, a missing cgroup becomes zero memory kills.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import cgroup

LINUX = sys.platform.startswith("linux")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""What no process can refuse; where there is no such signal, the next best."""
_PR_SET_PDEATHSIG = 1


def portable() -> bool:
    """True where processes are started by spawn over plain files: no fork, or HOLDFAST_PORTABLE=1."""
    return os.environ.get("HOLDFAST_PORTABLE", "").lower() in ("1", "true", "yes", "on") or cannot_fork()


def cannot_fork() -> bool:
    """Where there is no fork, or none that is safe."""
    return not hasattr(os, "fork") or sys.platform == "darwin"


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; end now if that has already happened."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def remember_children() -> None:
    """Let the kernel keep how our children end. A shell may have told it not to (`trap '' CHLD`), and every exit status
    would then read as 0."""
    number = getattr(signal, "SIGCHLD", None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends, or None where the kernel has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        fd: int = os.pidfd_open(pid)
        return fd
    except OSError:
        return None


def exists(pid: int) -> bool:
    """True while `pid` is a process, running or zombie."""
    if pid <= 0:
        return False
    if sys.platform == "win32":
        return _exists_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _exists_windows(pid: int) -> bool:
    kernel32 = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    handle = kernel32.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return False
    code = ctypes.c_ulong()
    kernel32.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel32.CloseHandle(handle)
    return code.value == 259  # STILL_ACTIVE


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One line of /proc: what a process is doing, as far as the kernel tells."""

    state: str
    """R running, S sleeping, D uninterruptible, T stopped, Z zombie."""
    started: int
    """Clock ticks after boot; tells a process from a later one with the same pid."""
    cpu_ticks: int
    rss_bytes: int


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether a process, of whoever's, has ended after so many seconds at the most; a zombie has."""
    deadline = time.monotonic() + seconds
    while exists(pid):
        info = inspect(pid)
        if info is not None and info.state == "Z":
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def inspect(pid: int) -> ProcessInfo | None:
    """What the kernel says about `pid`, or None where it says nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    page = mmap.PAGESIZE
    return ProcessInfo(
        state=fields[0],
        started=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        rss_bytes=int(fields[21]) * page,
    )


def status_of_zombie(pid: int) -> int | None:
    """The exit code of a process that has ended, while its parent has not asked for it; None where it is not said."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] != "Z" or len(fields) < 50:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def send(pid: int, number: int) -> bool:
    """Send a signal to one process; False if it is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def own_session() -> dict[str, Any]:
    """For Popen: a process that no signal of our terminal reaches, and that `send_group` ends with all it started."""
    if sys.platform == "win32":
        import subprocess

        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def send_group(pid: int, number: int) -> bool:
    """Send a signal to the process group that `pid` leads, or to `pid` alone where it leads none."""
    if not hasattr(os, "killpg"):
        return send(pid, number)
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return send(pid, number)
    return True


def group_members(pgid: int) -> list[int]:
    """Processes that still belong to a group (zombies left out): what a killed worker may leave behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        if int(fields[2]) == pgid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def children(pid: int) -> dict[int, str]:
    """The direct children of a process and their command lines; none where there is no /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text()
            if int(text[text.rindex(")") + 2 :].split()[1]) == pid:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = b" ".join(words).decode(errors="replace").strip()
    return found


def thread_count() -> int | None:
    """Threads of this process, or None where the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


def device_files() -> list[str]:
    """Accelerator device files this process holds open: a forked child would inherit them."""
    names = []
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{entry}")
                if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg", "/dev/accel")):
                    names.append(target)
    return names


def memory_kills() -> int:
    """How often the kernel killed a process of our memory cgroup, or of this machine, for memory."""
    return cgroup.kills()


def available_memory() -> int | None:
    """Bytes that can still be taken: the smaller of free memory and what the cgroup leaves."""
    amounts: list[int] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                amounts.append(int(line.split()[1]) * 1024)
    for folder in cgroup.folders():
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):
                amounts.append(int((folder / limit).read_text()) - int((folder / usage).read_text()))
    return max(0, min(amounts)) if amounts else None


def address_space_limit() -> int | None:
    """Bytes of address space a process of ours may use (`ulimit -v`); None where there is no such limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def boot_id() -> str | None:
    """Changes at every boot; None where the system has none. A test that pretends a reboot sets HOLDFAST_BOOT_ID."""
    said = os.environ.get("HOLDFAST_BOOT_ID")
    if said:
        return said
    if sys.platform == "win32":
        return _boot_id_windows()
    if sys.platform == "darwin":
        return _boot_id_mac()
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


def boot_time() -> float | None:
    """When this boot began, by the wall clock as it is now; None where that is not known, or the boot is pretended."""
    if os.environ.get("HOLDFAST_BOOT_ID"):
        return None
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_text().splitlines()
        return float(next(line for line in lines if line.startswith("btime ")).split()[1])
    return None


def _boot_id_mac() -> str | None:
    import subprocess

    try:
        words = ["sysctl", "-n", "kern.bootsessionuuid"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return said.strip() or None


def _boot_id_windows() -> str | None:
    """A number the system counts up at each boot."""
    if sys.platform != "win32":
        return None
    import winreg

    place = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:
            return f"boot-{winreg.QueryValueEx(key, 'BootId')[0]}"
    except OSError:
        return None
