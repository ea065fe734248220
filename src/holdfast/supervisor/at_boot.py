"""Going on after a reboot without anybody: a file for systemd, launchd or the Windows Task Scheduler.

    job = Job("calm-heron", folder, cwd=Path.cwd())
    system = find_system()                     # "systemd", "launchd" or "windows"
    render(job, system)                        # the text of the unit, plist or task
    done = install(job, system)                # written and enabled; done.notes says what is left to do
    remove(job.folder, system)

The job is `holdfast resume FOLDER --booted`, which does nothing to a run that is finished, in use, or whose script
failed, and removes its own file once the run is finished. No environment is copied: it may hold secrets, and files
that start programs are read by others. Variables a run needs are named to the user instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base import interpreter
from holdfast.base.errors import UserError

SYSTEMS = ("systemd", "launchd", "windows")
STOP_PATIENCE = 300
"""Seconds a run has to save its state when the machine is shut down."""
LOG = "supervisor.log"
_MARK = "X-HoldfastRun="
_PATIENCE = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be started after a boot."""

    name: str
    folder: Path
    """The run, absolute."""
    cwd: Path
    """Where it is started: a script may open files relative to it."""
    words: tuple[str, ...] = ()
    """Settings and flags for `resume`."""
    python: str = sys.executable

    @property
    def command(self) -> list[str]:
        words = ["resume", str(self.folder), *self.words, "--booted", "--no-progress"]
        return interpreter.module("holdfast", *words, python=self.python)

    @property
    def safe_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.name).strip("-") or "run"


@dataclass(slots=True)
class Done:
    """What was installed or removed, and what is left for the user."""

    path: Path
    enabled: bool = True
    notes: list[str] = field(default_factory=list)


def find_system() -> str:
    """The one of this machine; UserError where there is none of the three."""
    if sys.platform == "darwin":
        return "launchd"
    if sys.platform == "win32":
        return "windows"
    if shutil.which("systemctl") or Path("/run/systemd/system").exists():
        return "systemd"
    raise UserError(
        "this machine has no service that can start a run after a boot",
        cause="there is no systemd",
        hints=["add the command that `--print` shows to your start-up files, for example with `@reboot` in crontab"],
    )


def render(job: Job, system: str) -> str:
    """The file as text."""
    for text in (str(job.folder), str(job.cwd), job.python, *job.words):
        if any(ord(letter) < 32 for letter in text):
            raise UserError("a path with a line break cannot be started after a boot", cause=repr(text))
    return {"systemd": _systemd, "launchd": _launchd, "windows": _windows}[system](job)


def place(job: Job, system: str, env: Mapping[str, str] | None = None) -> Path:
    """Where the file belongs; a run keeps the file it has, and two runs of one name get two."""
    known = installed(job.folder, system, env)
    if known is not None:
        return known
    folder = _folder(system, env)
    path = folder / _file_name(system, job.safe_name)
    if path.exists():
        path = folder / _file_name(
            system, f"{job.safe_name}-{hashlib.sha256(str(job.folder).encode()).hexdigest()[:6]}"
        )
    return path


def installed(run: Path, system: str, env: Mapping[str, str] | None = None) -> Path | None:
    """The file that goes on with this run, if there is one."""
    for path in sorted(_folder(system, env).glob(_file_name(system, "*"))):
        if _run_of(path, system) == str(run):
            return path
    return None


def every(system: str, env: Mapping[str, str] | None = None) -> list[tuple[Path, str]]:
    """Every file of ours, with the run that it continues."""
    found = [(path, _run_of(path, system)) for path in sorted(_folder(system, env).glob(_file_name(system, "*")))]
    return [(path, run) for path, run in found if run is not None]


def install(job: Job, system: str, env: Mapping[str, str] | None = None) -> Done:
    """Write the file and have it started at every boot; what cannot be done here is told."""
    env = os.environ if env is None else env
    path = place(job, system, env)
    text = render(job, system)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-16" if system == "windows" else "utf-8")
        path.chmod(0o600)
    except OSError as error:
        raise UserError(f"cannot write {path}", cause=str(error.strerror or error)) from None
    done = Done(path)
    if system == "systemd":
        _enable(done, env)
    elif system == "windows":
        _create_task(done)
    else:
        done.notes.append("it starts when you log in; a Mac that logs in by itself starts it at boot")
    return done


def remove(run: Path, system: str, env: Mapping[str, str] | None = None) -> Path | None:
    """Take it away again; None if there was none. Works from inside the job as well."""
    env = os.environ if env is None else env
    path = installed(run, system, env)
    if path is None:
        return None
    if system == "systemd":
        _ask(["systemctl", "--user", "--quiet", "disable", path.name], env)
        with contextlib.suppress(OSError):
            _link(path).unlink()
    elif system == "windows":
        _ask(["schtasks", "/Delete", "/F", "/TN", _task(path)], env)
    with contextlib.suppress(OSError):
        path.unlink()
    if system == "systemd":
        _ask(["systemctl", "--user", "--quiet", "daemon-reload"], env)
    return path


# systemd ------------------------------------------------------------------------------------------------------


def _systemd(job: Job) -> str:
    return f"""\
[Unit]
Description=holdfast: go on with {_plain(job.name)} after a boot
{_MARK}{_plain(str(job.folder))}
ConditionPathExists={_plain(str(job.folder))}/run.json
StartLimitIntervalSec=1h
StartLimitBurst=5

[Service]
Type=exec
WorkingDirectory={_plain(str(job.cwd))}
ExecStart={" ".join(_quoted(word) for word in job.command)}
StandardOutput=append:{_plain(str(job.folder))}/{LOG}
StandardError=inherit
# The supervisor is asked to stop and saves the state; only what is left after that is killed.
KillMode=mixed
TimeoutStopSec={STOP_PATIENCE}
# 75 and 130: stopped with the state saved, 143: stopped at once.
SuccessExitStatus=75 130 143
Restart=on-abnormal
RestartSec=30

[Install]
WantedBy=default.target
"""


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command: systemd reads %, $, quotes and backslashes in it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _enable(done: Done, env: Mapping[str, str]) -> None:
    told = _ask(["systemctl", "--user", "--quiet", "enable", done.path.name], env)
    link = _link(done.path)
    if told is not None and not link.is_symlink():  # what `enable` does, where it cannot be asked
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(done.path)
        except OSError as error:
            done.enabled = False
            done.notes.append(f"it is not enabled: {error.strerror or error}")
    _ask(["systemctl", "--user", "--quiet", "daemon-reload"], env)
    if not lingers(env):
        done.notes.append("it starts when you log in; to start it at boot, run `loginctl enable-linger` once")


def lingers(env: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether this user's services are started without a login."""
    user = env.get("USER") or env.get("LOGNAME") or ""
    if not user and sys.platform != "win32":
        import pwd

        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(os.getuid()).pw_name
    return bool(user) and "/" not in user and (root / "var/lib/systemd/linger" / user).exists()


def _link(path: Path) -> Path:
    return path.parent / "default.target.wants" / path.name


# launchd ------------------------------------------------------------------------------------------------------


def _launchd(job: Job) -> str:
    import plistlib

    log = str(job.folder / LOG)
    return plistlib.dumps(
        {
            "Label": f"org.holdfast.{job.safe_name}",
            "HoldfastRun": str(job.folder),
            "ProgramArguments": job.command,
            "WorkingDirectory": str(job.cwd),
            "RunAtLoad": True,
            "KeepAlive": {"Crashed": True},
            "ThrottleInterval": 30,
            "ExitTimeOut": STOP_PATIENCE,
            "ProcessType": "Standard",
            "StandardOutPath": log,
            "StandardErrorPath": log,
        },
        sort_keys=False,
    ).decode()


# Windows ------------------------------------------------------------------------------------------------------


def _windows(job: Job) -> str:
    from xml.sax.saxutils import escape

    arguments = escape(subprocess.list2cmdline(job.command[1:]))
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>holdfast: go on with {escape(job.name)} after a boot</Description>
    <Documentation>{escape(str(job.folder))}</Documentation>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger><Enabled>true</Enabled></LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(job.python)}</Command>
      <Arguments>{arguments}</Arguments>
      <WorkingDirectory>{escape(str(job.cwd))}</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
"""


def _create_task(done: Done) -> None:
    problem = _ask(["schtasks", "/Create", "/F", "/TN", _task(done.path), "/XML", str(done.path)], os.environ)
    done.enabled = problem is None
    if problem is not None:
        done.notes.append(f"the task could not be made: {problem}")
    done.notes.append("it starts when you log in")


def _task(path: Path) -> str:
    return f"holdfast\\{path.stem}"


# Files --------------------------------------------------------------------------------------------------------


def _folder(system: str, env: Mapping[str, str] | None) -> Path:
    env = os.environ if env is None else env
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    if system == "launchd":
        return home / "Library" / "LaunchAgents"
    if system == "windows":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local", "holdfast", "tasks")
    xdg = env.get("XDG_CONFIG_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".config") / "systemd" / "user"


def _file_name(system: str, name: str) -> str:
    return {
        "systemd": f"holdfast-{name}.service",
        "launchd": f"org.holdfast.{name}.plist",
        "windows": f"{name}.xml",
    }[system]


def _run_of(path: Path, system: str) -> str | None:
    """The run a file goes on with; None for a file that is none of ours."""
    try:
        data = path.read_bytes()
        if system == "launchd":
            import plistlib

            return str(plistlib.loads(data).get("HoldfastRun"))
        if system == "windows":
            from xml.sax.saxutils import unescape

            found = re.search(r"<Documentation>(.*)</Documentation>", data.decode("utf-16"))
            return unescape(found[1]) if found else None
        marked = re.search(rf"^{_MARK}(.*)$", data.decode(), re.MULTILINE)
        return marked[1].replace("%%", "%") if marked else None
    except Exception:  # whatever a foreign file does to its parser, it is none of ours
        return None


def _ask(words: list[str], env: Mapping[str, str]) -> str | None:
    """None if it worked, else what was wrong."""
    try:
        told = subprocess.run(
            words,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None if told.returncode == 0 else (told.stderr.strip() or f"it ended with {told.returncode}")
