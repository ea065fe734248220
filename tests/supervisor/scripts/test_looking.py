"""Who looks at a silent process: by its own stack where the kernel does not tell, and as a user who may not look."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.supervisor.scripts.script_stacks import wait_in

DUMP = (
    "import faulthandler, signal, sys\nfaulthandler.register(signal.SIGUSR1, open('{file}', 'w'))\nprint(flush=True)\n"
)
WAITING = {
    "sleep": "import time\ntime.sleep(60)",
    "socket": "import socket\na, b = socket.socketpair()\nsocket.SocketIO(a, 'r').readinto(bytearray(1))",
    "child": "import subprocess\nsubprocess.run(['sleep', '60'])",
    "prompt": "input()",
    "lock": "import fcntl\none, two = open('l', 'w'), open('l', 'w')\nfcntl.flock(one, 2)\nfcntl.flock(two, 2)",
    "none": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
}


def test_a_stack_says_what_a_process_waits_for_where_the_kernel_does_not(tmp_path: Path) -> None:
    children = {}
    for name, code in WAITING.items():
        script = tmp_path / f"wait_{name}.py"
        script.write_text(DUMP.format(file=tmp_path / f"{name}.txt") + code)
        pipe = subprocess.PIPE
        children[name] = subprocess.Popen(
            [sys.executable, str(script)], cwd=tmp_path, stdin=pipe, stdout=pipe, start_new_session=True
        )
    try:
        found = {}
        for name, child in children.items():
            assert child.stdout is not None and child.stdout.readline()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                time.sleep(0.1)
                (tmp_path / f"{name}.txt").write_text("")
                child.send_signal(signal.SIGUSR1)
                time.sleep(0.1)
                text = (tmp_path / f"{name}.txt").read_text().replace("\0", "")
                waits = wait_in(text)
                found[name] = waits.kind if waits else "none"
                if found[name] == name:
                    break
    finally:
        for child in children.values():
            os.killpg(child.pid, signal.SIGKILL)  # its child holds the pipe open
            child.communicate()
    assert found == {name: name for name in WAITING}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_whoever_may_not_look_does_not_call_it_stuck() -> None:
    """A process of root, seen by a user who may not trace it: nobody can tell, and that is what is found."""
    code = (
        "import os, sys; from holdfast.supervisor.waits import Waits; from holdfast.base.process_tree import look\n"
        "pid = int(sys.argv[1]); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(Waits().look(pid, {pid: look(pid)}).kind)"
    )
    lock = "import threading; lock = threading.Lock(); lock.acquire(); print(flush=True); lock.acquire()"
    with subprocess.Popen([sys.executable, "-c", lock], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        words = [sys.executable, "-c", code, str(child.pid)]
        seen = subprocess.run(words, capture_output=True, text=True, check=False)
        child.kill()
    assert seen.stdout.strip() == "unknown", seen.stderr
