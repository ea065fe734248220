"""`holdfast eeg score`: what runs scored, and the leaderboard's number; or the score of predictions in a table.

holdfast eeg score                                  the newest finished run of each challenge
holdfast eeg score calm-heron swift-otter           these
holdfast eeg score --csv predictions.csv            columns subject, truth, guess
holdfast eeg score --decode cache/events-100hz      two kinds of events told apart within each subject
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder
from holdfast.console.usage import Parser, UsageError
from holdfast.run.folder import find_run, list_runs, read_json


def add_score(subparsers: Any) -> Parser:
    """Add the tool to `holdfast eeg`."""
    parser: Parser = subparsers.add_parser(
        "eeg score",
        description="""\
Show the scores of runs on their held-out subjects, beside the score of guessing.

examples:
  holdfast eeg score                           the newest finished run of each challenge
  holdfast eeg score calm-heron swift-otter    these runs
  holdfast eeg score --csv predictions.csv     any predictions: a table with columns subject, truth, guess
  holdfast eeg score --decode cache/events-100hz   tell two kinds of events apart, within each subject

The number of the leaderboard is 0.3 x Challenge 1 + 0.7 x Challenge 2, where a score is rmse / std. Intervals come
from a bootstrap over subjects.
""",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs of a challenge (default: the newest of each)")
    parser.add_argument("--csv", metavar="FILE", help="score these predictions instead of runs")
    parser.add_argument("--decode", metavar="CACHE", help="windows around events: tell the two kinds apart")
    add_folder(parser)
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Tell what was kept, or score a table."""
    from holdfast.workloads.eeg import closing

    output = Output.from_args(args)
    if sum(bool(each) for each in (args.csv, args.decode, args.runs)) > 1:
        raise UsageError("runs, --csv and --decode cannot be scored together", command="eeg score")
    if args.decode:
        return _decode(args.decode, output)
    if args.csv:
        result = score_table(Path(args.csv))
        told = [f"{result['windows']} predictions of {result['subjects']} subjects", *closing.no_interval(result)]
        told += closing.of_scores(result)
        results = [result]
    else:
        folders = [find_run(root_of(args), name).path for name in args.runs] or _newest(root_of(args))
        results = [_kept(folder) for folder in folders]
        told = [line for result in results for line in [*closing.of_run(result), ""]]
        told += closing.lines(folders)
    for line in told:
        output.print(line)
    if output.as_json:
        output.json({"scores": results, "overall": closing.overall(results)})
    return ExitCode.OK


def _decode(folder: str, output: Output) -> int:
    from holdfast.workloads.eeg import cache, decoding

    rows = decoding.within_subject(cache.open(folder))
    for line in decoding.lines(rows):
        output.print(line)
    if output.as_json:
        output.json({"decoding": rows})
    return ExitCode.OK


def _newest(root: Path) -> list[Path]:
    found: dict[str, Path] = {}
    for each in list_runs(root):
        name = str(each.info.get("workload"))
        if name in ("eeg-challenge1", "eeg-challenge2") and (each.path / "scores.json").is_file():
            found[name] = each.path
    if not found:
        raise UserError(f"no run in {root} has scores", hints=["`holdfast train eeg` makes some"])
    return [found[name] for name in sorted(found)]


def _kept(folder: Path) -> dict[str, Any]:
    result = read_json(folder / "scores.json")
    if result is None or result.get("challenge") not in (1, 2):
        raise UserError(f"{folder.name} has no scores", cause="it is not a run of a challenge, or it did not finish")
    return result


def score_table(path: Path) -> dict[str, Any]:
    """The metrics of a CSV with columns subject, truth and guess."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        wanted = [(row["subject"], float(row["truth"]), float(row["guess"])) for row in rows]
    except KeyError as error:
        raise UserError(f"{path} has no column {error}", hints=["columns are subject, truth, guess"]) from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} cannot be scored", cause=str(error)) from None
    if len(wanted) < 2 or not all(math.isfinite(number) for _, *pair in wanted for number in pair):
        raise UserError(
            f"{path} cannot be scored", cause="it holds fewer than two rows, or a number that is not finite"
        )
    import numpy as np

    from holdfast.workloads.eeg import scores

    subjects = np.array([name for name, _, _ in wanted])
    truth, guess = (np.array([row[column] for row in wanted]) for column in (1, 2))
    found = scores.measured(truth, guess, subjects, float(truth.mean()), auroc_too=True)
    return {"windows": len(wanted), "subjects": len(set(subjects.tolist())), **found}
