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
        description="""\
Test one device thoroughly and write a report that you can send to the project.

examples:
  holdfast verify                     the best device here; at most 5 minutes
  holdfast verify --device cpu        the processor
  holdfast verify --full              run every test of the doctor
  holdfast verify -o rx5700.json      choose the name of the report

The doctor tests the device. Then a short training runs twice undisturbed and once with faults that are safe for this
card, and the weights are compared. The report contains no secrets, names or paths of yours. If a test may freeze the
machine, verify asks you first; without an answer it skips the device.
""",
    )
    parser.add_argument("--device", metavar="D", help="device to test: cpu, cuda:0, … (default: the best one)")
    parser.add_argument("--full", action="store_true", help="run every test of the doctor")
    parser.add_argument("--steps", metavar="N", type=int, default=None, help="steps of each training (default: 60)")
    parser.add_argument("--yes", action="store_true", help="do not ask before tests that may freeze the machine")
    parser.add_argument(
        "--minutes",
        metavar="M",
        type=float,
        default=None,
        help="minutes for everything together (default: 5; with --full 60)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="path of the report (default: holdfast-verify-….json here)"
    )
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prove it, keep the report, say what came out."""
    from holdfast.verification import card_check

    output = Output.from_args(args)
    device = inventory.check(args.device) if args.device and args.device != "auto" else None
    if args.steps is not None and not 10 <= args.steps <= 100_000:
        raise UserError(f"--steps is {args.steps}", hints=["use 10 or more"])
    path = Path(args.output) if args.output else None
    if path is not None and path.is_dir():
        raise UserError(f"{path} is a folder", hints=["name a file: -o report.json"])
    minutes = args.minutes if args.minutes is not None else 60.0 if args.full else card_check.LIMIT_S / 60
    if not 0.5 <= minutes <= 600:
        raise UserError(f"--minutes is {minutes:g}", hints=["use a number from 0.5 to 600"])
    steps = args.steps or card_check.STEPS
    ask = None if args.yes else _ask
    report = card_check.conduct(device, full=args.full, steps=steps, say=output.note, ask=ask, limit_s=minutes * 60)
    path = path or Path(_name(report["device"]))
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    found = left_in(text)
    if found:  # nothing that we would have to apologise for is ever written
        raise UserError(
            "the report was not written, because it would contain private data",
            cause=f"{len(found)} places were not removed from it",
            hints=["please report this bug without the file"],
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
        words = "passed" if good else "did not pass"
        if report["answer"] == "unfinished":
            words = f"could not be finished in {minutes:g} minutes; use --minutes for more time"
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
