"""Windows and macOS, as far as Linux can tell: every module can be imported there, and the doctor says what degrades.

A child imports every module of holdfast once, so that other packages are loaded. Then it becomes a system without the
modules, functions and signals of POSIX, forgets holdfast, and imports all of it again.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.devices import inventory_findings
from holdfast.devices.findings import explained
from tests.devices import machines

SOURCE = Path(__file__).resolve().parents[1] / "src" / "holdfast"
CHILD = """
import builtins, importlib, json, os, pkgutil, signal, socket, sys
import holdfast

system, blocked = sys.argv[1], sys.argv[2].split(",")
names = [each.name for each in pkgutil.walk_packages(holdfast.__path__, "holdfast.")]
heavy = ("holdfast.supervisor.scripts.hook", "holdfast.workloads.", "holdfast.integrations.",
         "holdfast.optimize.engines")
names = [name for name in names if "__main__" not in name and not name.startswith(heavy)]
usable, missing = [], {}
for name in names:
    try:
        importlib.import_module(name)
        usable.append(name)
    except ImportError as error:  # an extra that is not installed here
        missing[name] = str(error)

for name in [name for name in sys.modules if name == "holdfast" or name.startswith("holdfast.")]:
    del sys.modules[name]
for name in blocked:
    sys.modules.pop(name, None)
true_import = builtins.__import__

def refuse(name, globals=None, locals=None, fromlist=(), level=0):
    asker = (globals or {}).get("__name__", "")
    if level == 0 and name.partition(".")[0] in blocked and asker.startswith("holdfast"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return true_import(name, globals, locals, fromlist, level)

builtins.__import__ = refuse
if system == "win32":
    functions = "fork getuid geteuid setsid setpgid getpgid killpg nice memfd_create sched_getaffinity pidfd_open"
    for name in [*functions.split(), "getloadavg"]:
        if hasattr(os, name):
            delattr(os, name)
    signals = "SIGKILL SIGSTOP SIGCONT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGTSTP SIGCHLD SIGALRM SIGPIPE SIGWINCH"
    for name in signals.split():
        if hasattr(signal, name):
            delattr(signal, name)
else:
    for name in "memfd_create sched_getaffinity pidfd_open posix_fadvise".split():
        if hasattr(os, name):
            delattr(os, name)
sys.platform = system
failed = {}
for name in usable:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps({"tried": len(usable), "failed": failed, "missing": missing}))
"""
POSIX = "fcntl,resource,termios,tty,pty,pwd,grp,syslog,curses,readline,posix,crypt,spwd"


@pytest.mark.all
@pytest.mark.timeout(600)
def test_every_module_can_be_imported_without_posix() -> None:
    """As on Windows. What needs packages of an extra is looked at below, without them."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "win32", POSIX], capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["failed"] == {}, json.dumps(said["failed"], indent=1)
    assert said["tried"] > 250, said["missing"]


def unguarded(tree: ast.Module) -> list[str]:
    """Imports of POSIX modules, and names that only POSIX has, that are met when the module is imported."""
    found: list[str] = []

    def look(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.If) and "sys.platform" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(each) for each in node.handlers):
                continue
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(node, ast.Import):
                found.extend(each.name for each in node.names if each.name.partition(".")[0] in POSIX.split(","))
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in POSIX.split(","):
                found.append(node.module or "")
            elif isinstance(node, (ast.ClassDef, ast.If, ast.Try, ast.With)):
                look(node.body)
            else:
                names = re.findall(r"\bsignal\.(SIG(?:KILL|STOP|CONT|HUP|QUIT|USR[12]|CHLD|TSTP))\b", ast.unparse(node))
                found.extend(names)

    look(tree.body)
    return found


def test_no_module_asks_for_posix_when_it_is_imported() -> None:
    bad = {
        str(path.relative_to(SOURCE)): said
        for path in SOURCE.rglob("*.py")
        if (said := unguarded(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert bad == {}


def test_the_look_at_modules_sees_what_it_should() -> None:
    assert unguarded(ast.parse("import fcntl")) == ["fcntl"]
    assert unguarded(ast.parse("KILL = signal.SIGKILL")) == ["SIGKILL"]
    assert unguarded(ast.parse("class A:\n    from resource import getrusage")) == ["resource"]
    guarded = "if sys.platform != 'win32':\n    import fcntl\ntry:\n    import pwd\nexcept ImportError:\n    pwd = None"
    assert unguarded(ast.parse(guarded)) == []
    assert unguarded(ast.parse("def f():\n    import termios")) == []


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("windows-rx-9070-xt", ["D090", "D091", "D092", "D093", "D094"]),
        ("m2", ["D090", "D091", "D092", "D093"]),
        ("rx-7900-xtx", []),
        ("wsl2-rx-9070-xt", []),
    ],
)
def test_the_doctor_says_what_degrades(name: str, codes: list[str], tmp_path: Path) -> None:
    here = machines.load(name, tmp_path).inventory()
    said = [each for each in inventory_findings.of_inventory(here, {}) if each.code.startswith("D09")]
    assert [each.code for each in said] == codes
    for each in said:
        assert each.sentence() != explained(each.code).title, "the line is filled in"
        assert each.level == "note"
