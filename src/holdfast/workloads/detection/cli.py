"""`holdfast detection`: check a set of boxes, use a trained detector, make a set to try things on.

    holdfast detection check data.yaml            every bad label by file and line
    holdfast detection predict RUN photos/        boxes drawn, and as JSON, CSV or YOLO files
    holdfast detection generate thermal/          a thermal-like set, made and labelled as such

Training is `holdfast train detection data=…`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags, add_folder, counted
from holdfast.console.usage import Parser, UsageError, similar

ABOUT = """\
Check object-detection data, use a trained detector, or generate a data set to try things on.

examples:
  holdfast detection check DATA             list every bad label by file and line
  holdfast detection predict RUN IMAGES…    draw boxes, and write them as JSON, CSV or YOLO files
  holdfast detection generate FOLDER        generate a thermal-like data set

Training itself is `holdfast train detection data=…`. `holdfast detection check --help` shows examples and options of
one tool; the others have the same.
"""


class Tools(Parser):
    """The first word is the tool, the rest is for that."""

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        at = next((number for number, word in enumerate(argv) if not word.startswith("-")), None)
        if at is None:
            return super().parse(argv)
        tool = argv[at]
        if tool not in TOOLS:
            known = ", ".join(TOOLS)
            tips = similar(tool, TOOLS, "tool")
            raise UsageError(f"unknown tool `{tool}`", command="detection", cause=f"there are: {known}", tips=tips)
        return TOOLS[tool]().parse([*argv[:at], *argv[at + 1 :]])

    def tools(self) -> dict[str, str]:
        return {name: (TOOLS[name]().description or "").partition("\n")[0] for name in TOOLS}

    def tool(self, name: str) -> Parser:
        return TOOLS[name]()


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser = Tools("detection", description=ABOUT)
    parser.add_argument("tool", nargs="?", metavar="TOOL", help=f"one of {', '.join(TOOLS)}")
    add_flags(parser)
    parser.set_defaults(run=_about)
    return parser


def _about(args: argparse.Namespace) -> int:
    Output.from_args(args).out.write(ABOUT, end="")
    return ExitCode.OK


def _check_installed() -> None:
    from holdfast.run.workload_registry import find

    workload = find("detection")
    assert workload is not None
    workload.check_installed()


# check ----------------------------------------------------------------------------------------------------------


def _check_parser() -> Parser:
    parser = Parser(
        "detection check",
        description="""\
Check every image and label of a data set, and list each problem with its file and line.

examples:
  holdfast detection check data.yaml            YOLO folders
  holdfast detection check annotations.json     COCO; a folder with Annotations/ is Pascal VOC
  holdfast detection check data.yaml --decode   also decode every image: slower, finds damage inside
  holdfast detection check data.yaml --classes car:vehicle,truck:vehicle    as training with classes=… sees it
  holdfast detection check data.yaml --json     every problem as JSON

Training makes the same checks before its first step and leaves out what is bad.
""",
    )
    parser.add_argument("data", metavar="DATA", help="a data.yaml, a COCO file, or a folder")
    parser.add_argument("--decode", action="store_true", help="also decode every image")
    parser.add_argument("--classes", default="", metavar="C", help="classes to keep, for example person,car:vehicle")
    parser.add_argument(
        "--most", type=int, default=50, metavar="N", help="number of problems to list (default: 50; 0 for all)"
    )
    add_flags(parser)
    parser.set_defaults(run=check)
    return parser


HARMLESS = ("clipped", "image_without_label", "twice", "crowd")
"""Kinds of problems that leave nothing out."""


def check(args: argparse.Namespace) -> int:
    """Find the set, look at all of it, tell."""
    _check_installed()
    from holdfast.workloads.detection.index import check_set

    output = Output.from_args(args)
    began = time.monotonic()
    checked = check_set(args.data, tell=_progress(output), decode=args.decode, classes=args.classes)
    problems = checked.problems
    bad = sum(count for kind, count in problems.counts.items() if kind not in HARMLESS)
    usable = bool(checked.names) and all(len(checked.splits.get(name, ())) > 0 for name in ("train", "val"))
    if output.as_json:
        from holdfast.workloads.detection.about import about_data

        output.json({**about_data(checked), **problems.to_json(), "usable": usable})
    for line in _told(checked, args.most or None, time.monotonic() - began, usable):
        output.print(line)
    return ExitCode.NO if bad or not usable else ExitCode.OK


def _told(checked: Any, most: int | None, seconds: float, usable: bool) -> list[str]:
    counts = [f"{len(part):,} {name}" for name, part in checked.splits.items()]
    lines = [f"{checked.kind} data in {checked.file}{', GENERATED' if checked.generated else ''}"]
    lines.append(f"  images   {', '.join(counts)}{'; grey' if checked.grey else ''}")
    train = checked.splits["train"].counts(len(checked.names)) if checked.names else []
    named = ", ".join(f"{name} {count:,}" for name, count in list(zip(checked.names, train, strict=False))[:12])
    lines.append(f"  boxes    {named or 'none'}{' …' if len(checked.names) > 12 else ''}")
    lines += [f"  note     {note}" for note in checked.notes]
    problems = checked.problems
    if not len(problems):
        return [*lines, f"✓ nothing is wrong with it ({seconds:.1f} s)"]
    lines += ["", *(f"! {line}" for line in problems.summary()), "", *(f"  {line}" for line in problems.lines(most))]
    if most is not None and len(problems) > most:
        lines.append(f"  … and {len(problems) - most:,} more: `--most 0` lists all")
    if not usable:
        return [*lines, "", "✗ too little is left to train on"]
    return [*lines, "", "training goes on with the rest"]


def _progress(output: Output) -> Any:
    last = [time.monotonic()]

    def tell(done: int, total: int, what: str) -> None:
        if time.monotonic() - last[0] > 2.0:
            last[0] = time.monotonic()
            output.note(f"{what}: {done:,} of {total:,}")

    return tell


# predict --------------------------------------------------------------------------------------------------------


def _predict_parser() -> Parser:
    parser = Parser(
        "detection predict",
        description="""\
Find objects in images, folders or videos with a trained detector.

examples:
  holdfast detection predict latest photos/                the newest detection run
  holdfast detection predict calm-heron a.jpg drive.mp4    a run by its name
  holdfast detection predict final.safetensors photos/     a weights file with detector.json beside it
  holdfast detection predict latest photos/ --format csv --no-pictures
  holdfast detection predict runs/calm-heron/bundle photos/    a bundle of `holdfast optimize`

If the run has a bundle, predict uses it, unless you give --device, --imgsz or --trained.
""",
    )
    parser.add_argument(
        "model", metavar="RUN", help="a run by name, folder or `latest`; a .safetensors file; or a bundle"
    )
    parser.add_argument("sources", nargs="+", metavar="IMAGES", help="images, folders or videos")
    parser.add_argument("--out", default="found", metavar="FOLDER", help="folder for the results (default: found)")
    parser.add_argument(
        "--score", type=float, default=0.25, metavar="S", help="lowest score to report, 0 to 1 (default: 0.25)"
    )
    parser.add_argument(
        "--format", default="json,csv,yolo", metavar="F", help="formats to write: any of json, csv, yolo (default: all)"
    )
    parser.add_argument("--no-pictures", action="store_true", help="do not draw boxes into pictures")
    parser.add_argument(
        "--imgsz", type=int, default=0, metavar="N", help="longer side of the image in pixels (default: as trained)"
    )
    parser.add_argument("--device", default="cpu", metavar="D", help="where to run (default: cpu)")
    parser.add_argument("--trained", action="store_true", help="use the trained weights, even if there is a bundle")
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=predict)
    return parser


def predict(args: argparse.Namespace) -> int:
    """Load, look, write."""
    _check_installed()
    output = Output.from_args(args)
    if not 0.0 < args.score < 1.0:
        raise UserError(f"--score is {args.score:g}", cause="it has to lie between 0 and 1")
    if args.imgsz and not 32 <= args.imgsz <= 8192:
        raise UserError(f"--imgsz is {args.imgsz}", cause="it has to lie between 32 and 8192")
    where = _model(args)
    from holdfast.workloads.detection.bundled import Bundled, bundle_of
    from holdfast.workloads.detection.predict import Finder, Writer, listed, look_at

    paths = listed(args.sources)
    bundle = bundle_of(where) if args.device == "cpu" and not args.imgsz and not args.trained else None
    if bundle is not None:
        finder: Any = Bundled(bundle)
        output.note(f"through the bundle {bundle} ({finder.words})")
    else:
        finder = Finder.of(where, imgsz=args.imgsz, device=args.device, images=_about_how_many(paths))
        output.note(f"through {finder.net.words}")
    formats = [each for each in args.format.split(",") if each]
    writer = Writer(Path(args.out), finder.names, formats, draw=not args.no_pictures)
    began, boxes, unread = time.monotonic(), 0, []  # type: float, int, list[str]

    def told(text: str) -> None:
        unread.append(text)
        output.note(text)

    for seen in look_at(finder, paths, score=args.score, told=told):
        writer.add(seen)
        boxes += len(seen.rows)
    tables = writer.close()
    seconds = time.monotonic() - began
    if output.as_json:
        output.json({"model": str(where), "out": args.out, "names": finder.names, "images": writer.rows,
                     "unreadable": len(unread), "seconds": round(seconds, 3)})  # fmt: skip
    output.print(f"✓ {counted(boxes, 'box', 'boxes')} in {counted(len(writer.rows), 'image')}, {seconds:.1f} s")
    output.print(f"  out      {args.out}{'' if args.no_pictures else ' (pictures)'}")
    for each in tables:
        output.print(f"           {each}")
    return ExitCode.NO if unread and not writer.rows else ExitCode.OK


def _about_how_many(paths: Sequence[str]) -> int:
    """A video has many."""
    from holdfast.workloads.detection.predict import VIDEOS

    return sum(1000 if Path(path).suffix.lower() in VIDEOS else 1 for path in paths)


def _model(args: argparse.Namespace) -> Path:
    """A file as it is, otherwise a run."""
    path = Path(args.model).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise UserError(f"there is no {args.model}")
        return path
    if (path / "manifest.json").is_file():
        return path
    from holdfast.console.order import root_of
    from holdfast.run.folder import find_run, list_runs

    if args.model == "latest":
        mine = [run for run in list_runs(root_of(args)) if (run.path / "detector.json").is_file()]
        if not mine:
            raise UserError("there is no detection run yet", hints=["`holdfast train detection` makes one"])
        return mine[-1].path
    return find_run(root_of(args), args.model).path


# generate -------------------------------------------------------------------------------------------------------


def _generate_parser() -> Parser:
    parser = Parser(
        "detection generate",
        description="""\
Generate a thermal-like data set: warm shapes of four kinds with their boxes.

examples:
  holdfast detection generate thermal/
  holdfast detection generate thermal/ --train 2000 --val 200 --bits 16

`holdfast train detection` learns from such a set when you give it no data. Its data.yaml says that it is generated.
""",
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder to write; it must be new or empty")
    parser.add_argument("--train", type=int, default=320, metavar="N", help="number of training images (default: 320)")
    parser.add_argument("--val", type=int, default=80, metavar="N", help="number of validation images (default: 80)")
    parser.add_argument("--width", type=int, default=160, metavar="N", help="width in pixels (default: 160)")
    parser.add_argument("--height", type=int, default=128, metavar="N", help="height in pixels (default: 128)")
    parser.add_argument("--bits", type=int, default=8, choices=(8, 16), help="bits per pixel (default: 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    add_flags(parser)
    parser.set_defaults(run=generate)
    return parser


def generate(args: argparse.Namespace) -> int:
    """Write the set, say where."""
    _check_installed()
    from holdfast.workloads.detection.generate import NAMES, write

    output, folder = Output.from_args(args), Path(args.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{args.folder} is not empty", hints=["name a folder that does not exist yet"])
    made = write(folder, train=args.train, val=args.val, width=args.width, height=args.height, seed=args.seed,
                 bits=args.bits, progress=_progress(output))  # fmt: skip
    if output.as_json:
        output.json({"data": str(made), "generated": True, "train": args.train, "val": args.val, "names": NAMES})
    output.print(f"✓ {args.train:,} + {args.val:,} GENERATED images in {args.folder}")
    output.print(f"  holdfast train detection data={made}")
    return ExitCode.OK


TOOLS = {"check": _check_parser, "predict": _predict_parser, "generate": _generate_parser}
