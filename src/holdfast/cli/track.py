"""`holdfast track`: send a run to experiment trackers, or what is left of it.

holdfast track calm-heron                        to the trackers of the run: what they do not have yet
holdfast track calm-heron track.to=mlflow        to a tracker that the run was made without
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from holdfast.base import interpreter, locks, planted
from holdfast.base.errors import ExitCode, UserError
from holdfast.base.folders import Folder
from holdfast.cli.run_settings import settings_of
from holdfast.console.output import Output, add_flags, add_folder, add_run
from holdfast.console.usage import Parser
from holdfast.run.folder import RunFolder, find_run
from holdfast.run.settings import Settings, parse_overrides

LOG = "track.log"


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "track",
        help="send a run to MLflow, W&B, Trackio or TensorBoard",
        description="""\
Send a run's numbers to experiment trackers that do not have them yet.

examples:
  holdfast track calm-heron                               to the trackers that the run was made with
  holdfast track calm-heron track.to=mlflow,tensorboard   to these trackers
  holdfast track latest track.to=wandb track.project=eeg

A run sends its numbers by itself while it trains, to the trackers of the setting track.to. Use this command if a
tracker was away when the run ended, or if the run was made without it.
""",
    )
    add_run(parser)
    parser.add_argument("words", metavar="KEY=VALUE", nargs="*", default=[], help="settings to use for this command")
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    from holdfast.console.order import root_of
    from holdfast.monitor.trackers import delivery
    from holdfast.monitor.trackers.tracker import Target, installed, missing

    output = Output.from_args(args)
    folder = find_run(root_of(args), args.name)
    planted.check(folder.path)
    settings = settings_of(folder, dict(parse_overrides(args.words)))
    target = Target.of(settings.track)
    if not target.to:
        raise UserError("no tracker is named", hints=[f"for example: `holdfast track {folder.name} track.to=mlflow`"])
    for name in target.to:
        if not installed(name):
            raise missing(name)
    said: list[str] = []
    ends: dict[str, str] = {}
    for name in target.to:
        lock = folder.path / delivery.FOLDER / f"{name}.lock"
        if locks.is_held(lock):
            output.note(f"• {name}: another process sends this run already; waiting for it")
        ends[name] = delivery.deliver(folder.path.absolute(), name, target, lambda text: _say(output, said, text))
        if ends[name] == delivery.ALL:
            _say(output, said, f"{name}: it has everything")
    if output.as_json:
        output.json({"run": folder.name, "trackers": ends, "said": said})
    return ExitCode.NO if delivery.GAVE_UP in ends.values() else ExitCode.OK


def _say(output: Output, said: list[str], text: str) -> None:
    said.append(text)
    if not output.as_json:
        output.print(text)


def start(run: RunFolder, settings: Settings) -> list[str]:
    """The process that has the trackers of a run written; what cannot be tracked, in words. It outlives us."""
    if not settings.track.to:
        return []
    from holdfast.monitor.trackers.tracker import Target, installed, missing

    target = Target.of(settings.track)
    problems = []
    for name in target.to:
        if not installed(name):
            error = missing(name)
            problems.append(f"{error}: {error.hints[0]}; `holdfast track {run.name}` sends everything later")
    names = [name for name in target.to if installed(name) and not _written_already(name, settings)]
    if names:
        _start(run.path.absolute(), {**target.to_json(), "to": names})
    return problems


def _written_already(name: str, settings: Settings) -> bool:
    """Event files in the run folder are written by the supervisor itself."""
    return name == "tensorboard" and settings.track.tensorboard is None and settings.run.tensorboard


def _start(path: Path, target: dict[str, Any]) -> None:
    with contextlib.suppress(OSError), Folder.at(path / "trackers", inner=1, make=True) as folder:
        with open(folder.grow(LOG), "ab") as log:
            child = subprocess.Popen(
                interpreter.module("holdfast.monitor.trackers.host", str(path)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert child.stdin is not None
        child.stdin.write(json.dumps(target).encode())
        child.stdin.close()
