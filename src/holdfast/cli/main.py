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
    "doctor": Command("doctor", "what each device can really do, from isolated probes"),
    "plan": Command("plan", "the ways to get it trained, with time, cost and risk; one chosen"),
    "train": Command("train", "a supervised run; survives crashes, hangs and kill -9"),
    "run": Command("run", "supervise any script without changing it"),
    "launch": Command("launch", "one run of several processes, machines, or in a cloud"),
    "resume": Command("resume", "go on with a run after anything"),
    "stop": Command("runs:add_stop", "stop a run with its state saved"),
    "status": Command("runs:add_status", "where runs stand"),
    "list": Command("runs:add_list", "every run there is"),
    "watch": Command("watch", "see a run, live or over, in the terminal or a browser"),
    "notify": Command("notify", "try whom runs tell, or tell of a run"),
    "track": Command("track", "send a run to MLflow, W&B, Trackio or TensorBoard, or what is left of it"),
    "show": Command("runs:add_show", "everything about a run"),
    "report": Command("report", "one HTML file about a run; CSV, JSON, PNG of its numbers"),
    "weights": Command("weights", "the trained weights of a run as one file for plain PyTorch"),
    "push": Command("push:add_push", "a run to another folder or machine, verified at both ends"),
    "pull": Command("push:add_pull", "a run from another folder or machine"),
    "fsck": Command("fsck", "what of a run folder is good, and what is damaged"),
    "ledger": Command("ledger", "how far each device is trusted, and why"),
    "optimize": Command("optimize", "make a trained model fast to serve, and prove that it is still right"),
    "predict": Command("predict", "answers of a bundle for a file of inputs"),
    "serve": Command("serve", "answers of a bundle over HTTP, on this machine only"),
    "chaos": Command("chaos", "inject faults into a run and print the receipt"),
    "verify": Command("verify", "prove a device, and write a report to send"),
    "explain": Command("explain", "what a code means, what holdfast does about it, what you can do"),
    "env": Command("env", "a report about this machine, ready to paste"),
    "config": Command("config", "every setting and where it came from"),
}


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


HELLO = f"""\
holdfast {__version__}: train PyTorch models on hardware you cannot trust

  holdfast doctor                 what each device can really do
  holdfast plan my_script.py      how long it takes here, and what else could be done
  holdfast train my_script.py     a run that survives crashes, hangs and kill -9
  holdfast status                 where runs stand
  holdfast explain hang           what a fault means and what you can do

`holdfast --help` lists every command, `holdfast train --help` shows examples.
"""

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
            "the current folder does not exist any more",
            cause=error.strerror,
            hints=["go to another one: `cd ~`", "a run that was started in it goes on"],
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
        screen.write(HELLO, end="")
    else:
        from holdfast.console.usage import UsageError

        raise UsageError(f"unexpected argument `{flags[0]}`", cause="no command was given")
    return ExitCode.OK


def _help() -> str:
    lines = [f"  {name:<10}{command.help}" for name, command in commands().items()]
    return "\n".join(
        [
            "Train PyTorch models on hardware you cannot trust.",
            "",
            "usage: holdfast COMMAND [ARGUMENTS]",
            "",
            "commands:",
            *lines,
            "",
            "options of every command:",
            "  --json      one JSON object on stdout",
            "  --color W   auto, always or never; --ascii for plain signs",
            "  -q, -v      less, more",
            "  --help      examples and flags of a command",
            "",
            "exit codes: 0 it happened, 1 the answer is no, 2 usage, 3 our bug,",
            "            4 gave up (state saved), 75 stopped (state saved),",
            "            130 Ctrl-C (state saved), 143 stopped at once",
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
        "holdfast itself failed; this is a bug",
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
