"""What each exit code means for each command: printed at the end of `--help` and by `holdfast explain 75`.

meanings("train")[75]                  # "stopped on purpose; the state is saved, `holdfast resume` continues"
"""

from __future__ import annotations

from holdfast.base.errors import ExitCode

GENERAL: dict[ExitCode, str] = {
    ExitCode.OK: "it worked; a run that survived faults also ends with 0",
    ExitCode.NO: "it ran, and the answer is no: the script failed, or a check did not pass",
    ExitCode.USAGE: "an option, a setting or a path is wrong; nothing was started",
    ExitCode.INTERNAL: "a bug in holdfast; the message names a report file to send",
    ExitCode.GAVE_UP: "holdfast gave up after several attempts; the state is saved and the message says how to resume",
    ExitCode.RESUME_ME: "stopped on purpose, the state is saved; `holdfast resume` continues, a scheduler may requeue",
    ExitCode.INTERRUPTED: "you pressed Ctrl-C; the state is saved",
    ExitCode.TERMINATED: "a second stop signal ended it at once; the message names the last good checkpoint",
}

_RUNS = {
    ExitCode.OK: "the training finished, with or without faults on the way",
    ExitCode.NO: "the script itself failed; holdfast does not retry errors of the script",
}
_LONG = (ExitCode.GAVE_UP, ExitCode.RESUME_ME, ExitCode.INTERRUPTED, ExitCode.TERMINATED)

_OF: dict[str, dict[ExitCode, str]] = {
    "train": _RUNS,
    "resume": _RUNS,
    "launch": _RUNS,
    "run": {
        ExitCode.OK: "the command finished, with or without restarts",
        ExitCode.NO: "also any other code: the exit code of the command itself, passed on",
    },
    "chaos": {
        ExitCode.OK: "the training survived every fault and the weights are as expected",
        ExitCode.NO: "the training did not survive, or the weights differ",
    },
    "doctor": {ExitCode.OK: "at least one device can train", ExitCode.NO: "no device can train"},
    "plan": {ExitCode.OK: "the plan chose a row", ExitCode.NO: "nothing fits the deadline, the budget or the score"},
    "verify": {
        ExitCode.OK: "the device passed; the report is written",
        ExitCode.NO: "the device did not pass, or the time was too short; the report is written",
    },
    "fsck": {ExitCode.OK: "every file is intact", ExitCode.NO: "something is damaged or missing"},
    "optimize": {
        ExitCode.OK: "a bundle was written, or with --verify it is good",
        ExitCode.NO: "no candidate is right, or with --verify the bundle is not good",
    },
    "notify": {ExitCode.OK: "the message was sent", ExitCode.NO: "the message could not be sent"},
    "detection check": {ExitCode.OK: "training can use everything", ExitCode.NO: "training would leave something out"},
    "detection predict": {ExitCode.OK: "boxes were written", ExitCode.NO: "no image could be read"},
    "eeg download": {ExitCode.OK: "every file is here and verified", ExitCode.NO: "some files could not be downloaded"},
    "eeg prepare": {ExitCode.OK: "every kind has windows", ExitCode.NO: "a kind has no windows"},
    "eeg check": {ExitCode.OK: "nothing would break other tools", ExitCode.NO: "something would break them"},
}


def meanings(command: str) -> dict[ExitCode, str]:
    """The codes that `command` ends with, and what each means for it."""
    own = _OF.get(command, {})
    wanted = [ExitCode.OK, ExitCode.NO, ExitCode.USAGE, ExitCode.INTERNAL]
    if command in ("train", "resume", "launch", "run", "chaos"):
        wanted += _LONG
    elif ExitCode.NO not in own:
        wanted.remove(ExitCode.NO)
        own = {ExitCode.OK: "it worked"}
    return {code: own.get(code, GENERAL[code]) for code in wanted}


def lines(command: str) -> list[str]:
    """The same as the last part of a help page."""
    return ["exit codes:", *(f"  {int(code):>3}  {text}" for code, text in meanings(command).items())]
