"""A received, copied or changed run folder: what its run.json names is shown and agreed to before it is started."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.state_folder import state_folder
from holdfast.cli.resume_trust import visible
from holdfast.run import seal
from holdfast.run.folder import RunFolder, list_runs
from tests.cli.driving import Terminal, holdfast

SCRIPT = """\
from pathlib import Path


def train(session, mark="mark"):
    Path(__file__).with_name(mark).write_text("it ran")
"""


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, and what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[RunFolder]:
    """A run of `holdfast run` whose command this user typed here."""
    runs = tmp_path / "runs"
    done = holdfast("run", f"run.folder={runs}", "--", "sh", "-c", "echo started >> mark", cwd=tmp_path)
    assert done.code == 0, done.err
    (run,) = list_runs(runs)
    run.update_info(state="STOPPED", exit_code=75)
    yield run


@pytest.fixture
def job(tmp_path: Path) -> RunFolder:
    """A run of `holdfast train` that was just made: no torch is needed to refuse it."""
    (tmp_path / "job.py").write_text(SCRIPT)
    info = {"created": "2026-11-15T09:12:00Z", "state": "STOPPED", "script": str(tmp_path / "job.py"), "argv": []}
    return RunFolder.create(tmp_path / "runs", "job", {**info, "arguments": {}, "settings": {}, "cwd": str(tmp_path)})


def change(run: RunFolder, **words: Any) -> None:
    """As an attacker writes it: the seal stays what it was."""
    (run.path / "run.json").write_text(json.dumps({**run.info, **words}))


def refused(run: RunFolder, *words: str, cwd: Path | None = None) -> str:
    """It ends with code 2, and nothing in the folder is another than before."""
    before = files(run.path)
    done = holdfast("resume", str(run.path), *words, cwd=cwd or run.path.parents[1])
    assert (done.code, done.out) == (2, ""), done
    assert files(run.path) == before
    return done.err


# Where it comes from ------------------------------------------------------------------------------------------


@pytest.mark.all
def test_what_was_started_here_goes_on_and_what_was_not_does_not(shell: RunFolder, tmp_path: Path) -> None:
    """The command itself, a changed one, a copy, an archive that was unpacked, a folder that was moved."""
    mark = tmp_path / "mark"
    assert holdfast("resume", str(shell.path), cwd=Path("/")).code == 0
    assert mark.read_text() == "started\n" * 2

    shell.update_info(state="STOPPED")
    evil = "echo \x1b[2J; echo evil >> mark"
    honest = (shell.path / "run.json").read_bytes()
    change(shell, command=["sh", "-c", evil])
    said = refused(shell)
    assert "was not started here by you, or its run.json was changed since: there is no terminal to ask you in" in said
    assert f"cause: it would run sh -c 'echo \\x1b[2J; echo evil >> mark' in {tmp_path}\n" in said
    assert "hint: or give it yourself: `holdfast resume" in said and "-- COMMAND`" in said
    assert "\x1b" not in said

    (shell.path / "run.json").write_bytes(honest)
    copy = RunFolder(tmp_path / "copies" / shell.path.name)
    shutil.copytree(shell.path, copy.path)
    assert "was not started here" in refused(copy)
    with tarfile.open(tmp_path / "run.tar", "w") as archive:
        archive.add(shell.path, arcname=shell.path.name)
    with tarfile.open(tmp_path / "run.tar") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert "was not started here" in refused(RunFolder(tmp_path / "unpacked" / shell.path.name))

    moved = shell.path.rename(tmp_path / "elsewhere")
    assert holdfast("resume", str(moved), cwd=Path("/")).code == 0
    assert mark.read_text() == "started\n" * 3, "nothing but what was typed here ever ran"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cwd", "/tmp"),
        ("resume_with", "--ckpt /tmp/evil.pt"),
        ("settings", {"run": {"portable": True}}),
        ("saves", [["/tmp/evil.pt", 3]]),
        ("kind", "external"),
        ("argv", ["--exec", "evil"]),
        ("arguments", {"data": "/tmp/evil"}),
        ("script", "/tmp/evil.py"),
        ("stages", {"of": "eeg", "left": ["eeg-challenge1"], "words": ["data=/tmp/evil"]}),
    ],
)
def test_whatever_a_resume_would_use_is_sealed(job: RunFolder, name: str, value: Any) -> None:
    assert job.vouched
    change(job, **{name: value})
    assert not job.vouched


def test_a_script_through_the_current_folder_is_another_script_elsewhere(job: RunFolder, tmp_path: Path) -> None:
    """/proc/self/cwd is a path that anybody's folder fits."""
    if not os.path.exists("/proc/self/cwd"):
        pytest.skip("there is no /proc here")
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "job.py").write_text(SCRIPT)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        job.vouch({**job.info, "script": "/proc/self/cwd/job.py"})
        assert job.vouched, "where it was started it is the same file"
    finally:
        os.chdir(before)
    assert "it would run holdfast train /proc/self/cwd/job.py" in refused(job, cwd=trap)
    assert not (trap / "mark").exists()


@pytest.mark.all
def test_every_way_in_is_guarded(job: RunFolder, tmp_path: Path) -> None:
    """Resume now, in the background, after a boot, on several ranks, in a cloud, and what follows a finished stage."""
    change(job, script=str(tmp_path / "job.py"), arguments={"mark": "evil"})
    before, home = files(job.path), {"HOME": str(tmp_path / "home")}
    path = str(job.path)
    for words in (
        ("resume", path),
        ("resume", path, "--detach"),
        ("resume", path, "--booted", "--no-progress"),
        ("resume", path, "--at-boot"),
        ("resume", path, "--", "more"),  # arguments of a script are not the script
        ("launch", "--resume", path, "--nproc", "1"),
        ("launch", "--cloud", "--resume", path, "--price", "1", "--dryrun"),
    ):
        done = holdfast(*words, cwd=tmp_path, **home)
        assert done.code == 2 and "was not started here by you" in done.err, (words, done)
        assert "job.py mark=evil" in done.err, words
        assert files(job.path) == before, words
    assert not (tmp_path / "home").exists() and not list(tmp_path.glob("*.yaml"))
    change(job, state="FINISHED", workload="eeg-pretrain",
           stages={"of": "eeg", "left": ["eeg-challenge1"], "words": ["data=/tmp/evil"]})  # fmt: skip
    assert "it would run holdfast train eeg data=/tmp/evil" in refused(job)
    assert len(list_runs(tmp_path / "runs")) == 1 and not (tmp_path / "evil").exists()


# How it is agreed to --------------------------------------------------------------------------------------------


def test_a_typed_yes_and_nothing_else(shell: RunFolder, tmp_path: Path) -> None:
    """All of it is shown, nothing of it acts, and a yes is remembered for what was shown."""
    change(shell, command=["sh", "-c", "echo agreed >> mark #\x1b]0;x\x07\n#\u202e"])
    before = files(shell.path)
    for answer in ("", "y"):
        terminal = Terminal("resume", str(shell.path), cwd=tmp_path, columns=200)
        terminal.wait_for("Type yes to run it:")
        terminal.type(f"{answer}\n")
        assert terminal.wait() == 2, terminal.text
        assert "the answer was not yes" in terminal.text
        assert r"echo agreed >> mark #\x1b]0;x\x07\n#\u202e" in terminal.text
        assert "\x07" not in terminal.raw and "\x1b]0" not in terminal.raw and "\u202e" not in terminal.raw
        terminal.end()
        assert files(shell.path) == before
    terminal = Terminal("resume", str(shell.path), cwd=tmp_path, columns=200)
    terminal.wait_for("Type yes to run it:")
    terminal.type("yes\n")
    assert terminal.wait() == 0, terminal.text
    terminal.end()
    assert (tmp_path / "mark").read_text() == "started\nagreed\n"
    shell.update_info(state="STOPPED")
    assert holdfast("resume", str(shell.path), cwd=tmp_path).code == 0, "it was agreed to"
    change(shell, state="STOPPED", resume_with="--other")
    refused(shell)


@pytest.mark.all
def test_a_command_that_is_given_again_runs_where_it_is_typed(shell: RunFolder, tmp_path: Path) -> None:
    """The folder, the words to go on with and the checkpoints that a received run.json names are not used."""
    trap, here = tmp_path / "trap", tmp_path / "here"
    for folder in (trap, here):
        folder.mkdir()
        (folder / "job.sh").write_text(f"echo {folder.name} >> {tmp_path}/said; echo $# >> {tmp_path}/said\n")
    change(shell, command=["sh", "job.sh"], cwd=str(trap), resume_with="evil", saves=[["/tmp/evil.pt", 3]])
    done = holdfast("resume", str(shell.path), "--", "sh", "job.sh", cwd=here)
    assert done.code == 0, done.err
    assert (tmp_path / "said").read_text() == "here\n0\n"
    info = shell.info
    assert (info["cwd"], info["resume_with"], info["saves"]) == (str(here), None, None) and shell.vouched


@pytest.mark.all
def test_a_script_that_is_given_again_is_checked_before_it_is_written_down(job: RunFolder, tmp_path: Path) -> None:
    change(job, script="/tmp/evil.py")
    (tmp_path / "broken.py").write_text("def train(")
    (tmp_path / "other.py").write_text("def train(session): pass\n")
    assert "no script" in refused(job, "--script", "nowhere.py")
    assert "is not Python" in refused(job, "--script", "broken.py")
    change(job, arguments={"mark": "x"})
    assert "unknown setting `mark`" in refused(job, "--script", "other.py")
    assert "names a script inside its own folder" in refused(job, "--script", str(job.path / "run.json"))


# The seal -------------------------------------------------------------------------------------------------------


def test_trust_is_handed_on_and_never_made(job: RunFolder, tmp_path: Path) -> None:
    job.update_info(threads=3, state="RUNNING")
    assert job.vouched, "a change by holdfast itself keeps it"
    change(job, script="/tmp/evil.py")
    job.update_info(threads=4)
    assert not job.vouched, "a change by somebody else is not made good by the next one of ours"
    job.vouch({**job.info, "script": str(tmp_path / "job.py")})
    job.lock()
    job.move_to(tmp_path / "rescue" / "other")
    assert job.vouched and job.path == tmp_path / "rescue" / "other"
    job.close()


def test_the_key_is_private_and_another_one_vouches_for_nothing(job: RunFolder) -> None:
    path = state_folder() / seal.KEY
    first = path.read_bytes()
    assert len(first) == 32 and path.stat().st_mode & 0o777 == 0o600
    assert seal.key() == first and job.vouched
    path.chmod(0o644)
    assert not job.vouched, "others could have read it"
    assert seal.key() not in (None, first), "a new one takes its place"
    assert not job.vouched
    path.unlink()
    path.symlink_to(job.path / "run.json")
    assert not job.vouched
    path.unlink()
    state_folder().rename(state_folder().with_name("taken"))
    state_folder().write_text("no folder can be made here")
    assert seal.key() is None and seal.made(job.path, job.info) == {}
    change(job, seal={})
    assert not job.vouched, "an empty seal is none"


@pytest.mark.parametrize("seals", [None, "x", [], {"path": None}, {"path": 3, "folder": "\ud800"}, {"path": ""}])
def test_a_seal_that_is_none(job: RunFolder, seals: Any) -> None:
    change(job, seal=seals)
    assert not job.vouched


def test_what_is_shown_is_all_there_is() -> None:
    assert visible("a\x1b[31m\u202eb\n\u2028é\ud800 c") == r"a\x1b[31m\u202eb\n\u2028é\ud800 c"
