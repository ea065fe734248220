"""`holdfast eeg simulate`, `check` and `prepare`: a data set, what is wrong with it, and windows made of it.

    holdfast eeg simulate ./data --subjects 20
    holdfast eeg check ./data
    holdfast eeg prepare ./data ./cache

What they do is in `holdfast.workloads.eeg`; here are the words.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags, counted, duration, shorten
from holdfast.console.progress import Bar
from holdfast.console.text import without_control
from holdfast.console.usage import Parser, UsageError

_SHOWN = 5
KINDS = ("challenge1", "challenge2", "pretrain")


# simulate ---------------------------------------------------------------------------------------------------


def add_simulate(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "eeg simulate",
        description="""\
Write a simulated BIDS data set that looks like the Healthy Brain Network.

examples:
  holdfast eeg simulate ./data                       20 subjects at 100 Hz
  holdfast eeg simulate ./data --subjects 200 --seed 7
  holdfast eeg simulate ./data --rate 500 --format set     the format of the originals

It has 129 channels, a task with response times, rest, four factors and the defects of real data. Every file says that
it is simulated. simulated_truth.json holds the truth for each subject and trial. The same seed gives the same bytes.
""",
    )
    parser.add_argument("folder", metavar="DATA", help="folder to write: a new one, or one that holds simulated data")
    parser.add_argument("--subjects", type=int, default=20, metavar="N", help="number of subjects (default: 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--rate", type=int, default=100, metavar="HZ", help="sampling rate (default: 100)")
    parser.add_argument(
        "--format", choices=("bdf", "set"), default="bdf", help="file format: bdf or set (default: bdf)"
    )
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="task runs per subject (default: 2)")
    parser.add_argument("--trials", type=int, default=24, metavar="N", help="trials per run (default: 24)")
    parser.add_argument("--rest", type=float, default=120.0, metavar="S", help="seconds of rest (default: 120)")
    parser.add_argument("--clean", action="store_true", help="write no artefacts, gaps or missing labels")
    parser.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per core)")
    add_flags(parser, progress=True)
    parser.set_defaults(run=run_simulate)
    return parser


def run_simulate(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    _at_least(args, "eeg simulate", subjects=1, runs=0, trials=1, seed=0)
    if not 1 <= args.rest <= 36000:
        raise UsageError(f"--rest {args.rest:g} is not between 1 and 36000 seconds", command="eeg simulate")
    from holdfast.workloads.eeg import bids, simulate

    began = time.monotonic()
    with Bar(output, "simulating") as bar:
        folder = simulate.write(
            args.folder,
            subjects=args.subjects,
            seed=args.seed,
            rate=args.rate,
            format=args.format,
            runs=args.runs,
            trials=args.trials,
            rest_seconds=args.rest,
            flaws=not args.clean,
            workers=args.workers,
            progress=lambda done, total: bar.update(done, total),
        )
    seconds, found = time.monotonic() - began, bids.look(folder)
    if output.as_json:
        recordings = len(found.recordings)
        output.json(
            {
                "folder": str(folder),
                "simulated": True,
                "subjects": args.subjects,
                "recordings": recordings,
                "seed": args.seed,
                "seconds": seconds,
            }
        )
        return ExitCode.OK
    output.print(
        f"✓ SIMULATED data: {counted(args.subjects, 'subject')}, {counted(len(found.recordings), 'recording')} "
        f"at {args.rate} Hz in {shorten(str(folder))} ({duration(seconds)})"
    )
    output.note()
    output.note(f"  holdfast eeg check {folder}")
    output.note(f"  holdfast eeg prepare {folder} CACHE")
    return ExitCode.OK


# check ------------------------------------------------------------------------------------------------------


def add_check(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "eeg check",
        description="""\
Check every recording of a BIDS data set, and list what would break braindecode, mne or mne-bids.

examples:
  holdfast eeg check ./data
  holdfast eeg check ./data --prove      run the calls of braindecode that would fail
  holdfast eeg check ./data -v           name every recording
  holdfast eeg check ./data --json
  holdfast eeg check ./cache             check every byte of a cache against its digest

It also lists what training would leave out.
""",
    )
    parser.add_argument("folder", metavar="DATA", help="a BIDS data set, a folder of several, or a cache")
    parser.add_argument("--prove", action="store_true", help="run the calls that would fail, in another process")
    parser.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per core)")
    add_flags(parser, progress=True)
    parser.set_defaults(run=run_check)
    return parser


def run_check(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    from holdfast.workloads.eeg import check

    caches = _caches(Path(args.folder))
    if caches:
        return _check_caches(caches, output)
    if args.prove:
        _needs("braindecode", "mne")
    with Bar(output, "checking") as bar:
        checked = check.check(args.folder, workers=args.workers, progress=bar.update)
    if args.prove:
        check.prove(checked)
    data = checked.to_json()
    code = ExitCode.NO if data["breaks"] else ExitCode.OK
    if output.as_json:
        output.json({**data, "exit_code": int(code)})
        return code
    told = "SIMULATED · " if data["simulated"] and not data["name"].startswith("SIMULATED") else ""
    head = f"{told}{data['name']} · {counted(data['subjects'], 'subject')}, {counted(data['recordings'], 'recording')}"
    output.print(without_control(head))
    for finding in checked.findings:
        output.print()
        for line in finding.lines(everything=bool(output.verbose)):
            _print_wrapped(output, line)
    output.print()
    if not checked.findings:
        output.print("[✓] nothing was found that would break anything")
    elif data["breaks"]:
        output.print("These are faults of the data, not of a device: `holdfast eeg prepare` works around each of them.")
    else:
        output.print("Nothing here would break anything; what cannot be used is left out and counted.")
    return code


def _caches(folder: Path) -> list[Path]:
    """The caches that `prepare` made, in this folder or in those of it."""
    return [each.parent for each in (folder / "windows.json", *sorted(folder.glob("*/windows.json"))) if each.is_file()]


def _check_caches(folders: list[Path], output: Output) -> int:
    """Every byte of every window against the digests that were written with it."""
    from holdfast.workloads.eeg import cache

    rows = []
    with Bar(output, "checking") as bar:
        for number, folder in enumerate(folders):
            bar.update(number, len(folders), folder.name)
            windows = cache.open(folder)
            rows.append((windows, cache.damaged(windows)))
    code = ExitCode.NO if any(bad for _, bad in rows) else ExitCode.OK
    if output.as_json:
        told = [{"folder": str(each.folder), "windows": len(each), "damaged": bad} for each, bad in rows]
        output.json({"caches": told, "exit_code": int(code)})
        return code
    for each, bad in rows:
        output.print(without_control(f"{'[✗]' if bad else '[✓]'} {shorten(str(each.folder))}: {each.words()}"))
        for name in bad if output.verbose else bad[:_SHOWN]:
            output.print(without_control(f"      damaged: {name}"))
        if len(bad) > _SHOWN and not output.verbose:
            output.print(f"      and {len(bad) - _SHOWN} more; `-v` names all")
    if code:
        output.note("hint: `holdfast eeg prepare DATA CACHE --rebuild` makes it anew")
    return code


# prepare ----------------------------------------------------------------------------------------------------


def add_prepare(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "eeg prepare",
        description="""\
Filter the recordings of a BIDS data set, cut windows, and write them to a cache for training.

examples:
  holdfast eeg prepare ./data ./cache                       all three kinds of windows
  holdfast eeg prepare ./data ./cache --kind challenge1
  holdfast eeg prepare ./data ./cache --as-served           as the competition serves them
  holdfast eeg prepare ./data ./cache --kind events --events stim_1,stim_2 --shift -0.1 --size 0.9
  holdfast eeg prepare ./data ./cache --kind challenge1 --trial '' \\
      --stimulus 'target_*' --response 'buttonPress_*' --tasks cueing      another data set

It leaves out recordings that it cannot use, and counts them by reason. You can interrupt it; the same command
continues where it stopped.
""",
    )
    parser.add_argument("folder", metavar="DATA", help="a BIDS data set, or a folder of several")
    parser.add_argument("cache", metavar="CACHE", help="folder for the windows, one subfolder per kind and rate")
    parser.add_argument(
        "--kind", action="append", choices=(*KINDS, "events"), help="kind of windows (default: the first three)"
    )
    parser.add_argument(
        "--rate", type=float, default=100.0, metavar="HZ", help="sampling rate of the windows (default: 100)"
    )
    group = parser.add_argument_group("filters and channels")
    group.add_argument(
        "--band", default="0.5-45", metavar="LOW-HIGH", help="band-pass filter in Hz, or none (default: 0.5-45)"
    )
    group.add_argument(
        "--notch",
        default="auto",
        metavar="HZ",
        help="notch filter in Hz, none, or auto: the mains frequency of the data",
    )
    group.add_argument("--as-served", action="store_true", help="no filter and no repair: what a submission receives")
    group.add_argument(
        "--channels", metavar="A,B,…", help="channels to keep (default: those that most recordings have)"
    )
    group.add_argument(
        "--bad",
        choices=("zero", "interpolate", "keep"),
        default="zero",
        help="what to do with bad channels: zero, interpolate or keep",
    )
    group = parser.add_argument_group("windows")
    group.add_argument(
        "--size", type=float, default=0.0, metavar="S", help="length of a window in seconds (default: 2; challenge2: 4)"
    )
    group.add_argument(
        "--stride", type=float, default=0.0, metavar="S", help="seconds between window starts (default: 2)"
    )
    group.add_argument("--shift", type=float, metavar="S", help="seconds from event to window (default: from the data)")
    group.add_argument("--tasks", metavar="A,B,…", help="tasks to use (default: those of the kind; '*' for all)")
    group.add_argument("--events", metavar="A,B,…", help="with --kind events: the events to cut around")
    group.add_argument("--trial", metavar="NAME", help="event that starts a trial; '' if every stimulus does")
    group.add_argument("--stimulus", metavar="A,B,…", help="names of stimulus events; * matches anything")
    group.add_argument("--response", metavar="A,B,…", help="names of response events")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the cache even if it exists")
    parser.add_argument("--workers", type=int, metavar="N", help="number of processes (default: one per core)")
    add_flags(parser, progress=True)
    parser.set_defaults(run=run_prepare)
    return parser


def run_prepare(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    from holdfast.workloads.eeg.prepare import place, prepare

    parameters = _parameters(args)
    kinds = args.kind or KINDS
    reports, refused = [], []
    for kind in kinds:
        try:
            with Bar(output, f"preparing {kind}") as bar:
                report = prepare(
                    args.folder,
                    args.cache,
                    kind=kind,
                    workers=args.workers,
                    rebuild=args.rebuild,
                    progress=bar.update,
                    **parameters,
                )
        except UserError as error:
            if len(kinds) == 1 or not str(error.message).endswith(f"for {kind}"):
                raise
            refused.append((kind, error))  # a set without the task still has rest
            continue
        except KeyboardInterrupt:
            output.note(f"stopped; what was done is kept in {place(args.cache, kind, args.rate)}")
            output.note("the same command goes on where it was")
            raise
        reports.append(report)
        if not output.as_json:
            _print_report(report, output)
    for kind, why in refused:
        output.note(f"• {kind}: {why.message}; {why.cause}")
    if not reports:
        raise refused[0][1]
    for each in reports:
        if not each.windows and not output.as_json:
            _suggest(args, each.kind, output)
    if output.as_json:
        output.json({"caches": [each.to_json() for each in reports]})
    return ExitCode.OK if all(each.windows for each in reports) else ExitCode.NO


def _suggest(args: argparse.Namespace, kind: str, output: Output) -> None:
    from holdfast.workloads.eeg import bids, suggestions

    output.note(f"hint: `{suggestions.preparing(bids.look(args.folder), kind, args.cache)} --rebuild`")


def _print_report(report: Any, output: Output) -> None:
    lines = report.lines(everything=bool(output.verbose))
    sign = "✓" if report.windows else "✗"
    again = " (was there already)" if report.reused else ""
    output.print(without_control(f"{sign} {lines[0]}{again}"))
    for line in lines[1:]:
        _print_wrapped(output, line)
    output.print(f"  in         {shorten(str(report.folder))}")
    output.print()


def _parameters(args: argparse.Namespace) -> dict[str, Any]:
    from holdfast.workloads.eeg.windowing import Names

    names = Names()
    given = {
        "trial": args.trial,
        "stimulus": _words(args.stimulus),
        "response": _words(args.response),
    }
    names = Names(**{key: value for key, value in {**_asdict(names), **given}.items() if value is not None})
    return {
        "rate": args.rate,
        "band": None if args.as_served else _band(args.band),
        "notch": None if args.as_served else _notch(args.notch),
        "bad": "keep" if args.as_served else args.bad,
        "channels": _words(args.channels) or (),
        "size": args.size,
        "stride": args.stride,
        "shift": args.shift,
        "tasks": _words(args.tasks) or (),
        "values": _words(args.events) or (),
        "names": names,
    }


def _asdict(names: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(names)


def _band(text: str) -> tuple[float, float] | None:
    if text.lower() == "none":
        return None
    low, _, high = text.partition("-")
    try:
        return float(low), float(high)
    except ValueError:
        raise UsageError(
            f"--band {text} is not a band", command="eeg prepare", tips=["as in `--band 0.5-45`"]
        ) from None


def _notch(text: str) -> float | str | None:
    if text.lower() in ("none", "auto"):
        return None if text.lower() == "none" else "auto"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--notch {text} is not a frequency", command="eeg prepare") from None


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


# All of them ------------------------------------------------------------------------------------------------


def _print_wrapped(output: Output, line: str) -> None:
    """Long lines go on under their own text."""
    line = without_control(line)
    indent = len(line) - len(line.lstrip())
    last = max(line.rfind("  "), indent - 2) + 2  # the last column
    hanging = last if indent < last < 40 else indent
    wide = max(60, min(output.out.width, 110))
    lines = textwrap.wrap(line, wide, subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False)
    for each in lines or [""]:
        output.print(each)


def _at_least(args: argparse.Namespace, command: str, **least: int) -> None:
    for name, value in least.items():
        if getattr(args, name) < value:
            raise UsageError(f"--{name} {getattr(args, name)} is less than {value}", command=command)


def _needs(*modules: str) -> None:
    import importlib.util

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"this needs {', '.join(missing)}", cause="not installed", hints=["pip install 'holdfast[eeg]'"]
        )
