"""`holdfast verify`: prove a card that nobody here owns, and write one file about it that can be sent.

holdfast verify                        the best device here: doctor, training, faults; 5 minutes at most
holdfast verify --device cuda:1        another one
holdfast verify --full                 with every check of the doctor
holdfast verify -o rx5700.json         the file to write
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags, size
from holdfast.console.text import without_control
from holdfast.console.usage import Parser
from holdfast.devices import inventory
from holdfast.run.scrubber import left_in


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "verify",
        help="prove a device, and write a report to send",
        description="""\
Proves one device: the doctor examines it, a short training runs on it twice undisturbed and
once with faults (those that are safe on such a card), and the weights are compared. One file
is written that can be sent to the project: without secrets, names and paths of yours.
Where a card may freeze the machine you are asked first; without an answer it is not touched.

examples:
  holdfast verify                     the best device here; 5 minutes at most
  holdfast verify --device cpu        the processor
  holdfast verify --full              with every check of the doctor
  holdfast verify -o rx5700.json      the name of the file

exit code 0 if the device does everything, 1 if it does not or time ran out; the file is written in both cases
""",
    )
    parser.add_argument("--device", metavar="D", help="this device: cpu, cuda:0, … (default: the best one)")
    parser.add_argument("--full", action="store_true", help="every check of the doctor")
    parser.add_argument("--steps", metavar="N", type=int, default=None, help="steps of the training (default: 60)")
    parser.add_argument("--yes", action="store_true", help="do not ask before what may freeze the machine")
    parser.add_argument(
        "--minutes", metavar="M", type=float, default=None, help="time for all of it (default: 5, with --full 60)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the report (default: holdfast-verify-….json here)")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prove it, keep the report, say what came out."""
    from holdfast.verification import examination

    output = Output.from_args(args)
    device = inventory.check(args.device) if args.device and args.device != "auto" else None
    if args.steps is not None and not 10 <= args.steps <= 100_000:
        raise UserError(f"--steps is {args.steps}", hints=["use 10 or more"])
    path = Path(args.output) if args.output else None
    if path is not None and path.is_dir():
        raise UserError(f"{path} is a folder", hints=["name a file: -o report.json"])
    minutes = args.minutes if args.minutes is not None else 60.0 if args.full else examination.LIMIT_S / 60
    if not 0.5 <= minutes <= 600:
        raise UserError(f"--minutes is {minutes:g}", hints=["use a number from 0.5 to 600"])
    steps = args.steps or examination.STEPS
    ask = None if args.yes else _ask
    report = examination.conduct(device, full=args.full, steps=steps, say=output.note, ask=ask, limit_s=minutes * 60)
    path = path or Path(_name(report["device"]))
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    found = left_in(text)
    if found:  # nothing that we would have to apologise for is ever written
        raise UserError(
            "the report still names what is private, and was not written",
            cause=f"{len(found)} places; our scrubbing has missed them",
            hints=["please tell us, without the report"],
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}", cause=error.strerror or str(error)) from error
    good = report["answer"] == "yes"
    if output.as_json:
        output.json({**report, "report": str(path)})
    else:
        sign = "✓" if good else "✗"
        words = "does what holdfast needs of it" if good else "does not do all that holdfast needs of it"
        if report["answer"] == "unfinished":
            words = f"was not done with in {minutes:g} minutes; --minutes gives it more"
        output.print(without_control(f"{sign} {report['device']} {words}"))
        output.print()
        for line in report["summary"]:
            output.print(without_control(f"  {line}"))
        output.print()
        output.print(f"  report    {path} ({size(len(text.encode()))}): no names, secrets or paths of yours; read it")
        output.print("            before you send it. docs/verify.md says where to, and what is known of such devices")
    return ExitCode.OK if good else ExitCode.NO


def _ask(question: str) -> bool:
    """Whether a person says yes; where nobody can be asked, the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(without_control(f"{question} [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _name(device: str) -> str:
    return f"holdfast-verify-{time.strftime('%Y%m%d-%H%M')}-{device.replace(':', '')}.json"
