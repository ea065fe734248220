"""`holdfast predict`: answers of a bundle for a file of inputs.

holdfast predict bundle input.npy                     the answers, as text
holdfast predict bundle input.npy --out answers.npy   as a file
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.base import compile_cache
from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags
from holdfast.console.usage import Parser

SHOWN = 20


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "predict",
        description="""\
Run a bundle on a file of inputs.

examples:
  holdfast predict bundle input.npy                     print the answers
  holdfast predict bundle input.npy --out answers.npy   write them to a file: .npy, .npz or .json
  holdfast predict bundle own.npy others.npy            a model with two inputs
  holdfast predict bundle input.npy --json | jq .answers

It checks every file of the bundle and every input first.
""",
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="a folder that `holdfast optimize` wrote")
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="one .npy file for each input of the model, or one .npz"
    )
    parser.add_argument("--out", metavar="FILE", help="file for the answers: .npy, .npz or .json")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from holdfast.optimize.bundle import open_bundle
    from holdfast.optimize.subject import read_inputs

    output = Output.from_args(args)
    compile_cache.adopt()
    bundle = open_bundle(Path(args.bundle))
    arrays = [array for each in args.inputs for array in read_inputs(Path(each), "input")[0].values()]
    answers = bundle.predict(arrays)
    rows = bool(bundle.manifest.get("post"))
    if args.out:
        _write(Path(args.out), answers, bundle.manifest, rows)
    names = [each["name"] for each in bundle.manifest["outputs"]]
    if output.as_json:
        data = (
            [each.tolist() for each in answers]
            if rows
            else dict(zip(names, (a.tolist() for a in answers), strict=True))
        )
        output.json({"answers": data, "bundle": str(args.bundle), "engine": bundle.manifest["name"]})
    elif args.out:
        output.print(f"{len(arrays[0])} answers in {args.out}")
    elif rows:
        for number, found in enumerate(answers[:SHOWN]):
            output.print(f"image {number}: {len(found)} found")
            for row in found.tolist():
                output.print("  " + " ".join(f"{value:.2f}" for value in row))
    else:
        for number in range(min(SHOWN, len(answers[0]))):
            told = "  ".join(
                f"{name} {np.array2string(a[number].ravel()[:8], precision=5)}"
                for name, a in zip(names, answers, strict=True)
            )
            output.print(f"{number}: {told}")
        if len(answers[0]) > SHOWN:
            output.print(f"… {len(answers[0]) - SHOWN} more; `--out answers.npy` keeps all")
    return ExitCode.OK


def _write(path: Path, answers: Any, manifest: dict[str, Any], rows: bool) -> None:
    import json

    import numpy as np

    names = [each["name"] for each in manifest["outputs"]]
    try:
        if path.suffix == ".json" or rows:
            data = (
                [each.tolist() for each in answers]
                if rows
                else dict(zip(names, (a.tolist() for a in answers), strict=True))
            )
            path.write_text(json.dumps(data) + "\n", encoding="utf-8")
        elif path.suffix == ".npz":
            np.savez(path, **dict(zip(names, answers, strict=True)))
        else:
            np.save(path, answers[0])
    except OSError as error:
        raise UserError(f"cannot write {path}", cause=str(error.strerror or error)) from None
