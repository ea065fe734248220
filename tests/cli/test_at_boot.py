"""`holdfast resume --at-boot`: the files it writes, and a machine that goes down with everything on it."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import plistlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.base import interpreter
from holdfast.base.errors import UserError
from holdfast.run.folder import RunFolder, read_events, write_json
from holdfast.supervisor import at_boot
from holdfast.supervisor.at_boot import Job
from tests.real_faults.driving import descendants
from tests.waiting import wait_until

from .conftest import Finished, job_folder
from .driving import Done, environment, holdfast, run_folder, said

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is on Linux")
STRANGE = Path('/home/ann lee/50% "done" $HOME/it\'s ¼ back\\slash')


def job(folder: Path, **more: object) -> Job:
    return Job("calm-heron", folder, Path("/work dir/100%"), **{"python": "/opt/my py/bin/python", **more})  # type: ignore[arg-type]


# The files --------------------------------------------------------------------------------------------------------


def started(*words: str) -> list[str]:
    """The command of a start after a boot: not with what lies in the folder it is started in."""
    return interpreter.module("holdfast", *words, "--booted", "--no-progress", python="/opt/my py/bin/python")


def systemd_words(line: str) -> list[str]:
    """A command line as systemd reads it: quotes and backslashes, then $$ and %%."""
    return [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(line)]


def test_the_systemd_unit() -> None:
    text = at_boot.render(job(STRANGE, words=("--device", "cpu")), "systemd")
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    assert systemd_words(unit["Service"]["ExecStart"]) == started("resume", str(STRANGE), "--device", "cpu")
    assert unit["Service"]["WorkingDirectory"] == "/work dir/100%%"
    assert unit["Unit"]["ConditionPathExists"] == str(STRANGE).replace("%", "%%") + "/run.json"
    assert unit["Service"]["KillMode"] == "mixed", "the supervisor saves before its children are ended"
    assert unit["Service"]["SuccessExitStatus"] == "75 130 143"
    assert unit["Install"]["WantedBy"] == "default.target"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: systemd puts addresses of sockets into it."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        yield Path(folder)


@LINUX
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["plain", "with blanks and 100%"])
def test_systemd_has_nothing_to_say_about_it(tmp_path: Path, name: str, short: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    made = Job("calm-heron", folder, folder, python=sys.executable)

    def verify(text: str) -> tuple[int, str]:
        path = tmp_path / "holdfast-calm-heron.service"
        path.write_text(text)
        told = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(path)],
            env=environment(XDG_RUNTIME_DIR=str(short), HOME=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return told.returncode, told.stderr

    text = at_boot.render(made, "systemd")
    if "Failed to initialize manager" in (said := verify(text))[1]:
        pytest.skip(said[1])
    assert said == (0, "")
    assert "Failed to parse" in verify(text.replace("on-abnormal", "sometimes"))[1], "it does look"


def test_the_launchd_list() -> None:
    data = plistlib.loads(at_boot.render(job(STRANGE), "launchd").encode())
    assert data["Label"] == "org.holdfast.calm-heron"
    assert data["ProgramArguments"] == started("resume", str(STRANGE))
    assert data["WorkingDirectory"] == "/work dir/100%"
    assert (data["RunAtLoad"], data["KeepAlive"], data["ExitTimeOut"]) == (True, {"Crashed": True}, 300)
    assert "EnvironmentVariables" not in data


def test_the_windows_task() -> None:
    folder = Path("C:/My runs & more/<1>")
    root = ElementTree.fromstring(at_boot.render(job(folder), "windows").encode("utf-16"))
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    found = lambda name: root.findtext(f".//t:{name}", namespaces=space)  # noqa: E731
    assert found("Command") == "/opt/my py/bin/python"
    assert found("Arguments") == subprocess.list2cmdline(started("resume", str(folder))[1:])
    assert (found("WorkingDirectory"), found("ExecutionTimeLimit")) == ("/work dir/100%", "PT0S")
    assert (found("LogonType"), found("RunLevel")) == ("InteractiveToken", "LeastPrivilege")
    assert root.find(".//t:LogonTrigger", namespaces=space) is not None


@pytest.mark.parametrize("system", at_boot.SYSTEMS)
def test_a_run_has_one_file_and_two_of_a_name_have_two(tmp_path: Path, system: str) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/nonexistent"}
    one, other = (Job("calm-heron", tmp_path / part / "calm % & heron", tmp_path) for part in ("a", "b"))
    assert at_boot.installed(one.folder, system, env) is None
    paths = [at_boot.install(each, system, env).path for each in (one, other, one)]
    assert paths[0] == paths[2] != paths[1]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600] * 3
    assert at_boot.installed(other.folder, system, env) == paths[1]
    assert at_boot.remove(one.folder, system, env) == paths[0]
    assert at_boot.remove(one.folder, system, env) is None
    left = [path for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()]
    assert {path.name for path in left} == {paths[1].name}, "and nothing else"


@pytest.mark.parametrize("system", at_boot.SYSTEMS)
@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"<plist><x", b"garbage", b"\x00" * 99])
def test_a_foreign_file_is_left_alone(tmp_path: Path, system: str, data: bytes) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/nonexistent"}
    mine = Job("calm-heron", tmp_path / "run", tmp_path)
    theirs = at_boot.place(mine, system, env)
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(data)
    made = at_boot.install(mine, system, env)
    assert made.path != theirs
    at_boot.remove(mine.folder, system, env)
    assert theirs.read_bytes() == data and not made.path.exists()


def test_a_path_that_would_become_two_lines_is_refused() -> None:
    with pytest.raises(UserError, match="line break"):
        at_boot.render(job(Path("/a\nExecStart=/bin/sh")), "systemd")


def test_lingering(tmp_path: Path) -> None:
    linger = tmp_path / "var/lib/systemd/linger"
    linger.mkdir(parents=True)
    assert not at_boot.lingers({"USER": "ann"}, tmp_path)
    (linger / "ann").touch()
    assert at_boot.lingers({"USER": "ann"}, tmp_path)
    assert not at_boot.lingers({"USER": "../linger/ann"}, tmp_path)


# The command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(finished: Finished, tmp_path: Path) -> RunFolder:
    """A run that can go on, in a folder of its own."""
    shutil.copy(finished.cwd / "job.py", tmp_path / "job.py")
    copy = tmp_path / "runs" / finished.path.name
    shutil.copytree(finished.path, copy)
    info = RunFolder(copy).info
    RunFolder(copy).vouch({**info, "script": str(tmp_path / "job.py"), "cwd": str(tmp_path), "state": "STOPPED"})
    return RunFolder(copy)


def asked(run: RunFolder, *words: str, **env: str) -> Done:
    cwd = run.path.parents[1]
    return said("resume", *words, run.name, cwd=cwd, HOME=str(cwd / "home"), **env)


@LINUX
def test_installing_showing_and_removing(stopped: RunFolder) -> None:
    home = stopped.path.parents[1] / "home"
    unit = home / f".config/systemd/user/holdfast-{stopped.name}.service"
    shown = asked(stopped, "--at-boot", "--print")
    assert (shown.code, unit.exists()) == (0, False)
    done = asked(stopped, "--at-boot")
    assert done.code == 0, done.err
    assert done.out == (
        f"✓ {stopped.name} continues automatically after a reboot, until it is finished\n"
        f"  file       ~/.config/systemd/user/holdfast-{stopped.name}.service\n"
        f"  starts in  {home.parent}\n"
        f"  undo       holdfast resume --at-boot --remove {stopped.name}\n"
    )
    assert unit.read_text() == shown.out
    link = unit.parent / "default.target.wants" / unit.name
    assert link.resolve() == unit.resolve()
    assert os.environ["HOLDFAST_STATE"] not in unit.read_text()
    again = asked(stopped, "--at-boot", "--json", "--device", "cpu")
    assert again.json["path"] == str(unit) and again.json["command"][-4:] == [
        "--device",
        "cpu",
        "--booted",
        "--no-progress",
    ]
    gone = asked(stopped, "--at-boot", "--remove")
    assert (gone.code, gone.out) == (0, f"✓ {stopped.name} no longer continues after a reboot\n")
    assert not unit.exists() and not link.is_symlink()
    assert asked(stopped, "--at-boot", "--remove").out == (
        f"{stopped.name} does not continue after a reboot: nothing to remove\n"
    )


@LINUX
def test_variables_are_named_and_never_copied(stopped: RunFolder) -> None:
    done = asked(stopped, "--at-boot", HSA_OVERRIDE_GFX_VERSION="10.3.0", HF_TOKEN="hf_secret")
    unit = next((stopped.path.parents[1] / "home").rglob("*.service"))
    assert "10.3.0" not in unit.read_text() and "hf_secret" not in unit.read_text()
    ours = ["PYTHONPATH"] if "PYTHONPATH" in os.environ else []
    named = ", ".join(["HSA_OVERRIDE_GFX_VERSION", *ours, "HOLDFAST_STATE"])
    assert f"• set here but not after a boot: {named};" in done.err
    assert "HF_TOKEN" not in done.err + done.out


def test_what_is_refused(stopped: RunFolder, finished: Finished) -> None:
    for words, message in (
        (("--remove",), "`--remove` belongs to `--at-boot`"),
        (("--print",), "`--print` belongs to `--at-boot`"),
        (("--at-boot", "--detach"), "`--at-boot` and `--detach` cannot be combined: `--at-boot` starts nothing now"),
    ):
        done = asked(stopped, *words)
        assert (done.code, done.err.splitlines()[0]) == (2, f"error: {message}")
    done = said("resume", "--at-boot", stopped.name, "--", "--token", "x", cwd=stopped.path.parents[1])
    assert (done.code, done.err.splitlines()[0]) == (2, "error: `--at-boot` takes no arguments after `--`")
    hidden = {**stopped.info, "argv": ["--token", "***"]}
    write_json(stopped.path / "run.json", hidden)
    done = asked(stopped, "--at-boot")
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        "error: this run was started with a secret, and secrets are not stored",
    )
    over = said("resume", "--at-boot", finished.name, cwd=finished.cwd)
    assert (over.code, over.out.splitlines()[0]) == (0, f"✓ {finished.name} is finished: 24 steps")


@LINUX
def test_what_a_boot_does_with_a_run_that_needs_nothing(stopped: RunFolder) -> None:
    """Finished, and the file is gone; failed, and it waits."""
    assert asked(stopped, "--at-boot").code == 0
    home = stopped.path.parents[1] / "home"
    write_json(stopped.path / "run.json", {**stopped.info, "state": "FAILED"})
    done = asked(stopped, "--booted")
    assert done.code == 0 and "waits for you: its script failed" in done.err
    assert list(home.rglob("*.service"))
    write_json(stopped.path / "run.json", {**stopped.info, "state": "FINISHED"})
    done = asked(stopped, "--booted")
    assert (done.code, done.err) == (0, f"{stopped.name} is finished; it is no longer started after a boot\n")
    assert not list(home.rglob("*.service"))


# The machine goes down ----------------------------------------------------------------------------------------------


def power_off(run: RunFolder) -> None:
    """Everything at once: nobody has the time to save, or to say a word."""
    supervisor = int(run.info["pid"])
    family = {supervisor, *descendants(supervisor)}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    assert wait_until(lambda: not run.in_use()), "the lock to be free"


def boot(number: int, home: Path) -> subprocess.Popen[str]:
    """What systemd does: the command of the unit, in its folder, with nothing but a home."""
    unit = next(home.rglob("holdfast-*.service")).read_text()
    service = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    return subprocess.Popen(
        systemd_words(service["ExecStart"]),
        cwd=service["WorkingDirectory"],
        env=environment(HOME=str(home), HOLDFAST_BOOT_ID=f"boot-{number}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def train_and_install(cwd: Path, *words: str) -> RunFolder:
    """A run in boot 1 that is to go on after the next."""
    home = str(cwd / "home")
    words = ("train", "job.py", "lr=0.1", "epochs=3", "run.threads=1", "checkpoint.every=1s", "--detach", *words)
    started = holdfast(*words, cwd=cwd, HOME=home, HOLDFAST_BOOT_ID="boot-1")
    assert started.code == 0, started.err
    run = RunFolder(run_folder(cwd))
    assert holdfast("resume", "--at-boot", run.name, cwd=cwd, HOME=home).code == 0
    return run


def saved(run: RunFolder) -> int:
    return max((int(path.name) for path in (run.path / "checkpoints").glob("[0-9]*")), default=0)


@pytest.mark.long
@LINUX
@pytest.mark.timeout(400)
def test_a_run_outlives_the_machine(tmp_path_factory: pytest.TempPathFactory, finished: Finished) -> None:
    """Killed with everything on it, booted, gone on with by the unit, finished with the same bits; the unit is gone."""
    cwd = job_folder(tmp_path_factory)
    run = train_and_install(cwd, "nap=0.2", "--device", "cpu")
    assert wait_until(lambda: saved(run)), "a checkpoint"
    power_off(run)
    with boot(2, cwd / "home") as booted:
        _, said = booted.communicate(timeout=240)
    assert booted.returncode == 0, said
    assert run.state() == "FINISHED"
    receipt = json.loads((run.path / "receipt.json").read_text())
    assert receipt["weights_sha256"] == finished.done.json["receipt"]["weights_sha256"], "the same bits"
    assert receipt["faults"] == {"machine_down": 1}
    (fault,) = [event for event in read_events(run.path / "journal.jsonl") if event.kind == "fault"]
    assert (fault.data["code"], fault.data["sentence"]) == ("F020", "the machine went down")
    assert not list(cwd.rglob("*.service")), "a finished run is not started again"


@pytest.mark.long
@LINUX
@pytest.mark.timeout(400)
def test_a_device_that_freezes_the_machine_twice_is_not_used_a_third_time(
    tmp_path_factory: pytest.TempPathFactory, finished: Finished
) -> None:
    """With probation off, so that the first freeze alone keeps nobody from using it again at once."""
    cwd = job_folder(tmp_path_factory)
    run = train_and_install(cwd, "nap=0.5", "--device", "pretend:0", "probation.enabled=false")
    assert wait_until(lambda: saved(run)), "a checkpoint"
    power_off(run)
    before = saved(run)
    with boot(2, cwd / "home") as booted:
        assert wait_until(lambda: saved(run) > before), "a checkpoint after the first reboot"
        assert run.info["device"] == "pretend:0"
        power_off(run)
        assert booted.stderr is not None
        booted.stderr.read()
    with boot(3, cwd / "home") as booted:
        _, said = booted.communicate(timeout=240)
    assert booted.returncode == 0, said
    texts = [str(event.data["text"]) for event in read_events(run.path / "journal.jsonl") if event.kind == "trust"]
    assert [text.partition("; ")[2] for text in texts if text.startswith(f"pretend:0 in {run.name}")] == [
        "it is on probation",
        "it is in quarantine",
    ]
    assert "pretend:0 is in quarantine: the machine went down 2 times while it was in use" in texts
    receipt = json.loads((run.path / "receipt.json").read_text())
    assert receipt["faults"] == {"machine_down": 2}
    assert receipt["weights_sha256"] == finished.done.json["receipt"]["weights_sha256"]
    assert run.info["device"] == "cpu"
