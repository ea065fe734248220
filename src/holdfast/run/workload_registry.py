"""The workloads that come with holdfast, by name: where each one's script is, and what it needs.

    find("eeg-challenge1").script         # …/workloads/eeg/challenge1.py, a script like any user's
    find("eeg").stages                    # ("eeg-challenge1", "eeg-challenge2")
    find("egg")                           # None; `names()` has what there is

A workload registers itself. A small one is a single file: a script with `train(session)`, here or in the folder
`workloads` of HOLDFAST_ADD, whose name is the file's and whose `about` is the first line of its docstring. A larger one
is a folder that holds a `workload.toml` with one table per name. Nothing is imported to read either, so a typo costs
milliseconds.

    [eeg-challenge1]
    about = "the response time of each trial"
    script = "challenge1.py"
    extra = "eeg"                         # `pip install 'holdfast[eeg]'`, if one of `needs` cannot be found
    needs = ["mne"]
    ready = "my_module:check"             # check(arguments) raises UserError for data that are no good; then no run

`command` and `command_help` add the workload's own tools to the command line. `recognised_by`, `subject` and
`score_kind` tell `holdfast optimize` how to read a run of it.

`holdfast plan` also reads `score` and `presets`: what it scores as it is, and smaller forms of it.

A name with `stages` instead of a script is those runs, one after the other; the first is the `parent` of the others.
With `inherit = false` it is their parent in name alone: each begins with weights of its own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import additions
from holdfast.base.errors import UserError

ROOT = Path(__file__).parent.with_name("workloads")
"""The workloads that come with holdfast. Their files are read here; nothing of them is imported."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One name that `holdfast train` knows."""

    name: str
    about: str
    script: Path | None = None
    """The file with its `train(session)`; None if it is made of stages."""
    stages: tuple[str, ...] = ()
    """The names of the runs it is made of."""
    inherit: bool = True
    """Whether the later stages begin with the weights of the first."""
    closing: str = ""
    """module:function that says in lines what the runs of the stages came to, from their folders."""
    command: str = ""
    """The module of the workload's own tools, `holdfast NAME …`; its `add_parser` makes the command."""
    command_help: str = ""
    recognised_by: str = ""
    """The file in a run folder by which a run of this workload is known."""
    subject: str = ""
    """The module that gives `holdfast optimize` the network of such a run, its inputs and its score."""
    score_kind: str = ""
    """The kind of score that module computes itself."""
    ready: str = ""
    """module:function that raises UserError where its arguments name data that cannot train. No torch in it."""
    extra: str = ""
    needs: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that its processes start with, unless the user has set them: some are read when a library loads."""
    presets: tuple[dict[str, Any], ...] = ()
    """Smaller forms of it, for `holdfast plan`: planning/presets.py says what stands in one."""
    score: tuple[float, str, str] | None = None
    """What it scores as it is: value, metric and where that was measured; None where it is not known."""

    def check_installed(self) -> None:
        """UserError if what it needs is not there."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(
                f"the workload `{self.name}` needs {', '.join(missing)}",
                cause="not installed",
                hints=[f"pip install 'holdfast[{self.extra}]'"],
            )

    def check_ready(self, arguments: Mapping[str, str]) -> None:
        """UserError if these arguments name data that cannot be trained on: said before there is a run."""
        if self.ready:
            module, _, function = self.ready.partition(":")
            getattr(importlib.import_module(module), function)(arguments)


def all_workloads(root: Path = ROOT) -> dict[str, Workload]:
    """Every registered name, in the order of the folders and files."""
    found: dict[str, Workload] = {}
    for file in [*sorted(root.glob("*/workload.toml")), *additions.files("workloads", "*/workload.toml")]:
        for name, table in additions.tables(file).items():
            found[name] = _workload(name, table, file.parent)
    for file in [*sorted(root.glob("*.py")), *additions.files("workloads", "*.py")]:
        single = _single(file)
        if single is not None:
            found[single.name] = single
    return found


def _single(file: Path) -> Workload | None:
    """A workload that is one file, read without running it; None for a file that has no `train`."""
    try:
        text = file.read_text(encoding="utf-8")
        if "def train(" not in text:
            return None
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{file} cannot be read as a workload", cause=str(error)) from error
    if not any(isinstance(node, ast.FunctionDef) and node.name == "train" for node in tree.body):
        return None
    about = (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".")
    return Workload(name=file.stem.replace("_", "-"), about=about, script=file)


def _workload(name: str, table: dict[str, Any], folder: Path) -> Workload:
    script = table.get("script")
    return Workload(
        name=name,
        about=str(table.get("about", "")),
        script=folder / str(script) if script else None,
        stages=tuple(table.get("stages", ())),
        inherit=bool(table.get("inherit", True)),
        closing=str(table.get("closing", "")),
        command=str(table.get("command", "")),
        command_help=str(table.get("command_help", "")),
        recognised_by=str(table.get("recognised_by", "")),
        subject=str(table.get("subject", "")),
        score_kind=str(table.get("score_kind", "")),
        ready=str(table.get("ready", "")),
        extra=str(table.get("extra", "")),
        needs=tuple(table.get("needs", ())),
        environment=tuple((str(key), str(value)) for key, value in table.get("environment", {}).items()),
        presets=tuple(table.get("presets", ())),
        score=_score(table.get("score")),
    )


def _score(said: dict[str, Any] | None) -> tuple[float, str, str] | None:
    return (float(said["value"]), str(said["metric"]), str(said["basis"])) if said else None


def find(name: str) -> Workload | None:
    """The workload of this name, or None."""
    return all_workloads().get(name)


def names() -> list[str]:
    """What `holdfast train` can be given besides a script."""
    return list(all_workloads())


def named_by(script: Path) -> str | None:
    """The name whose script this file is: a run of it is called by that name."""
    if not any(place in script.parents for place in (ROOT, *additions.folders())):
        return None
    return next((each.name for each in all_workloads().values() if each.script == script), None)


def environment_of(script: Path) -> dict[str, str]:
    """What the workload whose script this is wants in its environment; empty for a user's own."""
    name = named_by(script)
    return dict(all_workloads()[name].environment) if name else {}


def commands() -> dict[str, Workload]:
    """The workloads that bring tools of their own, by the name of the command."""
    return {name: each for name, each in all_workloads().items() if each.command}


def subjects() -> dict[str, str]:
    """The file that tells a workload's run, and the module that makes it a subject of `holdfast optimize`."""
    return {each.recognised_by: each.subject for each in all_workloads().values() if each.recognised_by}


def scorers() -> dict[str, str]:
    """The kinds of score that workloads compute, and the module of each."""
    return {each.score_kind: each.subject for each in all_workloads().values() if each.score_kind}
