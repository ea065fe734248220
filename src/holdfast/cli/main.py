"""`holdfast`: finds the command, runs it, and turns every way to fail into words and an exit code.

    main(["train", "my_script.py", "lr=3e-4"])      # 0, or the code of the error that was printed

Only the module of the command that was asked for is imported, so that `holdfast --help` costs milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import __version__
from holdfast.base.errors import ExitCode, HoldfastError, InternalError, UserError


class Command(NamedTuple):
    """Where a command lives and what it is for."""

    place: str
    """module, or module:function where a module holds several commands"""
    help: str


COMMANDS = {
    "doctor": Command("doctor", "test each device: does it crash, hang, compute wrong?"),
    "run": Command("run", "run any script unchanged; restart it after a fault"),
    "train": Command("train", "train a script with train(session); a fault costs a second"),
    "watch": Command("watch", "watch a run in the terminal or the browser"),
    "resume": Command("resume", "continue a run that stopped, crashed or failed"),
    "plan": Command("plan", "compare devices and rented GPUs by time and cost"),
    "chaos": Command("chaos", "inject faults into a training and compare the results"),
    "config": Command("config", "show every setting and where its value comes from"),
    "verify": Command("verify", "test one device and write a report to send"),
    "status": Command("runs:add_status", "show how far runs are"),
    "list": Command("runs:add_list", "list every run"),
    "show": Command("runs:add_show", "show everything about a run"),
    "stop": Command("runs:add_stop", "stop a run and save its state"),
    "report": Command("report", "write one HTML file about a run; CSV, JSON, PNG"),
    "notify": Command("notify", "test notifications, or send them for a run"),
    "track": Command("track", "send a run to MLflow, W&B, Trackio or TensorBoard"),
    "weights": Command("weights", "write the trained weights as one file for PyTorch"),
    "fsck": Command("fsck", "check the files of a run for damage"),
    "launch": Command("launch", "train with several processes, machines or a cloud"),
    "push": Command("push:add_push", "copy a run to another folder or machine"),
    "pull": Command("push:add_pull", "fetch a run from another folder or machine"),
    "ledger": Command("ledger", "show how far each device is trusted, and why"),
    "env": Command("env", "print versions and hardware for a bug report"),
    "optimize": Command("optimize", "make a trained model faster and check its answers"),
    "predict": Command("predict", "run an optimized model on a file of inputs"),
    "serve": Command("serve", "serve an optimized model over HTTP"),
    "explain": Command("explain", "explain a fault, a finding, an exit code, a message"),
    "completion": Command("completion", "let bash, zsh or fish complete holdfast commands"),
    "uninstall": Command("uninstall", "remove what holdfast keeps outside of run folders"),
}

GROUPS = {
    "prepare": ("plan", "chaos", "config", "verify"),
    "runs": ("status", "list", "show", "stop", "report", "notify", "track", "weights", "fsck"),
    "machines": ("launch", "push", "pull", "ledger", "env"),
    "models": ("optimize", "predict", "serve"),
    "help": ("explain", "completion", "uninstall"),
}
"""The commands that `holdfast` alone names after the five of `FIRST`. What a workload brings is a group of its own."""

FIRST = {
    "doctor": "test each device: crash, hang, wrong numbers?",
    "run -- python train.py": "run it unchanged, restart it after faults",
    "train my_script.py": "train with a session: a fault costs a second",
    "watch": "watch runs; --web shows them in the browser",
    "resume latest": "continue a run that stopped or crashed",
}
"""The commands most people need, as they are typed."""


def commands() -> dict[str, Command]:
    """Our commands and those that workloads bring."""
    from holdfast.run import workload_registry

    brought = workload_registry.commands()
    return COMMANDS | {name: Command(each.command, each.command_help) for name, each in brought.items()}


def maker(command: str) -> Any:
    """The function that adds a command's parser; only its module is imported."""
    found = COMMANDS.get(command)
    place = f"holdfast.cli.{found.place}" if found is not None else commands()[command].place
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function or "add_parser")


def hello() -> str:
    """What `holdfast` alone says: the five commands most people need, then the names of the others."""
    groups = {**GROUPS, "workloads": tuple(name for name in commands() if name not in COMMANDS)}
    return "\n".join(
        [
            f"holdfast {__version__}: train PyTorch models on hardware you cannot trust",
            "",
            *(f"  holdfast {words:<24}{text}" for words, text in FIRST.items()),
            "",
            "other commands:",
            *(f"  {group:<12}{'  '.join(names)}" for group, names in groups.items() if names),
            "",
            "`holdfast --help` describes every command, `holdfast train --help` has examples.",
            "",
        ]
    )


_WITH_VALUE = ("--color",)
"""Output flags that take the next word, where they stand before the command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises, whatever happens in it."""
    _open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _main(words)
    except BrokenPipeError:  # `holdfast list | head`: the reader has what it wanted
        code = ExitCode.OK
    return _flushed(code)


def _open_standard_streams() -> None:
    """Started with one of them closed (`>&-`, some daemons), a socket of ours would get its number and be lost."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(nowhere, True)


def _main(words: list[str]) -> int:
    try:
        return _dispatch(words)
    except HoldfastError as error:
        return _refuse(error, words)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        raise
    except SystemExit as request:  # argparse, after --help
        return request.code if isinstance(request.code, int) else ExitCode.OK
    except Exception as error:  # the edge of the process: our bug, told with everything a report needs
        return _refuse(_internal(error, words), words)


def _dispatch(words: list[str]) -> int:
    flags, command, rest = _split(words)
    if command is None:
        return _without_command(flags)
    if command not in COMMANDS and command not in commands():
        from holdfast.console.usage import UsageError, similar

        raise UsageError(f"unknown command `{command}`", tips=similar(command, commands(), "command"))
    _check_here()
    if os.environ.get("HOLDFAST_ADD"):  # its files are checked before anything depends on them
        check_additions()
    for_script: list[str] | None = None
    if "--" in rest:
        cut = rest.index("--")
        rest, for_script = rest[:cut], rest[cut + 1 :]
    args = _parse(command, [*flags, *rest])
    if for_script and not hasattr(args, "script_argv"):
        from holdfast.console.usage import UsageError

        raise UsageError(f"`holdfast {command}` takes nothing after `--`", command=command)
    if for_script is not None:
        args.script_argv = for_script
    return int(args.run(args))


def _check_here() -> None:
    """Paths and settings are looked for in the current folder: every command needs one."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            "the current folder no longer exists",
            cause=error.strerror,
            hints=["change to another folder: `cd ~`", "runs that were started in it continue"],
        ) from None


def check_additions() -> None:
    """Read all that HOLDFAST_ADD names: what is wrong with it is said now, and not at a run's first fault."""
    from holdfast.base import additions
    from holdfast.devices import probe_catalog, remedies
    from holdfast.faults import kinds
    from holdfast.run import workload_registry

    for read in (kinds.check_added, remedies.catalogue, probe_catalog.probes, workload_registry.all_workloads):
        read()
    if additions.files("engines", "*.py"):  # these need numpy, which is not there for every command
        from holdfast.optimize import engines

        engines.kinds()


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Flags before the command, the command, what follows: `holdfast --json list` is `holdfast list --json`."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        at += 2 if words[at] in _WITH_VALUE else 1
    command = words[at] if at < len(words) else None
    return words[:at], command, words[at + 1 :]


def _without_command(flags: list[str]) -> int:
    from holdfast.console.output import Screen

    screen = Screen.of(sys.stdout)
    if "--version" in flags or "-V" in flags:
        screen.write(f"holdfast {__version__}")
    elif "--help" in flags or "-h" in flags:
        screen.write(_help())
    elif not flags:
        screen.write(hello(), end="")
    else:
        from holdfast.console.usage import UsageError

        raise UsageError(f"unexpected argument `{flags[0]}`", cause="no command was given")
    return ExitCode.OK


def _help() -> str:
    known = commands()
    groups = {**GROUPS, "workloads": tuple(name for name in known if name not in COMMANDS)}
    first = [words.split()[0] for words in FIRST]
    rows = [f"  {name:<12}{known[name].help}" for name in first]
    for group, names in groups.items():
        rows += ["", f"{group}:", *(f"  {name:<12}{known[name].help}" for name in names)] if names else []
    return "\n".join(
        [
            "Train PyTorch models on hardware you cannot trust.",
            "",
            "examples:",
            *(f"  holdfast {words}" for words in FIRST),
            "",
            "usage: holdfast COMMAND [ARGUMENTS]",
            "",
            "the commands most people need:",
            *rows,
            "",
            "options of every command:",
            "  --json        print one JSON object on stdout",
            "  --color WHEN  auto, always or never; --ascii for plain signs",
            "  -q, -v        print less, print more",
            "  --help        show examples and options of a command",
            "",
            "exit codes:",
            "    0  it worked               4  gave up, the state is saved",
            "    1  the answer is no       75  stopped on purpose, the state is saved",
            "    2  wrong usage           130  Ctrl-C, the state is saved",
            "    3  a bug in holdfast     143  stopped at once by a second signal",
            "  `holdfast explain 75` says more about one of them.",
        ]
    )


def _parse(command: str, words: list[str]) -> argparse.Namespace:
    from holdfast.console.usage import One

    parsed: argparse.Namespace = maker(command)(One()).parse(words)
    return parsed


# When it does not work ------------------------------------------------------------------------------------


def _refuse(error: HoldfastError, words: list[str]) -> int:
    """Print an error on stderr, and with --json as the one object on stdout; returns its exit code."""
    from holdfast.console.output import Output, print_error
    from holdfast.console.usage import UsageError, print_usage_error

    output = Output.from_args(_output_flags(words))
    if output.verbose:
        output.err.write("".join(traceback.format_exception(error)).rstrip("\n"))
    if isinstance(error, UsageError):
        print_usage_error(error, output.err)
    else:
        print_error(error, output.err)
    if output.as_json:
        output.json({"error": error.to_json(), "exit_code": int(error.exit_code)})
    return error.exit_code


def _output_flags(words: list[str]) -> argparse.Namespace:
    """The flags that decide how an error is shown, from a command line that may not be understood otherwise."""
    words = words[: words.index("--")] if "--" in words else words
    color = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--color"]
    color += [word.partition("=")[2] for word in words if word.startswith("--color=")]
    return argparse.Namespace(
        json="--json" in words,
        ascii="--ascii" in words,
        verbose="-v" in words or "--verbose" in words,
        color=color[-1] if color and color[-1] in ("always", "never") else "auto",
    )


def _internal(error: Exception, words: list[str]) -> InternalError:
    report = _write_report(error, words)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    internal = InternalError(
        "holdfast failed because of a bug",
        cause=f"{type(error).__name__}: {error}{where}",
        hints=[f"please report it with {report}" if report else "please report it with what `-v` prints"],
    )
    internal.__cause__ = error
    return internal


def _write_report(error: Exception, words: list[str]) -> Path | None:
    """What a report needs, in the current folder or else the temporary one; None if neither can be written."""
    import tempfile
    import time

    from holdfast.base.folders import Folder
    from holdfast.console.output import shorten
    from holdfast.run.folder import redact

    text = "\n".join(
        [
            f"holdfast {' '.join(redact(words))}",
            "",
            *(line.rstrip("\n") for line in traceback.format_exception(error)),
            "",
            *_versions(),
        ]
    )
    name = f"holdfast-report-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (Path(os.curdir), Path(tempfile.gettempdir())):
        try:
            folder = folder.absolute()  # an OSError where the current folder was deleted
            with Folder.at(folder) as place, place.create(name) as file:
                file.write(f"{shorten(text)}\n".encode(errors="backslashreplace"))
        except OSError:
            continue
        return folder / name
    return None


def _versions() -> list[str]:
    try:
        from holdfast.cli.env import block
        from holdfast.run import machine

        return block(machine.look())
    except Exception as error:  # the report of one bug must not end in another
        return [f"holdfast {__version__}, Python {sys.version}", f"({type(error).__name__}: {error})"]


def _flushed(code: int) -> int:
    """Leave nothing in a buffer that Python would fail to write after us, and change our exit code for it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            _to_nowhere(stream)
    return int(code)


def _to_nowhere(stream: Any) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        return


if __name__ == "__main__":
    from holdfast.base.interpreter import forget_current_folder

    forget_current_folder()
    sys.exit(main())
