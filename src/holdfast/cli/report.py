"""`holdfast report`: a run as one HTML file that opens anywhere, or its numbers as CSV, JSON or a picture.

holdfast report calm-heron                       report.html in the run folder
holdfast report calm-heron -o curves.png         the ending says what it is: .html .csv .json .png
holdfast report calm-heron --tensorboard         event files in tb/, for runs that were made without
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, size
from holdfast.console.usage import Parser, UsageError
from holdfast.monitor import reader
from holdfast.run.folder import find_run
from holdfast.run.reference import shown


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "report",
        description="""\
Write one HTML file about a run, or export its numbers as CSV, JSON or a picture.

examples:
  holdfast report                            the last run, as report.html in its folder
  holdfast report calm-heron --open          write it and open it in the browser
  holdfast report calm-heron -o curves.png   the charts as a picture
  holdfast report calm-heron -o all.csv -o all.json
  holdfast report calm-heron --json          print everything as JSON

The HTML file contains charts, faults, receipt, environment and log. It opens without a network.
""",
    )
    parser.add_argument(
        "name",
        metavar="RUN",
        nargs="?",
        default="latest",
        help="a run: its name such as calm-heron, its folder, or `latest`",
    )
    add_folder(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", action="append", help="file to write: .html, .csv, .json or .png (repeatable)"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write event files for TensorBoard to tb/ in the run folder"
    )
    parser.add_argument("--open", action="store_true", help="open the report in the browser")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Read the run once, write everything that was asked for."""
    output = Output.from_args(args)
    seen = reader.open(find_run(root_of(args), args.name).path)
    for problem in seen.problems:
        output.note(f"! {problem}")
    wanted = [Path(name) for name in args.output or []]
    for path in wanted:
        if path.suffix.lower() not in WRITERS:
            raise UsageError(
                f"the format of `{path}` is not clear",
                command="report",
                tips=["the name must end in .html, .csv, .json or .png"],
            )
    if args.tensorboard:
        _say(output, _tensorboard(seen))
    if output.as_json and not wanted:
        from holdfast.monitor.export import to_json

        output.json(to_json(seen))
        return ExitCode.OK
    if not wanted and not args.tensorboard:
        wanted = [seen.path / "report.html"]
    for path in wanted:
        _write(WRITERS[path.suffix.lower()], seen, path)
        if not output.as_json:
            _say(output, path)
    if output.as_json:
        output.json(
            {"run": seen.name, "folder": str(seen.path.absolute()), "files": [str(p.absolute()) for p in wanted]}
        )
    pages = [path for path in wanted if path.suffix.lower() == ".html"]
    if args.open and pages:
        import webbrowser

        webbrowser.open(pages[0].absolute().as_uri())
    return ExitCode.OK


def _say(output: Output, path: Path) -> None:
    kept = size(path.stat().st_size) if path.is_file() else "for TensorBoard"
    output.print(shown(path) if output.quiet or output.plain else f"✓ {shown(path)}, {kept}")


def _write(writer: Callable[[reader.Run, Path], object], seen: reader.Run, path: Path) -> None:
    try:
        writer(seen, path)
    except OSError as error:
        hint = "choose another place with `-o FILE`"
        raise UserError(f"cannot write {shown(path)}", cause=str(error.strerror or error), hints=[hint]) from None


def _html(seen: reader.Run, path: Path) -> None:
    from holdfast.monitor import report

    report.write(seen, path)


def _csv(seen: reader.Run, path: Path) -> None:
    from holdfast.monitor.export import csv_text

    with open(path, "w", encoding="utf-8", newline="") as file:
        file.writelines(csv_text(seen))


def _json(seen: reader.Run, path: Path) -> None:
    import json

    from holdfast.monitor.export import to_json

    path.write_text(json.dumps(to_json(seen), indent=1) + "\n", encoding="utf-8")


def _png(seen: reader.Run, path: Path) -> None:
    try:
        from holdfast.monitor import picture

        picture.write(seen, path)
    except ImportError as error:
        raise UserError("a picture needs pillow", cause=str(error), hints=["pip install 'holdfast[monitor]'"]) from None


def _tensorboard(seen: reader.Run) -> Path:
    from holdfast.monitor import tensorboard

    folder = seen.path / "tb"
    try:
        tensorboard.write(seen, folder)
    except OSError as error:
        raise UserError(f"cannot write {shown(folder)}", cause=str(error.strerror or error)) from None
    return folder


WRITERS: dict[str, Callable[[reader.Run, Path], object]] = {".html": _html, ".csv": _csv, ".json": _json, ".png": _png}
