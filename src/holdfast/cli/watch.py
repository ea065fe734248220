"""`holdfast watch`: a run, live or over, in the terminal, as one picture, as JSON, or as a page in a browser.

holdfast watch                     what is under way, or else the last run
holdfast watch calm-heron -1       once, and done
holdfast watch /mnt/lab/runs/x     a run of another machine, over a mounted or synced folder
holdfast watch --web               the same in a browser, on this machine only
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, HoldfastError, UserError
from holdfast.console.output import Output, add_flags, add_folder
from holdfast.console.usage import Parser
from holdfast.monitor import reader
from holdfast.monitor.devices import behave
from holdfast.run.folder import RunFolder, find_run, list_runs
from holdfast.run.settings import Settings
from holdfast.run.states import LIVE_STATES

MOST = 200
"""Runs that can be leafed through, the newest."""


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "watch",
        description="""\
Watch a run: progress, curves, devices, faults and log.

examples:
  holdfast watch                    the runs in progress, or the last run; ? lists the keys
  holdfast watch calm-heron         one run
  holdfast watch a b c              several runs; the arrow keys switch between them
  holdfast watch -1                 print one picture and exit
  holdfast watch --json             print the same as JSON
  holdfast watch --web              open a page in the browser, for this machine only
  holdfast watch /mnt/lab/runs/x    a run of another machine, in a mounted or copied folder

This command only reads. It also shows runs that have finished, crashed or come from another machine.
""",
    )
    parser.add_argument("names", metavar="RUN", nargs="*", help="runs: names such as calm-heron, folders, or `latest`")
    add_folder(parser)
    parser.add_argument("-1", "--once", action="store_true", help="print one picture and exit")
    parser.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds between updates (default: 1; more if all CPUs are busy)",
    )
    parser.add_argument("--control", action="store_true", help="allow the key `s`, which stops a run")
    web = parser.add_argument_group("in a browser")
    web.add_argument("--web", action="store_true", help="serve a web page and print its address")
    web.add_argument("--port", type=int, metavar="N", help="first port to try (default: 7878)")
    web.add_argument("--host", metavar="H", help="address to listen on (default: 127.0.0.1)")
    web.add_argument("--no-browser", action="store_true", help="do not open the browser")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Find the runs, then show them the way that was asked for."""
    output = Output.from_args(args)
    root = Path(args.folder) if args.folder else Path(Settings.load().run.folder)
    if args.web:
        return _web(args, root, output)
    folders, at = _folders(root, args.names)
    if output.as_json:
        output.json({"runs": [_data(path) for path in _wanted(folders, at, args.names)]})
        return ExitCode.OK
    if not folders and not args.names and not (output.out.tty and sys.stdin.isatty()):
        output.note(f"no runs in {root}")
        return ExitCode.OK
    if args.once or not output.out.tty or not sys.stdin.isatty():
        return _once(_wanted(folders, at, args.names), output)
    return _live(args, root, folders, at, output)


def _folders(root: Path, names: Sequence[str]) -> tuple[list[Path], int]:
    """The runs that were asked for, or all; and which one to begin with."""
    if names:
        return [_named(root, name) for name in names], 0
    runs = list_runs(root)[-MOST:]
    live = [at for at, each in enumerate(runs) if _under_way(each)]
    return [each.path for each in runs], (live or [len(runs) - 1])[-1]


def _under_way(run: RunFolder) -> bool:
    return run.info.get("state") in LIVE_STATES and run.in_use()


def _named(root: Path, name: str) -> Path:
    """A folder is taken as it is, so that what is wrong with it can be said and the rest shown; a name is looked up."""
    path = Path(name)
    if os.sep in name or os.path.lexists(path / "run.json"):
        return path
    found = [run.path for run in list_runs(root) if name in (run.name, run.path.name)]
    return found[0] if len(found) == 1 else find_run(root, name).path


def _wanted(folders: list[Path], at: int, names: Sequence[str]) -> list[Path]:
    """For one look: what was named, or what is under way, or the last."""
    if names or not folders:
        return folders
    live = [path for path in folders if _under_way(RunFolder(path))]
    return live or [folders[at]]


# Once -----------------------------------------------------------------------------------------------------


def _once(folders: Sequence[Path], output: Output) -> int:
    from holdfast.monitor.terminal import small
    from holdfast.monitor.terminal.curves import plain
    from holdfast.monitor.terminal.scene import look

    trust = _trust()
    for number, path in enumerate(folders):
        if number:
            output.print()
        scene = look(reader.open(path), trust)
        for line in small.picture(scene, output.out.width if output.out.tty else 80):
            output.print(line if output.out.unicode else plain(line))
    return ExitCode.OK


def _data(path: Path) -> dict[str, Any]:
    """One run for --json: the row of `status --json`, and what the picture shows."""
    from holdfast.cli.run_facts import Look
    from holdfast.monitor.terminal.scene import look

    run = reader.open(path)
    scene = look(run)
    return {
        **Look(RunFolder(path)).row(),
        "state": run.state,
        "share": scene.share,
        "lasted_s": run.lasted_s,
        "faults": run.faults_total,
        "best": run.best,
        "metrics": run.metrics.last(),
        "devices": [
            {
                "device": row.device,
                "name": row.name or None,
                "load_pct": None if row.load is None else round(100 * row.load, 1),
                "memory_used_bytes": row.memory_used,
                "memory_total_bytes": row.memory_total,
                "temperature_c": row.temperature_c,
                "power_w": row.power_w,
            }
            for row in scene.devices
        ],
        "bottleneck": None if scene.bottleneck is None else scene.bottleneck.to_json(),
        "problems": scene.problems,
    }


# Live -----------------------------------------------------------------------------------------------------


def _live(args: argparse.Namespace, root: Path, folders: list[Path], at: int, output: Output) -> int:
    at = max(0, at)
    run = _opened(folders[at : at + 1], must=len(args.names) == 1)
    try:
        with _first(run, args, output):
            from holdfast.monitor.terminal.app import Watch

            settings = Settings.load()
    except ImportError:
        return _redrawn(_wanted(folders, at, args.names), args, output)
    app = Watch(
        folders,
        find=None if args.names else (lambda: [each.path for each in list_runs(root)[-MOST:]]),
        at=at,
        explain=_explain,
        trust=_trust,
        stop=_stop if args.control else None,
        ascii=not output.out.unicode,
        bell=settings.notify.bell,
        every=max(0.1, args.every),
        opened=run,
    )
    behave()
    app.run()
    return ExitCode.OK


def _redrawn(folders: Sequence[Path], args: argparse.Namespace, output: Output) -> int:
    """Without textual: the picture of `-1`, drawn again and again. Nothing more needs to be installed for it."""
    from holdfast.monitor.terminal import redraw, small
    from holdfast.monitor.terminal.curves import plain
    from holdfast.monitor.terminal.scene import look

    runs, trust = [reader.open(path) for path in folders], _trust()

    def lines(width: int) -> list[str]:
        shown: list[str] = []
        for run in runs:
            run.refresh()
            shown += ([""] if shown else []) + list(small.picture(look(run, trust), width))
        return shown if output.out.unicode else [plain(line) for line in shown]

    redraw.watch(lines, lambda text: print(text, end="", flush=True), max(0.1, args.every))
    return ExitCode.OK


def _opened(paths: Sequence[Path], *, must: bool) -> reader.Run | None:
    """The run that is shown first. What is not a run is told in words before the screen is taken, if it `must` be."""
    try:
        return reader.open(paths[0], budget_s=0.15) if paths else None
    except HoldfastError:
        if must:
            raise
        return None


def _first(run: reader.Run | None, args: argparse.Namespace, output: Output) -> contextlib.AbstractContextManager[None]:
    """The first picture, while what draws the others is still being imported."""
    if run is None:
        return contextlib.nullcontext()
    from holdfast.monitor.terminal import first, large, pages
    from holdfast.monitor.terminal.scene import look

    try:
        width, height = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return contextlib.nullcontext()
    if width < 2 or height < 2:
        return contextlib.nullcontext()
    footer = pages.footer(width - 8 if large.fits(width, height) else width, not args.control)
    lines = first.picture(look(run), width, height, footer=footer, ascii=not output.out.unicode)
    return first.shown(lines, color=output.out.color)


def _explain(code: str) -> list[str]:
    """What `holdfast explain` says; nothing for a code nobody knows."""
    from holdfast.cli import explain

    topics = [topic for source in explain.SOURCES for topic in source() if topic.code == code]
    return explain.page(topics[0])[1:] if topics else []


def _trust() -> dict[str, str]:
    """How far this machine's ledger trusts each device; it may have none."""
    from holdfast.devices.identity import by_key
    from holdfast.devices.ledger import Ledger

    found: dict[str, str] = {}
    with contextlib.suppress(HoldfastError, OSError):
        ledger = Ledger()
        for standing in ledger.standings().values():
            found[standing.label] = ledger.trust(by_key(standing.device, standing.label), standing.rung).state
    return found


def _stop(folder: str) -> str:
    """Ask for a stop as `holdfast stop` does; in words what came of it."""
    from holdfast.cli.runs import _send, supervisor_pid

    pid = supervisor_pid(RunFolder(Path(folder)))
    if pid is None:
        return "the run cannot be stopped from here: it is over, or on another machine"
    try:
        _send(pid)
    except HoldfastError as error:
        return f"{error.message}: {error.cause}"
    return "asked it to save and stop"


# In a browser ---------------------------------------------------------------------------------------------


def _web(args: argparse.Namespace, root: Path, output: Output) -> int:
    try:
        from holdfast.monitor.web import serve
    except ImportError as error:
        raise UserError(
            "the web page of the monitor needs starlette and uvicorn",
            cause=str(error),
            hints=["pip install 'holdfast[monitor]'"],
        ) from None
    named = [_named(root, name) for name in args.names]
    serve(
        root,
        named,
        host=args.host,
        port=args.port,
        browser=not args.no_browser and not output.as_json and _has_browser(),
        say=output.note if output.as_json else output.print,
        ready=(lambda address: output.json({"address": address})) if output.as_json else None,
    )
    return ExitCode.OK


def _has_browser() -> bool:
    """On a machine without a screen, a browser would be one in this terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
