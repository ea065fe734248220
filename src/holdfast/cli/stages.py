"""A workload made of several runs: `holdfast train eeg` is pretraining, then both challenges.

    run(workload, args, output)                        # one run after the other; the first is the parent of the others
    rest(folder)                                       # what comes after this run and is not finished; None if nothing
    follow(folder, args, output, …)                    # `holdfast resume` of any of them goes on with that

Each stage is a run of its own, with its own folder, receipt and name. run.json keeps which stages come after it, so
that resuming any of them, finished or not, finishes the whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.errors import ExitCode, UserError
from holdfast.cli import at_boot, planned
from holdfast.cli.resume_trust import Request
from holdfast.console.order import Order, create, read_order, read_script, split_words
from holdfast.console.output import Output
from holdfast.console.usage import UsageError, similar
from holdfast.run import kept_arguments, workload_registry
from holdfast.run.folder import RunFolder, list_runs, redact
from holdfast.run.states import RunState
from holdfast.run.workload_registry import Workload


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
    names, parent = list(workload.stages), None
    plan = planned.find(args, _order(names[0], words, None).settings, output.note)
    if args.detach:
        from holdfast.cli import detach

        return detach.train(_create(workload, names, words, None, plan), args, output)
    first = RunFolder.open(Path(args.background)) if args.background else None
    if first is not None:
        from holdfast.cli import detach

        detach.survive_hangup()
        names = names[names.index(str(first.info.get("workload"))) :]
        parent = first.info.get("parent")
    return _all(workload, names, words, parent, output, first, plan)


@dataclasses.dataclass(frozen=True)
class Rest:
    """The stages after a run that are not finished."""

    workload: Workload
    names: list[str]
    words: list[str]
    parent: str
    begun: RunFolder | None
    """The run of the first of them, if there is one."""


def rest(folder: RunFolder) -> Rest | None:
    """What comes after this run; None if it is no stage, or all of it is finished."""
    info = folder.info
    stages = info.get("stages")
    if not isinstance(stages, dict):
        return None
    workload = workload_registry.find(str(stages.get("of")))
    left, words = stages.get("left"), stages.get("words")
    if workload is None or not isinstance(left, list) or not isinstance(words, list):
        return None
    if not set(map(str, left)) <= set(workload.stages) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{folder.name} names stages that `{workload.name}` does not have")
    parent = str(info.get("parent") or folder.path.name)
    there = {
        each.info.get("workload"): each for each in list_runs(folder.path.parent) if _belongs(each, stages, parent)
    }
    names = [name for name in left if name not in there or there[name].info.get("state") != RunState.FINISHED]
    words = kept_arguments.find(folder.path, info, "words", words) or words
    words = [*_of_all(words), f"run.folder={folder.path.parent.absolute()}"]
    return Rest(workload, names, words, parent, there.get(names[0])) if names else None


def request(folder: RunFolder) -> Request:
    """What comes after this run, for a person who has to agree to it."""
    left = rest(folder)
    assert left is not None
    return Request(["holdfast", "train", left.workload.name, *left.words], Path.cwd())


def _belongs(run: RunFolder, stages: dict[str, Any], parent: str) -> bool:
    """Whether a run is a stage of the same chain; one that was started by hand from the same parent is not."""
    mine = run.info.get("stages")
    return isinstance(mine, dict) and mine.get("of") == stages.get("of") and run.info.get("parent") == parent


def _of_all(words: list[str]) -> list[str]:
    """The words that are kept for the stages after a run.

    Whom to tell is the user's, not the run's: a folder from elsewhere must not name a command. They stand beside it.
    """
    return [word for word in words if not word.startswith(("notify.", "run.folder="))]


Resume = Callable[[argparse.Namespace], int]


def after_the_end(folder: RunFolder, args: argparse.Namespace, output: Output, *, resume: Resume) -> int:
    """`holdfast resume` of a stage that is finished, but its later stages are not."""
    if args.at_boot:
        return at_boot.run(folder, args, output)
    output.note(f"• {folder.name} is finished, but its later stages are not")
    return follow(folder, args, output, resume=resume, said=False)


def follow(folder: RunFolder, args: argparse.Namespace, output: Output, *, resume: Resume, said: bool) -> int:
    """Go on after a run that is finished, if it is a stage. `said`: with --json, its own object was printed."""
    left = rest(folder)
    code = ExitCode.OK if left is None else _go_on(left, args, output, resume, said)
    if args.booted and rest(folder) is None:
        at_boot.clean_up(folder)
    return code


def _go_on(left: Rest, args: argparse.Namespace, output: Output, resume: Resume, said: bool) -> int:
    """A run that was begun is resumed, others are started."""
    if left.begun is not None:
        output.note(f"• {left.workload.name} goes on with {left.begun.name} ({left.names[0]})")
        return resume(argparse.Namespace(**{**vars(args), "name": str(left.begun.path), "script": None}))
    words = [*left.words, *args.words, *([f"run.device={args.device}"] if args.device else [])]
    if args.detach:
        from holdfast.cli import detach

        asked = argparse.Namespace(script=left.workload.name, words=words, device=None, seed=None, script_argv=[])
        return detach.train(_create(left.workload, left.names, words, left.parent, None), asked, output)
    if output.as_json and said:  # there is only one object
        output = dataclasses.replace(output, as_json=False, quiet=True, out=output.err)
    return _all(left.workload, left.names, words, left.parent, output, None)


def _all(
    workload: Workload,
    names: list[str],
    words: list[str],
    parent: str | None,
    output: Output,
    first: RunFolder | None,
    plan: planned.Planned | None = None,
) -> int:
    from holdfast.cli.supervise import carry_out, rungs_for

    told = _Collecting(**{field.name: getattr(output, field.name) for field in dataclasses.fields(Output)})
    folders: list[Path] = []
    code: int = ExitCode.OK
    for number, name in enumerate(names):
        order = _order(name, words, parent if workload.inherit else None)
        rungs = rungs_for(order.settings.run.device)
        if plan is not None:
            order, rungs = plan.applied(order, rungs)
        output.note(f"• {workload.name}, stage {len(workload.stages) - len(names) + number + 1} of "
                    f"{len(workload.stages)}: {name}")  # fmt: skip
        folder = first if first is not None and number == 0 else None
        if folder is None:
            folder = _create(workload, names[number:], words, parent, plan)
        folders.append(folder.path)
        code = carry_out(folder, order, rungs, told)
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
    stages = {"of": workload.name, "left": names[1:], "words": redact(_of_all(words))}
    order = _order(names[0], words, parent if workload.inherit else None)
    more = {} if workload.inherit else {"parent": parent}
    if plan is None:
        folder = create(order, stages=stages, **more)
    else:
        order, _ = plan.applied(order, [])
        folder = create(order, stages=stages, plan=plan.info(order), **more)
    kept_arguments.keep(folder.path, folder.info, words=_of_all(words))
    return folder


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
