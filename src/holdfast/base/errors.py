"""Every way holdfast can say no, and the exit code that goes with it.

    HoldfastError
    ├─ UserError        you can fix it: a path, a flag, a setting, a script       exit 2
    │  └─ InUse         another process has the run      exit 2; 75 for `launch --continue`, which can be tried again
    ├─ ScriptFailed     your own code raised; its traceback is kept, no retry     exit 1
    ├─ GaveUp           the ladder has no rung left; the state is saved           exit 4
    ├─ Stopped          stopped on purpose, the state is saved                    exit 75, 130 or 143
    └─ InternalError    our bug; a report file was written                        exit 3

Each error carries what a person needs next, in the order the command line prints it:
message, cause, what was saved, hints.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the `holdfast` command: public, stable, the same for every command."""

    OK = 0
    """It happened; faults that were survived are still 0."""
    NO = 1
    """It ran and the answer is no: the script failed, the weights differ."""
    USAGE = 2
    """A flag, a setting or a path is wrong."""
    INTERNAL = 3
    """Holdfast's own fault; a report file is named."""
    GAVE_UP = 4
    """The ladder is exhausted; the state is saved and the resume line printed."""
    RESUME_ME = 75
    """Stopped on purpose with the state saved; a scheduler may requeue it."""
    INTERRUPTED = 130
    """Ctrl-C, state saved."""
    TERMINATED = 143
    """A second SIGTERM: stopped at once, the last verified checkpoint is named."""


class HoldfastError(Exception):
    """The root of every error holdfast raises on purpose."""

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        cause: str | None = None,
        saved: str | None = None,
        hints: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.saved = saved
        self.hints = tuple(hints)
        self.blame: dict[str, object] | None = None
        """Whose fault it is, where that was found out: the verdict, with the samples it names."""
        self.folder: str | None = None
        """The run folder, where a background run ended while the command that started it still looked."""

    def to_json(self) -> dict[str, object]:
        """Message, cause, saved and hints, and whose fault it is, if known: for `--json` and between processes."""
        more = {"blame": self.blame, "folder": self.folder}
        return {
            "error": type(self).__name__,
            "message": self.message,
            "cause": self.cause,
            "saved": self.saved,
            "hints": list(self.hints),
            "exit_code": int(self.exit_code),
            **{name: value for name, value in more.items() if value is not None},
        }


class UserError(HoldfastError):
    """Something you can fix: a path, a flag, a setting, a script. Nothing was lost."""

    exit_code = ExitCode.USAGE


class InUse(UserError):
    """Another process has the run. A command that a scheduler repeats sets the exit code 75."""


class ScriptFailed(HoldfastError):
    """Your own code raised. Holdfast does not retry it; the traceback is yours, unchanged."""

    exit_code = ExitCode.NO


class GaveUp(HoldfastError):
    """No rung of the ladder is left. The state is saved; the hint says how to go on."""

    exit_code = ExitCode.GAVE_UP


class Stopped(HoldfastError):
    """The run was asked to stop and did, with its state saved."""

    exit_code = ExitCode.RESUME_ME


class InternalError(HoldfastError):
    """Holdfast itself is wrong. Please report it with the file named in the message."""

    exit_code = ExitCode.INTERNAL


_BY_NAME: dict[str, type[HoldfastError]] = {
    cls.__name__: cls for cls in (HoldfastError, UserError, InUse, ScriptFailed, GaveUp, Stopped, InternalError)
}


def from_json(data: dict[str, object]) -> HoldfastError:
    """Rebuild an error another process sent with `to_json`."""
    cls = _BY_NAME.get(str(data.get("error")), InternalError)
    hints = data.get("hints")
    error = cls(
        str(data.get("message", "unknown error")),
        cause=_text(data.get("cause")),
        saved=_text(data.get("saved")),
        hints=[str(hint) for hint in hints] if isinstance(hints, list) else (),
    )
    blame = data.get("blame")
    error.blame = blame if isinstance(blame, dict) else None
    error.folder = _text(data.get("folder"))
    return error


def _text(value: object) -> str | None:
    return None if value is None else str(value)
