#!/usr/bin/env python3
"""Figures of the house: how many rooms, how they are named, and which way imports point.

    python scripts/house.py                       # this tree
    python scripts/house.py --of ../older --json  # another one

Code lines are those without blanks, comments and docstrings. An import counts wherever it stands, in a function too.
Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / "src" / "holdfast").rglob("*.py")):
        parts = list(path.relative_to(root / "src").with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else str(node.module) for name in names}
    return found & set(known)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each reaches each: Tarjan's strongly connected components with more than one."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in graph:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        stack.append(start)
        work = [(start, iter(sorted(graph[start])))]
        while work:
            name, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    group = []
                    while not group or group[-1] != name:
                        group.append(stack.pop())
                    if len(group) > 1:
                        found.append(sorted(group))
    return found


def lines_of(path: Path) -> tuple[int, int]:
    """Code lines and comment lines."""
    text = path.read_text(encoding="utf-8")
    code: set[int] = set()
    comments: set[int] = set()
    quiet = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in quiet:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for each in body:  # a string that stands alone documents what is above it
                if (
                    isinstance(each, ast.Expr)
                    and isinstance(each.value, ast.Constant)
                    and isinstance(each.value.value, str)
                ):
                    code -= set(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return len(code), len(comments)


def floors(root: Path) -> tuple[str, ...]:
    """The order of the floors, as the test has it; nothing for a tree without one."""
    path = root / "tests" / "test_floors.py"
    if path.exists():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FLOORS":
                return tuple(ast.literal_eval(node.value))
    return ()


def figures(root: Path) -> dict[str, Any]:
    known = modules(root)
    graph = {name: imports(path, known) - {name} for name, path in known.items()}
    users = Counter(target for targets in graph.values() for target in targets)
    counts = {name: lines_of(path) for name, path in known.items()}
    code, comments = sum(each[0] for each in counts.values()), sum(each[1] for each in counts.values())
    rooms = {name: path for name, path in known.items() if path.name != "__init__.py"}
    stems = Counter(path.stem for path in rooms.values())
    height = {name: number for number, name in enumerate(floors(root))}

    def floor(name: str) -> str:
        return name.split(".")[1] if "." in name else ""

    up = [
        (name, target)
        for name, targets in graph.items()
        for target in targets
        if height.get(floor(target), -1) > height.get(floor(name), len(height))
    ]
    return {
        "files": len(known),
        "code_lines": code,
        "comment_share": round(comments / (code + comments), 4),
        "files_with_one_importer": sum(users[name] == 1 for name in rooms),
        "files_under_60_lines": sum(len(path.read_text(encoding="utf-8").splitlines()) < 60 for path in rooms.values()),
        "names_ending_in_ing": sum(stem.endswith("ing") for stem in (path.stem for path in rooms.values())),
        "names_used_twice": sum(count > 1 for count in stems.values()),
        "circles": len(circles(graph)),
        "upward_arrows": len(up) if height else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=Path, default=ROOT, metavar="FOLDER", help="a checkout (default: this one)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--circles", action="store_true", help="name the modules of each circle")
    words = parser.parse_args()
    if words.circles:
        known = modules(words.of)
        for group in circles({name: imports(path, known) - {name} for name, path in known.items()}):
            print(" ".join(group))
        return
    found = figures(words.of)
    if words.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<26}{'-' if value is None else value}")


if __name__ == "__main__":
    main()
