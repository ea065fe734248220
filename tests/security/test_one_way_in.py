"""Nobody writes to a run folder past `folders.py`: the source itself is looked at.

What is written somewhere else (a state folder, a temporary folder, where the user asked for it) is named here, with
the reason why nobody else can have put a link there, or why following it is what the user wants.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import holdfast

HOME = Path(holdfast.__file__).parent
PARTS = (
    "run", "console", "state", "record", "data", "worker", "probes", "supervisor", "distributed", "monitor", "cli",
    "devices",
)  # fmt: skip
"""The supervisor, the keeper, everything around a run, and the commands. A workload is a script like a user's."""

FORBIDDEN = {
    "os": {"replace", "rename", "unlink", "remove", "rmdir", "removedirs", "mkdir", "makedirs", "truncate", "mknod"},
    "shutil": {"rmtree", "copy", "copy2", "copyfile", "copytree", "move"},
    "path": {"write_text", "write_bytes", "unlink", "rmdir", "mkdir", "touch", "rename", "symlink_to", "hardlink_to"},
}

ELSEWHERE = {
    "cli/cloud.py": "a file the user names",
    "cli/doctor.py": "a report the user asks for: new, or it is not written",
    "console/output.py": "the null device, where there is no stream to print to",
    "cli/predict.py": "a file the user names",
    "cli/report.py": "a file the user names; the report in the run folder is written by monitor/report.py",
    "cli/uninstall.py": "removes the state and cache folders of the user; a link is removed, not followed",
    "cli/verify.py": "a file the user names",
    "cli/weights.py": "a file the user names",
    "devices/battery.py": "a folder of tempfile.mkdtemp",
    "devices/probe_host.py": "a folder of tempfile.mkdtemp",
    "probes/child.py": "a folder of tempfile.mkdtemp",
    "devices/recorded.py": "a folder of tempfile.mkdtemp",
    "devices/probe_turn.py": "a folder of tempfile.mkdtemp",
    "distributed/job.py": "a folder of tempfile.mkdtemp",
    "cli/begun_run.py": "makes the folder of runs, which the user names",
    "distributed/part_copies.py": "slots in the folder of distributed/job.py",
    "distributed/rank.py": "makes the folder of runs, which the user names",
    "distributed/rank_link.py": "the folder of distributed/job.py",
    "distributed/rank_mail.py": "the folder of distributed/job.py",
    "distributed/roster.py": "the folder of distributed/job.py",
    "distributed/shared_votes.py": "the folder of distributed/job.py",
    "supervisor/scripts/hook/_holdfast_weights.py": "in the script's process: a folder that `holdfast chaos` has made",
    "supervisor/scripts/hook/_holdfast_hook.py": "in the script's process: a folder that Notes has just made",
    "supervisor/scripts/exact_files.py": "files that the script itself has opened to write to; a link is not followed",
    "supervisor/scripts/silence.py": "the folder that Notes has made",
    "supervisor/scripts/hook_notes.py": "makes a new folder, which fails where anything is",
    "monitor/index.py": "the cache folder of the user",
    "monitor/picture.py": "a file the user names",
    "monitor/trackers/tensorboard_tracker.py": "a folder in the one that the setting track.tensorboard names",
    "monitor/web/keys.py": "the cache folder of the user: new, or it is not written",
    "base/board.py": "a file of tempfile.mkstemp, where there is no shared memory",
    "base/processes.py": "`redirect_output`: what a probe or a trial prints, in a folder of tempfile.mkdtemp",
    "supervisor/keeper.py": "a new folder in one of tempfile.mkdtemp, when the run folder cannot be written",
    "probes/wrong_kernels.py": "where HOLDFAST_PRETEND points to, for tests and `holdfast verify`",
    "run/kept_arguments.py": "the state folder of the user",
    "run/seal.py": "the state folder of the user",
    "supervisor/at_boot.py": "the folder of the user's services",
    "record/transfer.py": "makes a new folder, which fails where anything is, and the place the user names",
    "worker/operators/case.py": "the checker's folder of tempfile.mkdtemp; the run folder gets bytes (confirmation.py)",
    "worker/operators/checker_client.py": "a folder of tempfile.mkdtemp",
    "state/weights_export.py": "a file the user names",
    "base/scratch.py": "a folder of tempfile.mkdtemp, and shared memory of processes that are gone",
    "state/slots.py": "shared memory of the supervisor, through /proc",
}
ALSO = tuple(
    f"base/{name}.py" for name in ("board", "channel", "files", "line_file", "locks", "planted", "processes", "scratch")
)
ALSO_ELSEWHERE = {
    "run/folder.py": "makes the folder of runs, which the user names, and a new run folder, which fails where one is",
    "base/files.py": "opens for reading; `private` is for state files",
}


def test_nobody_writes_another_way() -> None:
    known = {**ELSEWHERE, **ALSO_ELSEWHERE}
    found: dict[str, list[str]] = {}
    for path in sources():
        name = path.relative_to(HOME).as_posix()
        writes = list(of_writing(ast.parse(path.read_text(encoding="utf-8"))))
        if writes:
            found[name] = writes
    strange = {name: writes for name, writes in found.items() if name not in known}
    assert not strange, "write through holdfast.base.folders, or say here why not"
    assert sorted(known) == sorted(found), "some of what is named here writes nothing any more"


def test_the_look_sees_what_it_should() -> None:
    seen = "import os, shutil\nopen(p, 'w')\nopen(p, mode='a')\nos.open(p, os.O_WRONLY)\nos.replace(a, b)"
    seen += "\nshutil.rmtree(p)\npath.write_text(t)\n(a / b).unlink()\nopen(f, 'rb+')\npath.open('w')"
    assert len(list(of_writing(ast.parse(seen)))) == 9
    unseen = "open(p)\nopen(p, 'rb')\nopen(fd, 'wb')\ntext.replace(a, b)\nos.open(p, os.O_RDONLY)\nfolder.unlink(name)"
    assert not list(of_writing(ast.parse(unseen)))


def sources() -> Iterator[Path]:
    for part in PARTS:
        yield from sorted((HOME / part).rglob("*.py"))
    for name in ALSO:
        yield HOME / name


def of_writing(tree: ast.AST) -> Iterator[str]:
    """Every call that makes, changes or removes something by its path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _writes(node):
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"


def _writes(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open" and _mode_writes(call, 1) and not _by_descriptor(call.args[0])
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if owner in ("os", "shutil"):
        return (function.attr in FORBIDDEN[owner] and not _by_descriptor(call.args[0])) or _os_open_writes(call, owner)
    if function.attr == "open":
        return _mode_writes(call, 0)
    by_folder = owner in ("folder", "place", "inside", "aside", "faults") and len(call.args) == 1
    return function.attr in FORBIDDEN["path"] and not by_folder and _is_path_call(function.attr, call)


def _is_path_call(name: str, call: ast.Call) -> bool:
    """`text.replace(a, b)` and `folder.rename(a, b)` take two arguments, those of a path one or none."""
    return name != "rename" or len(call.args) == 1


def _mode_writes(call: ast.Call, at: int) -> bool:
    given = [word.value for word in call.keywords if word.arg == "mode"] + call.args[at : at + 1]
    return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in given)


def _by_descriptor(argument: ast.AST) -> bool:
    """A descriptor that was opened before, through folders.py or by `_os_open_writes`, which is seen by itself."""
    if isinstance(argument, ast.Call):
        return isinstance(argument.func, (ast.Name, ast.Attribute))
    return isinstance(argument, (ast.Name, ast.Attribute)) and ast.unparse(argument).endswith("fd")


def _os_open_writes(call: ast.Call, owner: str) -> bool:
    if owner != "os" or not isinstance(call.func, ast.Attribute) or call.func.attr != "open" or len(call.args) < 2:
        return False
    flags = ast.unparse(call.args[1])
    writes = any(word in flags for word in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "flags"))
    return writes and "devnull" not in ast.unparse(call.args[0])
