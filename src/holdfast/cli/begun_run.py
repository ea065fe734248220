"""`holdfast launch --continue`: the run that an earlier start of the same command has begun.

    folder = take(order, output, first=True, ranks=2)       # its run folder, locked; a new one if run.folder has none

A scheduler may start the command again while the first start lives. One lock of run.folder covers the choice, the
making of a run and the taking of its own lock, so that two starts never make two runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.base import locks
from holdfast.base.errors import ExitCode, InUse, UserError
from holdfast.cli import resume
from holdfast.cli.resume_trust import Request, changed, check_own
from holdfast.cli.run_settings import settings_of
from holdfast.console.order import Order, create, run_info
from holdfast.console.output import Output
from holdfast.run.folder import RunFolder, list_runs
from holdfast.run.states import RunState
from holdfast.state import checkpoint

LOCK = ".continue.lock"
_PATIENCE = 30.0
"""Seconds to wait for another start that chooses a run: it reads and writes a few small files."""


def take(order: Order, output: Output, *, first: bool, ranks: int) -> RunFolder | None:
    """The run to continue, locked; a finished one is not locked. None on a machine that is not the first.

    InUse with the exit code 75 if another process has it: the command may be started again later.
    """
    root = Path(order.settings.run.folder)
    if not first:
        found = _choose(order, root)
        return found if found is not None and _is_finished(found) else None
    try:
        with _alone(root):
            folder = _choose(order, root)
            if folder is not None and _is_finished(folder):
                return folder
            if folder is None:
                made = create(order, ranks=ranks)
                made.lock()
                return made
            _agree(folder, order, output)
            folder.lock()
    except InUse as error:
        error.exit_code = ExitCode.RESUME_ME
        raise
    resume._note_changes(order.facts, folder.info, output)
    resume._newest(folder, output)
    return folder


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """No other start chooses or makes a run in this folder meanwhile."""
    lock = locks.Lock(root / LOCK)
    deadline = time.monotonic() + _PATIENCE
    try:
        root.mkdir(parents=True, exist_ok=True)
        while not lock.take():
            if time.monotonic() >= deadline:
                raise _in_use(root, lock)
            time.sleep(0.05)
    except OSError as error:
        raise UserError(
            f"cannot create a run folder in {root}",
            cause=str(error.strerror or error),
            hints=["choose another place with `run.folder=PATH`"],
        ) from None
    try:
        yield
    finally:
        lock.release()


def _in_use(root: Path, lock: locks.Lock) -> InUse:
    claims = [name for name, said in locks.claimants(lock.path) if locks.lives(said) is None]
    hints = [f"if no process on another machine uses the folder, delete {root / name}" for name in claims]
    return InUse(
        f"{root} is in use", cause=f"it is held by {locks.holder(lock.path) or 'another process'}", hints=hints
    )


def _choose(order: Order, root: Path) -> RunFolder | None:
    """The furthest run of this script with these arguments and this seed; None if the folder has no run.

    A machine that lost the others may have saved a run of its own beside the first one, so the newest need not be it.
    """
    runs = list_runs(root)
    if not runs:
        return None
    of_script = [run for run in runs if _has_script(run, order)]
    asked = _words_of(run_info(order))
    fitting = [run for run in of_script if _words_of(run.info) == asked]
    if fitting:
        return RunFolder.open(max(fitting, key=_progress).path.absolute())
    hints = ["to start another run, give it another run.folder"]
    if of_script:
        furthest = max(of_script, key=_progress)
        raise UserError(
            f"{furthest.name} was started with other arguments",
            cause=f"it has {_shown(furthest)}",
            hints=["give it the same arguments again", *hints],
        )
    furthest = max(runs, key=_progress)
    raise UserError(
        f"{root} has no run of {order.facts.path.name}",
        cause=f"{furthest.name} there is a run of {furthest.info.get('script') or 'another command'}",
        hints=hints,
    )


def _has_script(run: RunFolder, order: Order) -> bool:
    """The same path; or the same name, where the file of the run is gone or has the same content."""
    info, path = run.info, order.facts.path
    known = info.get("script")
    if not isinstance(known, str):
        return False
    before = Path(known)
    if before == path or before.name != path.name or not before.exists():
        return before.name == path.name
    return before.samefile(path) or info.get("script_sha256") == run_info(order)["script_sha256"]


def _words_of(info: dict[str, object]) -> tuple[object, object, object]:
    """As run.json has them, without secrets: a secret that was changed does not make it another run."""
    return info.get("argv") or [], info.get("arguments") or {}, info.get("seed", 0)


def _shown(run: RunFolder) -> str:
    argv, arguments, seed = _words_of(run.info)
    pairs = [f"{key}={value}" for key, value in arguments.items()] if isinstance(arguments, dict) else []
    return " ".join([*pairs, f"run.seed={seed}", *(map(str, argv) if isinstance(argv, list) else ())])


def _agree(folder: RunFolder, order: Order, output: Output) -> None:
    """The command line names the script and its arguments, so nobody has to be asked. The script may have moved."""
    path = order.facts.path
    check_own(folder, path)
    pairs = [f"{key}={value}" for key, value in order.arguments.items()]
    words = ["holdfast", "train", str(path), *pairs, *(["--", *order.argv] if order.argv else [])]
    request = Request(words, Path.cwd(), changed(settings_of(folder, {})))
    resume._agree(folder, request, output, given={"script": str(path)})


def _is_finished(run: RunFolder) -> bool:
    return run.info.get("state") == RunState.FINISHED


def _progress(run: RunFolder) -> tuple[bool, int, str]:
    saved = [int(path.name) for path in checkpoint.candidates(run.path / "checkpoints")]
    return _is_finished(run), max(saved, default=-1), str(run.info.get("created", ""))
