"""Evidence that comes later: from the real kernel, and from commands that answer, refuse or hang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.kernel_messages import parse
from holdfast.record import evidence
from holdfast.record.evidence import gathering as module
from holdfast.record.evidence.gathering import Case, Gathering
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder

from .places import AGAIN, LOST, XID_79, command, first_on_path, new_run, read, started

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernel logs are read on Linux alone")
CRASH = Fault(Kind.CRASH, "cpu", step=5, phase="forward", evidence={"signal": "SIGSEGV", "exitcode": -11})


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands that are found first; all of them refuse, until a test says otherwise."""
    folder = tmp_path / "bin"
    for name in ("journalctl", "dmesg", "nvidia-smi"):
        command(folder, name, on_stderr=f"{name}: not permitted\n", code=1)
    monkeypatch.setenv("PATH", first_on_path(folder))
    return folder


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Gathering]:
    """A gathering that may not open /dev/kmsg."""
    gathering = Gathering(tmp_path / "no-kmsg")
    gathering.worker_begins({"CUDA_LAUNCH_BLOCKING": "1"})
    gathering.poll()
    yield gathering
    gathering.close(0.0)


def collect(tmp_path: Path, gathering: Gathering, fault: Fault = LOST) -> Path:
    run = new_run(tmp_path / "runs")
    return evidence.collect(run, fault, AGAIN, None, "", {}, "", gathering=gathering)


def until(gathering: Gathering, done: Callable[[], bool]) -> list[str]:
    told: list[str] = []
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "it never came"
        told += gathering.poll()
        time.sleep(0.01)
    return told


def journal(*texts: str) -> str:
    stamp = str(time.time_ns() // 1000)
    lines = ["Linux version 6.18.44", *texts]
    return "".join(
        json.dumps({"MESSAGE": text, "__REALTIME_TIMESTAMP": stamp, "SYSLOG_FACILITY": "0"}) + "\n" for text in lines
    )


# -- the real kernel -------------------------------------------------------------------------------------------


def test_a_crash_and_what_the_real_kernel_said_of_it(tmp_path: Path) -> None:
    gathering = Gathering()
    if gathering.log.why:
        pytest.skip(f"/dev/kmsg: {gathering.log.why}")
    gathering.worker_begins()
    gathering.poll()
    subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], check=False)
    folder = collect(tmp_path, gathering, CRASH)
    gathering.poll()
    assert {path.name for path in folder.iterdir()} == {"README.txt", "fault.json"}  # the rest can wait for a second
    told = until(gathering, (folder / "kernel.json").exists)
    record = read(folder / "kernel.json")
    if not record["entries"]:
        pytest.skip("this kernel does not report crashes (debug.exception-trace, or too many of them)")
    assert record["read_from"] == "kmsg"
    assert {entry["id"] for entry in record["entries"]} == {"process-crashed"}
    assert told and all(text.startswith("the kernel says: a process crashed in native code") for text in told)
    headline = "The worker on cpu crashed (SIGSEGV) at step 5 in forward; the kernel says: a process crashed in"
    assert (folder / "README.txt").read_text().startswith(headline)
    gathering.close()
    assert read(folder / "environment.json")["python"]["version"]


def test_what_was_said_before_the_worker_began_is_not_its(tmp_path: Path) -> None:
    gathering = Gathering()
    if gathering.log.why:
        pytest.skip(f"/dev/kmsg: {gathering.log.why}")
    with subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"]) as crashed:
        crashed.wait()
    time.sleep(0.1)
    gathering.poll()
    gathering.worker_begins()
    folder = collect(tmp_path, gathering, CRASH)
    gathering.close()
    entries = read(folder / "kernel.json")["entries"]
    assert not [entry for entry in entries if f"[{crashed.pid}]" in json.dumps(entry)]
    if not entries:  # other processes of this machine may crash meanwhile
        assert "nothing about devices, memory or disks in that time" in (folder / "kernel.txt").read_text()


# -- by commands -----------------------------------------------------------------------------------------------


def test_the_journal_is_asked_where_kmsg_is_closed(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    folder = collect(tmp_path, closed)
    command(tools, "journalctl", says=journal("usb 1-1: new device", XID_79))
    assert closed.poll() == []
    assert started(tools, "journalctl") == []  # the next worker comes first
    told = until(closed, (folder / "kernel.json").exists)
    assert told == ["the kernel says: the GPU has fallen off the bus (Xid 79, 0000:65:00.0)"]
    record = read(folder / "kernel.json")
    assert (record["read_from"], record["unreadable"]) == ("journal", {})
    (entry,) = record["entries"]
    assert (entry["code"], entry["device"], entry["health"]) == ("Xid 79", "0000:65:00.0", "machine")
    text = (folder / "README.txt").read_text()
    assert text.splitlines()[0] == (
        "cuda:0 was lost at step 3 862 in backward; "
        "the kernel says: the GPU has fallen off the bus (Xid 79, 0000:65:00.0)."
    )
    assert XID_79 in (folder / "kernel.txt").read_text()
    assert closed.poll() == []  # told once
    assert started(tools, "dmesg") == []


def test_dmesg_is_asked_where_the_journal_is_closed_too(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    folder = collect(tmp_path, closed)
    now = time.monotonic()
    command(tools, "dmesg", says=f"[    0.000000] Linux version\n[{now:12.6f}] {XID_79}\n")
    told = until(closed, (folder / "kernel.json").exists)
    assert told == ["the kernel says: the GPU has fallen off the bus (Xid 79, 0000:65:00.0)"]
    assert read(folder / "kernel.json")["read_from"] == "dmesg"


def test_a_log_that_nobody_lets_us_read_is_said(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    folder = collect(tmp_path, closed)
    assert until(closed, (folder / "kernel.json").exists) == []
    record = read(folder / "kernel.json")
    assert record["read_from"] is None
    assert record["unreadable"] == {
        "kmsg": "not there",
        "journal": "journalctl: not permitted",
        "dmesg": "dmesg: not permitted",
    }
    assert (folder / "kernel.txt").read_text().splitlines()[1] == "journal could not be read: journalctl: not permitted"
    assert "its log could not be read: kmsg: not there" in (folder / "README.txt").read_text()
    again = collect(tmp_path, closed)
    until(closed, (again / "kernel.json").exists)
    assert len(started(tools, "journalctl")) == 1  # and not asked in vain a second time


def test_what_the_driver_asks_for(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    said = Path(__file__).with_name("nvidia-smi.xml").read_text()
    asked = said.replace("<gpu_recovery_action>None<", "<gpu_recovery_action>Reset<")
    command(tools, "nvidia-smi", says=asked)
    folder = collect(tmp_path, closed)
    until(closed, lambda: "nvidia" in read(folder / "counters.json") if (folder / "counters.json").exists() else False)
    counted = read(folder / "counters.json")
    assert counted["nvidia"][0]["needs"] == "Reset"
    assert "levels" in counted  # added to, not replaced
    assert "\ndriver    asks for Reset of 0000:00:06.0\n" in (folder / "README.txt").read_text()


def test_a_driver_that_hangs_holds_nobody_up(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    command(tools, "nvidia-smi", sleeps=600)
    folder = collect(tmp_path, closed)
    until(closed, lambda: started(tools, "nvidia-smi") != [])
    (pid,) = started(tools, "nvidia-smi")
    until(closed, (folder / "kernel.json").exists)  # the rest comes meanwhile
    assert Path(f"/proc/{pid}").exists()
    second = collect(tmp_path, closed)
    until(closed, (second / "environment.json").exists)
    assert started(tools, "nvidia-smi") == [pid]  # one at a time, or they would pile up
    closed.close(0.1)
    assert not Path(f"/proc/{pid}").exists()
    for each in (folder, second):
        assert read(each / "counters.json")["nvidia"] == "the run ended before it answered"
        assert "\ndriver    nvidia-smi: the run ended before it answered\n" in (each / "README.txt").read_text()


def test_the_end_of_a_run_asks_at_once(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    folder = collect(tmp_path, closed)
    command(tools, "journalctl", says=journal(XID_79))
    assert closed.close(30.0) == ["the kernel says: the GPU has fallen off the bus (Xid 79, 0000:65:00.0)"]
    assert read(folder / "kernel.json")["read_from"] == "journal"
    kept = read(folder / "environment.json")["environment"]
    assert kept["CUDA_LAUNCH_BLOCKING"] == "1"  # the worker's variable, not ours


def test_out_of_memory_on_a_device_asks_nobody(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    folder = collect(tmp_path, closed, Fault(Kind.OUT_OF_MEMORY, "cuda:0", step=3))
    until(closed, (folder / "environment.json").exists)
    closed.close(1.0)
    assert not (folder / "kernel.json").exists()
    assert all(started(tools, name) == [] for name in ("journalctl", "dmesg", "nvidia-smi"))


def test_a_stranger_that_crashed_is_kept_but_not_blamed(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    crash = (
        "firefox[4711]: segfault at 0 ip 00007f8a1c2b3d40 sp 00007ffd1a2b3c00 error 4 in libxul.so[7f8a1c000000+1000]"
    )
    folder = collect(tmp_path, closed)
    command(tools, "journalctl", says=journal(crash))
    assert until(closed, (folder / "kernel.json").exists) == []
    assert len(read(folder / "kernel.json")["entries"]) == 1
    assert (folder / "README.txt").read_text().splitlines()[0] == "cuda:0 was lost at step 3 862 in backward."


def test_a_flood_does_not_hide_the_one_line_that_matters(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    flood = ["pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0"] * 900
    folder = collect(tmp_path, closed)
    old = journal(*[XID_79] * 200).replace('"__REALTIME_TIMESTAMP": "1', '"__REALTIME_TIMESTAMP": "0')
    command(tools, "journalctl", says=old + journal(*flood[:450], XID_79, *flood[450:]))
    told = closed.close(30.0)
    assert told == ["the kernel says: the GPU has fallen off the bus (Xid 79, 0000:65:00.0)"]
    assert len(read(folder / "kernel.json")["entries"]) == 51


def test_a_line_that_is_read_twice_is_one_line(
    tmp_path: Path, tools: Path, closed: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOON", 0.0)
    monkeypatch.setattr(module, "LATE", 1.0)
    folder = collect(tmp_path, closed)
    command(tools, "dmesg", says=f"[{time.monotonic():12.6f}] {XID_79}\n")
    until(closed, lambda: closed.open_cases == 0)
    assert len(started(tools, "dmesg")) == 2
    assert len(read(folder / "kernel.json")["entries"]) == 1


def test_words_that_come_after_the_death_are_added(
    tmp_path: Path, tools: Path, closed: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset of a GPU is told seconds after it killed its worker."""
    command(tools, "journalctl", says=journal())
    monkeypatch.setattr(module, "SOON", 0.0)
    monkeypatch.setattr(module, "LATE", 2.0)
    folder = collect(tmp_path, closed)
    until(closed, (folder / "kernel.json").exists)
    assert read(folder / "kernel.json")["entries"] == []
    command(tools, "journalctl", says=journal("amdgpu 0000:03:00.0: amdgpu: VRAM is lost due to GPU reset!"))
    told = until(closed, lambda: closed.open_cases == 0)
    assert len(told) == 1 and "everything in its memory is gone" in told[0]
    assert len(read(folder / "kernel.json")["entries"]) == 1


def test_a_folder_that_vanished_harms_nobody(tmp_path: Path, tools: Path, closed: Gathering) -> None:
    folder = collect(tmp_path, closed)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    command(tools, "journalctl", says=journal(XID_79))
    closed.close(5.0)
    assert not folder.exists()


def test_it_leaves_no_descriptor_behind(tmp_path: Path, tools: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    gathering = Gathering()
    gathering.worker_begins()
    collect(tmp_path, gathering)
    gathering.poll()
    gathering.close(5.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_supervisor_that_had_died(tmp_path: Path) -> None:
    """Nobody polls then: all at once, from what the kernel still has."""
    run = new_run(tmp_path, boot_id=processes.boot_id())
    run.write_beat({"time": utc_now()})
    fault = Fault(Kind.SUPERVISOR_DIED)
    subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], check=False)
    folder = evidence.collect(run, fault, AGAIN, None, "", {}, "")
    evidence.gather(folder, fault, run, patience=5.0)
    record = read(folder / "kernel.json")
    if record["read_from"] is None:
        pytest.skip(f"the kernel log is closed to us: {record['unreadable']}")
    if not record["entries"]:
        pytest.skip("this kernel does not report crashes (debug.exception-trace, or too many of them)")
    assert "process-crashed" in {entry["id"] for entry in record["entries"]}


@pytest.mark.parametrize("boot", [None, "another"])
def test_a_supervisor_that_died_in_another_boot(tmp_path: Path, boot: str | None) -> None:
    """The log of this boot says nothing about that one."""
    run = new_run(tmp_path, boot_id=boot)
    run.write_beat({"time": utc_now()})
    fault = Fault(Kind.SUPERVISOR_DIED)
    folder = evidence.collect(run, fault, AGAIN, None, "", {}, "")
    evidence.gather(folder, fault, run)
    assert not (folder / "kernel.json").exists()


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=python, GPU has fallen off the bus.", True),
        ("NVRM: Xid (PCI:0000:03:00): 79, pid=1, name=game, GPU has fallen off the bus.", False),
        ("amdgpu 0000:65:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2", True),
        ("amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2", False),
        ("Out of memory: Killed process 77 (python) total-vm:1kB", False),
        ("pcieport 0000:00:03.0: AER: Uncorrectable error message received from 0000:65:00.0", True),
    ],
)
def test_what_is_said_of_another_card_is_not_tied_to_the_fault(tmp_path: Path, line: str, ours: bool) -> None:
    fault = Fault(kind=Kind.DEVICE_LOST, device="cuda:0", message="lost")
    run = RunFolder.create(tmp_path, "job", {})
    case = Case(tmp_path, fault, run, 0, None, {}, pci="0000:65:00.0")
    entry = parse(line, source="kmsg", time_ns=case.begun_ns)
    assert entry is not None
    assert (case.holds(entry), case.concerns(entry)) == (True, ours)
    unplaced = Case(tmp_path, fault, run, 0, None, {})
    assert unplaced.concerns(entry) is (ours or not line.startswith("Out of memory"))
