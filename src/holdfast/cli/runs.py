"""`holdfast list`, `status`, `show`, `stop`: runs seen from outside, through their folders alone.

    holdfast list                  every run there is
    holdfast status                the runs under way, or else the last one
    holdfast show calm-heron       everything about one
    holdfast stop calm-heron       saved first, then stopped

They work on live, finished, crashed and copied runs, while the supervisor is busy and when it is gone.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.base import locks
from holdfast.base.control_characters import one_line
from holdfast.base.errors import ExitCode, UserError
from holdfast.cli import summary
from holdfast.cli.run_facts import Look, local_time
from holdfast.console.order import root_of
from holdfast.console.output import (
    Output,
    add_flags,
    add_folder,
    count,
    counted,
    duration,
    metric,
    percent,
    size,
    table,
)
from holdfast.console.text import without_control
from holdfast.console.usage import Parser
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder, find_run, list_runs
from holdfast.run.reference import handle, shown
from holdfast.run.settings import known
from holdfast.run.states import LIVE_STATES, UNFINISHED_STATES, RunKind, RunState

_RUN_HELP = "a run: its name such as calm-heron, its folder, or `latest`"
_OF_RANKS = {"away", "back", "slow_rank", "moved", "returned", "shares"}
"""What a note about one rank of a launch has."""
_STALE = 10.0
"""Seconds after which a live run's beat is called old."""


# Parsers --------------------------------------------------------------------------------------------------


def add_list(subparsers: Any) -> Parser:
    return _add(
        subparsers,
        "list",
        list_all,
        """\
List every run, the newest last.

examples:
  holdfast list                        the runs in ./runs
  holdfast list --folder /mnt/runs     the runs in another folder
  holdfast list --json                 print the list as JSON""",
    )


def add_status(subparsers: Any) -> Parser:
    about = """\
Show the state of one run, of all runs in progress, or else of the last run.

examples:
  holdfast status                      the runs in progress
  holdfast status calm-heron           one run
  holdfast status --json               print it as JSON"""
    return _add(subparsers, "status", status, about, runs="one or none")


def add_show(subparsers: Any) -> Parser:
    about = """\
Show everything about a run: its result, its faults and its files.

examples:
  holdfast show latest                 the newest run
  holdfast show calm-heron -v          every event, not only the last ones
  holdfast show calm-heron --json      print it as JSON"""
    return _add(subparsers, "show", show, about, runs="one")


def add_stop(subparsers: Any) -> Parser:
    about = """\
Stop a run and save its state.

examples:
  holdfast stop calm-heron             finish the step, save, stop
  holdfast stop latest --now           do not wait for the step; the last snapshot is saved
  holdfast resume calm-heron           continue it later"""
    flags = {"--now": "do not wait until the current step is finished and saved"}
    return _add(subparsers, "stop", stop, about, runs="one", flags=flags)


def _add(
    subparsers: Any,
    command: str,
    run: Callable[[argparse.Namespace], int],
    about: str,
    *,
    runs: str = "",
    flags: Mapping[str, str] | None = None,
) -> Parser:
    """One command of this module. `runs`: it takes the name of "one" run, or of "one or none"."""
    parser: Parser = subparsers.add_parser(command, description=about)
    if runs:
        how: dict[str, Any] = {"nargs": "?"} if runs == "one or none" else {}
        parser.add_argument("name", metavar="RUN", help=_RUN_HELP, **how)
    for flag, text in (flags or {}).items():
        parser.add_argument(flag, action="store_true", help=text)
    add_folder(parser)
    add_flags(parser, plain=True)
    parser.set_defaults(run=run)
    return parser


# list and status ------------------------------------------------------------------------------------------


def list_all(args: argparse.Namespace) -> int:
    return _tell(args, [Look(run) for run in list_runs(root_of(args))], _print_table)


def _tell(args: argparse.Namespace, looks: list[Look], show_them: Callable[[list[Look], Output], None]) -> int:
    """Runs as JSON, as lines for other programs, or as `show_them` shows them to a person."""
    output = Output.from_args(args)
    if output.as_json:
        output.json({"runs": [look.row() for look in looks]})
    elif not looks:
        output.note(f"no runs in {root_of(args)}")
    elif output.plain or output.quiet:
        _print_plain(looks, output)
    else:
        show_them(looks, output)
    return ExitCode.OK


def _print_table(looks: list[Look], output: Output) -> None:
    rows = []
    for look in looks:
        row = look.row()
        best = look.best
        rows.append(
            (
                look.name,
                str(row["workload"] or "-"),
                look.state,
                str(row["device"] or "-"),
                _steps(row),
                f"{best['name']} {metric(best['value'])}" if best else "-",
                str(row["recoveries"]),
                duration(look.lasted_s),
                duration(row["time_left_s"]),
            )
        )
    names = ("RUN", "WORKLOAD", "STATE", "DEVICE", "STEP", "BEST", "RECOVERED", "TIME", "LEFT")
    header, *lines = table(rows, header=names, right=(4, 6, 7, 8))
    output.print(output.out.style(header, "dim"))
    for line in lines:
        output.print(without_control(line))


def _steps(row: dict[str, Any]) -> str:
    step, total = row["step"], row["steps_total"]
    return f"{count(step)}/{count(total)}" if total else count(step)


def _print_plain(looks: list[Look], output: Output) -> None:
    """One run a line, words apart by tabs: for cut and awk."""
    for look in looks:
        row = look.row()
        keys = ("run", "workload", "state", "device", "step", "steps_total", "time_left_s", "recoveries", "folder")
        output.print("\t".join("-" if row[key] is None else one_line(str(row[key])) for key in keys))


def status(args: argparse.Namespace) -> int:
    return _tell(args, _asked_for(args), _print_standings)


def _print_standings(looks: list[Look], output: Output) -> None:
    for number, look in enumerate(looks):
        if number:
            output.print()
        for line in standing(look):
            output.print(without_control(line))


def _asked_for(args: argparse.Namespace) -> list[Look]:
    root = root_of(args)
    if args.name:
        return [Look(find_run(root, args.name))]
    looks = [Look(run) for run in list_runs(root)]
    return [look for look in looks if look.live] or looks[-1:]


def standing(look: Look) -> list[str]:
    """A run in a few lines: its state, how far it is, its numbers, its faults, its last save."""
    head = " · ".join([look.name, str(look.info.get("workload") or "-"), f"{look.state} {duration(look.lasted_s)}"])
    lines = [f"{head} · {look.device}" if look.device else head]
    bound = summary.bound_words(look, of_all=False) if look.live else ""
    lines += [f"  {part}" for part in (_how_far(look), _last_sign(look), bound and f"bound {bound}") if part]
    lines += summary.curves(look)
    lines += [f"  {_trouble(look)}"]
    if look.state in UNFINISHED_STATES:
        lines += [f"  continue with `holdfast resume {handle(look.run)}`"]
    return lines


def _how_far(look: Look) -> str:
    row, beat = look.row(), look.beat
    parts = []
    if row["epochs"]:
        parts.append(f"epoch {look.seen.progress.epoch or 0}/{row['epochs']}")
    if row["step"] is not None:
        parts.append(f"step {_steps(row)}")
    if row["step"] is not None and row["steps_total"]:
        parts.append(percent(row["step"] / row["steps_total"]))
    if look.live and beat.get("phase"):
        parts.append(str(beat["phase"]))
    if row["rate"]:
        parts.append(f"{row['rate']:.3g} steps/s")
    if row["time_left_s"] is not None:
        parts.append(f"{duration(row['time_left_s'])} left")
    return "  ".join(parts)


def _last_sign(look: Look) -> str:
    """Old data says so in words."""
    age = look.age_s
    return f"last beat {duration(age)} ago" if look.live and age is not None and age > _STALE else ""


def _trouble(look: Look) -> str:
    faults, recovered = look.seen.faults_total, look.seen.faults_recovered
    how = "all recovered" if recovered == faults else f"{count(recovered)} recovered"
    words = [f"{counted(faults, 'fault')}, {how}" if faults else "no faults"]
    if look.checkpoints:
        words.append(f"last checkpoint step {count(look.checkpoints[0][0])}")
    return " · ".join(words)


# show -----------------------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    look = Look(find_run(root_of(args), args.name))
    if output.as_json:
        output.json({**look.result(), **_more(look)})
        return ExitCode.OK
    for line in page(look, verbose=bool(output.verbose)):
        output.print(without_control(line))
    return ExitCode.OK


def _more(look: Look) -> dict[str, Any]:
    keys = ("workload", "script", "arguments", "argv", "seed", "threads", "created", "ended", "holdfast", "python")
    return {
        **{key: look.info.get(key) for key in keys},
        "step": look.step,
        "faults": [{"time": event.time, **event.data} for event in look.faults],
        "ranks": [{"time": event.time, **event.data} for event in _rank_notes(look)],
        "checkpoints": [
            {"step": step, "path": str(path.absolute()), "bytes": nbytes} for step, path, nbytes in look.checkpoints
        ],
        "weights": {name: str(path.absolute()) for name, path in look.weights.items()},
        "settings": look.info.get("settings"),
    }


def page(look: Look, *, verbose: bool = False) -> list[str]:
    """All of it, in sections."""
    sections = [
        [f"{look.name} · {look.info.get('workload')} · {look.state}"],
        ["How it went", *_indent(summary.headline(look)), *summary.curves(look), *summary.accounts(look)],
        ["What it is", *_indent(table(_identity(look)))],
        ["Devices", *_indent(_devices(look))],
        ["Faults", *_indent(_faults(look, verbose))],
        ["Ranks", *_indent(_ranks(look, verbose))],
        ["Files", *_indent(table(_files(look)))],
    ]
    lines: list[str] = []
    for section in sections:
        if len(section) > 1 or not lines:
            lines += [*([""] if lines else []), *section]
    return [*lines, "", *summary.next_commands(look)] if look.state not in (RunState.FINISHED, *LIVE_STATES) else lines


def _indent(lines: list[str]) -> list[str]:
    return summary.indented(lines)


def _identity(look: Look) -> list[tuple[str, str]]:
    info = look.info
    arguments = info.get("arguments")
    rows = [("script", shown(Path(str(info.get("script") or "-"))))]
    if isinstance(arguments, dict) and arguments:
        rows.append(("arguments", " ".join(f"{key}={value}" for key, value in arguments.items())))
    external = info.get("kind") == RunKind.SCRIPT  # of `holdfast run`: seed and threads are the script's own business
    argv = info.get("command") if external else info.get("argv")
    if argv and isinstance(argv, list):
        rows.append(("command" if external else "argv", " ".join(map(str, argv))))
    if not external:
        rows.append(("seed", f"{info.get('seed')}, {info.get('threads')} threads"))
    rows.append(("made", f"{info.get('created')} by holdfast {info.get('holdfast')}, Python {info.get('python')}"))
    changed = _changed(look)
    if changed:
        rows.append(("settings", ", ".join(changed)))
    return rows


def _changed(look: Look) -> list[str]:
    """Settings that somebody set, as they were written down; a folder from elsewhere may hold anything."""
    saved = look.info.get("settings")
    sources = saved.get("sources") if isinstance(saved, dict) else None
    if not isinstance(saved, dict) or not isinstance(sources, dict):
        return []
    lines = []
    for key in sources:
        section, _, name = str(key).partition(".")
        try:
            lines.append(f"{key} {known(str(key)).show(saved[section][name])}")
        except (UserError, LookupError, TypeError, ValueError, AttributeError):
            continue
    return lines


def _devices(look: Look) -> list[str]:
    rows = []
    for entry in look.device_timeline:
        last = entry.get("to_step")
        to = "now" if last is None and look.live else count(last)
        rows.append((str(entry.get("device")), f"step {count(entry.get('from_step'))} to {to}"))
    return table(rows)


def _faults(look: Look, verbose: bool) -> list[str]:
    latest, lines = _latest(look.faults, verbose)
    for event in latest:
        folder = Path(str(event.data.get("folder") or "")).name
        code, sentence = event.data.get("code") or "-", event.data.get("sentence") or event.data.get("kind")
        lines.append(f"{event.time[:10]} {local_time(event)}  {code}  {sentence}  faults/{folder}")
    return lines


def _latest(events: list[Event], verbose: bool) -> tuple[list[Event], list[str]]:
    """The last ones, and a line about those that are left out."""
    latest = events if verbose else events[-10:]
    hidden = len(events) - len(latest)
    return latest, [f"{hidden} earlier ones; `-v` shows all"] if hidden else []


def _rank_notes(look: Look) -> list[Event]:
    """Which rank of a launch was away, moved, came back, held the others up, got another part, or was blamed."""
    notes = look.seen.events(kinds={"note", "verdict"})
    return [event for event in notes if _OF_RANKS & event.data.keys() or "host" in event.data]


def _ranks(look: Look, verbose: bool) -> list[str]:
    latest, lines = _latest(_rank_notes(look), verbose)
    told = ((event, event.data.get("text") or event.data.get("sentence")) for event in latest)
    return [*lines, *(f"{event.time[:10]} {local_time(event)}  {text}" for event, text in told)]


def _files(look: Look) -> list[tuple[str, str]]:
    rows = [("folder", shown(look.run.path))]
    rows += [(name, f"{name}.safetensors, {size(path.stat().st_size)}") for name, path in look.weights.items()]
    rows += [(f"step {count(step)}", f"checkpoints/{path.name}, {size(n)}") for step, path, n in look.checkpoints]
    names = ("output.log", "traceback.txt", "supervisor.log", "metrics.jsonl", "journal.jsonl", "receipt.json")
    there = [name for name in names if (look.run.path / name).is_file()]
    return [*rows, ("also", ", ".join(there))] if there else rows


# stop -----------------------------------------------------------------------------------------------------


def stop(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    run = find_run(root_of(args), args.name)
    if not run.in_use():
        return _already_still(run, output)
    pid = supervisor_pid(run)
    if pid is None:
        output.note(f"the supervisor of {run.name} is gone; its last snapshot is being saved")
    else:
        _send(pid)
        output.note(f"asked {run.name} (pid {pid}) to save and stop")
        if args.now:
            time.sleep(0.5)  # two signals at once would reach it as one
            if run.in_use():
                _send(pid)
    return _await_end(run, output)


def supervisor_pid(run: RunFolder) -> int | None:
    """The process to signal: named by run.json and by the lock, alive, and really holding the lock."""
    said = re.match(r"pid (\d{1,18})$", locks.holder(run.path / "lock"))
    if said is None or run.info.get("pid") != int(said[1]):
        return None
    pid = int(said[1])
    return pid if _holds(pid, run.path / "lock") else None


def _holds(pid: int, lock: Path) -> bool:
    """Process numbers are used again: only one that has the lock file open is ours."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return not Path("/proc/self/fd").exists()  # no /proc here: the lock and run.json must do
    target = lock.resolve()
    return any(_link(entry) == target for entry in descriptors)


def _link(entry: Path) -> Path | None:
    try:
        return Path(os.readlink(entry))
    except OSError:
        return None


def _send(pid: int) -> None:
    number = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM)  # on Windows SIGTERM would not be heard
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except OSError as error:
        raise UserError(f"cannot signal process {pid}", cause=str(error.strerror or error)) from None


def _await_end(run: RunFolder, output: Output) -> int:
    """Saving a large state takes as long as it takes; Ctrl-C leaves it to itself."""
    try:
        while run.in_use():
            time.sleep(0.05)
    except KeyboardInterrupt:
        output.note(f"\n{run.name} is still saving and will stop when it is done")
        return ExitCode.INTERRUPTED
    look = Look(run)
    if output.as_json:
        output.json(look.result())
    elif look.state == RunState.STOPPED:
        output.print(f"✓ {look.name} stopped at step {count(look.step)}")
        for line in [*summary.files(look), f"  continue with `holdfast resume {handle(look.run)}`"]:
            output.print(without_control(line))
    else:
        output.print(f"{look.name} is {look.state}")
    return ExitCode.OK


def _already_still(run: RunFolder, output: Output) -> int:
    look = Look(run)
    if output.as_json:
        output.json(look.result())
    else:
        output.print(f"{look.name} is not running: it is {look.state} at step {count(look.step)}")
    return ExitCode.OK
