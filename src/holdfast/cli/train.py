"""`holdfast train`: a supervised run of a script, or of a workload that comes with holdfast.

    holdfast train my_script.py                        on the best device here
    holdfast train eeg                                 a workload by its name: run/workload_registry.py
    holdfast train my_script.py lr=3e-4 epochs=20      arguments of its train(session, lr=…, epochs=…)
    holdfast train my_script.py checkpoint.every=30s   settings of holdfast have a dot
    holdfast train my_script.py --detach               in the background

The script is read before anything starts, so that a typo costs milliseconds, not the import of torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.console.order import add_device, add_script_arguments, create, read_order
from holdfast.console.output import Output, add_flags
from holdfast.console.usage import Parser
from holdfast.devices import inventory
from holdfast.distributed.place import Place
from holdfast.run import workload_registry
from holdfast.run.folder import RunFolder


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "train",
        description="""\
Train a script under supervision: a crash, a hang, kill -9 or full memory costs a second of work, not the run.

examples:
  holdfast train my_script.py                       on the best device here, or as `holdfast plan` chose
  holdfast train my_script.py lr=3e-4 epochs=20     set arguments of the script's train(session, …)
  holdfast train my_script.py checkpoint.every=30s  set a holdfast setting (its name has a dot)
  holdfast train my_script.py --detach              run in the background
  holdfast train my_script.py -- --data /datasets   pass arguments to the script's sys.argv
  holdfast train eeg                                train a built-in workload on simulated EEG

A worker process runs the script. The supervisor replaces the worker when it dies or hangs, and the run ends with the
weights of an undisturbed run.
""",
    )
    parser.for_script()
    add_script_arguments(parser)
    add_device(parser)
    parser.add_argument(
        "--row", type=int, metavar="N", help="use this row of the plan (default: the row that the plan chose)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed, the same as run.seed=N (default: 0)")
    parser.add_argument("--detach", action="store_true", help="start the run in the background and return")
    parser.add_argument("--background", metavar="FOLDER", help=argparse.SUPPRESS)
    add_flags(parser, plain=True, progress=True)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked, make the run folder, supervise."""
    output = Output.from_args(args)
    place = Place.of(os.environ)
    if place is not None and place.job:
        from holdfast.distributed import rank_nursery

        code = rank_nursery.ask(Path(place.job), sys.argv[1:])
        if code is not None:
            return code if code >= 0 else 128 - code
    workload = workload_registry.find(args.script)
    if workload is not None and workload.stages:
        from holdfast.cli import stages

        return stages.run(workload, args, output)
    order = read_order(args.script, args.words, device=args.device, seed=args.seed, argv=args.script_argv)
    if place is not None:  # torchrun started us: one of several
        from holdfast.distributed import rank, rank_end

        rank_end.leave(rank.live(order, place, lambda: create(order, ranks=place.ranks)))
    from holdfast.cli import planned
    from holdfast.cli.supervise import carry_out, rungs_for

    inventory.check_here(order.settings.run.device)
    rungs = rungs_for(order.settings.run.device, output.note)
    plan = planned.find(args, order.settings, output.note)
    more: dict[str, Any] = {}
    if plan is not None:
        order, rungs = plan.applied(order, rungs)
        more = {"plan": plan.info(order)}
    if args.detach:
        from holdfast.cli import detach

        return detach.train(create(order, **more), args, output)
    run_folder = RunFolder.open(Path(args.background)) if args.background else create(order, **more)
    if args.background:
        from holdfast.cli import detach

        detach.survive_hangup()
    return carry_out(run_folder, order, rungs, output)
