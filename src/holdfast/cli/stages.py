"""A workload made of several runs: `holdfast train eeg` is pretraining, then both challenges.

    run(workload, args, output)        # one run after the other; the first is the parent of the others
    go_on(folder, output)              # after `holdfast resume` of one of them: those that are left

Each stage is a run of its own, with its own folder, receipt and name. run.json keeps which stages come after it, so
that resuming any of them finishes the whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from pathlib import Path
from typing import Any

from holdfast.cli import planned
from holdfast.cli.output import Output
from holdfast.cli.train import Order, create, read_order, read_script, split_words, supervise
from holdfast.cli.usage import UsageError, similar
from holdfast.errors import ExitCode, UserError
from holdfast.runfolder import RunFolder
from holdfast.workloads import registry
from holdfast.workloads.registry import Workload


@dataclasses.dataclass(frozen=True)
class _Collecting(Output):
    """With --json there is one object at the end, not one per run."""

    kept: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def json(self, data: Any) -> None:
        self.kept.append(dict(data))


def run(workload: Workload, args: argparse.Namespace, output: Output) -> int:
    """All stages; the first that does not finish ends it, with its exit code."""
    workload.check_installed()
    words = list(args.words)
    words += [f"run.device={args.device}"] if args.device else []
    words += [f"run.seed={args.seed}"] if args.seed is not None else []
    _check(workload, words)
    names = list(workload.stages)
    plan = planned.find(args, _order(names[0], words, None).settings, output.note)
    if args.detach:
        from holdfast.cli import detach

        return detach.train(_create(workload, names, words, None, plan), args, output)
    first = RunFolder.open(Path(args.background)) if args.background else None
    if args.background:
        from holdfast.cli import detach

        detach.survive_hangup()
    return _all(workload, names, words, None, output, first, plan)


def go_on(folder: RunFolder, output: Output) -> int:
    """The stages that come after this run; nothing if it is no stage."""
    info = folder.info
    stages = info.get("stages")
    if not isinstance(stages, dict):
        return ExitCode.OK
    workload = registry.find(str(stages.get("of")))
    left, words = stages.get("left"), stages.get("words")
    if workload is None or not isinstance(left, list) or not isinstance(words, list) or not left:
        return ExitCode.OK
    if not set(left) <= set(workload.stages) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{folder.name} names stages that `{workload.name}` does not have")
    parent = str(info.get("parent") or folder.path.name)
    if output.as_json:  # its one object was about the run that was resumed
        output = dataclasses.replace(output, as_json=False, quiet=True, out=output.err)
    return _all(workload, left, words, parent, output, None)


def _all(
    workload: Workload,
    names: list[str],
    words: list[str],
    parent: str | None,
    output: Output,
    first: RunFolder | None,
    plan: planned.Planned | None = None,
) -> int:
    from holdfast.cli.supervise import rungs_for

    told = _Collecting(**{field.name: getattr(output, field.name) for field in dataclasses.fields(Output)})
    folders: list[Path] = []
    code: int = ExitCode.OK
    for number, name in enumerate(names):
        order = _order(name, words, parent)
        rungs = rungs_for(order.settings.run.device)
        if plan is not None:
            order, rungs = plan.applied(order, rungs)
        output.note(f"• {workload.name}, stage {len(workload.stages) - len(names) + number + 1} of "
                    f"{len(workload.stages)}: {name}")  # fmt: skip
        folder = first if first is not None and number == 0 else None
        if folder is None:
            folder = _create(workload, names[number:], words, parent, plan)
        folders.append(folder.path)
        code = supervise(folder, order, rungs, told)
        parent = parent or folder.path.name
        if code != ExitCode.OK:
            break
        output.note()
    if output.as_json:
        output.json({"workload": workload.name, "exit_code": int(code), "runs": told.kept})
    elif code == ExitCode.OK and workload.closing:
        for line in _closing(workload, [*_before(folders), *folders]):
            output.print(line)
    return code


def _before(folders: list[Path]) -> list[Path]:
    """Stages that an earlier command finished: the parent, and its other children."""
    parent = RunFolder(folders[0]).info.get("parent")
    if not parent:
        return []
    found = []
    for path in sorted(folders[0].parent.iterdir()):
        info = RunFolder(path).info
        if path not in folders and parent in (info.get("run"), path.name, info.get("parent")):
            found.append(path)
    return found


def _closing(workload: Workload, folders: list[Path]) -> list[str]:
    module, _, function = workload.closing.partition(":")
    lines: list[str] = getattr(importlib.import_module(module), function)(folders)
    return lines


def _create(
    workload: Workload, names: list[str], words: list[str], parent: str | None, plan: planned.Planned | None
) -> RunFolder:
    stages = {"of": workload.name, "left": names[1:], "words": words}
    order = _order(names[0], words, parent)
    if plan is None:
        return create(order, stages=stages)
    order, _ = plan.applied(order, [])
    return create(order, stages=stages, plan=plan.info(order))


def _order(name: str, words: list[str], parent: str | None) -> Order:
    """What was asked for, as far as it is this stage's."""
    arguments, _ = split_words(words, "train")
    known = read_script(name, "train").parameters
    mine = [word for word in words if word.partition("=")[0] not in arguments or word.partition("=")[0] in known]
    mine += [f"parent={parent}"] if parent and "parent" in known else []
    return read_order(name, mine)


def _check(workload: Workload, words: list[str]) -> None:
    """Every word is an argument of some stage."""
    arguments, _ = split_words(words, "train")
    known = [key for name in workload.stages for key in read_script(name, "train").parameters]
    for key in arguments:
        if key not in known:
            raise UsageError(
                f"unknown setting `{key}`",
                command="train",
                cause=f"the stages of `{workload.name}` take: {', '.join(dict.fromkeys(known))}",
                tips=similar(key, known, "setting"),
            )
    for name in workload.stages:
        _order(name, words, None)
