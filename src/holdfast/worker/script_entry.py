"""`python my_script.py`: the same run as `holdfast train my_script.py`.

if __name__ == "__main__":
    holdfast.main(train)                       # supervised: this process becomes the supervisor
    holdfast.main(train, supervised=False)     # here and now, without a second process
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from holdfast.base import interpreter
from holdfast.base.errors import ExitCode, HoldfastError, UserError
from holdfast.run import script
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder, find_run

UNSUPERVISED = "HOLDFAST_UNSUPERVISED"


def main(train: Callable[..., None], *, supervised: bool | None = None, argv: list[str] | None = None) -> None:
    """Train as `holdfast train` would, with the words of this command line. Ends the process with its exit code.

    In a notebook there is no command line and no script: it trains in the kernel, and raises errors instead of ending
    it. `holdfast.train(fn)` is the way to train under a supervisor there.

    Without a supervisor (`supervised=False` or HOLDFAST_UNSUPERVISED=1) the loop runs in this process: out of
    memory is rolled back and checkpoints are written, but a crash or a hang ends the run.
    """
    at_home = _is_script()
    words = argv if argv is not None else sys.argv[1:] if at_home else []
    wanted = os.environ.get(UNSUPERVISED, "") in ("", "0") if supervised is None else supervised
    if wanted:
        try:
            path = _script_path(train, insist=supervised is True)
        except HoldfastError as error:
            if not at_home:
                raise
            from holdfast.console.output import print_error

            print_error(error)
            raise SystemExit(int(error.exit_code)) from None
        if path is not None:
            _become(interpreter.module("holdfast", "train", path, *words))
    if not at_home:  # the arguments in sys.argv are Jupyter's, and the process is the user's
        run_unsupervised(train, words)
        return
    raise SystemExit(_run_here(train, words))


def _is_script() -> bool:
    """False in a notebook and at a prompt: there is no file that was started."""
    return bool(getattr(sys.modules.get("__main__"), "__file__", None))


def _script_path(train: Callable[..., None], *, insist: bool) -> str | None:
    """The file a worker imports to find `train`: the script that was started, or the module that defines it.

    None in a notebook or an interactive session, where there is no file; an error for who insists on a supervisor.
    """
    started = sys.modules.get("__main__")
    name = getattr(started, "__file__", None)
    if name and vars(started).get("train") is train:  # written there, or imported under its name
        return str(name)
    module = sys.modules.get(train.__module__)
    if module is not started and vars(module).get("train") is train and not getattr(module, "__package__", ""):
        return getattr(module, "__file__", None)
    if not insist and not name:
        return None
    where = "there is no script to start again" if not name else f"{name} has no name `train` for this function"
    raise UserError(
        f"`{train.__qualname__}` cannot be run under a supervisor",
        cause=where,
        hints=[
            f"`from {train.__module__} import {train.__name__} as train` at the top of the script that is started",
            "or hand over the function itself: `holdfast.train(train)`",
            "or train in this very process: `holdfast.main(train, supervised=False)`",
        ],
    )


def _become(command: list[str]) -> None:
    """Replace this process, which has imported torch already, by the supervisor, which never does."""
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":  # exec on Windows returns to the shell before the run is over
        raise SystemExit(subprocess.call(command))
    os.execv(command[0], command)


def _run_here(train: Callable[..., None], words: list[str]) -> int:
    from holdfast.console.output import print_error

    try:
        receipt = run_unsupervised(train, words)
    except HoldfastError as error:
        print_error(error)
        return int(error.exit_code)
    print(f"finished {receipt['steps']} steps", file=sys.stderr)
    return int(ExitCode.OK)


def run_unsupervised(train: Callable[..., None], words: list[str]) -> dict[str, Any]:
    """One run in this process: `key=value` words, `section.key=value` settings, `resume=RUN`."""
    from pathlib import Path

    from holdfast.run.settings import Settings
    from holdfast.worker import local_run

    arguments, settings_words, resume = _sort_words(words)
    settings = Settings.load(settings_words)
    parameters = inspect.signature(train).parameters
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        known = ", ".join(list(parameters)[1:]) or "none"
        raise UserError(f"unknown setting `{unknown[0]}`", cause=f"`train` takes: {known}")
    values = {key: script.convert(key, text, parameters[key].default) for key, text in arguments.items()}
    root = Path(settings.run.folder)
    found = find_run(root, resume) if resume else None
    path = local_run.script_of(train)
    info = {
        "created": utc_now(),
        "script": str(path),
        "arguments": arguments,
        "seed": settings.run.seed,
        "supervised": False,
    }
    run = found or RunFolder.create(root, path.stem if path else "session", {**info, "settings": settings.recorded()})
    run.lock()
    device = local_run.default_device() if settings.run.device == "auto" else settings.run.device
    checkpoint = local_run.newest_checkpoint(run) if found else None
    seed = int(run.info.get("seed", settings.run.seed))
    return local_run.run_local(train, run, settings, device=device, seed=seed, arguments=values, resume=checkpoint)


def _sort_words(words: list[str]) -> tuple[dict[str, str], dict[str, str], str | None]:
    arguments: dict[str, str] = {}
    settings: dict[str, str] = {}
    resume: str | None = None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"`{word}` is not understood here", hints=["write key=value"])
        if key == "resume":
            resume = value
        else:
            (settings if "." in key else arguments)[key] = value
    return arguments, settings, resume
