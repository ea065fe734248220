"""Machines for tests: namespaces of this kernel, joined by a switch whose cables a test can cut, slow down or thin out.

    with Machines(4, share=[tmp_path]) as machines:
        process = machines.popen(1, [sys.executable, "-m", "holdfast", "launch", ...], stdout=subprocess.PIPE)
        machines.cut(1); machines.mend(1)               # the cable of machine 1: no carrier, all is lost
        machines.drop(source=1, target=None)            # nothing that machine 1 sends arrives; both ends see a link
        machines.partition([0, 1], [2, 3]); machines.mend()
        machines.slow(1, delay=0.2, loss=0.01, seed=7)  # every frame from and to machine 1; slow(1) ends it
        machines.kill(1)                                # every process of machine 1, at once
        machines.power_off(1); machines.mend(1)         # the same, without a word to the others; /dev/shm is empty
        machines.disk(1, folder, megabytes=2)           # on machine 1 this folder is a disk of 2 MB

Machine K has a network, a host name (`mK`), mounts, and a `/dev/shm` of its own. Its address is `machines.address(K)`,
and `/etc/hosts` has the names of all machines. All machines see the files of this one; the folders of `share` are
kept visible even if they lie below `/dev/shm` (where pytest may have its temporary folders). Process ids are those of
this machine, so `os.kill` and `os.killpg` reach every process. The wall clock of a process is shifted with
`popen(..., clock=3600.0)`, for Python alone.

The namespaces have no names: a sleeping process holds each. The kernel removes a namespace with all its devices
when that process and those that were started in it have ended, so nothing is left behind even if the test is killed.
`missing()` says why machines cannot be made here, for a skip.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import heapq
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds to wait for a namespace, a forwarder or the end of killed processes, on a busy machine."""
CLOCK = "HOLDFAST_TEST_CLOCK"
TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")

_HOLDER = r"""
set -e
hostname "$1"; shift
mount -t tmpfs -o size=1m none /mnt
mkdir /mnt/cgroup; mount --rbind /sys/fs/cgroup /mnt/cgroup
mount -t sysfs none /sys; mount --rbind /mnt/cgroup /sys/fs/cgroup
n=0
for folder in "$@"; do n=$((n + 1)); mkdir "/mnt/$n"; mount --rbind "$folder" "/mnt/$n"; done
mount -t tmpfs none /dev/shm
n=0
for folder in "$@"; do n=$((n + 1)); mkdir -p "$folder"; mount --rbind "/mnt/$n" "$folder"; done
if [ -n "$HOSTS" ]; then printf '%s' "$HOSTS" > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts; fi
echo ready
exec cat
"""
"""What the process that holds a machine does first. `cat` ends when the test's end of its stdin is closed."""

_EMPTY = r"""
until umount --recursive /dev/shm; do sleep 0.05; done  # the kernel closes the files of killed processes a moment later
mount -t tmpfs none /dev/shm
n=0
for folder in "$0" "$@"; do
  n=$((n + 1))
  case "$folder" in /dev/shm/*) mkdir -p "$folder"; mount --rbind "/mnt/$n" "$folder";; esac
done
"""
"""A new /dev/shm, with the shared folders that lie below it."""


@functools.cache
def missing() -> str:
    """What prevents machines here, empty if nothing does."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    lost = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lost:
        return f"not installed: {', '.join(lost)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Machines(1):
            return ""
    except (OSError, RuntimeError) as error:
        return f"network namespaces cannot be made here: {error}"


class Machines:
    """`count` machines on one switch. Use it in a `with`."""

    def __init__(self, count: int, *, share: Iterable[Path] = ()) -> None:
        self.count = count
        self.share = [str(Path(folder).resolve()) for folder in share]
        self._holders: list[subprocess.Popen[bytes]] = []
        self._switch: subprocess.Popen[bytes] | None = None
        self._started: list[list[subprocess.Popen[Any]]] = [[] for _ in range(count)]
        self._forwarders: dict[int, subprocess.Popen[bytes]] = {}
        self._blocked: set[tuple[int, int]] = set()
        self._disks: dict[int, list[str]] = {}

    def __enter__(self) -> Machines:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- making and removing -------------------------------------------------------------------------------

    def _make(self) -> None:
        self._switch = _hold("switch", "--net", "--uts", "--mount", "--propagation", "private")
        hosts = "127.0.0.1 localhost\n" + "".join(f"{self.address(k)} {self.name(k)}\n" for k in range(self.count))
        lines = ["link set lo up", "link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0"]
        lines.append("link set br0 up")
        for k in range(self.count):
            unshared = ("--net", "--uts", "--mount", "--propagation", "private")
            self._holders.append(_hold(self.name(k), *unshared, share=self.share, hosts=hosts))
            lines.append(f"link add {_port(k)} type veth peer name eth0 netns {self._holders[k].pid}")
            lines += [f"link set {_port(k)} master br0", f"link set {_port(k)} up"]
        self._ip(self._switch, lines)
        for k, holder in enumerate(self._holders):
            lines = ["link set lo up", f"link set eth0 address {_mac(k)}"]
            lines += [f"address add {self.address(k)}/16 dev eth0", "link set eth0 up"]
            self._ip(holder, lines)
            self._in_switch("tc", "qdisc", "add", "dev", _port(k), "clsact")

    def close(self) -> None:
        """End everything that was started here, newest first; the kernel then removes namespaces and cables."""
        for k in range(len(self._holders)):
            with contextlib.suppress(RuntimeError):
                self.kill(k)
        for process in (*self._forwarders.values(), *self._holders, self._switch):
            if process is not None:
                _end(process)
        self._forwarders, self._holders, self._switch = {}, [], None

    # -- who and where -------------------------------------------------------------------------------------

    def name(self, machine: int) -> str:
        return f"m{machine}"

    def address(self, machine: int) -> str:
        return f"10.77.0.{machine + 1}"

    def popen(
        self, machine: int, argv: Sequence[str | os.PathLike[str]], *, clock: float = 0.0, **more: Any
    ) -> subprocess.Popen[Any]:
        """A process there, with the words and arguments of Popen. Its pid is that of `argv`, no wrapper stays."""
        folder = str(more.pop("cwd", None) or Path.cwd())
        if clock:
            env = dict(more.get("env") or os.environ)
            path = [str(Path(__file__).parent / "clock"), env.get("PYTHONPATH", "")]
            more["env"] = {**env, CLOCK: repr(clock), "PYTHONPATH": os.pathsep.join(filter(None, path))}
        words = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *(os.fspath(word) for word in argv)]
        process = subprocess.Popen([*_enter(self._holders[machine]), *words], **more)
        self._started[machine].append(process)
        return process

    def run(self, machine: int, argv: Sequence[str], **more: Any) -> str:
        """What a command there prints; RuntimeError if it fails."""
        process = self.popen(machine, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
        said = str(process.communicate()[0])
        if process.returncode:
            raise RuntimeError(f"{' '.join(argv)} on {self.name(machine)}: {said.strip()}")
        return said

    def pids(self, machine: int) -> list[int]:
        """All processes in the namespace of the machine, whoever started them, without the one that holds it."""
        holder = self._holders[machine].pid
        wanted = os.readlink(f"/proc/{holder}/ns/net")
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != holder:
                with contextlib.suppress(OSError):  # it has ended, and a zombie has no namespaces
                    if os.readlink(f"/proc/{entry}/ns/net") == wanted:
                        found.append(int(entry))
        return found

    def kill(self, machine: int) -> None:
        """SIGKILL for every process of the machine. The kernel closes their connections, and the peers see that.

        All are halted first, so none sees another one die or starts one more.
        """
        for number in (signal.SIGSTOP, signal.SIGKILL):
            deadline = time.monotonic() + PATIENCE
            while found := self._left(machine, number):
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"these processes of {self.name(machine)} cannot be killed: {found}")
                time.sleep(0.005)

    def _left(self, machine: int, number: int) -> set[int]:
        """Processes that this signal did not reach yet, also those of `popen` that are still on the way in."""
        mine = [each.pid for each in self._started[machine] if each.poll() is None]
        found = {*self.pids(machine), *mine}
        return found if number == signal.SIGKILL else {pid for pid in found if _state(pid) not in "TtZX"}

    def power_off(self, machine: int) -> None:
        """As if the power had failed: no process is left, nothing that was in memory, and no peer hears of it.

        `mend(machine)` turns it on again.
        """
        self.cut(machine)
        self.kill(machine)
        words = [*_enter(self._holders[machine]), "sh", "-ec"]
        for folder in reversed(self._disks.pop(machine, [])):
            _call([*words, 'umount "$0"', folder])
        _call([*words, _EMPTY, *self.share])

    # -- the network ---------------------------------------------------------------------------------------

    def cut(self, machine: int) -> None:
        """Pull its cable: the machine loses its carrier, and keeps its address."""
        self._in_switch("ip", "link", "set", _port(machine), "down")

    def mend(self, machine: int | None = None) -> None:
        """Plug its cable in, and drop nothing from or to it. Without a machine: all of them. `slow` stays as it is."""
        for k in range(self.count) if machine is None else [machine]:
            self._in_switch("ip", "link", "set", _port(k), "up")
        self._block({pair for pair in self._blocked if machine is not None and machine not in pair})

    def drop(self, source: int | None = None, target: int | None = None) -> None:
        """Lose, without a sign, what goes one way: from `source` to `target`; None stands for all others."""
        sources = range(self.count) if source is None else [source]
        targets = range(self.count) if target is None else [target]
        self._block(self._blocked | {(one, other) for one in sources for other in targets if one != other})

    def partition(self, *groups: Iterable[int]) -> None:
        """Let machines reach those of their group alone. A machine in no group reaches nobody."""
        group = {machine: number for number, members in enumerate(groups) for machine in members}
        pairs = ((one, other) for one in range(self.count) for other in range(self.count) if one != other)
        self._block({pair for pair in pairs if group.get(pair[0], -1) != group.get(pair[1], -2)})

    def slow(self, machine: int, *, delay: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        """Hold every frame from and to the machine for `delay` seconds and lose the share `loss` of them.

        Both act on each way, so a round trip takes twice the delay. `slow(machine)` ends it.
        """
        if machine not in self._forwarders and (delay or loss):
            self._forwarders[machine] = self._forward(machine, seed)
        if machine in self._forwarders:
            pipe = self._forwarders[machine].stdin
            assert pipe is not None
            pipe.write(json.dumps({"delay": delay, "loss": loss}).encode() + b"\n")
            pipe.flush()
            _read_line(self._forwarders[machine])  # the forwarder has taken it over

    def _forward(self, machine: int, seed: int) -> subprocess.Popen[bytes]:
        """Put a process between the cable and the switch. It stays until the end; without a delay it only copies."""
        _call([*_enter(self._holders[machine]), sys.executable, __file__, "--plain-frames", "eth0"])
        assert self._switch is not None
        words = [sys.executable, __file__, "--forward", _port(machine), _tap(machine), str(seed)]
        process = subprocess.Popen(
            [*_enter(self._switch), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        _read_line(process)  # it has the tap
        lines = [f"link set {_port(machine)} nomaster", f"link set {_port(machine)} promisc on"]
        self._ip(self._switch, [*lines, f"link set {_tap(machine)} master br0", f"link set {_tap(machine)} up"])
        return process

    def _block(self, pairs: set[tuple[int, int]]) -> None:
        """One filter on the cable to each machine, which drops frames by the last two bytes of the sender's address."""
        for target in range(self.count):
            before = {one for one, other in self._blocked if other == target}
            now = {one for one, other in pairs if other == target}
            if now != before:
                code = _filter(now)
                where = ["dev", _port(target), "egress", "prio", "1", "handle", "1"]
                self._in_switch("tc", "filter", "replace", *where, "bpf", "da", "bytecode", code)
        self._blocked = set(pairs)

    # -- a disk ----------------------------------------------------------------------------------------------

    def disk(self, machine: int, folder: Path, *, megabytes: int) -> None:
        """Give the machine a small disk of its own at this folder, which hides what is there on the others."""
        folder.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
        _call([*_enter(self._holders[machine]), *words])
        self._disks.setdefault(machine, []).append(str(folder))

    # -- commands --------------------------------------------------------------------------------------------

    def _in_switch(self, *words: str) -> None:
        assert self._switch is not None
        _call([*_enter(self._switch), *words])

    @staticmethod
    def _ip(holder: subprocess.Popen[bytes], lines: list[str]) -> None:
        _call([*_enter(holder), "ip", "-batch", "-"], input="\n".join(lines) + "\n")


def _state(pid: int) -> str:
    """The letter of /proc: T is halted, Z a zombie; X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _port(machine: int) -> str:
    return f"port{machine}"


def _tap(machine: int) -> str:
    return f"tap{machine}"


def _mac(machine: int) -> str:
    return f"02:00:00:00:{machine >> 8:02x}:{machine & 255:02x}"


def _filter(sources: set[int]) -> str:
    """Classic BPF: load two bytes at 10, compare with each source, return 2 (TC_ACT_SHOT) or 0 (TC_ACT_OK)."""
    ordered = sorted(sources)
    code = ["40 0 0 10"]
    code += [f"21 {len(ordered) - place} 0 {source}" for place, source in enumerate(ordered)]
    code += ["6 0 0 0", "6 0 0 2"]
    return f"{len(code)}," + ",".join(code) + ","


def _hold(name: str, *flags: str, share: Sequence[str] = (), hosts: str = "") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["unshare", *flags, "sh", "-c", _HOLDER, "sh", name, *share],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HOSTS": hosts},
        start_new_session=True,  # Ctrl-C ends the test first
    )
    try:
        _read_line(process)
    except BaseException:
        _end(process)
        raise
    return process


def _enter(holder: subprocess.Popen[bytes]) -> list[str]:
    return ["nsenter", "--target", str(holder.pid), "--net", "--uts", "--mount", "--"]


def _read_line(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    if not ready or not process.stdout.readline():
        said = process.stderr.read().decode(errors="replace").strip() if ready and process.stderr else ""
        raise RuntimeError(f"a process of the machines did not start: {said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, which ends it; kill it if that does not."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE)


def _call(words: list[str], **more: Any) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


# What runs in a namespace: `python machines.py --forward …`, with nothing but the standard library ------------------

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tx checksums": 0x17, "scatter/gather": 0x19, "tso": 0x1F, "gso": 0x24}
"""ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_STSO, ETHTOOL_SGSO."""
_ETH_P_ALL = 3


def _plain_frames(device: str) -> None:
    """Let the machine send frames as a cable carries them: with checksums, and no larger than the MTU."""
    import array

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in _OFFLOADS.values():
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):  # one that the device does not have
                fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)


def _forward(port: str, tap: str, seed: int) -> None:
    """Copy frames between a cable and a tap device, late and not all of them. Settings come as lines on stdin."""
    out = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(out, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), _IFF_TAP | _IFF_NO_PI))
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    cable.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 64 << 20)
    cable.bind((port, 0))
    cable.setblocking(False)
    print("ready", flush=True)
    chance, delay, loss = random.Random(seed), 0.0, 0.0
    waiting: list[tuple[float, int, bool, bytes]] = []
    number, commands = 0, b""
    sources: list[Any] = [0, out, cable]
    while True:
        wait = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        ready, _, _ = select.select(sources, [], [], wait)
        if 0 in ready:
            piece = os.read(0, 4096)
            if not piece:
                return  # the test is over
            commands += piece
            *lines, commands = commands.split(b"\n")
            for line in lines:
                wanted = json.loads(line)
                delay, loss = wanted["delay"], wanted["loss"]
                print("ok", flush=True)
        for source in ready:
            if source == 0:
                continue
            for frame in _frames(source, out, cable):
                if loss and chance.random() < loss:
                    continue
                number += 1  # the order stays, also of frames of one moment
                heapq.heappush(waiting, (time.monotonic() + delay, number, source == out, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to_cable, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a cable that is cut, a full queue: the frame is lost
                if to_cable:
                    cable.send(frame)
                else:
                    os.write(out, frame)


def _frames(source: Any, out: int, cable: socket.socket) -> list[bytes]:
    """What has come, at most 64 frames; frames that we sent ourselves are not among those of the cable."""
    found: list[bytes] = []
    with contextlib.suppress(OSError):  # no more frames, or the cable is cut
        while len(found) < 64:
            if source == out:
                found.append(os.read(out, 65536))
            else:
                frame, where = cable.recvfrom(65536)
                if where[2] != socket.PACKET_OUTGOING:
                    found.append(frame)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--forward":
        _forward(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        _plain_frames(sys.argv[2])
