"""The ledger as a file: real processes that are killed, write at once, tear lines and fill disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import processes
from holdfast.devices import ledger as module
from holdfast.devices.device_lock import Alive, try_lock
from holdfast.devices.identity import DeviceId
from holdfast.devices.last_boot import Readers
from holdfast.devices.ledger import Ledger, Settled, state_folder
from holdfast.devices.shutdown_cause import Ended, Named
from tests.disks import fill, small_disk

CARD = DeviceId("cuda:0", "pci 0000:03:00.0 1002:744c", "Radeon RX 7900 XTX", "0000:03:00.0", "amdgpu")
CPU = DeviceId("cpu", "cpu")
RUNG = "cuda:0 fp32"
SOFTWARE = {"driver": "amdgpu", "torch": "2.8.0", "kernel": "6.8.0"}
SILENT = Readers(lambda boot, since: Ended("unknown", "nothing is kept here"), lambda boot, since: [])

HOLD = """
import sys, time
from pathlib import Path
from holdfast.devices.identity import DeviceId
from holdfast.devices.ledger import Ledger

software = {"driver": "amdgpu", "torch": "2.8.0", "kernel": "6.8.0"}
ledger = Ledger(Path(sys.argv[1]), machine="here", software=lambda device: software)
for label, key in zip(sys.argv[3::2], sys.argv[4::2]):
    address = key.split()[1] if " " in key else None
    ledger.open(DeviceId(label, key, None, address), label + " fp32", "calm-heron", sys.argv[2])
print("open", flush=True)
time.sleep(600)
"""


class User:
    """Somebody who uses devices until the end: that of the machine, or only that of the process."""

    def __init__(self, folder: Path, boot: str, *devices: DeviceId) -> None:
        words = [word for device in devices or (CARD,) for word in (device.label, device.key)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), boot, *words], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return made(tmp_path)


def made(folder: Path, readers: Readers = SILENT, **more: Any) -> Ledger:
    more.setdefault("software", lambda device: SOFTWARE)
    return Ledger(folder, machine="here", readers=readers, **more)


def went_down(folder: Path, boot: str, next_boot: str, *devices: DeviceId, readers: Readers = SILENT) -> list[Settled]:
    """The machine goes down with devices in use, comes up, and a run starts."""
    User(folder, boot, *devices).kill()
    return made(folder, readers).settle(next_boot)


def said(settled: list[Settled]) -> list[tuple[str, str]]:
    return [(each.label, each.judgement.decision) for each in settled]


# Open, close, settle -------------------------------------------------------------------------------------------


def test_a_use_that_ends_well(ledger: Ledger, tmp_path: Path) -> None:
    opened = ledger.open(CARD, RUNG, "calm-heron", "boot-1")
    assert ledger.trust(CARD, RUNG).state == "unknown"
    ledger.close(opened, "finished", steps=400, seconds=7200.0)
    assert made(tmp_path).settle("boot-2") == []
    trust = made(tmp_path).trust(CARD, RUNG)
    assert (trust.state, trust.hours, trust.faults) == ("trusted", 2.0, 0)
    assert ledger.problem is None


def test_a_killed_supervisor_is_not_a_frozen_machine(tmp_path: Path) -> None:
    settled = went_down(tmp_path, "boot-1", "boot-1")
    assert said(settled) == [("cuda:0", "killed")]
    assert settled[0].sentence == "cuda:0 (fp32) in calm-heron: its supervisor was killed; it is not blamed"
    assert made(tmp_path).trust(CARD, RUNG).state == "unknown"
    assert made(tmp_path).settle("boot-2") == [], "it is settled once and for all"


def test_a_supervisor_that_lives_is_left_alone_by_every_boot_id(tmp_path: Path) -> None:
    """A container has boot ids like any other, and its process numbers mean nothing here: the lock says it lives."""
    user = User(tmp_path, "boot-1")
    try:
        assert made(tmp_path).settle("boot-1") == []
        assert made(tmp_path).settle("boot-2") == []
        assert made(tmp_path).settle(None) == []
    finally:
        user.kill()
    assert said(made(tmp_path).settle(None)) == [("cuda:0", "killed")], "without a boot id only a death can be seen"


def test_once_is_probation_and_twice_is_quarantine(tmp_path: Path) -> None:
    first = went_down(tmp_path, "boot-1", "boot-2")
    assert first[0].sentence == (
        "cuda:0 (fp32) in calm-heron: the machine went down while it was in use; it is on probation"
    )
    assert first[0].judgement.evidence == ("nothing is kept here",)
    assert made(tmp_path).trust(CARD, RUNG).state == "probation"
    second = went_down(tmp_path, "boot-2", "boot-3")
    assert said(second) == [("cuda:0", "quarantine")]
    trust = made(tmp_path).trust(CARD, RUNG)
    assert (trust.state, trust.why) == ("quarantined", "the machine went down 2 times while it was in use")
    assert made(tmp_path).trust(CPU, "cpu fp32").state == "trusted"


def test_a_card_that_has_got_another_number_is_known_again(tmp_path: Path) -> None:
    renumbered = DeviceId("cuda:1", CARD.key, CARD.name, CARD.pci, CARD.driver)
    went_down(tmp_path, "boot-1", "boot-2")
    assert made(tmp_path).trust(renumbered, "cuda:1 fp32").state == "probation"
    assert said(went_down(tmp_path, "boot-2", "boot-3", renumbered)) == [("cuda:1", "quarantine")]
    newcomer = DeviceId("cuda:0", "pci 0000:0a:00.0 1002:744c", None, "0000:0a:00.0")
    assert made(tmp_path).trust(newcomer, RUNG).state == "unknown"


def test_two_runs_in_one_boot_are_one_freeze(tmp_path: Path) -> None:
    users = [User(tmp_path, "boot-1"), User(tmp_path, "boot-1")]
    for user in users:
        user.kill()
    assert said(made(tmp_path).settle("boot-2")) == [("cuda:0", "probation")] * 2
    assert made(tmp_path).trust(CARD, RUNG).state == "probation"
    assert made(tmp_path).history(CARD).freezes == 1


def test_several_boots_later_each_is_judged_in_turn(tmp_path: Path) -> None:
    User(tmp_path, "boot-1").kill()
    User(tmp_path, "boot-2").kill()
    assert said(made(tmp_path).settle("boot-3")) == [("cuda:0", "probation"), ("cuda:0", "quarantine")]


@pytest.mark.all
def test_a_machine_that_goes_down_by_itself_excuses_the_card_once(tmp_path: Path) -> None:
    assert said(went_down(tmp_path, "boot-1", "boot-2", CPU)) == [("cpu", "down")]
    assert said(went_down(tmp_path, "boot-2", "boot-3")) == [("cuda:0", "power")]
    assert made(tmp_path).trust(CARD, RUNG).state == "unknown"
    assert said(went_down(tmp_path, "boot-3", "boot-4")) == [("cuda:0", "probation")]
    assert said(went_down(tmp_path, "boot-4", "boot-5")) == [("cuda:0", "quarantine")]


def test_a_cpu_run_beside_a_card_excuses_nothing(tmp_path: Path) -> None:
    settled = went_down(tmp_path, "boot-1", "boot-2", CPU, CARD)
    assert said(settled) == [("cpu", "beside"), ("cuda:0", "probation")]
    assert said(went_down(tmp_path, "boot-2", "boot-3")) == [("cuda:0", "quarantine")]


def test_what_the_system_says_is_asked_for_the_boot_that_ended(tmp_path: Path) -> None:
    asked: list[tuple[str | None, float]] = []

    def ended(boot: str | None, since: float) -> Ended:
        asked.append((boot, since))
        return Ended("clean", "wtmp: shutdown")

    settled = went_down(tmp_path, "boot-1", "boot-2", readers=Readers(ended, lambda boot, since: []))
    assert said(settled) == [("cuda:0", "clean")]
    ((boot, since),) = asked
    assert boot == "boot-1" and abs(since - time.time()) < 60
    record = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])
    assert (record["decision"], record["evidence"], record["boot"]) == ("clean", ["wtmp: shutdown"], "boot-1")


def test_of_two_cards_the_one_that_the_kernel_names_is_blamed(tmp_path: Path) -> None:
    other = DeviceId("cuda:1", "pci 0000:0a:00.0 1002:744c", None, "0000:0a:00.0")
    words = Named("gpu", "amdgpu 0000:0a:00.0: ring gfx timeout", "0000:0a:00")
    readers = Readers(lambda boot, since: Ended("unclean", "wtmp"), lambda boot, since: [words])
    settled = went_down(tmp_path, "boot-1", "boot-2", CARD, other, readers=readers)
    assert said(settled) == [("cuda:0", "other"), ("cuda:1", "probation")]


def test_a_device_that_was_closed_in_time_is_no_suspect(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close(ledger.open(CARD, RUNG, "calm-heron", "boot-1"), "moved", steps=5)
    assert said(went_down(tmp_path, "boot-1", "boot-2", CPU)) == [("cpu", "down")]


def test_a_ledger_that_several_machines_share(tmp_path: Path) -> None:
    """A home folder on a file server: what another machine left open is that machine's to settle."""
    User(tmp_path, "boot-1").kill()
    assert Ledger(tmp_path, machine="there", readers=SILENT).settle("boot-9") == []
    assert said(made(tmp_path).settle("boot-2")) == [("cuda:0", "probation")]
    assert Ledger(tmp_path, machine="there", readers=SILENT).trust(CARD, RUNG).state == "unknown"


@pytest.mark.skipif(processes.boot_time() is None, reason="this system does not say when it booted")
def test_machines_that_look_alike_are_told_apart_by_time(tmp_path: Path) -> None:
    """Clones of one image, a home folder on a server: what was opened since this boot began is another machine's."""
    now, boot = processes.boot_id(), processes.boot_time()
    assert now is not None and boot is not None
    User(tmp_path, "boot of a clone").kill()
    assert made(tmp_path).settle(now) == []
    path = tmp_path / "ledger.jsonl"
    record = json.loads(path.read_text())
    earlier = datetime.fromtimestamp(boot - 3600, timezone.utc).isoformat(timespec="milliseconds")
    path.write_text(json.dumps({**record, "time": earlier.replace("+00:00", "Z")}) + "\n")
    assert said(made(tmp_path).settle(now)) == [("cuda:0", "probation")]


def test_two_that_start_at_once_settle_once(tmp_path: Path) -> None:
    User(tmp_path, "boot-1").kill()
    one = made(tmp_path)
    other: list[Settled] = []

    def meanwhile(boot: str | None, since: float) -> Ended:
        """While one looks for evidence, another process does all of it."""
        if not other:
            other.extend(made(tmp_path).settle("boot-2"))
        return Ended()

    one._readers = Readers(meanwhile, lambda boot, since: [])
    assert one.settle("boot-2") == []
    assert said(other) == [("cuda:0", "probation")]


def test_the_user_lifts_a_quarantine(tmp_path: Path) -> None:
    for number in (1, 2):
        went_down(tmp_path, f"boot-{number}", f"boot-{number + 1}")
    ledger = made(tmp_path)
    ledger.forget(CARD)
    assert (ledger.trust(CARD, RUNG).state, ledger.trust(CARD, RUNG).why) == ("unknown", "forgotten on request")
    assert ledger.history(CARD).uses == 2


def test_a_new_driver_lifts_it_too(tmp_path: Path) -> None:
    for number in (1, 2):
        went_down(tmp_path, f"boot-{number}", f"boot-{number + 1}")
    assert made(tmp_path).trust(CARD, RUNG).state == "quarantined"
    for name in SOFTWARE:
        changed = {**SOFTWARE, name: "another"}
        assert made(tmp_path, software=lambda device, now=changed: now).trust(CARD, RUNG).state == "probation"


def test_notes_and_history(ledger: Ledger) -> None:
    opened = ledger.open(CARD, RUNG, "calm-heron", "boot-1")
    ledger.note(CARD, RUNG, "fault", code="F006", why="an illegal address", words="x" * 9999)
    assert (ledger.trust(CARD, RUNG).state, ledger.trust(CARD, RUNG).why) == ("probation", "an illegal address")
    ledger.close(opened, "fault", steps=10, seconds=1800.0)
    assert ledger.history(CARD).faults_per_hour == 2.0
    ledger.note(CARD, RUNG, "blame", verdict="data")
    assert ledger.history(CARD).faults == 0
    assert max(map(len, ledger.path.read_text().splitlines())) < 2000, "a note is clipped"


# The file -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_an_open_entry_is_on_the_disk_when_the_call_returns(tmp_path: Path) -> None:
    """Seen from outside: the file is written and flushed, and so is the folder that got it, before `open` is said."""
    trace = tmp_path / "trace"
    words = ["strace", "-f", "-e", "trace=openat,write,fsync", "-o", str(trace), sys.executable, "-c", HOLD]
    folder = tmp_path / "state"
    with subprocess.Popen([*words, str(folder), "boot-1", "cpu", "cpu"], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        if user.stdout.readline() != "open\n":
            pytest.skip("strace may not trace here")
        os.kill(int(trace.read_text().split()[0]), signal.SIGKILL)
    calls = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]
    at = next(n for n, call in enumerate(calls) if "ledger.jsonl" in call and call.startswith("openat"))
    fd = calls[at].rpartition("= ")[2]
    told = next(n for n, call in enumerate(calls) if call.startswith('write(1, "open'))
    written = next(n for n, call in enumerate(calls) if n > at and call.startswith(f'write({fd}, "{{'))
    flushed = [n for n, call in enumerate(calls) if call.startswith("fsync(")]
    assert written < flushed[0] < flushed[1] < told


def test_nobody_else_can_read_it(ledger: Ledger, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        inner = made(tmp_path / "new" / "state")
        inner.open(CARD, RUNG, "calm-heron", "boot-1")
    finally:
        os.umask(old)
    assert stat.S_IMODE(inner.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(inner.folder.stat().st_mode) == 0o700


WRITE = """
import sys
from pathlib import Path
from holdfast.devices import ledger as module
from holdfast.devices.identity import DeviceId
module.LARGE = int(sys.argv[3])
ledger = module.Ledger(Path(sys.argv[1]), machine="here", software=lambda device: {})
device = DeviceId("cuda:" + sys.argv[2], "card " + sys.argv[2])
for number in range(40):
    opened = ledger.open(device, device.label + " fp32", "calm-heron", "boot-1")
    ledger.close(opened, "finished", steps=1, seconds=1.0)
assert ledger.problem is None, ledger.problem
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("large", [1 << 20, 4000], ids=["appended", "made small all the time"])
def test_many_write_at_once(tmp_path: Path, large: int) -> None:
    words = [sys.executable, "-c", WRITE, str(tmp_path)]
    writers = [subprocess.Popen([*words, str(number), str(large)]) for number in range(4)]
    assert [writer.wait(100) for writer in writers] == [0] * 4
    ledger = made(tmp_path)
    for number in range(4):
        history = ledger.history(DeviceId(f"cuda:{number}", f"card {number}"))
        assert (history.uses, history.steps) == (40, 40)
    for line in ledger.path.read_text().splitlines():
        json.loads(line)
    assert (ledger.path.stat().st_size < 12_000) is (large == 4000)
    assert list((tmp_path / "live").iterdir()) == [], "nobody left a sign of life behind"
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.jsonl", "lock", "live"}


def test_what_is_open_stays_open_when_the_file_is_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    User(tmp_path, "boot-1").kill()
    monkeypatch.setattr(module, "LARGE", 2000)
    ledger = made(tmp_path)
    for _ in range(20):
        ledger.note(CPU, "cpu fp32", "probe", ok=True)
    assert (tmp_path / "ledger.jsonl").stat().st_size < 4000
    assert ledger.history(CARD).uses == 1
    assert said(ledger.settle("boot-2")) == [("cuda:0", "probation")]
    assert ledger.history(CARD).uses == 1


@pytest.mark.sample(6, 1)
@pytest.mark.parametrize(
    "damage",
    [
        b'{"kind": "open", "id": "x", "ti',
        b"\0" * 4096,
        b"\xff\xfe\n[1, 2]\n42\n",
        b'{"kind": "open", "id": 7, "time": [], "machine": "here"}\n',
        b'{"kind": "settled", "id": "a", "time": "b", "machine": "here", "device": "c", "label": "d", "rung": "e"}\n',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_costs_the_damaged_lines_only(tmp_path: Path, damage: bytes) -> None:
    went_down(tmp_path, "boot-1", "boot-2")
    with open(tmp_path / "ledger.jsonl", "ab") as file:
        file.write(damage)
    assert made(tmp_path).trust(CARD, RUNG).state == "probation"
    assert said(went_down(tmp_path, "boot-2", "boot-3")) == [("cuda:0", "quarantine")]
    assert made(tmp_path).trust(CARD, RUNG).state == "quarantined"


def no_folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "state"


@pytest.mark.parametrize(("make", "number"), [(no_folder, errno.ENOTDIR), (None, errno.ENOSPC)])
def test_a_run_goes_on_without_its_ledger(tmp_path: Path, make: Callable[[Path], Path] | None, number: int) -> None:
    with contextlib.ExitStack() as disks:
        folder = make(tmp_path) if make else disks.enter_context(small_disk(tmp_path / "disk", "1m"))
        if make is None:
            (folder / "ledger.jsonl").touch()
            fill(folder)
        check_that_a_run_goes_on(folder, number)


def check_that_a_run_goes_on(folder: Path, number: int) -> None:
    ledger = made(folder)
    assert ledger.settle("boot-1") == []
    opened = ledger.open(CARD, RUNG, "calm-heron", "boot-1")
    assert ledger.problem == f"{ledger.path} cannot be written: {os.strerror(number)}"
    ledger.note(CARD, RUNG, "fault", code="F006")
    ledger.close(opened, "fault")
    assert ledger.trust(CARD, RUNG).state == "probation", "this process still knows"


def test_a_writer_that_was_stopped_keeps_nobody_waiting_for_ever(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    ledger.open(CARD, RUNG, "calm-heron", "boot-1")
    fd = os.open(tmp_path / "lock", os.O_RDWR)
    assert try_lock(fd)
    try:
        ledger.note(CARD, RUNG, "fault", code="F006")
    finally:
        os.close(fd)
    assert made(tmp_path).trust(CARD, RUNG).state == "probation"


# Signs of life ----------------------------------------------------------------------------------------------------


def test_a_sign_of_life_ends_with_its_process(tmp_path: Path) -> None:
    user = User(tmp_path, "boot-1")
    (token,) = [path.name for path in (tmp_path / "live").iterdir()]
    alive = Alive(tmp_path / "live")
    assert alive.is_held(token)
    user.process.send_signal(signal.SIGSTOP)
    assert alive.is_held(token), "stopped is not dead"
    user.kill()
    assert not alive.is_held(token)
    made(tmp_path).settle("boot-1")
    assert list((tmp_path / "live").iterdir()) == []


def test_a_token_from_an_edited_file_leads_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    alive = Alive(tmp_path / "live")
    for token in ("../victim", "", "..", str(victim), "x" * 16):
        assert not alive.is_held(token)
        alive.clear(token)
    assert victim.read_text() == "mine"


def test_leaving_lets_go(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    ledger.open(CARD, RUNG, "calm-heron", "boot-1")
    ledger.leave()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    assert said(made(tmp_path).settle("boot-1")) == [("cuda:0", "killed")]


# Places -------------------------------------------------------------------------------------------------------------


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"HOME": str(tmp_path)}
    assert state_folder({**home, "HOLDFAST_STATE": "/somewhere"}) == Path("/somewhere")
    monkeypatch.setattr(sys, "platform", "linux")
    assert state_folder(home) == tmp_path / ".local/state/holdfast"
    assert state_folder({**home, "XDG_STATE_HOME": "/state"}) == Path("/state/holdfast")
    assert state_folder({**home, "XDG_STATE_HOME": "relative"}) == tmp_path / ".local/state/holdfast"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert state_folder(home) == tmp_path / "Library/Application Support/holdfast"
    monkeypatch.setattr(sys, "platform", "win32")
    assert state_folder({**home, "LOCALAPPDATA": "/local"}) == Path("/local/holdfast")


def test_the_tests_have_their_own() -> None:
    assert "holdfast-test-state-" in str(state_folder())
    assert not Ledger().path.exists()
