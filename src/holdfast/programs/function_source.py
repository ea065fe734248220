"""A function of a notebook as a script that a worker can import: its source, and that of all it uses.

made = script_of(train)              # Made(text, values, name); UserError for what cannot be taken along
made.text                            # imports, values, functions and classes, in this order; `train` at the end

The worker is another process, and after a fault yet another one: it cannot see the objects of the notebook. So what
`train` uses is written down: modules are imported, functions and classes of the notebook are copied as source, and
plain values and arrays are written as they are now. Anything else is an error that names it. Nothing is pickled.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import inspect
import linecache
import os
import site
import symtable
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import UserError
from holdfast.programs.plain_values import FILE, Arrays, literal

_FROM_CELLS = ("<ipython-input-", "<stdin>", "<python-input-")
_LINE = 100_000
"""Characters of a value that is written into the script; a longer one belongs into a file."""


@dataclass(frozen=True, slots=True)
class Made:
    """A script, before it is a file."""

    text: str
    values: bytes | None
    """The arrays it loads, as safetensors; None if there are none."""


def script_of(function: Callable[..., None]) -> Made:
    """The script that trains with this function."""
    return _Writer(_checked(function)).made()


def _checked(function: object) -> types.FunctionType:
    if not isinstance(function, types.FunctionType):
        raise UserError(
            f"holdfast.train takes a function, not {_called(function)}",
            hints=["write `def train(session, epochs=3): …` and call `holdfast.train(train, epochs=5)`"],
        )
    if function.__name__ == "<lambda>" or "<locals>" in function.__qualname__:
        raise UserError(
            f"`{function.__qualname__}` cannot be taken to a worker",
            cause="it is defined inside of another function, and a worker could not find it again",
            hints=["define it with `def` at the left margin of a cell or module"],
        )
    if not list(inspect.signature(function).parameters):
        raise UserError(
            f"`{function.__name__}` has no `session` argument",
            hints=[f"write `def {function.__name__}(session): …`"],
        )
    return function


class _Writer:
    """Collects what a function uses, what it needs first."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._imports: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self._values: list[str] = []
        self._blocks: list[str] = []
        self._arrays = Arrays()
        self._bound: dict[str, object] = {}
        self._written: set[int] = set()
        self._future = False

    def made(self) -> Made:
        function = self._function
        if _importable(function):
            self._bind_module(function.__module__)
            self._imports[f"from {function.__module__} import {function.__name__} as train"] = None
        else:
            self._write(function.__name__, function, "holdfast.train")
            if function.__name__ != "train":
                self._take("train", function, "holdfast.train")
        return Made(self._text(), self._arrays.data() if self._arrays else None)

    def _text(self) -> str:
        parts = ['"""Written by holdfast.train: what a worker imports. A change here does not change the notebook."""']
        if self._future:
            parts.append("from __future__ import annotations")
        if self._folders:
            folders = ", ".join(repr(folder) for folder in self._folders)
            parts.append(f"import sys\n\nsys.path[1:1] = [{folders}]  # where its modules are")
        if self._imports:
            parts.append("\n".join(self._imports))
        if self._arrays:
            parts.append(
                "import pathlib as _pathlib\nfrom safetensors.torch import load_file as _load_file\n\n"
                f"_values = _load_file(_pathlib.Path(__file__).with_name({FILE!r}))"
            )
        if self._values:
            parts.append("\n".join(self._values))
        return "\n\n".join([*parts, *(f"\n{block}" for block in self._blocks)]) + "\n"

    # -- names ---------------------------------------------------------------------------------------------

    def _take(self, name: str, value: object, user: str) -> None:
        """Make the script have `value` under `name`."""
        if name in self._bound:
            if self._bound[name] is not value:
                raise _clash(name)
            return
        if isinstance(value, types.ModuleType):
            self._bound[name] = value
            self._import_module(name, value)
        elif isinstance(value, (types.FunctionType, type)) or hasattr(value, "__wrapped__"):
            self._write(name, value, user)
        elif _importable(value):
            self._bound[name] = value
            self._import_from(name, value)
        elif (place := _kept_by(name, value)) is not None:
            self._bound[name] = value
            self._imports[f"from {place} import {name}"] = None
        else:
            self._bound[name] = value
            self._value(name, value, user)

    def _write(self, name: str, value: Any, user: str) -> None:
        """A function or a class: imported where it can be, copied as source where it is of the notebook."""
        own = getattr(value, "__name__", name)
        if _importable(value):
            self._bound[name] = value
            self._import_from(name, value)
            return
        if id(value) not in self._written:
            self._written.add(id(value))
            if own in self._bound and self._bound[own] is not value:
                raise _clash(own)
            self._bound[own] = value
            text = _source(value, user)
            space = _globals(value)
            for used, chain in _uses(text):
                if used in space and used != own:
                    self._take(used, space[used], f"`{own}`")
                    self._import_parts(space[used], chain)
            inner = inspect.unwrap(value) if callable(value) else value
            if getattr(getattr(inner, "__code__", None), "co_flags", 0) & __future__.annotations.compiler_flag:
                self._future = True
            _check_closure(inner, own)
            _check_defaults(inner, text, space)
            self._blocks.append(text.rstrip() + "\n")
        if own != name:
            self._bound[name] = value
            self._blocks.append(f"{name} = {own}\n")

    def _value(self, name: str, value: object, user: str) -> None:
        text = literal(value)
        if text is not None and len(text) <= _LINE:
            self._values.append(f"{name} = {text}")
            return
        line = self._arrays.add(name, value)
        if line is None:
            raise _cannot(name, value, user, long=text is not None)
        self._values.append(line)

    # -- imports -------------------------------------------------------------------------------------------

    def _import_module(self, name: str, module: types.ModuleType) -> None:
        full = module.__name__
        self._bind_module(full)
        top = full.partition(".")[0]
        self._imports[f"import {full}" if name == full == top else f"import {full} as {name}"] = None

    def _import_parts(self, value: object, chain: tuple[str, ...]) -> None:
        """`import torch.utils.data` binds `torch` alone: the parts that the code goes through are imported too."""
        if not isinstance(value, types.ModuleType):
            return
        full = value.__name__
        for part in chain:
            full = f"{full}.{part}"
            if not isinstance(sys.modules.get(full), types.ModuleType):
                return
            self._imports[f"import {full}"] = None

    def _import_from(self, name: str, value: Any) -> None:
        self._bind_module(value.__module__)
        own = value.__qualname__
        alias = "" if own == name else f" as {name}"
        self._imports[f"from {value.__module__} import {own}{alias}"] = None

    def _bind_module(self, full: str) -> None:
        """Where the notebook found a module that is installed nowhere, the worker finds it as well."""
        top = sys.modules.get(full.partition(".")[0])
        places = [str(top.__file__)] if top is not None and getattr(top, "__file__", None) else []
        places = places or [os.path.join(each, "-") for each in getattr(top, "__path__", [])][:1]
        for file in places:
            folder = os.path.dirname(os.path.abspath(file))
            if hasattr(top, "__path__"):
                folder = os.path.dirname(folder)
            if not _installed(folder):
                self._folders[folder] = None


# Sources --------------------------------------------------------------------------------------------------


def _source(value: Any, user: str) -> str:
    """The text of a function or class of the notebook, decorators included."""
    inner = inspect.unwrap(value) if callable(value) else value
    if getattr(inner, "__name__", "") == "<lambda>":
        raise UserError(
            f"{user} uses a lambda of this notebook, which has no source of its own",
            hints=["write it with `def`"],
        )
    try:
        return textwrap.dedent(_class_source(inner) if isinstance(inner, type) else inspect.getsource(inner))
    except (OSError, TypeError, SyntaxError) as error:
        name = getattr(inner, "__qualname__", str(inner))
        raise UserError(
            f"{user} uses `{name}`, and its source cannot be found",
            cause=str(error),
            hints=["run the cell that defines it once more, or put it into a module and import it"],
        ) from None


def _class_source(cls: type) -> str:
    """`inspect` does not find the classes of a notebook: the newest cell that defines one of this name has it."""
    files = dict.fromkeys(_files_of(cls))
    for name in [*files, *reversed([each for each in linecache.cache if _is_cell(each)])]:
        text = "".join(linecache.getlines(name))
        node = _defined(text, cls.__name__)
        if node is not None:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return inspect.getsource(cls)


def _files_of(cls: type) -> Iterator[str]:
    for value in vars(cls).values():
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        code = getattr(inner, "__code__", None)
        if code is not None and getattr(inner, "__module__", None) == cls.__module__ and code.co_filename != "<string>":
            yield code.co_filename


def _is_cell(name: str) -> bool:
    return name.startswith(_FROM_CELLS) or "ipykernel_" in name


def _defined(text: str, name: str) -> ast.ClassDef | None:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    return found[-1] if found else None


def _globals(value: Any) -> dict[str, Any]:
    inner = inspect.unwrap(value) if callable(value) else value
    found = getattr(inner, "__globals__", None)
    return found if found is not None else vars(sys.modules[inner.__module__])


def _uses(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Names from outside that this code uses, each with the attributes that follow it: `torch`, ("utils", "data")."""
    names = set(_outer(symtable.symtable(text, "<notebook>", "exec")))
    found: dict[tuple[str, tuple[str, ...]], None] = {}
    for node in ast.walk(ast.parse(text)):
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in names:
            found[node.id, tuple(chain)] = None
    return [*found, *((name, ()) for name in sorted(names - {name for name, _ in found}))]


def _outer(table: symtable.SymbolTable) -> Iterator[str]:
    at_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if (at_top and symbol.is_referenced() and not symbol.is_assigned()) or (not at_top and symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _outer(inner)


# What it is -----------------------------------------------------------------------------------------------


def _importable(value: Any) -> bool:
    """True if another process gets this very object by importing its module."""
    name, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(name, str) or name == "__main__" or not isinstance(own, str) or not own.isidentifier():
        return False
    return getattr(sys.modules.get(name), own, None) is value and _has_file(name)


def _kept_by(name: str, value: object) -> str | None:
    """The module that has it under this name: for functions in C that do not know theirs, as `torch.relu`.

    Only for what cannot change: an object of a module may have been changed in the notebook since it was imported.
    """
    kind = type(value)
    fixed = isinstance(value, types.BuiltinFunctionType) or (kind.__module__, kind.__name__) == ("numpy", "ufunc")
    if not fixed and kind.__module__ != "typing":
        return None
    having = [key for key, module in list(sys.modules.items()) if getattr(module, "__dict__", {}).get(name) is value]
    public = [key for key in having if key != "__main__" and "._" not in key and _has_file(key)]
    return min(public, key=lambda key: (key.count("."), len(key)), default=None)


def _has_file(name: str) -> bool:
    """False for a module that was made by hand, as a test or a plug-in does."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _installed(folder: str) -> bool:
    """Where every Python of this environment looks, or the user's own PYTHONPATH."""
    places = [*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()]
    places += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    real = os.path.realpath(folder)
    return any(place and real == os.path.realpath(place) for place in places)


def _check_closure(inner: Any, name: str) -> None:
    if getattr(inner, "__closure__", None):
        raise UserError(
            f"`{name}` cannot be taken to a worker",
            cause=f"it uses {', '.join(inner.__code__.co_freevars)} of the function around it",
            hints=["make these arguments of it"],
        )


_SIMPLE = (
    ast.expr_context, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp,
    ast.Tuple, ast.List, ast.Dict,
)  # fmt: skip
"""A default made of these alone can be computed again to look at it: it calls nothing."""


def _check_defaults(inner: Any, text: str, space: dict[str, Any]) -> None:
    """`def train(session, lr=LR)` took LR when its cell ran, and the worker would take the LR of now."""
    tree = ast.parse(text).body[0]
    if not isinstance(inner, types.FunctionType) or not isinstance(tree, ast.FunctionDef):
        return
    has = {name: each.default for name, each in inspect.signature(inner, follow_wrapped=False).parameters.items()}
    arguments = [*tree.args.posonlyargs, *tree.args.args]
    nodes = dict(zip([each.arg for each in arguments][::-1], tree.args.defaults[::-1], strict=False))
    nodes |= {each.arg: node for each, node in zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True) if node}
    for name, node in nodes.items():
        if all(isinstance(each, _SIMPLE) for each in ast.walk(node)):
            now = literal(eval(compile(ast.Expression(node), "<notebook>", "eval"), space))
            if now != literal(has[name]):
                raise UserError(
                    f"the default of `{name}` in `{inner.__name__}` was {literal(has[name])} when its cell ran; "
                    f"now `{ast.unparse(node)}` is {now}",
                    hints=["run the cell of the function again"],
                )


def _cannot(name: str, value: object, user: str, *, long: bool) -> UserError:
    why = "it is too long to be written into a script" if long else "only code, plain values and arrays can be copied"
    return UserError(
        f"{user} uses `{name}`, {_called(value)}, which a worker cannot see",
        cause=f"the worker is another process, and after a fault yet another one; {why}",
        hints=[f"make `{name}` inside of the function, or in a function that it calls", "or load it there from a file"],
    )


def _clash(name: str) -> UserError:
    return UserError(
        f"two different things are called `{name}`",
        cause="a name was defined anew after something else had begun to use it",
        hints=["run the cells again from the top, or rename one of them"],
    )


def _called(value: object) -> str:
    kind = type(value)
    plain = kind.__module__ in ("builtins", "__main__")
    name = kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name}" if name[0] not in "aeiouAEIOU" else f"an {name}"
