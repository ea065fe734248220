"""Running a command as a person does: another process, its text, its exit code."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from . import driving
from .driving import holdfast

# One command alone, the way `holdfast` runs it: what is tested is that command's own imports and words.
DRIVER = """\
import argparse, importlib, sys
from holdfast.console.output import Output
from holdfast.base.errors import HoldfastError

parser = argparse.ArgumentParser(prog="holdfast")
importlib.import_module(f"holdfast.cli.{sys.argv[1]}").add_parser(parser.add_subparsers())
args = parser.parse_args()
try:
    code = args.run(args)
except HoldfastError as error:
    Output.from_args(args).error(error)
    code = int(error.exit_code)
for name in ("torch", "numpy", "rich"):
    assert name not in sys.modules, f"{name} was imported"
sys.exit(code)
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """`command("config", "-v", env={...})` in an empty folder with an empty home, without a terminal."""
    folder, home = tmp_path / "here", tmp_path / "home"
    folder.mkdir()
    home.mkdir()

    def run(*argv: str, env: dict[str, str] | None = None) -> Done:
        names = ("PATH", "SYSTEMROOT", "PYTHONPATH", "HOLDFAST_STATE")
        keep = {name: os.environ[name] for name in names if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *argv],
            cwd=folder,
            env={**keep, "HOME": str(home), "PYTHONIOENCODING": "utf-8", **(env or {})},
            capture_output=True,
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def here(tmp_path: Path, command: Command) -> Path:
    """The folder that `command` runs in."""
    return tmp_path / "here"


# Runs that several tests look at: each costs an import of torch, so they are made once.


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run that went undisturbed to its end, with --json. Tests read and copy it; the processes of pytest share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = shared / "finished.json"
    with open(shared / "finished.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = job_folder(tmp_path_factory)
            done = holdfast("train", "job.py", "lr=0.1", "epochs=3", "run.threads=1", "--json", cwd=folder)
            made.write_text(json.dumps([str(folder), asdict(done)]))
    folder_name, words = json.loads(made.read_text())
    return Finished(Path(folder_name), driving.Done(**words))


@dataclass(frozen=True)
class Finished:
    cwd: Path
    done: driving.Done

    @property
    def name(self) -> str:
        return str(self.done.json["run"])

    @property
    def path(self) -> Path:
        return Path(self.done.json["folder"])


def job_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder with a small script in it."""
    folder = factory.mktemp("job")
    (folder / "job.py").write_text(driving.SCRIPT)
    return folder
