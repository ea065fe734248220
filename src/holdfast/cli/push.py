"""`holdfast push` and `holdfast pull`: a run to another place and back, checkpoints verified at both ends.

holdfast push calm-heron /mnt/disk/runs            a folder: a disk, a share, a mounted bucket
holdfast push calm-heron box:runs                  another machine, with rsync
holdfast pull box:runs/job-20261115-0912-calm-heron
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, add_run, count, counted, size
from holdfast.console.usage import Parser
from holdfast.record import transfer
from holdfast.run.folder import RunFolder, find_run
from holdfast.run.reference import handle, shown


def add_push(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "push",
        description="""\
Copy a run to another folder or machine.

examples:
  holdfast push calm-heron /mnt/disk/runs     to a folder: a disk, a share, a mounted bucket
  holdfast push calm-heron box:runs           to another machine, with rsync over ssh
  holdfast push latest box:runs --live        copy what a running run has saved so far

Every checkpoint is verified before it is sent and after it has arrived. If the copy at the other place is ahead, it
stays as it is.
""",
    )
    add_run(parser)
    parser.add_argument("place", metavar="PLACE", help="target: a folder, or HOST:FOLDER")
    parser.add_argument(
        "--live", action="store_true", help="copy a run that is still running: what it has saved so far"
    )
    _add_common(parser, push)
    return parser


def add_pull(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "pull",
        description="""\
Fetch a run from another folder or machine, to continue it or to look at it.

examples:
  holdfast pull box:runs/job-20261115-0912-calm-heron
  holdfast pull /mnt/disk/runs/job-20261115-0912-calm-heron
  holdfast pull box:runs/job-… --script my_script.py    the script has another path on this machine

Every checkpoint is verified after it has arrived.
""",
    )
    parser.add_argument("place", metavar="PLACE", help="the run's folder, or HOST:FOLDER")
    parser.add_argument("--script", metavar="PATH", help="path of the script on this machine")
    _add_common(parser, pull)
    return parser


def _add_common(parser: Parser, run: Any) -> None:
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)


def push(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    run = find_run(root_of(args), args.name)
    if transfer.is_remote(args.place):
        moved = transfer.push(run.path, args.place, live=args.live)
    else:
        moved = transfer.copy_run(run.path, Path(args.place).expanduser(), live=args.live)
    _tell(moved, output)
    if not output.as_json and not output.quiet:
        output.print("  continue there with `holdfast resume` after `holdfast pull`, or in that folder")
    return ExitCode.OK


def pull(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    root = root_of(args)
    script = _script(args.script)
    if transfer.is_remote(args.place):
        moved = transfer.pull(args.place, root)
    else:
        moved = transfer.copy_run(Path(args.place).expanduser(), root)
    run = RunFolder.open(Path(moved.where))
    if script is not None:
        run.update_info(script=str(script))
    _tell(moved, output)
    if not output.as_json and not output.quiet:
        if script is not None or transfer.script_is_here(run.path):
            again = f" --script {shlex.quote(str(script))}" if script is not None else ""
            output.print(f"  continue with `holdfast resume {handle(run)}{again}`")
        else:
            output.print(
                f"  its script is not on this machine: give its path with `--script`; it was {run.info.get('script')}"
            )
    return ExitCode.OK


def _script(asked: str | None) -> Path | None:
    if asked is None:
        return None
    path = Path(asked).expanduser().absolute()
    if not path.is_file():
        raise UserError(f"there is no script {asked}")
    return path


def _tell(moved: transfer.Moved, output: Output) -> None:
    if output.as_json:
        output.json(moved.to_json())
        return
    where = moved.where if transfer.is_remote(moved.where) else shown(Path(moved.where))
    output.print(f"✓ {moved.name} is in {where}: {counted(moved.files, 'file')}, {size(moved.bytes)}")
    if moved.newest is None:
        output.print("  no checkpoint was saved yet")
    else:
        verified = counted(moved.checkpoints, "checkpoint")
        output.print(f"  {verified} verified at both ends, the newest is step {count(moved.newest)}")
