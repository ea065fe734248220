"""Many commands on many run folders that somebody has tampered with, in one process: `python -m tests.security.matrix`.

Reads cells from stdin, a JSON list of [kind, file, command]; says one line for each that is wrong, then "done" and how
many. Each cell has a run folder of its own. A command that would train stops where processes would be started.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.security import planting

SECONDS = 60
CODES = {0, 1, 2, 4, 75, 130}
"""Documented, without 3: our own bug."""

FILES = (
    "run.json",
    "journal.jsonl",
    "metrics.jsonl",
    "readings.jsonl",
    "beat.json",
    "last.json",
    "lock",
    "output.log",
    "receipt.json",
    "traceback.txt",
    "best.safetensors",
    "report.html",
    "checkpoints",
    "checkpoints/000010",
    "checkpoints/000010/state.safetensors",
    "checkpoints/000010/digest.json",
    "faults",
    "faults/01",
    "faults/01/fault.json",
    "tb",
)

COMMANDS: dict[str, list[str]] = {
    "list": ["list", "--folder", "{runs}"],
    "list --plain": ["list", "--plain", "--folder", "{runs}"],
    "list --json": ["list", "--json", "--folder", "{runs}"],
    "status": ["status", "--folder", "{runs}"],
    "status RUN": ["status", "{run}"],
    "status --plain": ["status", "{run}", "--plain"],
    "show": ["show", "{run}"],
    "show --json": ["show", "{run}", "--json"],
    "watch": ["watch", "-1", "{run}"],
    "report": ["report", "{run}"],
    "report csv": ["report", "{run}", "-o", "{out}/numbers.csv"],
    "report json": ["report", "{run}", "--json"],
    "report tensorboard": ["report", "{run}", "--tensorboard"],
    "fsck": ["fsck", "{run}"],
    "resume": ["resume", "{run}", "--script", "{script}", "--device", "cpu", "--plain"],
    "stop": ["stop", "{run}"],
    "notify": ["notify", "{run}", "notify.command=true"],
    "push": ["push", "{run}", "{out}"],
    "pull": ["pull", "{run}", "--folder", "{out}"],
}


def deep() -> bytes:
    return b'{"a":' * 200_000


NUMBERS = (
    b'{"schema": 1, "format": 1, "run": "x", "state": "RUNNING", "pid": 1e999, "step": NaN, "epoch": -Infinity, '
    b'"created": 1e400, "seed": %(big)s, "threads": %(big)s, "time": %(big)s, "accounts": {"steps": %(big)s, "faults": '
    b'{"hang": NaN}}, "rate": -1e308, "steps_total": %(big)s, "loss": Infinity, "settings": {"run": {"seed": NaN}}, '
    b'"ranks": %(big)s, "event": "fault", "seconds": NaN, "lost_s": Infinity, "attempts": %(big)s, "commit_ns": 1e9}\n'
) % {b"big": b"9" * 400}

WORDS = ("run", "state", "workload", "device", "rung", "script", "created", "time", "text", "sentence", "code", "kind")
WORDS += (
    "reason",
    "action",
    "before",
    "after",
    "phase",
    "path",
    "folder",
    "name",
    "cause",
    "message",
    "best",
    "traceback",
)


def escapes() -> bytes:
    """Whatever a command prints of a record would reach the terminal."""
    said = dict.fromkeys(WORDS, "\x1b]0;owned\x07\x1b[2J\x9b31m")
    numbers = {"schema": 1, "format": 1, "step": 1, "epoch": 0, "loss": 1.0}
    lines = [{**said, **numbers, "event": kind} for kind in ("start", "worker", "fault", "moved", "note", "end")]
    said_all = "".join(json.dumps({**line, "error": {**said, "hints": [said["text"]]}}) + "\n" for line in lines)
    return said_all.encode() + b"\x1b[2J\x1b]0;owned\x07\n"


CONTENTS: dict[str, Callable[[], bytes]] = {
    "huge": lambda: b"",
    "deep JSON": deep,
    "numbers": lambda: NUMBERS,
    "not UTF-8": lambda: b'{"run": "\xff\xfe", "state": "\xc3\x28"}\n\x80\x81\n' * 3,
    "escapes": escapes,
    "other types": lambda: (
        b'{"schema": [], "format": 1, "run": {}, "state": [], "settings": [], "accounts": [], "pid": {}, '
        b'"created": {}, "event": [], "time": {}, "step": "x", "epoch": {}, "argv": {}, "script": 7, '
        b'"device": [], "best": 3}\n'
    ),
}
KINDS = (*planting.KINDS, *CONTENTS)
NOTHING = "nothing"
"""A run as it should be, with which every command does what it is for."""


def state() -> memoryview:
    """A snapshot of one tensor."""
    from holdfast.state import layout

    plan = layout.plan([("model.weight", "U8", (64,))])
    data = bytearray(plan.total_bytes)
    data[: plan.data_start] = plan.header
    data[plan.span(layout.META)] = plan.pack_meta({"parts": {"model": "module"}, "session": {"step": 10}})
    return memoryview(data)


def template(place: Path) -> Path:
    """A run that was stopped, with everything that can be in its folder."""
    from holdfast.state import checkpoint
    from tests.monitor.folders import make_run

    run = make_run(place, state="STOPPED", script=str(place / "job.py"), settings={}).path
    for step in (10, 20):
        checkpoint.write(run / "checkpoints", state(), step=step)
    shutil.copy(run / "checkpoints/000010/state.safetensors", run / "best.safetensors")
    for name in ("readings.jsonl", "last.json", "receipt.json"):
        (run / name).write_text('{"step": 1, "attempts": 2}\n')
    for name in ("lock", "traceback.txt", "report.html"):
        (run / name).write_text("pid 1\n")
    (run / "tb").mkdir(exist_ok=True)
    (place / "job.py").write_text("def train(session):\n    pass\n")
    return run


def tamper(kind: str, at: Path, outside: Path) -> bool:
    """Put it in the place of what is there; False where that cannot be."""
    if at.is_dir():
        shutil.rmtree(at)
    at.unlink(missing_ok=True)
    if kind not in CONTENTS:
        return planting.plant(kind, at, outside)
    data = CONTENTS[kind]()
    one = at.suffix == ".json" and kind == "escapes"  # several lines are no JSON, and nobody would read on
    at.write_bytes(data.partition(b"\n")[0] if one else data)
    if kind == "huge":
        os.truncate(at, 1 << 30)  # a hole: nothing is really on the disk
    return True


def main() -> int:
    cells = json.load(sys.stdin)
    place = Path(sys.argv[1])
    screen = sys.stdout
    made = template(place / "template")
    stop_before_training()
    wrong = 0
    for number, (kind, name, command) in enumerate(cells):
        folder = place / str(number)
        for problem in one(folder, made, kind, name, command):
            wrong += 1
            print(f"{command} with {kind} as {name}: {problem}", file=screen, flush=True)
        shutil.rmtree(folder)
    print(f"done {wrong}", file=screen, flush=True)
    return 0


def one(folder: Path, made: Path, kind: str, name: str, command: str) -> list[str]:
    """What is wrong with one cell."""
    runs, out = folder / "runs", folder / "out"
    out.mkdir(parents=True)
    run = runs / made.name
    shutil.copytree(made, run)
    outside = planting.outside(folder)
    if kind != NOTHING and not tamper(kind, run / name, outside):
        return []
    words = {"run": str(run), "runs": str(runs), "out": str(out), "script": str(made.parent / "job.py")}
    before, inside = planting.seen(outside), names(run)
    code, said = call([word.format(**words) for word in COMMANDS[command]])
    problems = []
    if code not in ({0, 1} if kind == NOTHING else CODES) or "Traceback (most recent call last)" in said:
        problems.append(f"exit code {code}: {said[-1500:]}")
    if any(letter in said for letter in "\x1b\x9b\x07"):
        problems.append(f"raw escapes: {said[-300:]!r}")
    if planting.seen(outside) != before:
        problems.append("something outside of the folder has changed")
    if command == "resume" and code == 2 and names(run) != inside:
        problems.append(f"refused, and written to: {sorted(names(run) ^ inside)}")
    return problems


def names(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*")}


def call(words: list[str]) -> tuple[int, str]:
    from holdfast.cli.main import main as holdfast

    said = io.StringIO()

    def late(*_: object) -> None:
        raise TimeoutError(f"still at it after {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = holdfast(words)
    except BaseException:
        code = -1
        said.write(traceback.format_exc())
    finally:
        signal.alarm(0)
    return int(code), said.getvalue()


def stop_before_training() -> None:
    """No process is started; what the supervisor and the keeper write and prune first is written and pruned."""
    from holdfast.cli import supervise
    from holdfast.run.events import Event
    from holdfast.state import checkpoint

    def conduct(run: Any, *_: object) -> int:
        run.append(Event.now("start"))
        with contextlib.suppress(OSError):
            checkpoint.write(run.path / "checkpoints", state(), step=3000)
            checkpoint.prune(run.path / "checkpoints", keep=1, newest=3000)
        run.close()
        return 0

    supervise.conduct = conduct  # type: ignore[assignment]


if __name__ == "__main__":
    sys.exit(main())
