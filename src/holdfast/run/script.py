"""A training script looked at without running it: is it Python, has it `train(session)`, which arguments?

    facts = read(path)                      # UserError: not found, not Python, no train(session)
    check_arguments(facts, {"lr": "3e-4"})  # UserError with a suggestion for a key that does not exist

The supervisor checks this before torch is imported, so a typo costs milliseconds.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError


@dataclass(frozen=True, slots=True)
class Facts:
    """What reading the source tells."""

    path: Path
    parameters: tuple[str, ...]
    """Keyword parameters of `train` besides the session."""
    open_ended: bool
    """`train` takes any keyword, or was not defined here and cannot be read: the worker will check."""
    imports: tuple[str, ...]
    """Top-level modules it imports, for the nursery to have ready."""
    required: tuple[str, ...] = ()
    """Of the parameters those without a default."""


def read(path: Path) -> Facts:
    """Parse the script; UserError if it cannot be a training script."""
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise _not_found(path) from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a script") from None
    except OSError as error:
        raise UserError(f"cannot read {path}", cause=str(error.strerror or error)) from None
    try:
        tree = ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        hints = ["`holdfast train` takes a Python script with a function `train(session)`"]
        raise UserError(f"{path} is not Python", cause=line, hints=hints) from None
    return _facts(path, tree)


def _facts(path: Path, tree: ast.Module) -> Facts:
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train"), None)
    imports = tuple(sorted(set(_imports(tree.body))))
    if function is not None:
        arguments = function.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        if not names:
            raise UserError(
                f"`train` in {path} has no `session` argument",
                cause=f"line {function.lineno}: def train()",
                hints=["write `def train(session: holdfast.Session) -> None:`"],
            )
        keywords = (*names[1:], *(argument.arg for argument in arguments.kwonlyargs))
        by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        needed = [argument.arg for argument, default in by_name if default is None]
        required = (*names[1 : len(names) - len(arguments.defaults)], *needed)
        if function.decorator_list:  # which may give them
            required = ()
        return Facts(path, keywords, arguments.kwarg is not None, imports, required)
    if not _binds_train(tree.body):
        raise no_train(path, _as_it_is(path, imports))
    return Facts(path, (), True, imports)


def no_train(path: Path, *more: str) -> UserError:
    """`more` are hints that only the source shows."""
    return UserError(
        f"{path} has no `train(session)`",
        cause="holdfast calls this function to train",
        hints=["put the training loop into `def train(session: holdfast.Session) -> None:`", *more],
    )


def _as_it_is(path: Path, imports: Iterable[str]) -> str:
    """How a script is run that was written for no holdfast."""
    several = [name for name in imports if name.startswith(_FOR_SEVERAL)]
    command = f"torchrun --nproc-per-node 2 {path}" if several else f"python {path}"
    return f"`holdfast run -- {command}` runs it as it is, and restarts it from its own checkpoints"


_FOR_SEVERAL = ("torch.distributed", "torch.nn.parallel", "torch.utils.data.distributed", "accelerate")
"""Modules of scripts that several processes run."""


def _not_found(path: Path) -> UserError:
    near = []
    if path.parent.is_dir():
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
        near = difflib.get_close_matches(path.name, names, n=1)
    hints = [f"a similar file exists: `{path.parent / near[0]}`"] if near else []
    return UserError(f"no script `{path}`", cause="the file does not exist", hints=hints)


def _binds_train(body: Iterable[ast.AST]) -> bool:
    """True if `train` may come to be in a way that only running the script shows: import, assignment, class."""
    return any(_binds(node) for node in body)


def _binds(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) in ("train", "*") for alias in node.names)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Name) and target.id == "train" for target in targets)
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return node.name == "train"
    return isinstance(node, (ast.If, ast.Try, ast.With)) and _binds_train(ast.iter_child_nodes(node))


def _imports(body: Iterable[ast.stmt]) -> Iterable[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def check_arguments(facts: Facts, arguments: dict[str, str]) -> None:
    """Every key must be a keyword parameter of the script's `train`."""
    missing = [name for name in facts.required if name not in arguments]
    if missing:
        raise UserError(
            f"`train` in {facts.path.name} needs {', '.join(missing)}",
            cause="holdfast calls it with the session alone, and with what was given as key=value",
            hints=[
                f"give a value, `{missing[0]}=…`, or a default in `def train(session, …)`",
                "if it is another function, rename it, and write a `train(session)` that calls it",
                _as_it_is(facts.path, facts.imports),
            ],
        )
    for key in arguments:
        if facts.open_ended or key in facts.parameters:
            continue
        close = difflib.get_close_matches(key, facts.parameters, n=1)
        known = ", ".join(facts.parameters) or "none"
        hints = [f"a similar setting exists: `{close[0]}`"] if close else []
        raise UserError(
            f"unknown setting `{key}`",
            cause=f"`train` in {facts.path.name} takes: {known}",
            hints=[*hints, "settings of holdfast itself have a dot: `holdfast config` lists them"],
        )


def convert(key: str, text: str, default: Any) -> Any:
    """Read a word the way the parameter's default suggests."""
    if isinstance(default, bool):
        lowered = text.lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise _bad(key, text, "true or false", default)
    for kind, name in ((int, "a whole number"), (float, "a number")):
        if isinstance(default, kind):
            try:
                return kind(text)
            except ValueError:
                raise _bad(key, text, name, default) from None
    if isinstance(default, str):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _bad(key: str, text: str, wanted: str, default: Any) -> UserError:
    return UserError(
        f"{key} is {text!r}, but it takes {wanted}",
        cause=f"its default in `train` is {default!r}",
        hints=[f"for example `{key}={default}`"],
    )


def packaged_name(path: Path) -> str | None:
    """The dotted name of a script that is part of holdfast itself; None for a user's."""
    root = Path(__file__).parent.parent
    if root / "workloads" not in path.parents:
        return None
    return ".".join(["holdfast", *path.relative_to(root).with_suffix("").parts])


def module_name(path: Path) -> str:
    """The name under which the script is imported; loader processes find its classes by it."""
    stem = "".join(char if char.isalnum() else "_" for char in path.stem)
    taken = stem in sys.stdlib_module_names or stem in ("torch", "numpy", "holdfast") or keyword.iskeyword(stem)
    return stem if stem.isidentifier() and not taken else f"script_{stem}"
