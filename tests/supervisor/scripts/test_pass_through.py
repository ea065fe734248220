"""What a program gets and gives under `holdfast run` is what it gets and gives alone, byte for byte."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.base import processes
from tests.supervisor.scripts.driving import environment, holdfast, under_run
from tests.waiting import wait_until

BOTH = """
import os, sys
for number in range(200):
    os.write(1, b"out %d \\xff\\xfe\\x00\\r\\n" % number)
    os.write(2, b"err %d \\x80\\n" % number)
os.write(1, b"no end of line")
"""


def python(folder: Path, code: str) -> list[str]:
    """A program without torch, quick to start."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "program.py").write_text(code)
    return [sys.executable, "-S", "program.py"]


def start(folder: Path, *words: str, settings: tuple[str, ...] = (), **pipes: object) -> subprocess.Popen[bytes]:
    command = holdfast("run", *settings, "--", *words)
    return subprocess.Popen(command, cwd=folder, env=environment(folder), **pipes)  # type: ignore[call-overload,no-any-return]


# -- streams -----------------------------------------------------------------------------------------------------


def test_both_streams_are_the_same_bytes(tmp_path: Path) -> None:
    command = python(tmp_path, BOTH)
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    ran = under_run(tmp_path, command=command)
    assert (ran.code, ran.out, ran.err) == (0, alone.stdout, alone.stderr)
    assert ran.run is not None and (ran.run.path / "output.log").stat().st_size == len(ran.out) + len(ran.err)


def test_with_json_stdout_has_one_object_and_the_script_prints_to_stderr(tmp_path: Path) -> None:
    code = "import os\nos.write(1, b'out\\n')\nos.write(2, b'err\\n')\nraise SystemExit(3)"
    ran = under_run(tmp_path, command=python(tmp_path, code), settings=("--json",))
    said = json.loads(ran.out)
    assert (ran.code, said["exit_code"], said["state"]) == (3, 3, "FAILED")
    assert sorted(ran.err.splitlines()) == [b"err", b"out"] and said["receipt"]["steps"] == 0


@pytest.mark.long
def test_many_megabytes_arrive_and_are_not_all_kept(tmp_path: Path) -> None:
    code = "import os\nfor n in range(600): os.write(1, bytes([n % 256]) * 65536)"
    ran = under_run(tmp_path, command=python(tmp_path, code), settings=("external.output=4MB",))
    assert ran.code == 0
    assert len(ran.out) == 600 * 65536
    assert all(ran.out[n * 65536] == n % 256 == ran.out[(n + 1) * 65536 - 1] for n in range(600))
    assert ran.run is not None
    kept = sum(path.stat().st_size for path in ran.run.path.glob("output*.log"))
    assert 1 << 20 < kept < 5 << 20


def test_stdin_is_the_programs(tmp_path: Path) -> None:
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1])"
    said = bytes(range(256)) * 50
    ran = under_run(tmp_path, command=python(tmp_path, code), stdin=said)
    assert ran.out == said[::-1]


@pytest.mark.all
def test_a_reader_that_leaves_ends_the_program(tmp_path: Path) -> None:
    """`holdfast run -- yes | head -1` ends, as `yes | head -1` does."""
    code = "import sys\nwhile True: sys.stdout.write('y\\n')"
    command = python(tmp_path, f"import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n{code}")
    child = start(tmp_path, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.read(2) == b"y\n"
    child.stdout.close()
    try:
        assert child.wait(60) in (128 + signal.SIGPIPE, 4)
    finally:
        child.kill()


# -- the rest of its world ---------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("code", [0, 1, 3, 77, 255])
def test_the_exit_code_is_its_own(tmp_path: Path, code: int) -> None:
    ran = under_run(tmp_path, command=["sh", "-c", f"exit {code}"])
    assert (ran.code, ran.err) == (code, b"")
    assert ran.run is not None
    assert (ran.run.state(), ran.info["exit_code"]) == ("FINISHED" if code == 0 else "FAILED", code)


def test_arguments_folder_and_name_are_its_own(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, os.getcwd(), sys.path[0])"
    command = [*python(tmp_path, code), "a b", "--device", "x", "-q", "--", "é", ""]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert under_run(tmp_path, command=command).out == alone.stdout


def test_signals_reach_it_and_its_answer_counts(tmp_path: Path) -> None:
    code = """
import signal, sys, time
got = []
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
def leave(*_):
    print("term", flush=True)
    sys.exit(9)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: time.sleep(0.05)
"""
    child = start(tmp_path, *python(tmp_path, code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGUSR1)
    assert child.stdout.readline() == b"usr1\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == b"term\n"
    assert child.wait(100) == 9


@pytest.mark.long
def test_a_program_that_ignores_sigterm_is_ended_when_asked_twice(tmp_path: Path) -> None:
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
    child = start(tmp_path, *python(tmp_path, code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert child.poll() is None, "it ignores the signal, and so it goes on, as without us"
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 128 + signal.SIGKILL


# -- a terminal --------------------------------------------------------------------------------------------------


def in_a_terminal(folder: Path, command: list[str], keys: bytes = b"", after: bytes = b"ready") -> tuple[int, bytes]:
    """Run it in a terminal of 31 lines and 97 columns, type some keys once it is ready; its code and what was shown."""
    import fcntl
    import struct
    import termios

    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, environment(folder))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    shown, typed, deadline = b"", not keys, time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        if not typed and after in shown:
            typed = True
            os.write(fd, keys)
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), shown


ASKS = """
import os, sys, time
time.sleep(0.3)
print([os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(), flush=True)
print("ready", flush=True)
print("got", input("name? "), flush=True)
"""


def test_a_terminal_program_sees_a_terminal(tmp_path: Path) -> None:
    code, shown = in_a_terminal(tmp_path, holdfast("run", "--", *python(tmp_path, ASKS)), b"bob\n")
    assert code == 0, shown
    assert b"[True, True, True] os.terminal_size(columns=97, lines=31)\r\n" in shown
    assert b"name? bob\r\ngot bob\r\n" in shown
    assert shown.startswith(b"holdfast  ") and b"watching pid" in shown.partition(b"\r\n")[0]


def test_ctrl_c_is_the_programs(tmp_path: Path) -> None:
    code, shown = in_a_terminal(tmp_path, holdfast("run", "--", *python(tmp_path, ASKS)), b"\x03")
    assert code == 130
    assert b"KeyboardInterrupt" in shown and b"restarting" not in shown


def test_a_stream_that_is_no_terminal_stays_none(tmp_path: Path) -> None:
    words = shlex.join([*holdfast("run", "-q", "--"), *python(tmp_path, ASKS.replace("os.get_terminal_size()", "0"))])
    code, shown = in_a_terminal(tmp_path, ["sh", "-c", f"{words} 2>err.txt </dev/null; cat err.txt"])
    assert b"[False, True, False] 0" in shown, (code, shown)


# -- commands that cannot be started -----------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-program-here"], "the command `no-such-program-here` was not found"),
        (["./no-such-file"], "the command `./no-such-file` was not found"),
        (["./plain.txt"], "`./plain.txt` is not executable"),
        (["./script.py"], "start it with Python: `holdfast run -- python ./script.py`"),
        (["./folder"], "`./folder` is a folder, not a program"),
        (["./garbage"], "`./garbage` cannot be started"),
    ],
)
def test_what_cannot_be_started_is_said(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "plain.txt").write_text("hello")
    (tmp_path / "script.py").write_text("print(1)")
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage").write_bytes(b"\x01\x02\x03\x04" * 20)
    (tmp_path / "garbage").chmod(0o755)
    ran = under_run(tmp_path, command=words)
    assert ran.code == 2, ran.story()
    assert said in ran.err.decode()
    assert b"Traceback" not in ran.err


# -- processes that stay -----------------------------------------------------------------------------------------


def test_children_that_outlive_it_are_found_and_ended_and_only_they(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
a = subprocess.Popen(["sleep", "600"])
b = subprocess.Popen(["sleep", "601"], start_new_session=True)
read, write = os.pipe()  # closed by exec: the end of it says that the grandchild is `sleep`
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "602"])
    os._exit(0)
os.close(write)
os.read(read, 1)
open("pids", "w").write(f"{a.pid} {b.pid}")
"""
    bystander = subprocess.Popen(["sleep", "603"])
    try:
        ran = under_run(tmp_path, command=python(tmp_path, code))
        assert ran.code == 0, ran.story()
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert wait_until(lambda: not any(processes.exists(pid) for pid in pids))
        assert any("ended processes that the script left behind" in note for note in ran.notes), ran.notes
        assert "sleep 602" in " ".join(ran.notes)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.all
def test_a_program_that_daemonises_itself_is_followed(tmp_path: Path) -> None:
    code = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(4.0)  # one that is over before anybody looked cannot be followed
open("worked", "w").write("yes")
os._exit(5)
"""
    ran = under_run(tmp_path, command=python(tmp_path, code))
    assert (tmp_path / "worked").read_text() == "yes"
    assert ran.code == 5, ran.story()
    assert any("went into the background" in note for note in ran.notes)


def test_it_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    child = start(tmp_path, *python(tmp_path, code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    assert wait_until(lambda: not processes.exists(pid))
