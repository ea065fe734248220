"""A second user on the machine: a run folder that somebody else owns or can change is not resumed, nor written to."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli import resume_trust
from holdfast.run.folder import RunFolder
from tests.cli.driving import holdfast

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users as on Unix")
ROOT = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become a second user and give files away"
)
NOBODY = 65534
SCRIPT = "def train(session):\n    raise SystemExit('it ran')\n"


@pytest.fixture
def run() -> Iterator[RunFolder]:
    """A run that was started here, with nothing wrong but what a test does to it; the second user can get there."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as name:
        place = Path(name)
        for script in ("job.py", "other.py"):
            (place / script).write_text(SCRIPT)
        info = {"created": "2026-11-15T09:12:00Z", "state": "STOPPED", "script": str(place / "job.py"), "argv": []}
        made = RunFolder.create(place / "runs", "job", {**info, "arguments": {}, "settings": {}, "cwd": name})
        for folder in (place, place / "runs"):
            folder.chmod(0o755)
        yield made


def everything(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (
            path.read_bytes() if path.is_file() else b"",
            status.st_mode,
            status.st_ino,
        )
    return found


def refused(run: RunFolder, ways: int = 5) -> str:
    """Neither as it is, nor with another script, nor on ranks, nor at boot; and nothing is written before that."""
    before, cwd = everything(run.path), run.path.parents[1]
    said = set()
    for words in (
        ("resume", str(run.path), "--script", "other.py"),
        ("resume", str(run.path)),
        ("resume", str(run.path), "--script", "other.py", "--detach"),
        ("resume", str(run.path), "--at-boot"),
        ("launch", "--resume", str(run.path), "--script", "other.py", "--nproc", "1"),
    )[:ways]:
        done = holdfast(*words, cwd=cwd, HOME=str(cwd / "home"))
        assert (done.code, done.out) == (2, ""), (words, done)
        assert everything(run.path) == before, words
        said.add(done.err)
    assert len(said) == 1, said
    assert not (cwd / "home").exists()
    return said.pop()


def as_nobody(work: Callable[[], None], group: int = NOBODY) -> None:
    """In a process of the second user's; what goes wrong there is shown here."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(NOBODY)
            work()
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    assert not said, said


def rewrite(run: RunFolder) -> None:
    """Another script, by the way that the permissions leave open."""
    text = json.dumps({**run.info, "script": "/tmp/evil.py"})
    path = run.path / "run.json"
    if os.access(path, os.W_OK):
        path.write_text(text)
    else:
        (run.path / "new").write_text(text)
        (run.path / "new").replace(path)


@pytest.mark.parametrize(
    ("folder", "file", "who"),
    [
        (0o770, 0o600, "its group"),
        (0o750, 0o660, "its group"),
        (0o777, 0o600, "anybody"),
        (0o755, 0o606, "anybody"),
    ],
)
def test_a_folder_that_others_can_change(run: RunFolder, folder: int, file: int, who: str) -> None:
    run.path.chmod(folder)
    (run.path / "run.json").chmod(file)
    with pytest.raises(UserError) as caught:
        resume_trust.check_owner(run)
    assert caught.value.message == f"{run.name} can be changed by {who}"
    assert caught.value.hints == (f"if it still says what you started: `chmod -R go-w {run.path}`",)


@pytest.mark.all
@ROOT
@pytest.mark.parametrize(("folder", "file"), [(0o770, 0o640), (0o750, 0o660)], ids=["replaced", "written"])
def test_somebody_of_the_group_does_change_it(run: RunFolder, folder: int, file: int) -> None:
    """The attack itself: the second user is in the group of the folder, and names another script."""
    for path, mode in ((run.path, folder), (run.path / "run.json", file)):
        os.chown(path, -1, NOBODY)
        path.chmod(mode)
    as_nobody(lambda: rewrite(run))
    assert run.info["script"] == "/tmp/evil.py", "the attack works"
    replaced = folder & stat.S_IWGRP
    said = refused(run, 1)
    assert said.startswith(
        f"error: {run.name} {'belongs to another user' if replaced else 'can be changed by its group'}\n"
    )


@pytest.mark.all
@ROOT
def test_a_folder_of_another_user_that_holds_my_run(run: RunFolder) -> None:
    """Its owner can put another run.json there at any moment."""
    os.chown(run.path, NOBODY, -1)
    assert (run.path / "run.json").stat().st_uid == os.getuid() and stat.S_IMODE(run.path.stat().st_mode) == 0o700
    said = refused(run)
    assert said == (
        f"error: {run.name} belongs to another user\n"
        f"  cause: its folder is owned by uid {NOBODY}, and resuming runs the script it names\n\n"
        "hint: copy the folder if you trust it: the copy is yours\n"
    )
    as_nobody(lambda: rewrite(run))
    assert run.info["script"] == "/tmp/evil.py", "it would have been too late to look at run.json alone"


@ROOT
def test_the_second_user_does_not_resume_mine(run: RunFolder) -> None:
    run.path.chmod(0o755)
    (run.path / "run.json").chmod(0o644)

    def look() -> None:
        with pytest.raises(UserError, match="belongs to another user"):
            resume_trust.check_owner(RunFolder(run.path))
        assert not run.vouched, "the key of the first user cannot be read"

    as_nobody(look)
    resume_trust.check_owner(run)
    assert run.vouched


def test_a_run_that_is_a_link(run: RunFolder, tmp_path: Path) -> None:
    """What it leads to is mine, and the link may lead elsewhere in the next moment."""
    shutil.move(run.path / "run.json", tmp_path / "real.json")
    (run.path / "run.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(UserError, match=f"the run.json of {run.name} is a link"):
        resume_trust.check_owner(run)
