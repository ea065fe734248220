"""What is kept of a fault, in faults/NN/: one sentence, stacks, last words, what the kernel said.

folder = collect(run, fault, move, beat, ...)       # after a death
stacks = ask_for_stacks(pid, path)                  # while a worker is silent, before it is killed
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.runfolder import RunFolder, write_json
from holdfast.runtime import process
from holdfast.runtime.board import Beat
from holdfast.runtime.faults import Fault
from holdfast.runtime.ladder import Move

LAST_LINES = 200
_TAIL = 64 << 10
_STACK_WAIT = 1.0
_NATIVE_WAIT = 10.0


def last_words(path: Path, offset: int) -> str:
    """The end of what a worker printed, from where it began."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(offset, size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])


def ask_for_stacks(pid: int, path: Path, *, native: bool) -> dict[str, str]:
    """Python stacks by signal, native ones by py-spy where it is installed.

    A process that is stopped or sits in the kernel takes no signal and cannot be paused: there py-spy reads the
    Python stack out of its memory.
    """
    info = process.inspect(pid)
    answers = info is None or info.state not in "TtD"
    found = _by_signal(pid, path) if answers else {}
    if native:
        name, flag = ("native", "--native") if answers else ("python", "--nonblocking")
        text = _by_py_spy(pid, flag)
        if text:
            found[name] = text
    return found


def _by_signal(pid: int, path: Path) -> dict[str, str]:
    """What faulthandler in the worker writes when it is asked."""
    number = getattr(signal, "SIGUSR2", None)
    before = path.stat().st_size if path.exists() else 0
    if number is None or not process.send(pid, number):
        return {}
    deadline = time.monotonic() + _STACK_WAIT
    while time.monotonic() < deadline and (not path.exists() or path.stat().st_size == before):
        time.sleep(0.02)
    time.sleep(0.02)
    with contextlib.suppress(OSError):
        return {"python": path.read_bytes()[before:].decode(errors="replace")}
    return {}


def _by_py_spy(pid: int, flag: str) -> str | None:
    """`--native` pauses the process and `--nonblocking` does not; py-spy refuses the two together."""
    spy = _py_spy()
    if spy is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        dump = subprocess.run(
            [spy, "dump", flag, "--pid", str(pid)], capture_output=True, text=True, timeout=_NATIVE_WAIT, check=False
        )
        if dump.returncode == 0 and dump.stdout:
            return dump.stdout
    return None


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def collect(
    run: RunFolder,
    fault: Fault,
    move: Move,
    beat: Beat | None,
    words: str,
    stacks: dict[str, str],
    crash_stack: str,
) -> Path:
    """Write everything known about one fault into its own folder."""
    folder = run.next_fault_folder()
    record: dict[str, Any] = {"sentence": fault.sentence(), "fault": fault.to_json(), "move": move.to_json()}
    if beat is not None:
        record["board"] = json.loads(json.dumps(dataclasses.asdict(beat), default=str))
        record["board"]["times"] = {
            phase.label: dataclasses.asdict(times) for phase, times in beat.times.items() if times.count
        }
        record["board"]["phase"] = beat.phase.label
    write_json(folder / "fault.json", record)
    (folder / "README.txt").write_text(f"{fault.code}  {fault.sentence()}\n{fault.cause()}\n{move.reason}\n")
    if words:
        (folder / "stderr.txt").write_text(words + "\n")
    stacks = {**({"python": crash_stack} if crash_stack else {}), **stacks}
    for name, text in stacks.items():
        (folder / f"stacks-{name}.txt").write_text(text)
    return folder
