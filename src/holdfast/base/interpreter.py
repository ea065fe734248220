"""How a Python of ours is started: without the current folder on its path.

    module("holdfast.supervisor.keeper", "7")       # [python, "-P", "-m", "holdfast.supervisor.keeper", "7"]
    code("import torch", "x.pt")                 # [python, "-P", "-c", "import torch", "x.pt"]
    with spawning(): process.start()             # the same for processes that multiprocessing starts
    forget_current_folder()                      # in a process that was started as `python -m holdfast`

With `-m` and `-c` Python looks for modules in the current folder first. A torch.py, json.py or holdfast.py that lies
there would run, in the folder of a data set or a download too. Everything that starts Python starts it with this
module. PYTHONPATH is the user's and stays; so does the folder of a training script, for that script.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence

HAS_FLAG = sys.version_info >= (3, 11)
"""-P came with Python 3.11. It is no variable: the programs that a user's script starts must not inherit it."""
_DROP = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_AS_MODULE = _DROP + "name = sys.argv.pop(1); import runpy; runpy._run_module_as_main(name)"
_lock = threading.RLock()


def module(name: str, *words: str, python: str | None = None, has_flag: bool = HAS_FLAG) -> list[str]:
    """The command line of `python -m name`."""
    program = python or sys.executable
    return [program, "-P", "-m", name, *words] if has_flag else [program, "-c", _AS_MODULE, name, *words]


def module_of(command: Sequence[str]) -> str | None:
    """The module that a command line of `module` names; None for any other."""
    for words in (("-P", "-m"), ("-c", _AS_MODULE)):
        if tuple(command[1:3]) == words and len(command) > 3:
            return command[3]
    return None


def code(text: str, *words: str, has_flag: bool = HAS_FLAG) -> list[str]:
    """The command line of `python -c text`."""
    return [sys.executable, "-P", "-c", text, *words] if has_flag else [sys.executable, "-c", _DROP + text, *words]


@contextlib.contextmanager
def spawning(has_flag: bool = HAS_FLAG) -> Iterator[None]:
    """What multiprocessing starts meanwhile begins with the standard library, and then has the path of this process.

    It starts its children with `-c`, and copies the flags of this process, which may have been started without -P.
    Where there is no -P, -I does it: their path comes from this process in any case.
    """
    from multiprocessing import util

    flags = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    safe = "-P" if has_flag else "-I"

    def with_safe_path() -> Sequence[str]:
        known = list(flags())
        return known if safe in known or "-I" in known else [safe, *known]

    with _lock:
        util._args_from_interpreter_flags = with_safe_path  # type: ignore[attr-defined]
        try:
            yield
        finally:
            util._args_from_interpreter_flags = flags  # type: ignore[attr-defined]


def forget_current_folder() -> None:
    """For `python -m holdfast`: what is imported from now on does not come from the folder it was typed in.

    Unless holdfast itself does, as in a checkout that is not installed.
    """
    first = sys.path[0] if sys.path else None
    if first is None or getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    try:
        here = os.path.realpath(first) == os.path.realpath(os.getcwd())
    except OSError:  # the current folder is gone
        return
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if here and os.path.realpath(first) != ours:
        del sys.path[0]
