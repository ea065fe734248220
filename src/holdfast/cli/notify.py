"""`holdfast notify`: try whom runs tell, or tell of a run that is under way already.

holdfast notify --test             a test message by every way of the settings
holdfast notify calm-heron         follow a run until it is over, and tell what matters
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
from typing import Any

from holdfast.base import interpreter
from holdfast.base.errors import ExitCode, UserError
from holdfast.base.folders import open_growing
from holdfast.console.output import Output, add_flags, add_folder
from holdfast.console.usage import Parser
from holdfast.run.folder import RunFolder, find_run
from holdfast.run.settings import Settings, parse_overrides
from holdfast.run.states import RunState


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "notify",
        description="""\
Test the notifications of your runs, or send notifications for a run that is already in progress.

examples:
  holdfast notify --test                                  send a test message now
  holdfast notify --test notify.command="notify-send Holdfast"
  holdfast notify calm-heron                              notify me until this run ends

Runs notify you by themselves when `notify.webhook` or `notify.command` is set.
""",
    )
    parser.add_argument(
        "name", metavar="RUN", nargs="?", help="a run: its name such as calm-heron, its folder, or `latest`"
    )
    parser.add_argument("words", metavar="KEY=VALUE", nargs="*", default=[], help="settings to use for this command")
    parser.add_argument("--test", action="store_true", help="send a test message now")
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    from holdfast.console.order import root_of
    from holdfast.monitor.notify import News, follow
    from holdfast.monitor.notify_ways import Ways, send

    output = Output.from_args(args)
    name, words = args.name, list(args.words)
    if name and "=" in name:  # the first word is a setting: no run was named
        name, words = None, [name, *words]
    ways = Ways.of(Settings.load(parse_overrides(words)).notify)
    if not ways:
        raise UserError(
            "no notification is set up",
            cause="neither notify.command nor notify.webhook is set",
            hints=['set one, for example in ./holdfast.toml: notify.webhook = "https://hooks.slack.com/services/…"'],
        )
    if args.test:
        lines = list(send(_test(), ways))
        if output.as_json:
            output.json({"sent": lines})
        for line in lines:
            output.print(line)
        return ExitCode.OK if all(line.endswith(": sent") for line in lines) else ExitCode.NO
    if not name:
        raise UserError("which run?", hints=["`holdfast notify calm-heron`, or `holdfast notify --test`"])
    told = []
    for message in follow(find_run(root_of(args), name).path, News(ways.digest)):
        for line in send(message, ways):
            told.append({**message.to_json(), "sent": line})
            output.print(f"{line}: {message.title}")
    if output.as_json:
        output.json({"messages": told})
    return ExitCode.OK


def _test() -> Any:
    from holdfast.monitor.notify_ways import Message

    text = "If you can read this, holdfast can notify you when a run finishes or needs you."
    return Message("alert", "a test message from holdfast", text, "test", "", RunState.RUNNING, "")


def start(run: RunFolder, settings: Settings) -> None:
    """A process that tells of this run until it is over; it outlives us, to tell if we are killed."""
    from holdfast.monitor.notify_ways import Ways

    ways = Ways.of(settings.notify)
    if not ways:
        return
    with contextlib.suppress(OSError), open(open_growing(run.path / "messages.log"), "ab") as log:
        child = subprocess.Popen(
            interpreter.module("holdfast.monitor.notify", str(run.path.absolute())),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(ways.to_json()).encode())
        child.stdin.close()
