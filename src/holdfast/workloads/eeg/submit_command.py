"""`holdfast eeg submit`: the zip for the competition, built and tried before it is sent.

    holdfast eeg submit                           the newest finished run of each challenge
    holdfast eeg submit calm-heron swift-otter    these two, in any order
    holdfast eeg submit --data ./data             windows cut anew from these recordings, as a scorer would

It runs in an environment of its own with the torch of the competition (2.2.2), made on demand. Where that cannot be
installed, the torch at hand is used, and the output says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.console.order import root_of
from holdfast.console.output import Output, add_flags, add_folder, counted, duration, size
from holdfast.console.usage import Parser
from holdfast.run.folder import find_run, list_runs

CLUSTER = "the cluster has 20 GB"


def add_submit(subparsers: Any) -> Parser:
    """Add the tool to `holdfast eeg`."""
    parser: Parser = subparsers.add_parser(
        "eeg submit",
        description="""\
Build the zip file for the competition, and test it as the competition does.

examples:
  holdfast eeg submit                          the newest finished run of each challenge
  holdfast eeg submit calm-heron swift-otter   these two runs
  holdfast eeg submit --data ./data            cut the windows again from these recordings
  holdfast eeg submit --here                   test with the installed torch, without a clean environment

The zip holds submission.py, the weights and code that needs only torch. The test runs it in a clean environment with
torch 2.2.2 on the held-out subjects, and prints score, time and memory, and whether the windows match those of the
training.
""",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="one run of each challenge (default: the newest)")
    parser.add_argument(
        "--out", default="submission.zip", metavar="FILE", help="file to write (default: submission.zip)"
    )
    parser.add_argument("--data", metavar="FOLDER", help="BIDS data set to cut the windows from again")
    add_folder(parser)
    parser.add_argument("--here", action="store_true", help="test it with the installed torch")
    parser.add_argument("--no-try", action="store_true", help="build the zip without testing it")
    parser.add_argument("--device", default="cpu", metavar="D", help="device for the test (default: cpu)")
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Find the runs, build, check, try, tell."""
    from holdfast.workloads.eeg import submission

    output = Output.from_args(args)
    folders = _folders(args)
    target = Path(args.out)
    submission.build(folders[1], folders[2], target)
    names = submission.check(target)
    result: dict[str, Any] = {
        "zip": str(target),
        "size_bytes": target.stat().st_size,
        "files": names,
        "runs": {number: folder.name for number, folder in folders.items()},
        "tried": None,
        "not_official": None,
    }
    output.print(f"✓ {target}: {counted(len(names), 'file')}, {size(target.stat().st_size)}, no folders")
    if not args.no_try:
        result.update(_try(args, target, folders, output))
        for line in lines(result):
            output.print(line)
    if output.as_json:
        output.json(result)
    return ExitCode.OK


def _folders(args: argparse.Namespace) -> dict[int, Path]:
    from holdfast.workloads.eeg.submission import described

    root = root_of(args)
    found: dict[int, Path] = {}
    if args.runs:
        for name in args.runs:
            folder = find_run(root, name).path
            found[int(described(folder)["challenge"])] = folder
    else:
        for each in list_runs(root):
            for number in (1, 2):
                if each.info.get("workload") == f"eeg-challenge{number}" and each.info.get("state") == "FINISHED":
                    found[number] = each.path
    missing = [number for number in (1, 2) if number not in found]
    if missing:
        raise UserError(
            f"no finished run of Challenge {missing[0]}" + (" was named" if args.runs else f" in {root}"),
            hints=[f"`holdfast train eeg-challenge{missing[0]}`, or `holdfast train eeg` for both"],
        )
    return found


def _try(args: argparse.Namespace, target: Path, folders: dict[int, Path], output: Output) -> dict[str, Any]:
    try:
        from holdfast.workloads.eeg import rehearsal, submission
    except ImportError as error:
        raise UserError(
            "a submission cannot be tried here", cause=str(error), hints=["pip install 'holdfast[eeg]'"]
        ) from None
    foreign = any(submission.described(folder)["model"] not in submission.OWN for folder in folders.values())
    wanted = (*submission.OFFICIAL, *(submission.OFFICIAL_ZOO if foreign else ()))
    python, why = sys.executable, "as asked, with --here" if args.here else None
    if not args.here:
        python, why = submission.environment(wanted, _place(foreign), output.note)
    data = Path(args.data).expanduser() if args.data else _beside(folders[1])
    tried = rehearsal.rehearse(target, folders, data=data, python=python, device=args.device)
    return {"tried": tried, "not_official": why, "official": list(wanted)}


def _place(foreign: bool) -> Path:
    from holdfast.workloads.eeg.inputs import demo_folder

    return demo_folder().parent / f"competition-env{'-braindecode' if foreign else ''}"


def _beside(folder: Path) -> Path | None:
    """The simulated set keeps its recordings beside its cache."""
    from holdfast.workloads.eeg.submission import described

    data = Path(str(described(folder)["cache"])).parent.parent / "data"
    found = (data / "dataset_description.json").is_file() and importlib.util.find_spec("mne") is not None
    return data if found else None


def lines(result: dict[str, Any]) -> list[str]:
    """What the trial showed."""
    tried = result["tried"]
    where = f"torch {tried['torch']}, Python {tried['python']}"
    told = [f"tried as the competition does: {where}"]
    if result["not_official"]:
        told.append(f"  ! not the competition's torch 2.2.2 ({result['not_official']}): it may still fail there")
    for number in (1, 2):
        each = tried[f"challenge{number}"]
        bounds = " (no interval: too few subjects)"
        if each["nrmse_low"] is not None:
            bounds = f" [{each['nrmse_low']:.3f}, {each['nrmse_high']:.3f}]"
        score = f"nrmse {each['nrmse']:.4f}{bounds}" if each["nrmse"] is not None else f"no nrmse: {each['no_nrmse']}"
        told.append(
            f"  Challenge {number}  {score}, {counted(each['windows'], 'window')} of "
            f"{counted(each['subjects'], 'subject')} in {duration(each['seconds'])}, "
            f"slowest batch {1000 * each['slowest_batch_s']:.0f} ms"
        )
    overall = tried.get("overall")
    simulated = any(tried[f"challenge{number}"]["simulated"] for number in (1, 2))
    told.append(
        f"  overall      {'-' if overall is None else f'{overall:.4f}'}{', on SIMULATED EEG' if simulated else ''}"
    )
    told.append(f"  memory       {size(tried['memory_bytes'])} at most ({CLUSTER})")
    for number in (1, 2):
        told.append(f"  parity {number}     {_parity(tried[f'challenge{number}']['parity'])}")
    return told


def _parity(parity: dict[str, Any]) -> str:
    apart, spread = parity["answers_largest_difference"], parity["answers_sd"]
    answers = f"answers differ by at most {apart:.1e} (they vary by {spread:.2g})"
    difference = parity["windows_largest_difference_sd"]
    if not parity["served_windows_checked"]:
        return f"served windows not checked (name the recordings: --data FOLDER); {answers}"
    if difference is None:
        return f"served windows have another length than the trained ones; {answers}"
    if difference < 1e-3:
        return f"windows as served are those trained on (largest difference {difference:.1e} sd); {answers}"
    return f"! windows as served differ from those trained on by up to {difference:.2g} sd; {answers}"
