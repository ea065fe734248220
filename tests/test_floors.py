"""The floors of the house: a file's folder says in which process it runs, and imports point one way.

Every import counts, those inside of functions and those for type checkers too. What a string names is no import:
processes are started by the name of their module, and workloads are found by their `workload.toml`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

HOME = Path(holdfast.__file__).parent
FLOORS = (
    "base", "faults", "run", "console", "devices", "state", "record", "data", "injection", "worker", "probes",
    "supervisor", "distributed", "integrations", "planning", "optimize", "serving", "monitor", "programs", "testing",
    "verification", "workloads", "cli",
)  # fmt: skip
"""From the ground up: a floor imports only from itself and from floors before it. docs/architecture.md says why."""
NO_TORCH = (
    "base", "faults", "run", "console", "devices", "record", "supervisor", "monitor", "programs", "cli", "verification"
)  # fmt: skip
"""Floors of processes that no driver may take down: torch cannot be reached from them when they are imported."""
SCRIPTS = ("holdfast.verification.proof",)
"""Files of theirs that are run by workers, and never imported."""
PUBLIC = (
    "holdfast",
    "holdfast.console",
    "holdfast.base",
    "holdfast.run",
    "holdfast.planning.measure",
    "holdfast.optimize",
)
"""What a workload may use besides its own folder: the names a user has, and what its commands print and read with."""

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    found = {}
    for path in HOME.rglob("*.py"):
        parts = ["holdfast", *path.relative_to(HOME).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(name: str, tree: ast.AST) -> Iterator[str]:
    """The modules of ours that these statements import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)


@functools.cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@functools.cache
def graph(*, at_import: bool = False) -> Graph:
    """Who imports whom; `at_import`: only what runs when the module is imported."""
    found: Graph = {}
    for name in MODULES:
        tree = parsed(name)
        found[name] = set(imported(name, _outside_of_functions(tree) if at_import else tree)) - {name}
    return found


def _outside_of_functions(tree: ast.Module) -> ast.Module:
    kept = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    kept = [node for node in kept if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    return ast.Module(kept, [])


def floor(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_folder_is_a_floor() -> None:
    assert {floor(name) for name in MODULES} - {"", "__main__"} == set(FLOORS)


def test_no_import_points_up() -> None:
    height = {name: number for number, name in enumerate(FLOORS)}
    up = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if floor(name) in height and floor(target) in height and height[floor(target)] > height[floor(name)]
    ]
    assert up == []


def test_modules_import_each_other_in_no_circle() -> None:
    """Between floors that follows from the order. Inside of one, what two files share lies in a third below both."""
    every = graph()
    done: set[str] = set()
    circles: list[str] = []

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            circles.append(" -> ".join([*way[way.index(name) :], name]))
        elif name not in done:
            for target in sorted(every[name]):
                visit(target, [*way, name])
            done.add(name)

    for name in sorted(every):
        visit(name, [])
    assert circles == []


def test_only_tests_use_what_is_for_tests() -> None:
    users = [name for name, targets in graph().items() if any(floor(target) == "testing" for target in targets)]
    assert [name for name in users if floor(name) not in ("testing", "verification", "cli")] == []


def test_only_the_command_line_knows_workloads() -> None:
    users = [name for name, targets in graph().items() if any(floor(target) == "workloads" for target in targets)]
    assert [name for name in users if floor(name) != "workloads"] == []


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_what_watches_cannot_reach_torch(name: str) -> None:
    now = graph(at_import=True)
    heavy = {module for module in MODULES if _imports(module, name)}
    found = []
    for start in MODULES:
        if floor(start) not in NO_TORCH or start in SCRIPTS:
            continue
        seen, waiting = set(), [start]
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting += now[at]
        found += [f"{start} reaches {name} through {each}" for each in sorted(seen & heavy)]
    assert found == []


def _imports(name: str, package: str) -> bool:
    tree = _outside_of_functions(parsed(name))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(each.partition(".")[0] == package for each in names):
            return True
    return False


def test_workloads_use_public_names() -> None:
    strange = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        if floor(name) == "workloads"
        for target in targets
        if floor(target) != "workloads"
        and not any(target == each or target.startswith(f"{each}.") for each in PUBLIC[1:])
        and target != "holdfast"
    ]
    assert strange == []
