"""`holdfast ecosystem`: the ecosystem workload's own tools.

holdfast ecosystem render RUN                  a film of what it has learned, and its curves
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, add_run, counted, size
from holdfast.console.tools import Tool, Tools
from holdfast.console.usage import Parser
from holdfast.run.folder import find_run

TOOLS = {
    "render": Tool("holdfast.workloads.ecosystem.cli:add_render", "make a film of a run, and a picture of its curves")
}


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    return Tools("ecosystem", "Show what the predators and prey of a run have learned.", TOOLS)


def add_render(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "ecosystem render",
        description="""\
Make a film of what a run has learned, and a picture of its curves.

examples:
  holdfast ecosystem render latest                       world.gif in the run folder
  holdfast ecosystem render calm-heron --out hunt.mp4    as a video
  holdfast ecosystem render latest --dice predators      predators that act at random, to compare

The policies of the run play in a fresh world. The picture shows populations, catches, attempts, survival and entropy.
It works for runs that are in progress, have ended or have crashed.
""",
    )
    add_run(parser)
    parser.add_argument(
        "--out", metavar="FILE", help="file to write: .gif, .mp4 or .png (default: world.gif in the run folder)"
    )
    parser.add_argument("--steps", type=int, default=150, metavar="N", help="number of steps (default: 150)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="seed of the world (default: 7)")
    parser.add_argument("--pixels", type=int, default=480, metavar="N", help="width in pixels (default: 480)")
    parser.add_argument(
        "--dice", choices=["prey", "predators", "both"], help="who acts at random: prey, predators or both"
    )
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Load, play, save, tell."""
    output = Output.from_args(args)
    if not 1 <= args.steps <= 10_000 or not 64 <= args.pixels <= 4096:
        raise UserError("steps are 1 to 10000, and pixels 64 to 4096")
    folder = find_run(root_of(args), args.name).path
    out = Path(args.out).expanduser() if args.out else folder / "world.gif"
    from holdfast.workloads.ecosystem import render

    if out.suffix.lower() not in render.FORMATS:
        raise UserError(f"no film can be written as `{out.name}`", cause=f"there are {', '.join(render.FORMATS)}")
    players = render.load(folder)
    dice = {"prey": (0,), "predators": (1,), "both": (0, 1)}.get(args.dice, ())
    frames = render.film(players, steps=args.steps, seed=args.seed, pixels=args.pixels, dice=dice)
    render.save(frames, out)
    curves = render.curves(folder)
    beside = out.with_name(f"{out.stem}-curves.png")
    if curves is not None:
        render.save([curves], beside)
    result = {
        "run": folder.name,
        "film": str(out),
        "frames": len(frames),
        "size_bytes": out.stat().st_size,
        "curves": str(beside) if curves is not None else None,
        "weights": players.source,
    }
    if output.as_json:
        output.json(result)
        return ExitCode.OK
    output.print(f"✓ {out}: {counted(len(frames), 'step')}, {size(out.stat().st_size)}, weights of {players.source}")
    if curves is not None:
        output.print(f"✓ {beside}: how the run went")
    return ExitCode.OK
