"""`holdfast eeg search`: better hyper-parameters, each tried in a supervised run of its own.

holdfast eeg search 1 --trials 20                  Challenge 1 on simulated EEG
holdfast eeg search 2 data=cache head=four         Challenge 2; what is given is not searched
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode
from holdfast.console.order import read_order
from holdfast.console.output import Output, add_flags, counted
from holdfast.console.usage import Parser


def add_search(subparsers: Any) -> Parser:
    """Add the tool to `holdfast eeg`."""
    parser: Parser = subparsers.add_parser(
        "eeg search",
        description="""\
Search the hyper-parameters of a challenge with optuna.

examples:
  holdfast eeg search 1 --trials 20              on simulated EEG
  holdfast eeg search 2 data=cache head=four     arguments that you give are not searched

Every trial is a supervised run, scored on the validation subjects. The search never looks at the test subjects. A
second search in the same folder continues the first.
""",
    )
    parser.add_argument("challenge", type=int, choices=(1, 2), help="challenge 1 or 2")
    parser.add_argument(
        "words", nargs="*", default=[], metavar="KEY=VALUE", help="arguments of every run; these are not searched"
    )
    parser.add_argument("--trials", type=int, default=10, metavar="N", help="number of further trials (default: 10)")
    parser.add_argument(
        "--study", metavar="FOLDER", help="folder of the search (default: eeg-search-1 or eeg-search-2)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search (default: 0)")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check the words once, then search."""
    output = Output.from_args(args)
    read_order(f"eeg-challenge{args.challenge}", args.words, command="eeg search")
    from holdfast.workloads.eeg.search import search

    folder = Path(args.study or f"eeg-search-{args.challenge}")
    best = search(args.challenge, folder, trials=args.trials, words=args.words, say=output.note, seed=args.seed)
    if output.as_json:
        output.json({"study": str(folder), **dataclasses.asdict(best)})
    failed = f", {best.failed} failed" if best.failed else ""
    output.print(f"✓ best of {counted(best.trials, 'trial')}{failed}: valid_nrmse {best.value:.4f} ({best.run})")
    output.print(f"  holdfast train eeg-challenge{args.challenge} {' '.join([*args.words, *best.words])}")
    return ExitCode.OK
