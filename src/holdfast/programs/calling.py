"""`holdfast.train(fn, epochs=3)`: a supervised run of a function, from a notebook or another program.

run = holdfast.train(train, epochs=3)                  # waits; raises what the run ended with
run = holdfast.train(train, epochs=3, wait=False)      # returns as soon as it trains
run = holdfast.find()                                  # in another cell, or after the kernel was restarted

The function reaches its worker as a script, in `scripts/` beside the runs: see function_source.py. The run is a process
that does not belong to this one: it goes on when a kernel dies, and this process never imports what the worker does.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.control_characters import without_control
from holdfast.base.errors import UserError
from holdfast.base.folders import make_private, write_whole
from holdfast.programs.function_source import Made, script_of
from holdfast.programs.plain_values import FILE
from holdfast.programs.training_run import TrainingRun, start
from holdfast.run import script
from holdfast.run.folder import find_run, list_runs
from holdfast.run.settings import Settings
from holdfast.run.states import LIVE_STATES

INSIDE = "HOLDFAST_STARTED_BY"
"""Set for a run that `holdfast.train` started: its worker may not start another one by importing the caller."""
FOLDER = "scripts"
NAMES = ("name", "device", "seed", "settings", "wait", "show", "new")


def train(
    function: Callable[..., None],
    *,
    name: str | None = None,
    device: str | None = None,
    seed: int | None = None,
    settings: dict[str, Any] | None = None,
    wait: bool = True,
    show: bool | None = None,
    new: bool = False,
    **arguments: Any,
) -> TrainingRun:
    """Train `function(session, **arguments)` under supervision, in processes of its own.

    `settings={"checkpoint.every": "30s"}` are settings of holdfast, `name` is what the run is called in lists. A run of
    the same function with the same arguments that is under way is returned instead of a second one, unless `new`.
    """
    if os.environ.get(INSIDE):
        raise UserError(
            "holdfast.train was called by the worker of a run that holdfast.train started",
            cause="importing the module of the function calls it again",
            hints=['call it below `if __name__ == "__main__":`'],
        )
    words = [*_words(function, arguments), *(f"{key}={_text(value)}" for key, value in (settings or {}).items())]
    overrides = dict(word.split("=", 1) for word in words if "." in word.partition("=")[0])
    if seed is not None:
        overrides["run.seed"] = str(seed)
    if device is not None:
        overrides["run.device"] = device
    wanted = Settings.load(overrides)
    path = write(script_of(function), Path(wanted.run.folder), _file_name(name, function))
    run = None if new else _under_way(path, wanted, dict(word.split("=", 1) for word in _words(function, arguments)))
    if run is None:
        flags = [*(["--device", device] if device else []), *(["--seed", str(seed)] if seed is not None else [])]
        run = start("train", str(path), *words, *flags, env={INSIDE: str(os.getpid())})
    return run.wait(show=show) if wait else run


def find(run: str | None = None, *, folder: str | os.PathLike[str] | None = None) -> TrainingRun:
    """A run by its name or folder; without one the run under way, or else the newest. `folder` is where runs are."""
    root = Path(folder) if folder is not None else Path(Settings.load().run.folder)
    if run is not None:
        return TrainingRun(find_run(root, run).path)
    runs = list_runs(root)
    if not runs:
        raise UserError(f"no runs in {root}", hints=["start one: `holdfast.train(train)`"])
    live = [each for each in runs if each.info.get("state") in LIVE_STATES and each.in_use()]
    return TrainingRun((live or runs)[-1].path)


def write(made: Made, root: Path, name: str) -> Path:
    """The script as a file beside the runs. Its folder is named by what is in it: a run finds its own again."""
    digest = hashlib.sha256(made.text.encode() + b"\0" + (made.values or b"")).hexdigest()[:16]
    folder = root.absolute() / FOLDER / digest
    make_private(folder)
    if made.values is not None:
        write_whole(folder / FILE, made.values)
    write_whole(folder / f"{name}.py", made.text.encode())
    return folder / f"{name}.py"


def _file_name(name: str | None, function: Callable[..., None]) -> str:
    """What the run is called: as asked, else the function's own name, else the notebook's or the program's."""
    session = os.environ.get("JPY_SESSION_NAME", "")
    program = getattr(sys.modules.get("__main__"), "__file__", None) or session or "notebook"
    own = function.__name__ if function.__name__ != "train" else Path(program).stem
    return re.sub(r"\W+", "_", name or own).strip("_") or "run"


def _under_way(path: Path, wanted: Settings, arguments: dict[str, str]) -> TrainingRun | None:
    """The same function, arguments and settings, training already: the cell was run again."""
    for run in reversed(list_runs(Path(wanted.run.folder))):
        info = run.info
        same = info.get("script") == str(path) and info.get("arguments") == arguments
        if same and info.get("state") in LIVE_STATES and run.in_use() and _same(info.get("settings"), wanted):
            text = f"{run.name} is under way with this function and these arguments: this is it, not a second one"
            print(without_control(text))
            return TrainingRun(run.path)
    return None


def _same(saved: object, wanted: Settings) -> bool:
    now = wanted.recorded()
    return isinstance(saved, dict) and all(saved.get(key) == value for key, value in now.items() if key != "sources")


# Arguments ------------------------------------------------------------------------------------------------


def _words(function: Callable[..., None], arguments: dict[str, Any]) -> list[str]:
    """`key=value` words that the worker reads back as the same values."""
    if not inspect.isfunction(function):
        return []  # script_of says what is wrong with it
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    taken = [key for key in parameters if key in NAMES and key not in arguments]
    if taken and any(parameters[key].default is inspect.Parameter.empty for key in taken):
        raise UserError(
            f"`{function.__name__}` has an argument `{taken[0]}`, which holdfast.train uses itself",
            hints=["rename it in the function"],
        )
    return [f"{key}={_word(key, value, function, parameters)}" for key, value in arguments.items()]


def _word(key: str, value: object, function: Callable[..., None], parameters: dict[str, inspect.Parameter]) -> str:
    if key not in parameters:
        known = ", ".join(parameters) or "none"
        raise UserError(f"unknown argument `{key}`", cause=f"`{function.__name__}` takes: {known}")
    default = parameters[key].default
    for text in (_text(value), repr(value)):
        try:
            back = script.convert(key, text, default)
        except UserError:
            continue
        if type(back) is type(value) and back == value:
            return text
    raise UserError(
        f"the value of `{key}` cannot be handed to a worker: {value!r:.80}",
        cause=f"its default in `{function.__name__}` is {default!r:.80}; numbers, text, lists and dicts can",
        hints=["arguments have the type of their defaults; other things are made inside of the function"],
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
