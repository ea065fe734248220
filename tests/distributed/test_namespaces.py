"""That the machines of machines.py do what they say: measured with plain sockets between them."""

from __future__ import annotations

import errno
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed import machines as made
from tests.distributed.machines import Machines
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.all,
    pytest.mark.skipif(bool(made.missing()), reason=made.missing()),
]

PORT = 7001
ECHO = f"""
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", {PORT}))
print("ready", flush=True)
while True:
    piece, where = sock.recvfrom(2048)
    with open(sys.argv[1], "ab") as log: log.write(piece)
    try:
        sock.sendto(piece, where)
    except OSError:
        pass
"""
"""Answers every datagram with itself, and keeps what came."""
ASK = f"""
import socket, sys, time
target, count, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(limit)
sock.connect((target, {PORT}))
for number in range(count):
    began = time.monotonic()
    try:
        sock.send(b"%06d" % number)
        while sock.recv(2048) != b"%06d" % number:
            pass
        print(time.monotonic() - began, flush=True)
    except OSError:
        print("lost", flush=True)
"""
"""One round trip after the other; prints how long each took."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, Path]]:
    folder = tmp_path_factory.mktemp("machines")
    with Machines(4, share=[folder]) as machines:
        for k in range(4):
            process = machines.popen(
                k, [sys.executable, "-S", "-c", ECHO, folder / f"came-{k}"], stdout=subprocess.PIPE
            )
            assert process.stdout is not None and process.stdout.readline()
        yield machines, folder


@pytest.fixture
def machines(shared: tuple[Machines, Path]) -> Iterator[Machines]:
    yield shared[0]
    shared[0].mend()


def _ask(machines: Machines, source: int, target: int, count: int = 3, limit: float = 0.5) -> list[float | None]:
    """Seconds of each round trip, None for those that were lost."""
    words = [sys.executable, "-S", "-c", ASK, machines.name(target), str(count), str(limit)]
    return [None if line == "lost" else float(line) for line in machines.run(source, words).split()]


def _reached(machines: Machines, source: int, target: int) -> bool:
    """Whether an answer comes; it may be late on a busy machine."""
    return None not in _ask(machines, source, target, count=1, limit=10.0)


def _lost(machines: Machines, source: int, target: int) -> bool:
    return set(_ask(machines, source, target)) == {None}


def test_machines_reach_each_other_and_have_what_a_machine_has(machines: Machines, shared) -> None:
    assert _reached(machines, 0, 3) and _reached(machines, 3, 1)
    for k in (0, 1):
        machines.run(k, ["sh", "-c", f"hostname > /dev/shm/name; hostname > {shared[1]}/name-{k}"])
    assert machines.run(0, ["cat", "/dev/shm/name"]).strip() == "m0"
    assert machines.run(1, ["cat", "/dev/shm/name"]).strip() == "m1"
    assert not Path("/dev/shm/name").exists(), "the memory of a machine is its own"
    assert (shared[1] / "name-1").read_text() == "m1\n", "a shared folder is seen by all"
    assert machines.run(0, ["pwd"], cwd=str(shared[1])).strip() == str(shared[1])


def test_a_cut_cable_loses_all_until_it_is_mended(machines: Machines) -> None:
    words = [sys.executable, "-S", "-c", TALK, machines.address(0)]
    listener = machines.popen(0, [sys.executable, "-S", "-c", LISTEN], stdout=subprocess.PIPE, text=True)
    assert listener.stdout is not None and listener.stdout.readline() == "ready\n"
    talker = machines.popen(1, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert talker.stdin is not None and talker.stdout is not None and talker.stdout.readline() == "ready\n"
    machines.cut(1)
    assert machines.run(1, ["cat", "/sys/class/net/eth0/carrier"]).strip() == "0"
    assert _lost(machines, 0, 1) and _lost(machines, 1, 0) and _reached(machines, 0, 2)
    talker.stdin.write("said while the cable was cut\n")
    talker.stdin.flush()
    machines.mend(1)
    assert listener.stdout.readline() == "said while the cable was cut\n", "the connection outlives the cut"
    assert _reached(machines, 0, 1) and _reached(machines, 1, 0)


LISTEN = """
import socket
sock = socket.create_server(("", 7002))
print("ready", flush=True)
connection, _ = sock.accept()
print(connection.makefile().readline(), end="", flush=True)
"""
TALK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7002))
print("ready", flush=True)
connection.sendall(sys.stdin.readline().encode())
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"""


def test_one_way_loss_loses_one_way_alone(machines: Machines, shared) -> None:
    came = shared[1] / "came-0"
    assert _reached(machines, 1, 0)  # the machines know each other's hardware address from here on
    before = came.stat().st_size
    machines.drop(source=0, target=1)
    assert _lost(machines, 1, 0)
    assert came.stat().st_size > before, "questions arrive, answers do not"
    assert machines.run(0, ["cat", "/sys/class/net/eth0/carrier"]).strip() == "1"
    assert _reached(machines, 2, 0) and _reached(machines, 1, 2)
    machines.drop(target=2)
    before = (shared[1] / "came-2").stat().st_size
    assert _lost(machines, 3, 2) and (shared[1] / "came-2").stat().st_size == before
    machines.mend(2)
    assert _reached(machines, 3, 2) and _lost(machines, 1, 0), "the others stay as they are"


def test_a_partition_has_two_halves(machines: Machines) -> None:
    machines.partition([0, 1], [2, 3])
    assert _reached(machines, 0, 1) and _reached(machines, 3, 2)
    assert _lost(machines, 0, 2) and _lost(machines, 3, 1)
    machines.mend()
    assert _reached(machines, 0, 2)


def test_a_delay_is_added_on_each_way(machines: Machines) -> None:
    plain = statistics.median(filter(None, _ask(machines, 0, 1, count=9, limit=10.0)))
    machines.slow(1, delay=0.2)
    try:
        late = [seconds for seconds in _ask(machines, 0, 1, count=9, limit=30.0) if seconds is not None]
        others = statistics.median(filter(None, _ask(machines, 0, 2, count=9, limit=10.0)))
    finally:
        machines.slow(1)
    assert len(late) == 9 and min(late) >= 0.4
    assert statistics.median(late) < 0.4 + max(0.1, 100 * plain), "no more than was asked for"
    assert others < 0.2, "the other cables are as fast as before"
    assert min(filter(None, _ask(machines, 0, 1, count=9, limit=10.0))) < 0.2, "it ends"


def test_one_percent_of_the_frames_is_lost_and_tcp_brings_all(machines: Machines) -> None:
    machines.slow(1, loss=0.01, seed=7)
    try:
        got = _send_many(machines, 4000)
        machines.run(1, [sys.executable, "-S", "-c", FETCH, machines.address(0), "1000000"])
    finally:
        machines.slow(1)
    # 4000 datagrams one way: 40 are lost in the mean, with a standard deviation of 6.3.
    assert 4000 - 40 - 5 * 6.3 < got < 4000 - 40 + 5 * 6.3


MANY = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 7003))
print("ready", flush=True)
got = 0
while True:  # each block of 50 ends with a word that is repeated until it is answered
    piece, where = sock.recvfrom(64)
    if piece == b"over":
        break
    if piece.startswith(b"block"):
        sock.sendto(piece, where)
    else:
        got += 1
print(got)
"""
SEND_MANY = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(2.0)
sock.connect((sys.argv[1], 7003))
for block in range(int(sys.argv[2]) // 50):
    for number in range(50):
        sock.send(b"datagram")
    while True:
        sock.send(b"block %d" % block)
        try:
            while sock.recv(64) != b"block %d" % block: pass
            break
        except OSError:
            pass
for _ in range(20):
    sock.send(b"over")
"""
FETCH = """
import socket, subprocess, sys
wanted = int(sys.argv[2])
got = b""
connection = socket.create_connection((sys.argv[1], 7004))
while piece := connection.recv(65536):
    got += piece
assert got == bytes(range(250)) * (wanted // 250), len(got)
"""
GIVE = """
import socket, sys
sock = socket.create_server(("", 7004))
print("ready", flush=True)
connection, _ = sock.accept()
connection.sendall(bytes(range(250)) * 4000)
"""


def _send_many(machines: Machines, count: int) -> int:
    """How many of so many datagrams from machine 1 arrive. Blocks are answered, so no buffer of a socket runs over."""
    given = machines.popen(0, [sys.executable, "-S", "-c", GIVE], stdout=subprocess.PIPE, text=True)
    many = machines.popen(0, [sys.executable, "-S", "-c", MANY], stdout=subprocess.PIPE, text=True)
    for each in (given, many):
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    machines.run(1, [sys.executable, "-S", "-c", SEND_MANY, machines.address(0), str(count)])
    return int(many.communicate(timeout=60)[0])


def test_a_killed_machine_has_no_process_left() -> None:
    words = "setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000"
    with Machines(2) as own:
        process = own.popen(1, ["sh", "-c", words])
        other = own.popen(0, ["sleep", "1000"])
        assert wait_until(lambda: len(own.pids(1)) == 5)
        assert process.pid in own.pids(1), "the pid of Popen is that of the command"
        own.kill(1)
        assert own.pids(1) == [] and process.returncode == -signal.SIGKILL
        assert other.poll() is None
        own.popen(1, ["sleep", "1000"])  # the machine itself is still there
        assert wait_until(lambda: len(own.pids(1)) == 1)


def test_after_a_power_failure_the_memory_is_empty(tmp_path: Path) -> None:
    with Machines(2, share=[tmp_path]) as own:
        for k in (0, 1):
            own.run(k, ["sh", "-c", "echo something > /dev/shm/slot"])
        own.disk(1, tmp_path / "disk", megabytes=1)
        own.power_off(1)
        assert "slot" not in own.run(1, ["ls", "/dev/shm"]).split()
        assert own.run(0, ["cat", "/dev/shm/slot"]).strip() == "something"
        (tmp_path / "file").write_text("seen")
        assert own.run(1, ["cat", str(tmp_path / "file")]) == "seen"


def test_clocks_apart(machines: Machines) -> None:
    words = "import datetime, time; print(time.time(), datetime.datetime.now(datetime.timezone.utc).timestamp())"
    for seconds in map(float, machines.run(0, [sys.executable, "-c", words], clock=3600.0).split()):
        assert 3600 <= seconds - time.time() + 100 < 3800
    for seconds in map(float, machines.run(1, [sys.executable, "-c", words]).split()):
        assert abs(seconds - time.time()) < 100


def test_a_full_disk_is_full_on_one_machine(machines: Machines, shared) -> None:
    folder = shared[1] / "disk"
    machines.disk(1, folder, megabytes=1)
    words = [sys.executable, "-S", "-c", FILL, str(folder / "file")]
    assert machines.run(1, words).strip() == str(errno.ENOSPC)
    assert machines.run(0, words).strip() == "0"


FILL = """
import sys
try:
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(3 << 20))
    print(0)
except OSError as error:
    print(error.errno)
"""


def test_nothing_is_left_after_a_failing_test() -> None:
    with pytest.raises(ZeroDivisionError), Machines(2) as own:
        own.slow(1, delay=0.01)
        process = own.popen(1, ["sh", "-c", "setsid sleep 1000 & sleep 1000"])
        assert wait_until(lambda: len(own.pids(1)) == 3)
        pids = [holder.pid for holder in own._holders] + [own._forwarders[1].pid, process.pid]
        spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        assert len(spaces) == 3
        raise ZeroDivisionError
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not spaces & _net_spaces()


def test_nothing_is_left_when_the_test_itself_is_killed() -> None:
    words = """
import os, signal
from tests.distributed.machines import Machines
with Machines(2) as own:
    own.slow(1, delay=0.01)
    print(*{os.readlink(f"/proc/{each.pid}/ns/net") for each in (*own._holders, own._switch)}, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", words], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    spaces = set(done.stdout.split())
    assert done.returncode == -signal.SIGKILL and len(spaces) == 3
    assert wait_until(lambda: not spaces & _net_spaces())


def _net_spaces() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(path))
        except OSError:  # it has ended
            pass
    return found
