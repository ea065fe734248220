#!/usr/bin/env python3
"""Write docs/reference.md from the code: what `import holdfast` offers, every command with its flags, exit codes.

python scripts/make_reference.py             write it
python scripts/make_reference.py --check     exit 1 if it is out of date

The API is read from the source, not imported: no torch is needed, and no version of it changes the page.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pages import ROOT, keep

import holdfast
import holdfast.testing
from holdfast.base.errors import ExitCode
from holdfast.cli import main as cli
from holdfast.console.usage import One, Parser

HEAD = """\
<!-- Made by scripts/make_reference.py from the code: edit there, not here. -->
# Reference

[CONTRIBUTING](../CONTRIBUTING.md#what-stays-as-it-is) says what of this stays as it is. Not listed here:
[settings](settings.md), [faults](faults.md), [findings](findings.md), [the run folder and JSON](run-folder.md).

| | |
|---|---|
| [Python](#python) | `import holdfast` |
| [Commands](#commands) | `holdfast …` |
| [Exit codes](#exit-codes) | of every command |
| [Variables](#variables) | of the environment |
"""

_ORDER = ("main", "train", "find", "TrainingRun", "Session", "Loader", "Loss", "Run", "attach", "watch")
_OUTPUT = (
    "--json",
    "-q",
    "--quiet",
    "-v",
    "--verbose",
    "--color",
    "--ascii",
    "--plain",
    "--no-progress",
    "-h",
    "--help",
)
"""Flags that every command has; they are told once."""
_INTERNAL = {
    "Session": ("begin_with",),
    "Loader": ("on_event", "on_wait", "be_patient", "batches", "leave_out", "may_leave_out", "advance", "finish_epoch"),
}
"""What our own code calls on objects that users have, too."""
_VARIABLES = {
    "HOLDFAST_SECTION_KEY": "a [setting](settings.md): `HOLDFAST_WATCHDOG_FLOOR=10s` is `watchdog.floor`",
    "HOLDFAST_PORTABLE": "1: only what macOS and Windows have too; `run.portable`",
    "HOLDFAST_UNSUPERVISED": "1: `python my_script.py` trains in the process itself",
    "HOLDFAST_STATE": "where the ledger, the verdicts and the key of this user are kept",
    "HOLDFAST_ADD": "folders: [faults, probes, remedies, workloads, engines](../CONTRIBUTING.md#how-to-add-something)",
    "HOLDFAST_KNOWLEDGE": "a newer file of [what is known about cards](doctor.md#what-is-known)",
    "HOLDFAST_REMEDIES": "switches that a worker starts with: set by the doctor's verdict, or by hand to try one",
    "HOLDFAST_CHAOS": "a file with faults to inject: set by `holdfast chaos`",
    "HOLDFAST_SERVE_TOKEN": "the token of `holdfast serve`, at least 16 characters",
    "HOLDFAST_EEG_DEMO, HOLDFAST_EEG_WINDOWS": "where simulated EEG data and windows of `eeg-classify` are kept",
    "HOLDFAST_DETECTION_CACHE": "where the cache of detection is kept",
    "NO_COLOR, FORCE_COLOR": "turn colours off or on; `--color` comes first",
}


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_python(), *_commands(), *_codes(), *_variables()])


# Python -------------------------------------------------------------------------------------------------------------


def _python() -> Iterator[str]:
    yield "## Python"
    yield ""
    yield "`import holdfast` imports no torch and changes nothing in the process."
    yield ""
    names = [*_ORDER, *(name for name in holdfast.__all__ if name not in _ORDER and not name.startswith("_"))]
    for name in names:
        yield from _entry("holdfast", name, _module_of(name))
    yield "### holdfast.testing"
    yield ""
    yield "Faults on purpose; [chaos.md](chaos.md) shows how they are used."
    yield ""
    for name in holdfast.testing.__all__:
        if name == "KINDS":
            listed = ", ".join(f"`{kind}`" for kind in holdfast.testing.KINDS)
            yield f"`KINDS`: every fault the kit can make: {listed}."
            yield ""
        else:
            yield from _entry("holdfast.testing", name, "holdfast.injection.chaos", level=4)


def _module_of(name: str) -> str:
    return holdfast._LAZY.get(name, "holdfast.base.errors")


def _entry(package: str, name: str, module: str, level: int = 3) -> Iterator[str]:
    tree = ast.parse((ROOT / "src" / Path(*module.split(".")).with_suffix(".py")).read_text(encoding="utf-8"))
    node = next(each for each in tree.body if getattr(each, "name", None) == name)
    yield f"{'#' * level} {package}.{name}"
    yield ""
    if isinstance(node, ast.FunctionDef):
        yield from _block(_signature(node))
        yield from _doc(node)
        return
    assert isinstance(node, ast.ClassDef)
    if name == "ExitCode":
        yield "See [exit codes](#exit-codes)."
        yield ""
        return
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    made = next((each for each in methods if each.name == "__init__" and name != "Session"), None)
    if made is not None:
        yield from _block(_signature(made, instead=name))
    yield from _doc(node)
    yield from _fields(node)
    for method in methods:
        hidden = method.name.startswith("_") or method.name in _INTERNAL.get(name, ())
        if not hidden and not _is_setter(method):
            yield from _method(method)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Of a class that is a record: each with the text under it."""
    for at, each in enumerate(node.body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_"):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield from _named(f".{each.target.id}: {ast.unparse(each.annotation)}", str(said))


def _method(node: ast.FunctionDef) -> Iterator[str]:
    said = [_name_of(each) for each in node.decorator_list]
    text = ast.get_docstring(node) or ""
    returns = f": {ast.unparse(node.returns)}" if node.returns else ""
    shown = f".{node.name}{returns}" if "property" in said else f".{_signature(node)}"
    yield from _named(shown, text)


def _named(shown: str, text: str) -> Iterator[str]:
    yield f"**`{shown}`**  " if text else f"**`{shown}`**"
    yield from filter(None, [" ".join(text.split())])
    yield ""


def _name_of(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _is_setter(node: ast.FunctionDef) -> bool:
    return any(_name_of(each) == "setter" for each in node.decorator_list)


def _signature(node: ast.FunctionDef, instead: str = "") -> str:
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    for group in (arguments.args.posonlyargs, arguments.args.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
            break
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and not instead else ""
    return f"{instead or node.name}({ast.unparse(arguments.args)}){returns}"


def _block(text: str) -> Iterator[str]:
    yield "```text"
    yield from _wrapped(text)
    yield "```"
    yield ""


def _wrapped(text: str, width: int = 110) -> Iterator[str]:
    """A signature that is too long for a line: an argument a line."""
    if len(text) <= width:
        yield text
        return
    head, _, rest = text.partition("(")
    inside, _, tail = rest.rpartition(")")
    yield f"{head}("
    depth, word = 0, ""
    for sign in inside:
        depth += (sign in "[({") - (sign in "])}")
        if sign == "," and depth == 0:
            yield f"    {word.strip()},"
            word = ""
        else:
            word += sign
    yield f"    {word.strip()},"
    yield f"){tail}"


def _doc(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """The docstring; what is indented in it stays as it is."""
    for part in re.split(r"\n\n+", ast.get_docstring(node) or ""):
        if not part:
            continue
        if part.startswith("    "):
            yield "```text"
            yield inspect.cleandoc(part)
            yield "```"
        else:
            yield part
        yield ""


# Commands -----------------------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "## Commands"
    yield ""
    yield "Every command has `--help` with examples, and these flags: `--json` (one object on stdout; not `serve` and"
    yield "`completion`), `-q`, `-v`, `--color auto|always|never`, `--ascii`. Commands that train or take long also"
    yield "have `--no-progress`; those that train or list have `--plain`."
    yield ""
    for name in cli.commands():
        yield f"### holdfast {name}"
        yield ""
        parser: Parser = cli.maker(name)(One())
        yield "```text"
        yield (parser.description or parser.format_help()).strip()
        yield "```"
        yield ""
        for tool in parser.tools():  # of a command that is a family of tools
            yield f"#### holdfast {name} {tool}"
            yield ""
            yield from _arguments(parser.tool(tool))
        if not parser.tools():
            yield from _arguments(parser)


def _arguments(parser: Parser) -> Iterator[str]:
    rows = [action for action in parser._actions if not set(action.option_strings) & set(_OUTPUT)]
    rows = [action for action in rows if action.help != argparse.SUPPRESS]
    if not rows:
        return
    yield "| argument | |"
    yield "|---|---|"
    for action in rows:
        yield f"| `{_cell(_argument(action))}` | {_cell(action.help or '')} |"
    yield ""


def _argument(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return value
    if action.choices and action.metavar is None:
        value = "|".join(map(str, action.choices))
    takes = f" {value}" if action.nargs != 0 else ""
    return ", ".join(action.option_strings) + takes


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%")


# The rest -----------------------------------------------------------------------------------------------------------


def _codes() -> Iterator[str]:
    yield "## Exit codes"
    yield ""
    yield "`holdfast.ExitCode`; `holdfast run` passes on the script's own code where the script itself decided to stop."
    yield ""
    yield "| code | name | meaning |"
    yield "|---|---|---|"
    tree = ast.parse((ROOT / "src" / "holdfast" / "base" / "errors.py").read_text(encoding="utf-8"))
    body = next(node for node in tree.body if getattr(node, "name", "") == "ExitCode").body  # type: ignore[attr-defined]
    for code in ExitCode:
        at = next(i for i, each in enumerate(body) if isinstance(each, ast.Assign) and each.targets[0].id == code.name)
        yield f"| {int(code)} | `{code.name}` | {ast.literal_eval(body[at + 1].value)} |"
    yield ""


def _variables() -> Iterator[str]:
    yield "## Variables"
    yield ""
    yield "| variable | |"
    yield "|---|---|"
    for name, text in _VARIABLES.items():
        yield f"| `{name}` | {text} |"
    yield ""


if __name__ == "__main__":
    sys.exit(keep("reference.md", render(), sys.argv[1:]))
