"""`holdfast eeg download`: recordings of the Healthy Brain Network, from public buckets, whatever happens on the way.

holdfast eeg download R5 --mini --to ./data
holdfast eeg download R5 --tasks RestingState --source original --manifest hbn.tsv.gz --dry-run
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

from holdfast.base.errors import ExitCode
from holdfast.console.output import Output, add_flags, count, counted, duration, shorten, size
from holdfast.console.progress import Bar
from holdfast.console.text import without_control
from holdfast.console.usage import Parser, UsageError

_SHOWN = 10


def add_parser(subparsers: Any) -> Parser:
    """Add the tool to the command line."""
    parser: Parser = subparsers.add_parser(
        "eeg download",
        description="""\
Download recordings of the Healthy Brain Network. Needs no account.

examples:
  holdfast eeg download R5 --mini --to ./data            20 subjects, about 3 GB
  holdfast eeg download R5 --to ./data --dry-run         show how much it would download
  holdfast eeg download R1 R2 --tasks RestingState,contrastChangeDetection --to ./data
  holdfast eeg download R5 --source original --manifest hbn.tsv.gz --to ./data
  holdfast eeg download all --to ./data                  everything, about 350 GB

sources:
  competition   100 Hz BDF, the copies of the 2025 challenge (default)
  original      500 Hz, OpenNeuro, or fcp-indi where OpenNeuro fails
  openneuro, fcp-indi    only one of the two

It skips files that you have. After an interruption the same command continues where it stopped. It compares each file
with its size and digest; a wrong file goes to DATA/.holdfast/quarantine. Two downloads may run at the same time.
""",
    )
    parser.add_argument("words", nargs="*", metavar="RELEASE", help="releases: R1 to R11, or all")
    parser.add_argument(
        "--to", metavar="DATA", default="data", help="target folder, with one subfolder per release (default: data)"
    )
    parser.add_argument("--tasks", metavar="A,B,…", help="tasks to download (default: all)")
    parser.add_argument("--subjects", metavar="A,B,…", help="subjects to download (default: all)")
    parser.add_argument("--mini", action="store_true", help="only the small set of 20 subjects of each release")
    parser.add_argument(
        "--source",
        default="competition",
        metavar="NAME",
        help="competition, original, openneuro or fcp-indi (default: competition)",
    )
    parser.add_argument(
        "--manifest", metavar="FILE", default="", help="table of release, path, size and sha256, separated by tabs"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what it would download, and how much")
    parser.add_argument("--verify", action="store_true", help="also verify every file that you have")
    parser.add_argument("--parallel", type=int, default=8, metavar="N", help="downloads at the same time (default: 8)")
    parser.add_argument(
        "--base", action="append", default=[], metavar="NAME=URL", help="use another server for a bucket"
    )
    add_flags(parser, progress=True)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    output = Output.from_args(args)
    if not 1 <= args.parallel <= 64:
        raise UsageError(f"--parallel {args.parallel} is not between 1 and 64", command="eeg download")
    from holdfast.workloads.eeg import download

    plan = download.plan(args.to, _selection(args), bases=_bases(args), progress=_told(output))
    if args.verify:
        plan.here = set()
    for note in plan.notes:
        output.note(without_control(f"• {note}"))
    if args.dry_run:
        return _dry(plan, output)
    try:
        with Bar(output, "fetching") as bar:
            update = functools.partial(bar.update, unit=size)
            result = download.fetch(plan, parallel=args.parallel, progress=lambda done, total: update(done, total))
    except KeyboardInterrupt:
        output.note("stopped; what was fetched stays, parts too: the same command goes on where it was")
        raise
    return _told_result(args.to, plan, result, output)


def _selection(args: argparse.Namespace) -> Any:
    from holdfast.workloads.eeg.download import RELEASES, Selection

    releases = tuple(RELEASES) if "all" in args.words else tuple(word.upper() for word in args.words)
    if not releases:
        tips = ["as in `holdfast eeg download R5 --mini`", f"releases are {', '.join(RELEASES)}, or all"]
        raise UsageError("no release was named", command="eeg download", tips=tips)
    return Selection(
        releases=releases,
        tasks=_words(args.tasks),
        subjects=_words(args.subjects),
        source=args.source,
        mini=args.mini,
        manifest=args.manifest,
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _bases(args: argparse.Namespace) -> dict[str, str]:
    found = {}
    for text in args.base:
        name, _, url = text.partition("=")
        if name not in ("competition", "openneuro", "fcp-indi") or not url.startswith(("http://", "https://")):
            raise UsageError(
                f"--base {text} is not understood", command="eeg download", tips=["as in `--base openneuro=https://…`"]
            )
        found[name] = url
    return found


def _told(output: Output) -> Any:
    return lambda release: output.note(f"asking what {release} holds") if output.progress else None


def _dry(plan: Any, output: Output) -> int:
    if output.as_json:
        output.json(
            {
                "folder": str(plan.folder),
                "files": len(plan.files),
                "bytes": plan.bytes_total,
                "files_to_get": len(plan.to_get),
                "bytes_to_get": plan.bytes_to_get,
                "with_sha256": sum(1 for each in plan.files if each.sha256),
            }
        )
        return ExitCode.OK
    for line in plan.lines():
        output.print(line)
    return ExitCode.OK


def _told_result(folder: str, plan: Any, result: Any, output: Output) -> int:
    code = ExitCode.NO if result.failed else ExitCode.OK
    if output.as_json:
        output.json(
            {
                "folder": str(plan.folder),
                "files": len(plan.files),
                "got": result.got,
                "verified": result.verified,
                "bytes": result.bytes,
                "seconds": result.seconds,
                "retries": result.retries,
                "quarantined": result.quarantined,
                "failed": result.failed,
                "exit_code": int(code),
            }
        )
        return code
    rate = f", {size(result.bytes / result.seconds)}/s" if result.bytes and result.seconds > 0 else ""
    sign = "✗" if result.failed else "✓"
    output.print(
        f"{sign} {counted(result.got, 'file')} fetched ({size(result.bytes)} in {duration(result.seconds)}{rate}), "
        f"{count(result.verified)} were here; in {shorten(folder)}"
    )
    if result.retries or result.quarantined:
        output.print(
            f"  {counted(result.retries, 'retry', 'retries')}, {count(result.quarantined)} put in quarantine; "
            f"the story is in {shorten(folder)}/.holdfast/journal.jsonl"
        )
    for path, why in list(result.failed.items())[: None if output.verbose else _SHOWN]:
        output.print(without_control(f"  ✗ {path}: {why}"))
    if len(result.failed) > _SHOWN and not output.verbose:
        output.print(f"  and {count(len(result.failed) - _SHOWN)} more; `-v` names all")
    if result.failed:
        output.note("hint: run the same command again; it asks only for what is missing")
    return code
