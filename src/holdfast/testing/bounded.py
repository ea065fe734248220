"""A command that has to be done in time: it is asked to end, and then ended.

    done = run(interpreter.module("holdfast", "doctor", "--json"), limit_s=60.0)
    done.code, done.out, done.errors       # OutOfTime where it was not done

What it started ends with it: on Linux the kernel sees to that, elsewhere a child notices that its parent is gone.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.base.errors import HoldfastError
from holdfast.base.human import duration

GRACE_S = 5.0
"""For a command that is asked to end, before it is ended."""


class OutOfTime(HoldfastError):
    """The time that was given is over; what was done until then stands."""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    errors: str


def run(
    command: Sequence[str],
    *,
    limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
    keep_errors: bool = True,
    started: Callable[[subprocess.Popen[str]], None] = lambda process: None,
) -> Done:
    """The command to its end, or to that of the time; its errors go to ours unless they are kept.

    `started` is given the process, for a caller that may have to end it from another thread.
    """
    if limit_s is not None and limit_s <= 0:
        raise OutOfTime("the time that was given is over")
    errors = subprocess.PIPE if keep_errors else None
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
    started(process)
    try:
        out, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        raise OutOfTime(f"not done in {duration(limit_s)}") from None
    except BaseException:
        process.kill()
        raise
    return Done(process.returncode, out, said or "")


def end(process: subprocess.Popen[str]) -> None:
    """Asked, then ended. One that hangs inside of a driver does not even end then, and is not waited for."""
    for way in (process.terminate, process.kill):
        way()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=GRACE_S)
            return
