"""`holdfast weights`: the trained weights of a run as one file that plain PyTorch loads.

holdfast weights calm-heron model.safetensors
holdfast weights calm-heron model.pt --best
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, add_run, counted, size
from holdfast.console.usage import Parser
from holdfast.run.folder import find_run
from holdfast.run.reference import handle, shown
from holdfast.state import weights_export

FORMATS = (".safetensors", ".pt", ".pth")


def add_parser(subparsers: Any) -> Parser:
    parser: Parser = subparsers.add_parser(
        "weights",
        description="""\
Write the weights of a run to one file that plain PyTorch can load.

examples:
  holdfast weights calm-heron model.safetensors     then `load_file("model.safetensors")`
  holdfast weights calm-heron model.pt --best       then `torch.load("model.pt", weights_only=True)`
  holdfast weights calm-heron old.pt --step 3600    the weights of one checkpoint
  holdfast weights calm-heron ema.pt --ema          the protected average of the weights

Without --best or --step it takes the best weights, or else the final ones, or else those of the newest checkpoint.
It verifies them before it writes the file.
""",
    )
    add_run(parser)
    parser.add_argument("out", metavar="OUT", help="file to write: .safetensors, .pt or .pth")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the weights of the best epoch; an error if there are none")
    which.add_argument("--step", type=int, metavar="N", help="the weights of the checkpoint at this step")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--ema", action="store_true", help="the protected average of the weights (ema, average or swa)")
    part.add_argument("--module", metavar="NAME", help="which module, if the run protects several")
    parser.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    out = _checked(Path(args.out).expanduser(), force=args.force)
    found = find_run(root_of(args), args.name)
    source = weights_export.choose(found.path, best=args.best, step=args.step)
    if out.suffix == ".safetensors":
        written = weights_export.export(source, out, module=args.module, average=args.ema)
    else:
        written = _as_pickle(source, out, module=args.module, average=args.ema)
    if output.as_json:
        output.json(
            {
                "schema": 1,
                "run": found.name,
                "weights": source.what,
                "step": source.step,
                "path": str(written.path),
                "tensors": written.tensors,
                "bytes": written.size,
            }
        )
        return ExitCode.OK
    output.print(f"✓ {source.what} of {handle(found)} are in {shown(out)}: {_about(written)}")
    if not output.quiet:
        output.print(f"  load them with {_how_to_load(out)}")
    return ExitCode.OK


def _about(written: weights_export.Exported) -> str:
    return f"{counted(written.tensors, 'tensor')}, {size(written.size)}"


def _how_to_load(out: Path) -> str:
    if out.suffix == ".safetensors":
        return f'`model.load_state_dict(safetensors.torch.load_file("{out.name}"))`'
    return f'`model.load_state_dict(torch.load("{out.name}", weights_only=True))`'


def _checked(out: Path, *, force: bool) -> Path:
    if out.suffix not in FORMATS:
        raise UserError(
            f"{out.name} should end with one of {', '.join(FORMATS)}", cause="the ending of the name decides the format"
        )
    if out.exists() and not force:
        raise UserError(f"{out} exists already", hints=["choose another name, or replace it with --force"])
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.absolute().parent}")
    return out


def _as_pickle(source: weights_export.Source, out: Path, **wanted: Any) -> weights_export.Exported:
    """The same through safetensors, with torch's own writer: only this needs torch."""
    import torch
    from safetensors.torch import load_file

    between = out.with_name(f".{out.name}.safetensors")
    try:
        written = weights_export.export(source, between, **wanted)
        torch.save(load_file(between), out)
    finally:
        between.unlink(missing_ok=True)
    return weights_export.Exported(out, written.tensors, out.stat().st_size)
