"""`holdfast optimize`: the fastest way to run a trained model on this machine that still gives the same answers.

holdfast optimize calm-heron                                     a finished run of a workload
holdfast optimize net.py:build --weights w.safetensors --data val.npz
holdfast optimize --verify bundle                                does a bundle still say what it said?
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags, add_folder
from holdfast.console.usage import Parser, UsageError
from holdfast.run.settings import Settings


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "optimize",
        description="""\
Make a trained model faster to serve, and check that its answers are still right.

examples:
  holdfast optimize calm-heron                      a finished run; writes `bundle` into its folder
  holdfast optimize net.py:build --weights w.safetensors --data val.npz
                                                    your own module; val.npz holds inputs and `targets`
  holdfast optimize net:build --input 1x129x1000    without data: compare outputs on random inputs
  holdfast optimize calm-heron --engines onnxruntime,openvino --out served
  holdfast optimize --verify served                 check a bundle on another machine: files, answers, speed

It measures PyTorch, torch.compile, ONNX Runtime and OpenVINO in fp32, bf16, fp16 and int8, as far as they are
installed. It refuses a candidate that loses score or gives other answers. The best one becomes a bundle: a folder for
`holdfast predict` and `holdfast serve`.
""",
    )
    parser.add_argument(
        "target", metavar="RUN|module:factory", help="a finished run, or your module; with --verify a bundle"
    )
    parser.add_argument("--verify", action="store_true", help="check a bundle instead of making one")
    parser.add_argument("--out", metavar="PATH", help="folder to write (default: `bundle` in the run folder, or here)")
    add_folder(parser)
    model = parser.add_argument_group("a module of your own")
    model.add_argument("--weights", metavar="FILE", help="weights of your module (safetensors)")
    model.add_argument("--data", metavar="FILE", help="inputs as .npy, or inputs and `targets` as .npz")
    model.add_argument(
        "--input", metavar="SHAPE", action="append", help="use random inputs of this shape, for example 1x129x1000"
    )
    model.add_argument(
        "--score", metavar="module:function", help="function of outputs and targets that returns the score"
    )
    model.add_argument(
        "--calibration", metavar="FILE", help="inputs that calibrate static int8 (default: those of --data)"
    )
    model.add_argument("--species", choices=("predators", "prey"), help="which policy of an ecosystem run")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--max-loss",
        metavar="PERCENT",
        type=float,
        default=0.5,
        help="largest loss of score to allow, in percent (default: 0.5)",
    )
    how.add_argument("--engines", metavar="A,B", default="", help="only these engines: onnxruntime, `openvino fp16`, …")
    how.add_argument(
        "--device", choices=("cpu", "cuda"), default="", help="only engines for this device (default: both)"
    )
    how.add_argument(
        "--threads", type=int, default=0, help="threads for every candidate (default: try all cores, and one)"
    )
    how.add_argument("--seconds", type=float, default=2.0, help="seconds to measure each candidate (default: 2)")
    how.add_argument(
        "--limit", type=float, default=300.0, help="seconds for everything together (default: 300; 0 for no limit)"
    )
    how.add_argument("--deadline", type=float, default=600.0, help="seconds that one build may take (default: 600)")
    how.add_argument("--no-merge", action="store_true", help="do not merge tokens of a transformer")
    how.add_argument("--no-profile", action="store_true", help="do not measure where the time goes")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    if args.verify:
        return _verify(Path(args.target), output)
    from holdfast.optimize.pipeline import Options, optimize
    from holdfast.optimize.report import lines, profile_lines, to_json

    if not 0 <= args.max_loss <= 100 or args.seconds <= 0 or args.deadline <= 0 or args.threads < 0 or args.limit < 0:
        raise UsageError(
            "--max-loss is a percentage, --seconds, --deadline, --limit and --threads are above 0", command="optimize"
        )
    spec, place = _spec(args)
    options = Options(
        max_loss=args.max_loss / 100, seconds=args.seconds, build_deadline=args.deadline, threads=args.threads,
        engines=tuple(each.strip() for each in args.engines.split(",") if each.strip()), profile=not args.no_profile,
        merge=not args.no_merge, device=args.device, limit_s=args.limit or math.inf,
    )  # fmt: skip
    _known(options.engines)
    result = optimize(spec, Path(args.out) if args.out else place, options, tell=lambda text: output.note(f"• {text}"))
    if output.as_json:
        output.json(to_json(result))
        return ExitCode.OK
    for line in [*lines(result), *profile_lines(result)]:
        output.print(line)
    shown = result["bundle"]
    output.print()
    output.print(f"  bundle  {shown}")
    output.print(f"  report  {Path(shown) / 'report.html'}")
    output.print()
    output.print(f"  holdfast predict {shown} input.npy      answers for a file")
    output.print(f"  holdfast serve {shown}                  answers over HTTP, on this machine only")
    return ExitCode.OK


def _known(names: tuple[str, ...]) -> None:
    from holdfast.console.usage import similar
    from holdfast.optimize import candidates

    there_are = candidates.names()
    for name in names:
        if name.split(" ")[0] not in there_are:
            raise UsageError(f"unknown engine `{name}`", command="optimize", cause=f"there are {', '.join(there_are)}",
                             tips=similar(name, there_are, "engine"))  # fmt: skip


def _spec(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """What to load, and where its bundle goes if no place is given."""
    target = str(args.target)
    if ":" in target and not Path(target).exists():
        if not args.data and not args.input:
            hints = ["give real inputs: `--data val.npz` (inputs and targets)", "or give a shape: `--input 1x129x1000`"]
            raise UserError("there are no inputs for the model", hints=hints)
        for name in ("weights", "data", "calibration"):
            if getattr(args, name) and not Path(getattr(args, name)).is_file():
                raise UserError(f"there is no {getattr(args, name)}", cause=f"--{name} has to be a file")
        given = {name: getattr(args, name) for name in ("weights", "data", "score", "calibration")}
        shapes = [_shape(each) for each in args.input or []]
        return {"kind": "module", "factory": target, "shapes": shapes, **given}, Path("bundle")
    from holdfast.run.folder import RunFolder, find_run

    root = Path(args.folder) if args.folder else Path(Settings.load().run.folder)
    run = RunFolder.open(Path(target)) if (Path(target) / "run.json").is_file() else find_run(root, target)
    spec: dict[str, Any] = {"kind": "run", "folder": str(run.path.absolute())}
    if args.species:
        spec["species"] = args.species
    return spec, run.path / "bundle"


def _shape(text: str) -> list[int]:
    words = text.lower().replace(",", "x").split("x")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise UsageError(
            f"--input {text} is not a shape", command="optimize", tips=["write it like 1x129x1000, batch first"]
        )
    return [int(word) for word in words]


def _verify(folder: Path, output: Output) -> int:
    from holdfast.optimize.verify import verify

    result = verify(folder)
    if output.as_json:
        output.json(result)
    else:
        for line in result["lines"]:
            output.print(line)
    return ExitCode.OK if result["ok"] else ExitCode.NO
