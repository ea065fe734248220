"""A file system without locks: nothing is "in use" for that, a claim stands in, and the dead keep nothing.

The processes are real. What is pretended is the file system: in them flock fails as it does on Lustre without `-o
flock`.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import locks
from holdfast.base.errors import UserError
from holdfast.devices.device_lock import Alive
from holdfast.run.folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows locks by msvcrt")

NO_FLOCK = """
import errno, fcntl, os, sys
def flock(fd, how):
    raise OSError(int(sys.argv[1]), os.strerror(int(sys.argv[1])))
fcntl.flock = flock
from pathlib import Path
from holdfast.run.folder import RunFolder
"""
HOLD = (
    NO_FLOCK
    + """
run = RunFolder(Path(sys.argv[2]))
run.lock()
if len(sys.argv) > 3:
    run.hold_with(int(sys.argv[3]))
print(run.without_locks, flush=True)
sys.stdin.read()
run.close()
"""
)
CODES = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "job", {"state": "RUNNING"})


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process stands on that file system, too."""
    import fcntl

    def flock(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    yield


def hold(run: RunFolder, code: int = errno.ENOLCK, *more: str) -> subprocess.Popen[str]:
    """A process that has the run; it says so, and lets go when its input ends."""
    words = [sys.executable, "-c", HOLD, str(code), str(run.path), *more]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert "has no locks" in child.stdout.readline()
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        stream.close()


@pytest.mark.usefixtures("no_flock")
def test_one_at_a_time_and_the_dead_keep_nothing(run: RunFolder) -> None:
    assert not run.in_use()
    assert run.state() == "CRASHED"
    child = hold(run)
    assert run.in_use()
    with pytest.raises(UserError) as caught:
        run.lock(wait=0.2)
    assert caught.value.message == f"{run.name} is in use"
    assert caught.value.cause == f"it is held by pid {child.pid}"
    end(child)  # without a word
    assert not run.in_use()
    run.lock()
    assert run.without_locks
    assert len(list(run.path.glob("lock.*"))) == 1, "the claim of the dead is gone"
    assert run.path.joinpath("lock").read_text() == f"pid {os.getpid()}\n"
    run.close()
    assert not list(run.path.glob("lock.*"))


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize("code", CODES)
def test_whatever_flock_says_it_is_not_in_use(run: RunFolder, code: int) -> None:
    child = hold(run, code)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait() == 0
    assert not run.in_use()
    assert child.stdout is not None
    child.stdout.close()


@pytest.mark.usefixtures("no_flock")
def test_a_keeper_holds_the_run_after_its_supervisor(run: RunFolder) -> None:
    keeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    end(hold(run, errno.ENOLCK, str(keeper.pid)))
    assert run.in_use()
    keeper.kill()
    keeper.wait()
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert not run.in_use()


@pytest.mark.usefixtures("no_flock")
def test_a_number_that_is_used_again_is_another_process(run: RunFolder) -> None:
    (run.path / "lock").touch()
    mine = locks.identity(os.getpid())
    for name, said in (("older", {**mine, "started": "1"}), ("another boot", {**mine, "boot": "another"})):
        (run.path / f"lock.{'0' * 16}").write_text(json.dumps(said))
        assert not run.in_use(), name
    (run.path / f"lock.{'0' * 16}").write_text(json.dumps(mine))
    assert run.in_use()


@pytest.mark.usefixtures("no_flock")
def test_a_claim_of_another_machine_is_believed_and_named(run: RunFolder) -> None:
    claim = run.path / f"lock.{'0' * 16}"
    claim.write_text(json.dumps({**locks.identity(os.getpid()), "host": "another"}))
    (run.path / "lock").touch()
    assert run.in_use()
    with pytest.raises(UserError) as caught:
        run.lock(wait=0.0)
    assert str(claim) in caught.value.hints[0]
    claim.unlink()
    run.lock()
    run.close()


@pytest.mark.usefixtures("no_flock")
def test_of_many_who_come_at_once_one_has_it(tmp_path: Path) -> None:
    """Each adds to a file under the lock, reading and writing it in two steps: one lost addition would show."""
    work = (
        NO_FLOCK
        + """
import random, time
from holdfast.base.locks import Lock
lock, count = Lock(Path(sys.argv[2]) / "lock"), Path(sys.argv[2]) / "count"
for _ in range(10):
    while not lock.take():
        time.sleep(random.random() / 50)
    before = int(count.read_text())
    time.sleep(0.002)
    count.write_text(str(before + 1))
    lock.release()
"""
    )
    (tmp_path / "count").write_text("0")
    words = [sys.executable, "-c", work, str(errno.ENOLCK), str(tmp_path)]
    children = [subprocess.Popen(words) for _ in range(3)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "30"


@pytest.mark.usefixtures("no_flock")
def test_a_sign_of_life_stands_in_for_its_lock(tmp_path: Path) -> None:
    words = (
        "from holdfast.devices.device_lock import Alive\n"
        "print(Alive(Path(sys.argv[2])).hold(), flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", f"{NO_FLOCK}\n{words}", str(errno.ENOLCK), str(tmp_path / "live")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    token = child.stdout.readline().strip()
    assert token
    assert Alive(tmp_path / "live").is_held(token)
    end(child)
    assert not Alive(tmp_path / "live").is_held(token)


def test_where_there_are_locks_there_are_no_claims(run: RunFolder) -> None:
    run.lock()
    assert run.without_locks is None
    assert not list(run.path.glob("lock.*"))
    assert RunFolder(run.path).in_use()
    run.close()
    assert not run.in_use()


def test_a_run_says_in_one_line_that_a_claim_stands_in(tmp_path: Path) -> None:
    """`holdfast run`, in which every process finds a file system without locks; and what it leaves is its owner's."""
    (tmp_path / "site").mkdir()
    patch = NO_FLOCK.partition("from pathlib")[0].replace("int(sys.argv[1])", "errno.ENOLCK")
    (tmp_path / "site" / "sitecustomize.py").write_text(patch)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    look = "import os, pathlib; here = pathlib.Path(os.environ['HOLDFAST_HOOK'])\n"
    look += "print([oct(path.stat().st_mode)[-3:] for path in here.iterdir()])"
    (tmp_path / "look.py").write_text(look)
    mask = os.umask(0)
    try:
        words = [sys.executable, "-m", "holdfast", "run", "--", sys.executable, "look.py"]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    finally:
        os.umask(mask)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has no locks") == 1
    assert set(json.loads(done.stdout.replace("'", '"'))) == {"600"}
    run = next((tmp_path / "runs").iterdir())
    assert not RunFolder(run).in_use()
    assert not list(run.glob("lock.*"))
    modes = {path.name: oct(path.stat().st_mode)[-3:] for path in run.rglob("*") if path.is_file()}
    assert set(modes.values()) == {"600"}, modes


def test_a_report_of_our_own_failure_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.cli import main

    monkeypatch.chdir(tmp_path)
    mask = os.umask(0)
    try:
        report = main._write_report(ValueError("ours"), ["train"])
    finally:
        os.umask(mask)
    assert report is not None and report.parent == tmp_path
    assert oct(report.stat().st_mode)[-3:] == "600"
    assert "ValueError: ours" in report.read_text()
